"""The five tables of VFLGAN's comparison (`silosynth.papers.total_difference`), as two silos hold them.

The first half of the columns, the odd one among them, is one silo's, the rest the other's, as in the public code (red
and white wine 6 and 6, Adult 8 and 7; of Credit and HCV it shows none). Rows with missing values are left out, as in
its Adult. Categories are those that the data set's description declares; the paper has 16 in HCV and does not say
which. Categories that are integers become text of equal length, so that rare ones can be pooled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from silosynth.data import datasets

Target = Literal["classes", "number"]  # how a target of integers is learnt: one-hot, or normalised (appendix A.6)


@dataclass(frozen=True, eq=False)
class Task:
    """A table as two silos hold it.

    Attributes:
        kinds: of its columns, as they are declared to silos.
        categories: columns that are one-hot in the Fréchet distance.
    """

    frame: pd.DataFrame
    target: str
    silos: Mapping[str, list[str]]
    kinds: Mapping[str, Any]
    categories: frozenset[str]


def load(table: str, rows: int | None = None, seed: int = 0, target: Target = "classes", bounds: bool = False) -> Task:
    """A table of the comparison; with ``bounds`` those of its numbers are declared.

    Raises:
        UnavailableError: it is not on this machine and cannot be fetched.
    """
    frame, info = datasets.load(table, return_info=True)
    frame = frame.dropna().reset_index(drop=True)
    if rows is not None and rows < len(frame):
        chosen = np.sort(np.random.default_rng(seed).choice(len(frame), rows, replace=False))
        frame = frame.iloc[chosen].reset_index(drop=True)
    number = target == "number" and pd.api.types.is_integer_dtype(frame[info.target])
    kinds: dict[str, Any] = {**info.kinds, info.target: "integer" if number else "categorical"}
    categories = frozenset(column for column, kind in kinds.items() if kind == "categorical")
    if bounds:
        numbers = [str(column) for column in frame if column not in categories]
        kinds |= {column: _bounded(frame[column], kinds.get(column)) for column in numbers}
    words = {column: _text(frame[column]) for column in categories if frame[column].dtype.kind in "iu"}
    columns = list(frame.columns)
    half = -(-len(columns) // 2)
    silos = {"first": columns[:half], "second": columns[half:]}
    return Task(frame.assign(**words), info.target, silos, kinds, categories)


def _bounded(values: pd.Series[Any], kind: str | None) -> dict[str, Any]:
    """A number column's declaration: its kind, and its least and greatest value."""
    plain = "integer" if values.dtype.kind in "iu" else "continuous"
    return {"kind": kind or plain, "low": values.min().item(), "high": values.max().item()}


def _text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Digits, so many that their order is that of the numbers."""
    words = values.astype(str)
    return words.str.zfill(int(words.str.len().max()))
