"""Generators with known faults, which attacks must find or must not; at the top of a module, for other processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from silosynth.audit.shadows import Kept

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


def lengths(trains: list[tuple[pd.DataFrame, int]], whole: pd.DataFrame) -> list[Kept]:
    """How many rows each training has, and its seed."""
    return [{"rows": [float(len(train))], "seed": [float(seed)]} for train, seed in trains]
