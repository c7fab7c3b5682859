"""Tables of an experiment: read them, divide them among silos, hold rows out, show what was inferred."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from silosynth.catalog import Algorithm
from silosynth.commands.session import Session
from silosynth.core.errors import ConfigError, DataError, StorageError, nearest
from silosynth.core.files import read as contents, write_atomic
from silosynth.core.schema import (
    DURATIONS,
    ColumnSchema,
    Schema,
    beyond_bounds,
    check_partition,
    pseudonyms,
    same_columns,
)
from silosynth.core.streams import Streams
from silosynth.data import datasets, sources
from silosynth.data.csvfiles import EncodingWarning
from silosynth.data.dtypes import detail
from silosynth.data.frames import to_table
from silosynth.data.infer import describe, without_marks
from silosynth.data.splits import held_out, stacked
from silosynth.data.texts import is_date_form, is_number_form
from silosynth.experiment import grammar
from silosynth.experiment.grammar import DataSection, Experiment, SiloSection
from silosynth.simulation.federation import Federation, simulate
from silosynth.simulation.model import load

Held = dict[str, list[int]]
WHOLE = "table"
SPLIT = "split.json"


@dataclass(frozen=True)
class Material:
    """The rows of an experiment, and who holds which of them."""

    train: pd.DataFrame
    holdout: pd.DataFrame | None
    silos: dict[str, list[str]]
    kinds: dict[str, str] = field(default_factory=dict)
    """Column kinds that the publisher of a data set states."""
    rows: Mapping[str, Any] | None = None
    """If silos hold shares of the rows: the positions of each silo's rows in ``train``."""
    tables: dict[str, pd.DataFrame] | None = None
    """If silos hold rows in tables of their own: each silo's part of ``train``."""
    groups: dict[str, list[str]] | None = None
    """If silos are in groups of different rows: the silos of each; ``rows`` are then the groups'."""
    held: Held = field(default_factory=dict)
    """Positions of the rows held out: by silo, if silos hold rows in tables of their own, or of `WHOLE`."""

    def digest(self) -> str:
        """A hash of the names and values of training and hold-out rows."""
        sha = hashlib.sha256(repr(list(self.train.columns)).encode())
        for frame in (self.train, self.holdout):
            if frame is not None:
                sha.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
        return sha.hexdigest()

    def federation(self, declared: Mapping[str, Any]) -> Federation:
        """The federation of the training rows; kinds that are neither declared nor published are inferred."""
        kinds = self.kinds | dict(declared)
        if self.groups is not None:
            silos = {group: {silo: self.silos[silo] for silo in held} for group, held in self.groups.items()}
            return simulate(self.train, silos=silos, schema=kinds, rows=self.rows)
        if self.tables is not None:
            return simulate(self.tables, schema=kinds)
        if self.rows is not None:
            return simulate(self.train, schema=kinds, rows=self.rows)
        return simulate(self.train, silos=self.silos, schema=kinds)

    def held_rows(self) -> Mapping[str, Any] | None:
        """Which rows of ``train`` each silo holds; None if silos hold columns."""
        return self.rows if self.tables is None else stacked(self.tables)[1]


def read(path: str | Path, **csv: Any) -> pd.DataFrame:
    """A table file as a pandas frame; ``csv`` says how a CSV file is written (`silosynth.data.sources.read`)."""
    return sources.read(path, **csv)


def read_real(paths: Mapping[str, Path | None], csv: Mapping[str, Any]) -> dict[str, pd.DataFrame | None]:
    """Tables of real rows by name; ``csv`` says how those in CSV files are written. Guesses are said once for all."""
    given = [path for path in paths.values() if path is not None]
    texts = any(map(sources.is_csv, given))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frames = {
            name: None if path is None else read(path, **(csv if sources.is_csv(path) or not texts else {}))
            for name, path in paths.items()
        }
    guessed = [one.message for one in caught if isinstance(one.message, EncodingWarning)]
    if guessed:
        warnings.warn(EncodingWarning(*(file for one in guessed for file in one.files)), stacklevel=2)
    for other in caught:
        if not isinstance(other.message, EncodingWarning):
            warnings.warn(other.message, stacklevel=2)
    return frames


