"""One row for each subject of a silo's table, where the table has several: orders of a customer, stays of a patient.

Linking needs one row for each identifier. What a column says of several rows is summed up as ``silo.toml`` declares, in
the order in which subjects appear in the table. A row that lacks an identifier stays a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

import numpy as np
import pandas as pd
from pandas.api import types
from pydantic import Field

from silosynth.core.errors import DataError, nearest

How = Literal["sum", "mean", "min", "max", "count", "most frequent"]
HOWS: tuple[str, ...] = get_args(How)
Summary = How | Annotated[list[How], Field(min_length=1)]
"""How a column is summed up: once, under its own name, or in several ways, each as ``COLUMN_HOW``."""
_ISO = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?"  # dates whose order is that of their characters


def summed_up(frame: pd.DataFrame, identifiers: Sequence[str], summaries: Mapping[str, Summary]) -> pd.DataFrame:
    """One row for each subject: its identifiers, and the summaries of the table's other columns, in the table's order.

    Missing values count for nothing: a subject that has nothing else in a column lacks its summary, and a count is 0.
    Of values that are equally frequent the one is taken that comes first in the table. Booleans are numbers, 0 and 1.

    Raises:
        DataError: a column has no summary, or one that does not fit its values; names it.
    """
    own = [str(name) for name in frame.columns if name not in identifiers]
    for name in summaries:
        if name not in own:
            raise DataError("[data.aggregate] names columns that are no identifiers", name, nearest(name, own))
    subject_N = _subjects(frame, identifiers)
    made = {name: frame[name].groupby(subject_N).head(1).array for name in identifiers}
    for name in own:
        for how, to in _summaries(name, summaries).items():
            _check_fits(frame[name], how)
            made[to] = _summary(frame[name], subject_N, how).array
    return pd.DataFrame(made)


def _summaries(name: str, summaries: Mapping[str, Summary]) -> dict[str, str]:
    """How a column is summed up, and what each summary is called."""
    if name not in summaries:
        raise DataError(
            'With group = "aggregate" [data.aggregate] says of each column how it is summed up', name,
            f'Write {name} = "mean", say, or one of {", ".join(HOWS)}; or leave it out of columns.',
        )  # fmt: skip
    summary = summaries[name]
    if isinstance(summary, str):
        return {summary: name}
    return {how: f"{name}_{how.replace(' ', '_')}" for how in summary}


def _check_fits(values: pd.Series, how: str) -> None:
    number, time = types.is_numeric_dtype(values.dtype), types.is_datetime64_any_dtype(values.dtype)
    if how in ("count", "most frequent") or number:
        return
    if how in ("min", "max") and (time or _dates(values)):
        return
    kind = "numbers" if how in ("sum", "mean") else "numbers, dates or times"
    raise DataError(
        f"A {how} is of {kind}, and column {values.name!r} holds something else", values.dtype,
        'Take the "most frequent", or a "count"; texts that hold numbers become numbers in a query, or, in a CSV file, '
        "by decimal and missing.",
    )  # fmt: skip


def _dates(values: pd.Series) -> bool:
    known = values.dropna()
    return types.is_string_dtype(known) and bool(known.astype("string").str.fullmatch(_ISO).all())


def _subjects(frame: pd.DataFrame, identifiers: Sequence[str]) -> pd.Series:
    """Numbers of the subjects of all rows, in the order of their first rows."""
    own_N = pd.Series(np.arange(len(frame)), frame.index)  # of its own, where it lacks an identifier
    number_N = frame.groupby(list(identifiers), sort=False, dropna=True)[identifiers[0]].ngroup() + len(frame)
    return pd.Series(pd.factorize(number_N.where(number_N >= len(frame), own_N))[0], frame.index)


def _summary(values: pd.Series, subject_N: pd.Series, how: str) -> pd.Series:
    """A summary of the values of each subject."""
    if how == "most frequent":
        return _most_frequent(values, subject_N)
    if types.is_bool_dtype(values.dtype):
        values = values.astype("Int64")
    if how == "sum":
        return values.groupby(subject_N).sum(min_count=1)
    return values.groupby(subject_N).agg(how)


def _most_frequent(values: pd.Series, subject_N: pd.Series) -> pd.Series:
    codes, _ = pd.factorize(values)  # by first appearance; -1 is missing
    known = np.flatnonzero(codes >= 0)
    pairs = pd.DataFrame({"subject": subject_N.to_numpy()[known], "code": codes[known], "at": known})
    times = pairs.groupby(["subject", "code"], as_index=False).agg(at=("at", "min"), times=("at", "size"))
    best = times.sort_values(["subject", "times", "code"], ascending=[True, False, True]).drop_duplicates("subject")
    place = pd.Series(-1, range(subject_N.nunique()))
    place[best["subject"]] = best["at"].to_numpy()
    return pd.Series(values.array.take(place.to_numpy(), allow_fill=True), place.index)
