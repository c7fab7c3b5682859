"""``silo.toml``: where a silo's rows live, and what is declared about their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import pandas as pd
from pydantic import Field, PrivateAttr

from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.data.sources import Source
from silosynth.deployment.grouping import Summary, summed_up
from silosynth.experiment.grammar import ColumnRules, CsvKeys, FileSection, Text, read_toml

SILO = "silo.toml"


class RowSource(Protocol):
    """The source of a silo's rows."""

    def read(self) -> pd.DataFrame:
        """All rows, with their identifier columns."""

    @property
    def identifiers(self) -> list[str]:
        """The columns that identify a row's subject."""

    @property
    def declared(self) -> Mapping[str, Any]:
        """What is declared about columns rather than inferred."""


class SiloData(CsvKeys):
    """``[data]``: one table, of a file or of a database; see `silosynth.data.sources.Source`."""

    path: Text | None = None
    database: Text | None = None
    table: Text | None = None
    query: Text | None = None
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    user: Text | None = None
    user_env: Text | None = None
    password_env: Text | None = None
    password_file: Text | None = None
    batch_rows: Annotated[int, Field(ge=1)] = 50_000
    identifiers: list[Text] = Field(default_factory=list)
    """Columns that identify a row's subject, the same in all silos: rows are linked by them; they are not modelled."""
    group: Literal["none", "first", "aggregate"] = "none"
    """What becomes of rows that share their identifier: "none" is linked, the "first" in the table is, or one row that
    sums them up."""
    aggregate: Annotated[dict[Text, Summary], Field(min_length=1)] | None = None
    """How each column that is no identifier is summed up, by its name in the table."""
    snapshot: bool = False
    """Whether rows are kept, encrypted, while a job runs, so that it can resume although the table has changed."""
    prefix: Text | None = None
    """Put before the names of columns that are no identifiers, such as "bank_": for names that another silo has too."""
    prefixed: Annotated[list[Text], Field(min_length=1)] | None = None
    """Which columns get it, by their names in the table; None for all."""

    def renamed(self, name: str) -> str:
        """The name by which others know a column."""
        own = name not in self.identifiers and (self.prefixed is None or name in self.prefixed)
        return f"{self.prefix}{name}" if self.prefix and own else name

    def check_names(self, names: list[str]) -> None:
        """Check that the table has what is to be renamed, and that no two columns get the same name.

        Raises:
            DataError: names the column.
        """
        for name in self.prefixed or ():
            if name not in names or name in self.identifiers:
                remedy = nearest(name, [other for other in names if other not in self.identifiers])
                raise DataError(f"{SILO}: prefixed names columns that are no identifiers", name, remedy)
        renamed = Counter(map(self.renamed, names))
        if twice := next((name for name, times in renamed.items() if times > 1), None):
            raise DataError(f"{SILO}: columns have different names, prefix included", twice, "Choose another prefix.")


class SiloFile(FileSection):
    """``silo.toml``."""

    data: SiloData | None = None
    """Left out by a silo that has no rows, and only deals in jobs that count."""
    columns: dict[str, ColumnRules] = Field(default_factory=dict, alias="schema")
    retention_days: Annotated[float, Field(gt=0)] | None = None
    """After how many days without use a job is forgotten here; None keeps it until somebody says so."""
    _source: Path = PrivateAttr(default=Path())

    def source(self) -> Source:
        """The rows' source; paths are relative to ``silo.toml``.

        Raises:
            DataError: there are none.
        """
        if self.data is None:
            raise DataError("A silo that takes part with rows says where they are", "no [data]", f"Add it to {SILO}.")
        fields = self.data.model_dump(exclude={"identifiers", "group", "aggregate", "snapshot", "prefix", "prefixed"})
        for key in ("path", "password_file"):
            fields[key] = None if fields[key] is None else Path(fields[key]).expanduser()
        fields |= {key: tuple(fields[key]) for key in ("columns", "missing") if fields[key] is not None}
        fields["decimal"] = fields["decimal"] or "."
        return Source(**fields).within(self._source.parent)

    def read(self) -> pd.DataFrame:
        """All rows, by their public names; one for each subject, if ``group`` says so."""
        frame = self.grouped(self.source().load())
        if self.data is None or not self.data.prefix:
            return frame
        self.data.check_names(names := list(map(str, frame.columns)))
        return frame.set_axis([self.data.renamed(name) for name in names], axis="columns")

    def grouped(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows of the table with one for each subject, if ``group`` says so."""
        if self.data is None or self.data.group == "none" or not self.data.identifiers:
            return frame
        if self.data.aggregate is not None:
            return summed_up(frame, self.data.identifiers, self.data.aggregate)
        again = frame.duplicated(self.data.identifiers) & frame[self.data.identifiers].notna().all(axis=1)
        return frame[~again].reset_index(drop=True)

    @property
    def identifiers(self) -> list[str]:
        """The columns that identify a row's subject."""
        return [] if self.data is None else list(self.data.identifiers)

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """What is declared about columns, as schema inference takes it, by the names that others know."""
        name_of = str if self.data is None else self.data.renamed
        return {name_of(name): rules.model_dump(exclude_none=True) for name, rules in self.columns.items()}


def check_rows(silo: SiloFile) -> None:
    """Read the first rows, and find the identifiers among their columns.

    Raises:
        SilosynthError: the rows cannot be read, or lack an identifier; names it.
    """
    first = next(silo.source().batches())
    for name in silo.identifiers:
        if name not in first.columns:
            raise DataError(f"{SILO}: identifiers names columns", name, nearest(name, map(str, first.columns)))
    first = silo.grouped(first)
    if silo.data is not None and silo.data.prefix:
        silo.data.check_names(list(map(str, first.columns)))


def repeated_identifiers(frame: pd.DataFrame, identifiers: list[str]) -> str:
    """What becomes of rows whose identifiers are another row's too, or are missing; empty if there are none."""
    named = frame.dropna(subset=identifiers)
    repeated, missing = int(named.duplicated(identifiers, keep=False).sum()), len(frame) - len(named)
    said = []
    if repeated:
        said.append(f"{repeated:,} of {len(frame):,} rows share their identifier with another row")
    if missing:
        said.append(f"{missing:,} of {len(frame):,} rows lack an identifier")
    if not said:
        return ""
    remedy = '; give one row for each, or write group = "first" or "aggregate" into [data]' if repeated else ""
    return f"{', and '.join(said)}: linking rows leaves all of these out{remedy}"


def read_silo(folder: Path) -> SiloFile:
    """The silo's data settings.

    Raises:
        StorageError: no such file.
        ConfigError: a key or a value does not fit; names the file, the key and the remedy.
    """
    silo = read_toml(folder / SILO, SiloFile)
    silo._source = folder / SILO
    if silo.data is not None:
        if silo.data.prefixed and not silo.data.prefix:
            raise ConfigError(f"{SILO}: prefixed needs a prefix", "none", 'Write one: prefix = "bank_".')
        _check_group(silo.data)
        silo.source().check()
    return silo


def _check_group(data: SiloData) -> None:
    if (data.group == "aggregate") is not (data.aggregate is not None):
        rule = f'{SILO}: group = "aggregate" and [data.aggregate] come together'
        raise ConfigError(rule, f"group = {data.group!r}", "Write both, or neither.")
    if data.group != "none" and not data.identifiers:
        raise ConfigError(f"{SILO}: group is of rows that share their identifier", "no identifiers", "Name them.")