def hold_rows(experiment: Experiment, entry: Algorithm) -> bool:
    """Whether silos hold different rows of the same columns: as the algorithm needs, or else as their columns say.

    Raises:
        ConfigError: silos of an algorithm that is for both share some of their columns, and not all.
    """
    if experiment.grouped:
        return True
    silos = experiment.participants
    if entry.across_rows is None or experiment.shares or any(silo.path is None for silo in silos.values()):
        return entry.horizontal or bool(experiment.shares and entry.across_rows is not None)
    held = {name: _columns_of(name, silo, _table(experiment, silo, None)) for name, silo in silos.items()}
    linking = pseudonyms(experiment.overrides())
    return len(held) > 1 and same_columns({name: set(own) - linking for name, own in held.items()})


def gather(experiment: Experiment, horizontal: bool = False, held: Held | None = None) -> Material:
    """Read all tables of an experiment and hold rows out.

    Args:
        experiment: the checked file.
        horizontal: whether silos with tables of their own hold different rows of the same columns.
        held: positions of the rows to hold out, as `Material` has them; None to draw them.

    Raises:
        DataError: a column is missing or held twice, silos' tables differ in their number of rows, or a silo's share
            is less than a row.
    """
    if experiment.grouped:
        return _in_groups(experiment, held)
    if horizontal and not experiment.shares:
        return _below(experiment, held)
    frame, silos = _joined(experiment)
    kinds = _published_kinds(experiment, frame)
    train, holdout, drawn = _split(experiment, {WHOLE: frame}, held)
    if not experiment.shares:
        return Material(train[WHOLE], holdout, silos, kinds, held=drawn)
    dealt, rows = _dealt(train[WHOLE], experiment.shares, experiment.split.seed)
    return Material(dealt, holdout, silos, kinds, rows=rows, held=drawn)


def _split(
    experiment: Experiment, tables: dict[str, pd.DataFrame], held: Held | None
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame | None, Held]:
    """Training rows of each table, hold-out rows of all, and the positions of those that were held out.

    If a sample is taken up, they are rows of the sample, and positions in it.
    """
    split = experiment.split
    tables = {name: _sampled(table, split.sample, split.seed) for name, table in tables.items()}
    if split.path is not None:
        columns = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
        csv = {} if experiment.data is None else experiment.data.csv
        holdout = _unmarked(experiment, read(experiment.resolve(split.path), **csv))
        return tables, holdout[_known("the hold-out", columns, holdout)], {}
    if held is None:
        held = {name: _drawn(len(table), split.share, split.seed) for name, table in tables.items()}
    parts = {name: _parted(table, held[name]) for name, table in tables.items()}
    holdouts = [part for _, part in parts.values() if len(part)]
    return (
        {name: train for name, (train, _) in parts.items()},
        pd.concat(holdouts, ignore_index=True) if holdouts else None,
        held,
    )


def _sampled(table: pd.DataFrame, share: float, seed: int) -> pd.DataFrame:
    """A random share of the rows, in the table's order."""
    if share == 1:
        return table
    order = Streams(seed).child("sample").numpy().permutation(len(table))
    if not (rows := round(len(table) * share)):
        raise DataError("A sample has at least one row", f"{share:g} of {len(table):,} rows", "Raise [split] sample.")
    return table.iloc[np.sort(order[:rows])].reset_index(drop=True)


def _drawn(n: int, share: float, seed: int) -> list[int]:
    """Positions of the rows to hold out of n."""
    held = held_out(n, share, seed)
    if held.all():
        raise DataError("Rows must be left for training", f"{held.sum()} of {n} held out", "Hold out fewer.")
    positions: list[int] = held.nonzero()[0].tolist()
    return positions


