"""One `Column` of tensors → one frame column."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from silosynth.core.errors import DataError
from silosynth.core.schema import Column
from silosynth.data.dtypes import detail, resolve, zone_of


def decode(column: Column) -> pd.Series:
    """The frame's column, with its dtype; missing entries as that dtype holds them (NaN, NaT, NA or None).

    Raises:
        DataError: there are missing entries, and the dtype cannot hold any.
    """
    dtype, base = column.dtype, column.dtype.partition("|")[0]
    values, missing = column.values.numpy(), column.missing.numpy()
    if base == "category":
        codes = np.where(missing, -1, values)
        names = pd.Index(list(column.levels or ()), dtype=None if column.levels else object)
        categories = pd.Categorical.from_codes(codes, categories=names, ordered=detail(dtype) == "ordered")
        return pd.Series(categories, name=column.name)
    if missing.all() and len(missing):
        return _all_missing(column)
    held = values if column.levels is None else _named(column)
    if detail(dtype) and dtype != "string|arrow":
        objects = _objects(held, detail(dtype))
        objects[missing] = None
        series: pd.Series = pd.Series(objects, dtype=resolve(dtype), name=column.name)
        return series
    return _plain(column, held, missing)


def _named(column: Column) -> np.ndarray:
    levels = list(column.levels or ())
    one_type = len({type(level) for level in levels}) == 1 and not isinstance(levels[0], str)
    names = np.array(levels) if one_type else np.array(levels, dtype=object)
    return np.asarray(names[column.values.numpy()])


def _all_missing(column: Column) -> pd.Series:
    dtype = resolve(column.dtype)
    if isinstance(dtype, np.dtype) and dtype.kind not in "fOMm":
        _refuse_missing(column)
    series: pd.Series = pd.Series([None] * len(column), dtype=object, name=column.name).astype(dtype)
    return series


def _refuse_missing(column: Column) -> NoReturn:
    raise DataError(
        f"Column {column.name!r} has missing entries, which its dtype cannot hold",
        column.dtype,
        "Use a dtype that can, such as Int64, boolean or float64.",
    )


def _plain(column: Column, held: np.ndarray, missing: np.ndarray) -> pd.Series:
    dtype: Any = resolve(column.dtype)
    if missing.any() and isinstance(dtype, np.dtype) and dtype.kind not in "fOMm":
        _refuse_missing(column)
    if held.dtype == object:
        texts = held.copy()
        texts[missing] = None
        series: pd.Series = pd.Series(texts, dtype=dtype, name=column.name)
        return series
    if dtype.kind in "Mm":
        return _on_time(column.name, held, missing, dtype)
    if dtype.kind in "iu":
        held = _clipped(held, dtype)
    series = pd.Series(held, name=column.name).astype(dtype)
    return series.mask(missing) if missing.any() else series


def _clipped(held: np.ndarray, dtype: Any) -> np.ndarray:
    """Whole numbers within the dtype's range: a declared range may be wider than, say, int8."""
    small = np.iinfo(f"{dtype.kind}{dtype.itemsize}")
    return np.clip(np.round(held), small.min, min(small.max, 2**63 - 1)).astype(np.int64)


def _on_time(name: str, held: np.ndarray, missing: np.ndarray, dtype: Any) -> pd.Series:
    if dtype.kind == "m":
        stamps = held.astype("timedelta64[ns]")
        stamps[missing] = np.timedelta64("NaT")
        return pd.Series(stamps, name=name).astype(dtype)
    instants = held.astype("datetime64[ns]")
    instants[missing] = np.datetime64("NaT")
    series = pd.Series(instants, name=name)
    zone = zone_of(dtype)
    return (series if zone is None else series.dt.tz_localize("UTC").dt.tz_convert(zone)).astype(dtype)


def _objects(held: np.ndarray, what: str) -> np.ndarray:
    """Python objects of the type that a dtype's detail names; a ``%`` format makes texts."""
    if what in ("date", "datetime") or what.startswith("%"):
        instants = pd.Series(held.astype("datetime64[ns]"))
        if what.startswith("%"):
            return np.array(instants.dt.strftime(what), dtype=object)
        if what == "date":
            return _box(list(instants.dt.date))
        return _box([stamp.to_pydatetime() for stamp in instants.dt.floor("us")])
    return _box([_MAKE[what](value) for value in held.tolist()])


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))  # the shortest digits: exact for up to 15 of them


_MAKE: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float, "decimal": _decimal}


def _box(objects: list[Any]) -> np.ndarray:
    boxed = np.empty(len(objects), dtype=object)
    boxed[:] = objects
    return boxed
