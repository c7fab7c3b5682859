"""A federation on this machine: tables of several silos, for simulation, tests and baselines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from silosynth.core.errors import DataError, SchemaError
from silosynth.core.roster import Roster
from silosynth.core.schema import Column, Kind, Schema, Table, beside, check_partition
from silosynth.data.dtypes import Nature, nature
from silosynth.data.frames import flavour, to_pandas, to_table
from silosynth.data.infer import infer


@dataclass(frozen=True)
class Federation:
    """Who holds what. Each silo's table and schema are handed to its own party and to nobody else.

    Attributes:
        tables: each silo's columns, rows in the same order.
        schemas: each silo's column kinds.
        columns: all columns in the order of the frame they came from.
        flavour: "pandas", "polars" or "arrow": what `Model.sample` gives back.
    """

    tables: Mapping[str, Table]
    schemas: Mapping[str, Schema]
    columns: tuple[str, ...]
    flavour: str = "pandas"

    @property
    def roster(self) -> Roster:
        """The silos in order."""
        return Roster(tuple(self.tables))

    @property
    def silos(self) -> dict[str, list[str]]:
        """Column names by silo."""
        return {name: list(table.names) for name, table in self.tables.items()}

    @property
    def rows(self) -> int:
        """Number of aligned rows."""
        return len(next(iter(self.tables.values())))

    @property
    def schema(self) -> Schema:
        """Kinds of all columns, in the frame's order."""
        everything = Schema(tuple(column for schema in self.schemas.values() for column in schema.columns))
        return everything.select(self.columns)

    def central(self, name: str = "central") -> Federation:
        """The same columns in one silo: what a baseline that may pool everything would see."""
        table = beside(self.tables.values()).select(self.columns)
        return Federation({name: table}, {name: self.schema}, self.columns, self.flavour)

    def digest(self) -> str:
        """A hash of all values, by which a checkpoint recognises its data."""
        seen = hashlib.sha256()
        for name, table in self.tables.items():
            for column in table.columns:
                seen.update(repr((name, column.name, column.dtype, column.levels)).encode())
                seen.update(column.values.contiguous().numpy().tobytes())
                seen.update(column.missing.contiguous().numpy().tobytes())
        return seen.hexdigest()


def simulate(
    frame: Any, silos: Mapping[str, Sequence[str]] | None = None, schema: Mapping[str, Any] | None = None
) -> Federation:
    """Deal out the columns of one frame to silos.

    Args:
        frame: a pandas, Polars or Arrow table.
        silos: ``{name: [columns]}``; None puts every column into one silo. Columns that no silo names are left out.
        schema: column kinds to use instead of the inferred ones: ``{column: kind or {"kind": …, "low": …, …}}``.

    Raises:
        DataError: the frame is empty, has duplicate column names, infinities, or columns of mixed types; a silo names
            an unknown column, or two silos the same one.
        SchemaError: a declared kind does not fit its column, or an identifier's dtype can hold no running numbers.

    >>> import pandas as pd
    >>> federation = simulate(pd.DataFrame({"age": [30, 40], "sex": ["f", "m"]}), silos={"a": ["age"], "b": ["sex"]})
    >>> federation.silos
    {'a': ['age'], 'b': ['sex']}
    """
    pandas = to_pandas(frame)
    silos = {"silo1": list(pandas.columns)} if silos is None else silos
    if not silos:
        raise DataError("A federation needs at least one silo", dict(silos), "Name silos and their columns.")
    check_partition(list(pandas.columns), silos)
    held = {name for names in silos.values() for name in names}
    columns = tuple(name for name in pandas.columns if name in held)
    everything = infer(pandas[list(columns)], {k: v for k, v in (schema or {}).items()})
    table = to_table(pandas[list(columns)], everything)
    _check_identifiers(pandas, everything, table)
    return Federation(
        {name: table.select(list(names)) for name, names in silos.items()},
        {name: everything.select(list(names)) for name, names in silos.items()},
        columns,
        flavour(frame),
    )


def _check_identifiers(frame: Any, schema: Schema, table: Table) -> None:
    """Synthetic tables hold running numbers in place of identifiers: refuse dtypes that cannot, before training."""
    for column in schema.columns:
        if column.kind == Kind.IDENTIFIER.value and not _numberable(frame[column.name], table[column.name]):
            raise SchemaError(
                f"Identifier column {column.name!r} must be text, or numbers in a number dtype: "
                "synthetic tables number its rows",
                column.dtype,
                "Convert it with .astype(str) or .astype('int64'), declare another kind, or leave it out.",
            )


def _numberable(series: Any, column: Column) -> bool:
    found = nature(series, column.dtype)
    if found is Nature.LEVELS:
        return all(isinstance(level, str) for level in column.levels or ())
    boxed = column.dtype.startswith("object|")
    return found in (Nature.WHOLE, Nature.REAL, Nature.TEXT, Nature.NONE) and not boxed
