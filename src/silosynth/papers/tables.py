"""The tables of the papers' experiments, and how rows are held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from silosynth.core.errors import DataError, UnavailableError
from silosynth.data import datasets
from silosynth.simulation.federation import Federation, in_order, simulate

HOLDOUT = 0.2  # the papers on tabular GANs hold a fifth out; VT-GAN's does not say
NAMES_OF_PEOPLE = ("surname",)


@dataclass(frozen=True, eq=False)
class TableSplit:
    """A table's training and hold-out rows."""

    train: pd.DataFrame
    holdout: pd.DataFrame
    target: str
    kinds: Mapping[str, Any]  # declared column kinds

    @property
    def columns(self) -> list[str]:
        """All columns, in file order."""
        return list(self.train.columns)


def modelled(name: str) -> pd.DataFrame:
    """A data set without its identifiers and without names of people: nobody synthesises these."""
    frame, info = datasets.load(name, return_info=True)
    return frame.drop(columns=_unwanted(info), errors="ignore")


def _unwanted(info: datasets.Info) -> list[str]:
    return [*NAMES_OF_PEOPLE, *(column for column, kind in info.kinds.items() if kind == "identifier")]


def bounded(values: pd.Series[Any], kind: str | None) -> dict[str, Any]:
    """A number column's declaration: its kind, and its least and greatest value."""
    plain = "integer" if values.dtype.kind in "iu" else "continuous"
    return {"kind": kind or plain, "low": values.min().item(), "high": values.max().item()}


def in_silos(frame: pd.DataFrame, count: int, kinds: Mapping[str, str] | None = None) -> Federation:
    """Neighbouring columns for each of ``count`` silos."""
    return simulate(frame, in_order(list(frame.columns), count), kinds)


def thirds(frame: pd.DataFrame, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A random two thirds for training, the rest held out."""
    order = np.random.default_rng(seed).permutation(len(frame))
    cut = len(frame) * 2 // 3
    return frame.iloc[order[:cut]].reset_index(drop=True), frame.iloc[order[cut:]].reset_index(drop=True)


def load(name: str, rows: int | None, seed: int) -> TableSplit:
    """A data set by name ("demo": the one that needs no network), stratified by its target into two parts.

    Raises:
        DataError: there is no such data set, or its target is a number.
        UnavailableError: it is not on this machine and cannot be fetched.
    """
    if name == "demo":
        demo = datasets.demo()
        return split(demo.frame, demo.target, {}, rows, seed)
    try:
        frame, info = datasets.load(name, return_info=True)
    except UnavailableError as error:
        remedy = f"{error.remedy} Or take the table 'demo', which needs no network."
        raise UnavailableError(error.rule, error.value, remedy) from error
    if info.task == "regression":
        raise DataError("The papers' experiments need a table with classes to predict", name, "Choose another one.")
    dropped = _unwanted(info)
    kinds = {column: kind for column, kind in info.kinds.items() if column not in dropped}
    return split(frame.drop(columns=dropped, errors="ignore"), info.target, kinds, rows, seed)


def split(frame: pd.DataFrame, target: str, kinds: Mapping[str, str], rows: int | None, seed: int) -> TableSplit:
    """``rows`` random rows, of each class a fifth held out.

    Raises:
        DataError: too few rows for two parts.
    """
    order = np.random.default_rng(seed).permutation(len(frame))
    shuffled = frame.iloc[order]
    if rows is not None and rows < len(frame):
        shuffled = shuffled[_evenly(shuffled[target], rows / len(frame))]
    held = _evenly(shuffled[target], HOLDOUT)
    if min(held.sum(), (~held).sum()) < 2:
        raise DataError("Training and hold-out need two rows each", len(shuffled), "Ask for more rows.")
    train, holdout = (part.reset_index(drop=True) for part in (shuffled[~held], shuffled[held]))
    return TableSplit(train, holdout, target, kinds)


def _evenly(classes: pd.Series[Any], share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Marks this share of every class: of the rows sorted by class, each where the running share reaches an integer."""
    codes = pd.factorize(classes, use_na_sentinel=False)[0]
    place = np.empty(len(codes), np.int64)
    place[np.argsort(codes, kind="stable")] = np.arange(len(codes))
    return np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))