def _parted(frame: pd.DataFrame, held: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    out = np.isin(np.arange(len(frame)), held)
    return frame[~out].reset_index(drop=True), frame[out].reset_index(drop=True)


def _published_kinds(experiment: Experiment, frame: pd.DataFrame) -> dict[str, str]:
    if experiment.data is None or experiment.data.dataset is None:
        return {}
    kinds = datasets.info(experiment.data.dataset).kinds
    return {name: kind for name, kind in kinds.items() if name in frame.columns}


def _dealt(train: pd.DataFrame, shares: Mapping[str, float], seed: int) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """The rows that silos hold, in the table's order, and the positions of each silo's rows among them."""
    order = Streams(seed).child("shares").numpy().permutation(len(train))
    ends = np.rint(np.cumsum(list(shares.values())) * len(train)).astype(int)
    owner = np.full(len(train), -1)
    for number, (silo, start, end) in enumerate(zip(shares, [0, *ends[:-1]], ends, strict=True)):
        if start == end:
            raise DataError(f"The share of silo {silo!r} is less than one row", shares[silo], "Give it more.")
        owner[order[start:end]] = number
    kept = owner[owner >= 0]
    rows = {silo: np.flatnonzero(kept == number).tolist() for number, silo in enumerate(shares)}
    return train[owner >= 0].reset_index(drop=True), rows


def _below(experiment: Experiment, held: Held | None) -> Material:
    """Silos' own tables of the same columns. Only the evaluation sees them below each other."""
    sections = experiment.participants
    tables = {name: _table(experiment, silo, None) for name, silo in sections.items()}
    tables = {name: table[_columns_of(name, sections[name], table)] for name, table in tables.items()}
    tables = _in_common_dtypes(tables)
    silos = {name: list(table.columns) for name, table in tables.items()}
    train, holdout, drawn = _split(experiment, tables, held)
    return Material(stacked(train)[0], holdout, silos, tables=train, held=drawn)


def _in_groups(experiment: Experiment, held: Held | None) -> Material:
    """Groups of silos with different rows: shares of one table's rows, or silos' own tables, side by side and below."""
    groups, sections = experiment.grouped, experiment.participants
    if experiment.data is not None:
        shared = _shared(experiment, experiment.data)
        silos = {name: _columns_of(name, silo, shared) for name, silo in sections.items()}
        names = list(dict.fromkeys(name for own in silos.values() for name in own))
        frame = shared[[name for name in shared.columns if name in names]]
        train, holdout, drawn = _split(experiment, {WHOLE: frame}, held)
        shares = {group: experiment.groups[group].share for group in groups}
        dealt, rows = _dealt(train[WHOLE], shares, experiment.split.seed)
        kinds = _published_kinds(experiment, frame)
        return Material(dealt, holdout, silos, kinds, rows=rows, held=drawn, groups=groups)
    tables, silos = {}, {}
    for group, held_by in groups.items():
        tables[group], own = _side_by_side(experiment, {name: sections[name] for name in held_by}, None)
        silos |= own
    whole = next(iter(tables.values())).columns
    for group, table in tables.items():
        if differ := sorted(set(table.columns) ^ set(whole)):
            rule = "Every group of silos holds all columns"
            raise DataError(rule, f"{', '.join(differ)}: not in {group!r}, or only there", "Leave them out everywhere.")
    parts, holdout, drawn = _split(experiment, _in_common_dtypes(tables), held)
    below, of_group = stacked(parts)
    return Material(below, holdout, silos, rows=of_group, held=drawn, groups=groups)


def keep_split(experiment: Experiment, material: Material) -> None:
    """Write which rows were trained on into the output folder, so that the table can be judged afterwards."""
    content = {
        "file": os.path.relpath(experiment.source, experiment.folder),
        "experiment": experiment.to_dict(),
        "digest": material.digest(),
        "holdout": material.held,
    }
    write_atomic(experiment.folder / SPLIT, json.dumps(content, default=str).encode())


def kept_split(folder: Path) -> tuple[Experiment, Held, str]:
    """What `keep_split` wrote: the experiment, rows held out, and the digest of all rows.

    Raises:
        StorageError: there is no such file, or it is damaged.
    """
    if not (folder / SPLIT).exists():
        raise StorageError(
            "The folder must be that of a finished run of this version",
            f"{folder}: {'a folder without one' if folder.is_dir() else 'no such folder'}",
            "Name the tables instead: --train, --holdout, --synthetic.",
        )  # fmt: skip
    try:
        kept = json.loads(contents(folder / SPLIT))
        plan = grammar.restored(kept["experiment"], folder / kept["file"])
        return plan, kept["holdout"], kept["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError("The split of a run must be whole", str(folder / SPLIT), "Run it again.") from error


def _in_common_dtypes(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Cast numbers to one dtype in all silos: text files name none, and gaps or decimals suggest different ones."""
    common = pd.concat([table.head(0) for table in tables.values()]).dtypes
    numbers = {name: dtype for name, dtype in common.items() if pd.api.types.is_numeric_dtype(dtype)}
    return {
        silo: table.astype({name: numbers[name] for name in table.columns if name in numbers})
        for silo, table in tables.items()
    }


def _joined(experiment: Experiment) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """All silos' columns side by side, and who holds which; every silo holds all if they share the rows."""
    shared = None if experiment.data is None else _shared(experiment, experiment.data)
    if shared is not None and experiment.shares:
        return shared, {name: _columns_of(name, silo, shared) for name, silo in experiment.participants.items()}
    return _side_by_side(experiment, experiment.participants, shared)


def _side_by_side(
    experiment: Experiment, sections: Mapping[str, SiloSection], shared: pd.DataFrame | None
) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Columns of silos that hold the same rows, and who holds which."""
    tables = {name: _table(experiment, silo, shared) for name, silo in sections.items()}
    silos = {name: _columns_of(name, silo, tables[name]) for name, silo in sections.items()}
    shared_names = pseudonyms(experiment.overrides())
    check_partition([column for names in silos.values() for column in names], silos, shared_names)
    _check_rows(tables)
    joined = pd.concat([tables[name][names].reset_index(drop=True) for name, names in silos.items()], axis=1)
    for name in shared_names & set(joined.columns[joined.columns.duplicated()]):
        _check_linked(name, joined.loc[:, joined.columns == name])
    return joined.loc[:, ~joined.columns.duplicated()], silos


def _check_linked(name: str, columns: pd.DataFrame) -> None:
    """Silos that hold the same pseudonym hold the same people in the same order."""
    differ = (columns.astype("string").nunique(axis=1, dropna=False) > 1).sum()
    if differ:
        raise DataError(
            f"Silos' tables must hold the same people in the same order: {name!r} differs between them",
            f"{differ:,} rows",
            "Bring them into the same order. Real silos link rows by an identifier: see `silosynth submit`.",
        )


def _shared(experiment: Experiment, data: DataSection) -> pd.DataFrame:
    if data.dataset is None:
        return _unmarked(experiment, read(experiment.resolve(data.path or ""), **data.csv))
    return datasets.load(data.dataset)


def _table(experiment: Experiment, silo: SiloSection, shared: pd.DataFrame | None) -> pd.DataFrame:
    if silo.path is not None:
        return _unmarked(experiment, read(experiment.resolve(silo.path), **silo.csv))
    if shared is None:  # of a silo in a group, which may be all that a job needs to know
        rule = f"{experiment.source.name}: on this machine each silo has a 'path', or columns of the [data] table"
        raise ConfigError(rule, silo.group, "Give it one; or start a job with silosynth submit.")
    return shared


def _unmarked(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    """The table with missing values instead of what the file declares to stand for them."""
    return without_marks(table, {name: rule for name, rule in experiment.overrides().items() if name in table.columns})


def _columns_of(name: str, silo: SiloSection, table: pd.DataFrame) -> list[str]:
    return list(table.columns) if silo.columns is None else _known(f"silo {name!r}", silo.columns, table)


def _known(owner: str, names: Sequence[str], table: pd.DataFrame) -> list[str]:
    for name in names:
        if name not in table.columns:
            raise DataError(f"The table of {owner} has no such column", name, nearest(name, table.columns))
    return list(names)


def _check_rows(tables: Mapping[str, pd.DataFrame]) -> None:
    rows = {name: len(table) for name, table in tables.items()}
    if len(set(rows.values())) > 1:
        raise DataError(
            "Silos' tables must hold the same people in the same order, row by row",
            ", ".join(f"{name}: {count:,} rows" for name, count in rows.items()),
            "Bring them into the same order and drop rows that one of them lacks. Real silos link rows "
            "by an identifier: see `silosynth submit`.",
        )


def show_schema(ui: Session, schema: Schema, frame: pd.DataFrame) -> None:
    """Show what was inferred about each column, and add it to the facts."""
    table = to_table(frame, schema)
    lines, beyond = describe(schema, table), beyond_bounds(table, schema)
    rows = [(line.name, line.kind, line.dtype, f"{line.missing:.1%}", line.distinct, line.reason) for line in lines]
    ui.table("Columns", ("column", "kind", "dtype", "missing", "distinct", "why"), rows)
    ui.facts["columns"] = [
        {"name": c.name, "kind": c.kind, "dtype": c.dtype, "decimals": c.decimals, "low": c.low, "high": c.high}
        | {"missing": line.missing, "distinct": line.distinct, "reason": line.reason, "beyond": beyond.get(c.name, 0)}
        for c, line in zip(schema.columns, lines, strict=True)
    ]


def declared(ui: Session, file: Path | None, columns: Sequence[str]) -> Schema | dict[str, Any] | None:
    """What a model, or the [schema] of a TOML file, says about the columns of a table; None without a file."""
    if file is None:
        return None
    if file.suffix.lower() != ".toml":
        return load(file).schema
    rules = grammar.read(file).overrides()
    absent = [name for name in rules if name not in columns]
    if absent:
        ui.note(f"{file.name} declares columns that the table lacks: {', '.join(absent)}.")
    return {name: rule for name, rule in rules.items() if name in columns}


def schema_toml(schema: Schema) -> str:
    """The schema as sections of an experiment file."""
    return "\n".join(_section_toml(column) for column in schema.columns)


def _section_toml(column: ColumnSchema) -> str:
    head = f"[schema.{quoted(column.name)}]  # {column.reason}\nkind = {quoted(column.kind)}\n"
    form = detail(column.dtype)
    if form and (is_date_form(form) or is_number_form(form) or column.kind == "pseudonym"):
        head += f"format = {quoted(form)}\n"
    if column.missing:
        head += f"missing = [{', '.join(map(quoted, column.missing))}]\n"
    if column.levels:
        levels = (quoted(level) if isinstance(level, str) else json.dumps(level) for level in column.levels)
        head += f"levels = [{', '.join(levels)}]\n"
    for end, bound in (("low", column.low), ("high", column.high)):
        if bound is not None:
            head += f"{end} = {_bound(bound, column)}\n"
    if column.decimals is None or column.kind not in ("continuous", "integer", "mixed"):
        return head
    return f"{head}decimals = {column.decimals}\n"


def _bound(bound: float, column: ColumnSchema) -> str:
    """A declared bound in TOML; of instants as text, in UTC, which is read alike with and without a time zone."""
    if column.kind != "datetime":
        return repr(bound).removesuffix(".0")
    nanoseconds = max(1 - 2**63, min(int(bound), 2**63 - 1))  # as floats, the last ones are beyond
    if column.dtype.startswith(DURATIONS):
        return quoted(str(pd.Timedelta(nanoseconds)))
    return quoted(pd.Timestamp(nanoseconds, tz="UTC").isoformat())


def quoted(text: str) -> str:
    """Text as a TOML basic string: what JSON writes, except that TOML also escapes DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
