"""Generators with known faults, which attacks must find or must not; at the top of a module, for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from silosynth.attacks.generators import Catalogued
from silosynth.attacks.shadows import Kept
from silosynth.evaluation.scores import Floats

ROWS = 1000


def table(rows: int, seed: int) -> pd.DataFrame:
    """Records of a population with dependent columns."""
    mix = np.random.default_rng(0).normal(0, 0.4, (10, 10)) + np.eye(10)
    draw = np.random.default_rng(seed)
    columns = {f"x{i}": column for i, column in enumerate((draw.standard_normal((rows, 10)) @ mix).T)}
    region = draw.choice(["east", "north", "west"], rows, p=[0.5, 0.3, 0.2])
    return pd.DataFrame({"age": 50 + 10 * columns.pop("x0"), **columns, "region": region})


@dataclass(frozen=True)
class Copier:
    """Hands out its training rows."""

    rows: int = ROWS

    def __call__(self, train: pd.DataFrame, seed: int) -> pd.DataFrame:
        chosen = np.random.default_rng(seed).integers(len(train), size=self.rows)
        return train.iloc[chosen].reset_index(drop=True)


@dataclass(frozen=True)
class Blind:
    """Knows the population, and never looks at the training rows."""

    rows: int = ROWS

    def __call__(self, train: pd.DataFrame, seed: int) -> pd.DataFrame:
        return table(self.rows, 10_000 + seed)


@dataclass(frozen=True, eq=False)
class Remembering(Catalogued):
    """Silos whose features say which rows they have trained on; or which, blind, say nothing of it."""

    blind: bool = False

    def with_features(
        self, trains: Sequence[tuple[pd.DataFrame, int]], whole: pd.DataFrame
    ) -> list[tuple[pd.DataFrame, Floats]]:
        """Each row's numbers, or noise where it was not among the training rows."""
        numbers = whole.select_dtypes("number")
        found = []
        for train, seed in trains:
            noise = np.random.default_rng(seed).standard_normal(numbers.shape)
            known = numbers.apply(tuple, axis=1).isin(set(train[numbers.columns].apply(tuple, axis=1)))
            kept = np.zeros(len(whole), bool) if self.blind else known.to_numpy()
            found.append((table(len(whole), 10_000 + seed), np.where(kept[:, None], numbers.to_numpy(), noise)))
        return found


def lengths(trains: list[tuple[pd.DataFrame, int]], whole: pd.DataFrame) -> list[Kept]:
    """How many rows each training has, and its seed."""
    return [{"rows": [float(len(train))], "seed": [float(seed)]} for train, seed in trains]
