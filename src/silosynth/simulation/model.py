"""A trained model: draws synthetic tables, saves and loads itself, and says what it is and what was sent to make it."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silosynth.catalog import Algorithm, algorithm
from silosynth.core.conversation import Party
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import read, write_atomic
from silosynth.core.messages import Struct
from silosynth.core.roster import Roster
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table, below, beside
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.data.dtypes import resolve
from silosynth.data.frames import to_frame
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import statement
from silosynth.privacy.target import Target
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger, Record
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.inprocess import InProcess

FORM = "silosynth model"
BATCH = 16_384


@dataclass(repr=False)
class Model:
    """What `silosynth.fit` returns. Of a simulated federation it holds every silo's part; each part knows only its own.

    Attributes:
        algorithm, preset, seed: how it was trained; -1 for a secret seed.
        config: all options.
        roster: the silos in order.
        columns: the columns that `sample` returns, in order.
        schemas: each silo's column kinds.
        flavour: the kind of frame that `sample` returns.
        coordinator: the coordinator's part.
        parts: each silo's part.
        rows: number of training rows; a noised one under differential privacy.
        ledger: who sent what to train and (since) to sample: step, from, to, type, bytes, privacy. Under
            differential privacy bytes are left out, as 0.
    """

    algorithm: str
    preset: str
    seed: int
    config: Struct
    roster: Roster
    columns: tuple[str, ...]
    schemas: Mapping[str, Schema]
    flavour: str
    coordinator: dict[str, Any]
    parts: Mapping[str, dict[str, Any]]
    rows: int
    ledger: list[dict[str, Any]] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _drawn: int = 0

    def __post_init__(self) -> None:
        """Under differential privacy, keep nothing of the rows that was not charged for, whatever files hold."""
        if getattr(self.config, "dp", Target()).private:
            self.rows = int(self.coordinator.get("rows", 0))  # noised
            self.schemas = {silo: _untold(schema) for silo, schema in self.schemas.items()}
            self.ledger = [record | {"bytes": 0} for record in self.ledger]  # they tell how many rows were sampled

    def __repr__(self) -> str:
        """What it is; no weights, and nothing of encoders."""
        return f"Model of {self.algorithm!r} ({self.preset}): {len(self.columns)} columns, {self.rows} training rows"

    def sample(self, n: int, seed: int | None = None) -> Any:
        """A synthetic table of ``n`` rows, with the columns, order, dtypes and flavour of the training frame.

        Without ``seed``, the first call gives the same rows in every copy of the model and each further call fresh
        ones. Identifier columns are not modelled: they hold running numbers.

        Raises:
            ConfigError: ``n`` is not a positive whole number, or more than an identifier's dtype can number; or the
                model keeps synthetic columns in their silos.
        """
        return framed(below(list(self._tables(n, seed, BATCH))), self._schema, 1, self.flavour)

    def sample_batches(self, n: int, batch: int = BATCH, seed: int | None = None) -> Iterator[Any]:
        """``n`` rows in frames of at most ``batch`` rows, in bounded memory; running numbers go on across frames.

        They follow the law of `sample`. With the default ``batch`` and the same seed they are its rows; other batch
        sizes draw other rows.

        Raises:
            ConfigError: see `sample`.
        """
        start = 1
        for table in self._tables(n, seed, batch):
            yield framed(table, self._schema, start, self.flavour)
            start += len(table)

    def sample_parts(self, n: int, seed: int | None = None) -> dict[str, Any]:
        """Each silo's synthetic columns by themselves, as its own party holds them; row i is the same row everywhere.

        Identifier columns hold the same running numbers in every silo. With ``synthesis = "partitioned"`` columns never
        leave their silo: no synthetic column enters the ledger.

        Raises:
            ConfigError: ``n`` is not a positive whole number, or more than an identifier's dtype can number; or silos
                hold different rows, and no columns of their own.
        """
        if self._entry.horizontal:
            raise ConfigError(
                "Every silo has the same columns in this model: there are no parts", self.algorithm, "Use sample."
            )
        held: dict[str, list[Table]] = {name: [] for name in self.roster}
        for shared, parties in self._drawings(n, seed, BATCH):
            for name in self.roster:
                held[name].append(shared[name] if name in shared else parties[name].kept.pop())  # type: ignore[attr-defined]
        return {name: framed(below(tables), self.schemas[name], 1, self.flavour) for name, tables in held.items()}

    def save(self, path: str | Path) -> None:
        """Write the model to one file (safetensors and JSON; no code).

        Raises:
            StorageError: the file cannot be written; what was there before is untouched.
        """
        content = {
            "form": FORM,
            "about": {
                "algorithm": self.algorithm,
                "preset": self.preset,
                "seed": self.seed,
                "columns": list(self.columns),
                "flavour": self.flavour,
                "rows": self.rows,
                "silos": list(self.roster),
                "ledger": json.dumps(self.ledger),
            },
            "config": to_state(self.config),
            "schemas": {name: to_state(schema) for name, schema in self.schemas.items()},
            "coordinator": self.coordinator,
            "parts": dict(self.parts),
        }
        write_atomic(Path(path), pack(content))

    def describe(self) -> dict[str, Any]:
        """What the model is, as plain values: algorithm, options, silos and columns, traffic, pooling, guarantee."""
        privacy = statement(self.ledger, horizontal=self._entry.horizontal)
        return {
            "algorithm": self.algorithm,
            "summary": self._entry.summary,
            "preset": self.preset,
            "seed": self.seed,
            "rows": self.rows,
            "partition": "horizontal" if self._entry.horizontal else "vertical",
            "silos": {name: list(self.schemas[name].names) for name in self.roster},
            "columns": {column.name: column.kind for schema in self.schemas.values() for column in schema.columns},
            "sent": _totals(self.ledger),
            "pooled": self._pooled(),
            "guarantee": privacy["summary"],
            "privacy": privacy,
            "config": _plain(to_state(self.config)),
        }

    def _pooled(self) -> list[str]:
        """Columns of which some levels are held by too few rows to be released by name."""
        parts = [*self.parts.values(), self.coordinator]
        encoders = [encoder["fields"] for part in parts for encoder in part.get("encoders", [])]
        return list(dict.fromkeys(fields["name"] for fields in encoders if fields.get("rare")))

    @property
    def _entry(self) -> Algorithm:
        return algorithm(self.algorithm)

    def _tables(self, n: int, seed: int | None, batch: int) -> Iterator[Table]:
        if getattr(self.config, "synthesis", "shared") != "shared":
            raise ConfigError(
                "This model keeps synthetic columns in their silos", "partitioned", "Use sample_parts instead."
            )
        for shared, _ in self._drawings(n, seed, batch):
            yield beside(shared.values())

    def _drawings(self, n: int, seed: int | None, batch: int) -> Iterator[tuple[dict[str, Table], dict[str, Party]]]:
        n = whole_number("The number of rows to sample", n, positive=True)
        batch = whole_number("The number of rows of a batch", batch, positive=True)
        seed = None if seed is None else whole_number("A seed", seed)
        for column in filter(_is_identifier, self._schema.columns):
            _check_numbers_fit(column, n)
        name = f"call {self._drawn}" if seed is None else f"seed {seed}"
        self._drawn += seed is None
        streams = Streams(self.seed).child("sample", name)
        parties = self._parties(streams)
        for number, start in enumerate(range(0, n, batch)):
            size = min(batch, n - start)
            yield self._draw(parties, size, streams.child(number)), parties

    def _draw(self, parties: Mapping[str, Party], size: int, streams: Streams) -> dict[str, Table]:
        entry, ledger = self._entry, Ledger()
        with InProcess(parties) as link:
            drawn = drive(
                lambda _: entry.synthesise(self.roster, self.config, self.coordinator, size, streams, self.device),
                link,
                ledger,
            )
        self.ledger += [as_dict(record) for record in ledger.records]
        return drawn

    def _parties(self, streams: Streams) -> dict[str, Party]:
        parties = {}
        for name, seat in seats(self.roster, Streams(self.seed).child("seats")).items():  # those of training
            stream = streams.party(name)
            parties[name] = self._entry.party(Table(()), self.schemas[name], seat, stream, self.device)
            parties[name].restore(self.parts[name])
        return parties

    @property
    def _schema(self) -> Schema:
        """All columns' kinds, in the frame's order."""
        schemas = list(self.schemas.values())[: 1 if self._entry.horizontal else None]  # or else they are all alike
        return Schema(tuple(column for schema in schemas for column in schema.columns)).select(self.columns)


def load(path: str | Path, device: str = "auto") -> Model:
    """The model that `Model.save` wrote. Loading executes no code and works on any device.

    Raises:
        StorageError: the file is missing, damaged, of a newer version, or not a model.
    """
    content = unpack(read(Path(path)))
    if content.get("form") != FORM:
        raise StorageError("This file is not a silosynth model", str(path), "Pass a file that model.save() wrote.")
    about = content["about"]
    return Model(
        algorithm=about["algorithm"],
        preset=about["preset"],
        seed=about["seed"],
        config=from_state(Struct, content["config"]),
        roster=Roster(tuple(about["silos"])),
        columns=tuple(about["columns"]),
        schemas={name: from_state(Schema, schema) for name, schema in content["schemas"].items()},
        flavour=about["flavour"],
        coordinator=content["coordinator"],
        parts=content["parts"],
        rows=about["rows"],
        ledger=json.loads(about["ledger"]),
        device=resolve_device(device),
    )


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; "auto" takes CUDA where there is one.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu" or (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        return torch.device(name)
    raise ConfigError("The device is auto, cpu or cuda, and must exist on this machine", name, "Use device='auto'.")


def as_dict(record: Record) -> dict[str, Any]:
    """A ledger record as it stands in the ledger file."""
    *fields, events = record
    plain = dict(zip(("step", "from", "to", "type", "bytes", "privacy"), fields, strict=True))
    return plain | {"events": [asdict(event) for event in events]} if events else plain


def whole_number(what: str, value: Any, positive: bool = False) -> int:
    """``value`` as an int, NumPy's integers included.

    Raises:
        ConfigError: it is something else, or not above zero where ``positive`` wants that.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (positive and number < 1):
        raise ConfigError(f"{what} is a {'positive ' * positive}whole number", value, "Pass an int.")
    return number


