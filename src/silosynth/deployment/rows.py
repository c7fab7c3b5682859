"""``silo.toml``: where a silo's rows live, and what is declared about their columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import pandas as pd
from pydantic import Field, PrivateAttr

from silosynth.core.errors import DataError, nearest
from silosynth.data.sources import Source
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
    group: Literal["none", "first"] = "none"
    """What becomes of rows that share their identifier: "none" is linked, or the "first" in the table."""


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
        fields = self.data.model_dump(exclude={"identifiers", "group"})
        for key in ("path", "password_file"):
            fields[key] = None if fields[key] is None else Path(fields[key]).expanduser()
        fields |= {key: tuple(fields[key]) for key in ("columns", "missing") if fields[key] is not None}
        fields["decimal"] = fields["decimal"] or "."
        return Source(**fields).within(self._source.parent)

    def read(self) -> pd.DataFrame:
        """All rows; of those that share their identifier the first, if ``group`` says so."""
        frame = self.source().load()
        if self.data is None or self.data.group == "none" or not self.data.identifiers:
            return frame
        again = frame.duplicated(self.data.identifiers) & frame[self.data.identifiers].notna().all(axis=1)
        return frame[~again].reset_index(drop=True)

    @property
    def identifiers(self) -> list[str]:
        """The columns that identify a row's subject."""
        return [] if self.data is None else list(self.data.identifiers)

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """What is declared about columns, as schema inference takes it."""
        return {name: rules.model_dump(exclude_none=True) for name, rules in self.columns.items()}


def check_rows(silo: SiloFile) -> None:
    """Read the first rows, and find the identifiers among their columns.

    Raises:
        SilosynthError: the rows cannot be read, or lack an identifier; names it.
    """
    first = next(silo.source().batches())
    for name in silo.identifiers:
        if name not in first.columns:
            raise DataError(f"{SILO}: identifiers names columns", name, nearest(name, map(str, first.columns)))


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
    remedy = '; give one row for each, or write group = "first" into [data]' if repeated else ""
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
        silo.source().check()
    return silo
