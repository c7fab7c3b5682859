"""Training and hold-out rows, drawn at random: of one table, or of all silos' tables at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.schema import LEAST_ROWS, Kind
from silosynth.core.streams import Streams
from silosynth.data.frames import flavour, to_pandas
from silosynth.data.infer import infer


def split(table: Any, holdout: float = 0.2, seed: int = 0, identifier: str | None = None) -> tuple[Any, Any]:
    """Training rows to fit on, and hold-out rows to evaluate with, drawn at random; each in the table's order.

    Never split by position: most tables are ordered in some way, and then neither part resembles the other.

    Args:
        table: a pandas, Polars or Arrow table; or ``{silo: table}``, of which two such dicts come back. If all silos
            have the same columns, each table is split on its own. Otherwise their rows belong together: the same ones
            are held out everywhere, by the identifier that all silos have, or by position if they have none.
        holdout: the share of rows to hold out, between 0 and 1.
        seed: of the draw. ``[split]`` of an experiment file draws the same rows of a table with the same seed.
        identifier: the column that says whose a row is. All rows of one person then fall on the same side.

    Raises:
        ConfigError: ``holdout`` is not a share.
        DataError: too few rows; silos' tables differ in length and share no identifier; there is no such column, or
            some identifiers are missing.

    >>> import pandas as pd
    >>> train, holdout = split(pd.DataFrame({"age": range(10)}), holdout=0.2)
    >>> len(train), len(holdout)
    (8, 2)
    """
    if isinstance(holdout, bool) or not isinstance(holdout, float) or not 0 < holdout < 1:
        raise ConfigError("The share of rows to hold out must lie between 0 and 1", holdout, "Write for instance 0.2.")
    if not isinstance(table, Mapping):
        held = _held({"": table}, holdout, seed, identifier)[""]
        return _rows(table, ~held), _rows(table, held)
    if not table:
        raise DataError("A split needs at least one silo's table", "none", "Pass {name: table}.")
    parts = _held(table, holdout, seed, identifier)
    train = {silo: _rows(table[silo], ~held) for silo, held in parts.items()}
    return train, {silo: _rows(table[silo], held) for silo, held in parts.items()}


def stacked(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, dict[str, slice]]:
    """Silos' rows of the same columns in one table, and which of its rows each silo holds."""
    ends = np.cumsum([len(table) for table in tables.values()]).tolist()
    held = {silo: slice(end - len(table), end) for (silo, table), end in zip(tables.items(), ends, strict=True)}
    return pd.concat(list(tables.values()), ignore_index=True), held


def held_out(n: int, share: float, seed: int) -> NDArray[np.bool_]:
    """(n,) which rows are held out: a random ``share`` of them, rounded."""
    held = np.zeros(n, dtype=bool)
    held[Streams(seed).child("split").numpy().permutation(n)[: round(n * share)]] = True
    return held


def _held(tables: Mapping[str, Any], share: float, seed: int, identifier: str | None) -> dict[str, NDArray[np.bool_]]:
    """Which rows of each silo's table are held out."""
    frames = {silo: to_pandas(table) for silo, table in tables.items()}
    alike = len({frozenset(frame.columns) for frame in frames.values()}) == 1
    name = identifier if alike or identifier is not None else _shared_identifier(frames)
    if name is not None:
        keys = {silo: _keys(silo, frame, name) for silo, frame in frames.items()}
    else:
        keys = {silo: pd.Series(np.arange(len(frame))) for silo, frame in frames.items()}
        if not alike:
            _check_same_length(frames)
    groups = [[silo] for silo in keys] if alike else [list(keys)]
    return {silo: held for group in groups for silo, held in _drawn({s: keys[s] for s in group}, share, seed).items()}


def _drawn(keys: Mapping[str, pd.Series], share: float, seed: int) -> dict[str, NDArray[np.bool_]]:
    """Rows whose keys are held out, silo by silo; keys are drawn once for all."""
    codes, levels = pd.factorize(pd.concat(list(keys.values()), ignore_index=True), sort=True)
    held = held_out(len(levels), share, seed)
    if not held.any() or (~held).sum() < LEAST_ROWS:
        raise DataError(
            f"A split needs at least 1 row to hold out and {LEAST_ROWS} to train on",
            f"{held.sum()} and {(~held).sum()} of {len(levels)}, at {share:g}",
            "Give it more rows, or change the share to hold out.",
        )
    ends = np.cumsum([len(own) for own in keys.values()])[:-1]
    return dict(zip(keys, np.split(held[codes], ends), strict=True))


def _keys(silo: str, frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in frame.columns:
        raise DataError(f"The identifier must be a column of {_of(silo)}", name, nearest(name, frame.columns))
    missing = int(frame[name].isna().sum())
    if missing:
        raise DataError(
            f"Identifier {name!r} of {_of(silo)} must be known in every row", f"{missing} missing", "Drop those rows."
        )
    return frame[name].astype(str)


def _of(silo: str) -> str:
    return f"silo {silo!r}" if silo else "the table"


def _shared_identifier(frames: Mapping[str, pd.DataFrame]) -> str | None:
    """The column that all silos have and that identifies rows in each; None if no column is shared."""
    first, *others = frames.values()
    shared = [name for name in first.columns if all(name in frame.columns for frame in others)]
    found = [name for name in shared if all(_identifies(frame[[name]]) for frame in frames.values())]
    if len(found) == 1:
        return found[0]
    if not shared:
        return None
    raise DataError(
        "Silos with different columns share one identifier, or no column at all",
        _listed(found or shared),
        "Name the one that links rows: identifier=…",
    )


def _identifies(column: pd.DataFrame) -> bool:
    return infer(column).columns[0].kind == Kind.IDENTIFIER.value


def _check_same_length(frames: Mapping[str, pd.DataFrame]) -> None:
    sizes = {silo: len(frame) for silo, frame in frames.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(
            "Silos' tables without a common identifier must hold the same people in the same order, row by row",
            ", ".join(f"{silo}: {size:,} rows" for silo, size in sizes.items()),
            "Name the column that links rows: identifier=…, or drop rows that one of them lacks.",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _rows(table: Any, which: NDArray[np.bool_]) -> Any:
    kind = flavour(table)
    if kind == "pandas":
        return table.loc[which]
    places = np.flatnonzero(which)
    return table[places.tolist()] if kind == "polars" else table.take(places)