def framed(modelled: Table, schema: Schema, start: int = 1, flavour: str = "pandas") -> Any:
    """A frame of the schema's columns: modelled ones, and identifiers as running numbers from ``start``."""
    made = [_surrogate(column, start, len(modelled)) for column in schema.columns if _is_identifier(column)]
    whole = beside([modelled, Table(tuple(made))]).select(schema.names)
    return to_frame(whole, flavour)  # type: ignore[arg-type]


def _is_identifier(column: ColumnSchema) -> bool:
    return column.kind == Kind.IDENTIFIER.value


def _surrogate(schema: ColumnSchema, start: int, size: int) -> Column:
    """Running numbers in place of an identifier: as numbers, or as texts."""
    numbers = torch.arange(start, start + size)
    none = torch.zeros(size, dtype=torch.bool)
    kind = resolve(schema.dtype).kind
    if kind in "iuf":
        return Column(schema.name, schema.dtype, numbers.double() if kind == "f" else numbers, none)
    texts = tuple(f"synthetic-{i}" for i in numbers.tolist())
    return Column(schema.name, schema.dtype, torch.arange(size), none, texts)


def _check_numbers_fit(schema: ColumnSchema, n: int) -> None:
    """Refuse more rows than the identifier's dtype can number."""
    dtype = resolve(schema.dtype)
    if dtype.kind not in "iuf":
        return
    width = f"{dtype.kind}{dtype.itemsize}"
    most = 2 ** (np.finfo(width).nmant + 1) if dtype.kind == "f" else int(np.iinfo(width).max)
    if n > most:
        raise ConfigError(
            f"Identifier column {schema.name!r} of dtype {schema.dtype} can number at most {most:,} rows",
            n,
            "Sample fewer, or train with the column cast to int64, declared another kind, or left out.",
        )


def _untold(schema: Schema) -> Schema:
    """Without the reasons for which kinds were inferred: these speak of the rows."""
    return Schema(tuple(replace(column, reason="") for column in schema.columns))


def _totals(ledger: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for record in ledger:
        key = f"{record['from']} → {record['to']}: {record['type']}"
        entry = totals.setdefault(key, {"messages": 0, "bytes": 0, "privacy": record["privacy"]})
        if record["privacy"] not in entry["privacy"]:  # one type may carry noised statistics, and un-noised ones
            entry["privacy"] += f"; or {record['privacy']}"
        entry["messages"] += 1
        entry["bytes"] += record["bytes"]
    return totals


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.get("fields", state).items()}
    return [_plain(item) for item in state] if isinstance(state, list) else state
