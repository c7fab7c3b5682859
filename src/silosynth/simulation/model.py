"""The result of a training: what generators and representations share, and the generator, `Model`."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from typing_extensions import Self

from silosynth.catalog import Algorithm, AlgorithmKind, algorithm
from silosynth.core.conversation import Conversation, Party, Roster
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import read, write_atomic
from silosynth.core.messages import Struct, from_state, to_state
from silosynth.core.schema import Schema, Table, beside
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import statement
from silosynth.privacy.target import Target
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger, Record
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation import sampling
from silosynth.simulation.inprocess import InProcess
from silosynth.simulation.sampling import BATCH, to_synthetic_frame

R = TypeVar("R")


@dataclass(repr=False, kw_only=True)
class TrainedModel:
    """What a `Model` and a `Representation` have in common.

    Attributes:
        algorithm, preset, seed: how it was trained; -1 for a secret seed.
        config: all options.
        roster: the silos in order.
        schemas: each silo's column kinds.
        coordinator: the coordinator's part.
        parts: each silo's part.
        rows: number of training rows; a noised one under differential privacy.
        ledger: who sent what in training and (since) in use: step, from, to, type, bytes, privacy.
        device: where it computes.
    """

    KIND: ClassVar[AlgorithmKind]
    FORM: ClassVar[str]
    """The first entry of its files: what they hold."""
    NAME: ClassVar[str] = "algorithm"
    """The key of the algorithm's name in a file."""

    algorithm: str
    preset: str
    seed: int
    config: Struct
    roster: Roster
    schemas: Mapping[str, Schema]
    coordinator: dict[str, Any]
    parts: Mapping[str, dict[str, Any]]
    rows: int
    ledger: list[dict[str, Any]] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def save(self, path: str | Path) -> None:
        """Write everything to one file (safetensors and JSON; no code).

        Raises:
            StorageError: the file cannot be written; what was there before is untouched.
        """
        metadata = {self.NAME: self.algorithm} | {key: getattr(self, key) for key in ("preset", "seed", "rows")}
        content = {
            "form": self.FORM,
            "about": metadata | self._about() | {"silos": list(self.roster), "ledger": json.dumps(self.ledger)},
            "config": to_state(self.config),
            "schemas": {name: to_state(schema) for name, schema in self.schemas.items()},
            "coordinator": self.coordinator,
            "parts": dict(self.parts),
        }
        write_atomic(Path(path), pack(content | self._content()))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """What `save` wrote. Loading executes no code and works on any device.

        Raises:
            StorageError: the file is missing, damaged, of a newer version, or holds something else.
        """
        content = unpack(read(Path(path)))
        if content.get("form") != cls.FORM:
            raise StorageError(f"This file is not a {cls.FORM}", str(path), "Pass a file that save() wrote.")
        metadata = content["about"]
        return cls(
            algorithm=metadata[cls.NAME], preset=metadata["preset"], seed=metadata["seed"],
            config=from_state(Struct, content["config"]), roster=Roster(tuple(metadata["silos"])),
            schemas={name: from_state(Schema, schema) for name, schema in content["schemas"].items()},
            coordinator=content["coordinator"], parts=content["parts"], rows=metadata["rows"],
            ledger=json.loads(metadata["ledger"]), device=resolve_device(device), **cls._restored(content),
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """What it is, as plain values: algorithm, options, silos and columns, traffic, pooling, guarantee."""
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

    def _about(self) -> dict[str, Any]:
        """Further entries of a file's metadata."""
        return {}

    def _content(self) -> dict[str, Any]:
        """Further contents of a file."""
        return {}

    @classmethod
    def _restored(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that `_about` and `_content` store."""
        return {}

    @property
    def _entry(self) -> Algorithm:
        return algorithm(self.algorithm, self.KIND)

    def _pooled(self) -> list[str]:
        """Columns with levels of too few rows to be released by name."""
        parts = [*self.parts.values(), self.coordinator]
        encoders = [encoder["fields"] for part in parts for encoder in part.get("encoders", [])]
        return list(dict.fromkeys(fields["name"] for fields in encoders if fields.get("rare")))

    def _parties(self, streams: Streams, tables: Mapping[str, Table] | None = None) -> dict[str, Party]:
        """Each silo's side as training left it, at its seat of training, with the rows of ``tables`` or none."""
        parties = {}
        for silo, seat in seats(self.roster, Streams(self.seed).child("seats")).items():
            table = Table(()) if tables is None else tables[silo]
            parties[silo] = self._entry.party(table, self.schemas[silo], seat, streams.party(silo), self.device)
            parties[silo].restore(self.parts[silo])
        return parties

    def _converse(self, parties: Mapping[str, Party], conversation: Conversation[R]) -> R:
        """Drive a conversation with its parties, and add what they send to the ledger."""
        ledger = Ledger()
        with InProcess(parties) as link:
            result = drive(lambda _: conversation, link, ledger)
        self.ledger += [as_dict(record) for record in ledger.records]
        return result


@dataclass(repr=False, kw_only=True)
class Model(TrainedModel):
    """What `silosynth.fit` returns. Of a simulated federation it holds every silo's part; each part knows only its own.

    Attributes:
        columns: the columns that `sample` returns, in order.
        flavour: the kind of frame that `sample` returns.
        algorithm, preset, seed: how it was trained; -1 for a secret seed.
        config: all options.
        roster: the silos in order.
        schemas: each silo's column kinds.
        coordinator: the coordinator's part.
        parts: each silo's part.
        rows: number of training rows; a noised one under differential privacy.
        ledger: who sent what to train and (since) to sample: step, from, to, type, bytes, privacy. Under
            differential privacy bytes are left out, as 0.
    """

    KIND, FORM = "generator", "silosynth model"

    columns: tuple[str, ...]
    flavour: str
    _calls: int = field(default=0, init=False)  # samplings without a seed

    def __post_init__(self) -> None:
        """Under differential privacy, keep nothing of the rows that was not charged for, whatever files hold."""
        if getattr(self.config, "dp", Target()).private:
            self.rows = int(self.coordinator.get("rows", 0))  # noised
            self.schemas = {silo: _without_reasons(schema) for silo, schema in self.schemas.items()}
            self.ledger = [record | {"bytes": 0} for record in self.ledger]  # which reveal how many rows were sampled

    def __repr__(self) -> str:
        """What it is; no weights, and nothing of encoders."""
        return f"Model of {self.algorithm!r} ({self.preset}): {len(self.columns)} columns, {self.rows} training rows"

    def sample(self, n: int, seed: int | None = None) -> Any:
        """A synthetic table of ``n`` rows, with the columns, order, dtypes and flavour of the training frame.

        Without ``seed``, the first call gives the same rows in every copy of the model and each further call fresh
        ones. Identifier columns are not modelled: they hold running numbers.

        Raises:
            ConfigError: ``n`` is not a positive integer, or more than an identifier's dtype can number; or the model
                keeps synthetic columns in their silos.
        """
        return to_synthetic_frame(list(self._tables(n, seed, BATCH)), self._schema, 1, self.flavour)

    def sample_batches(self, n: int, batch: int = BATCH, seed: int | None = None) -> Iterator[Any]:
        """``n`` rows in frames of at most ``batch`` rows, in bounded memory; running numbers go on across frames.

        They have the distribution of `sample`. With the default ``batch`` and the same seed they are its rows; other
        batch sizes draw other rows.

        Raises:
            ConfigError: see `sample`.
        """
        start = 1
        for table in self._tables(n, seed, batch):
            yield to_synthetic_frame([table], self._schema, start, self.flavour)
            start += len(table)

    def sample_parts(self, n: int, seed: int | None = None) -> dict[str, Any]:
        """Each silo's synthetic columns by themselves, as its own party holds them; row i is the same row everywhere.

        Identifier columns hold the same running numbers in every silo. With ``synthesis = "partitioned"`` columns never
        leave their silo: no synthetic column enters the ledger.

        Raises:
            ConfigError: ``n`` is not a positive integer, or more than an identifier's dtype can number; or silos hold
                different rows, and no columns of their own.
        """
        if self._entry.horizontal:
            raise ConfigError(
                "Every silo has the same columns in this model: there are no parts", self.algorithm, "Use sample."
            )
        held: dict[str, list[Table]] = {name: [] for name in self.roster}
        for shared, parties in self._batches(n, seed, BATCH):
            for name in self.roster:
                held[name].append(shared[name] if name in shared else parties[name].take_kept())
        return {name: to_synthetic_frame(tables, self.schemas[name], 1, self.flavour) for name, tables in held.items()}

    def _about(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "flavour": self.flavour}

    @classmethod
    def _restored(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return {"columns": tuple(content["about"]["columns"]), "flavour": content["about"]["flavour"]}

    def _tables(self, n: int, seed: int | None, batch: int) -> Iterator[Table]:
        """All silos' synthetic columns, batch by batch."""
        if getattr(self.config, "synthesis", "shared") != "shared":
            raise ConfigError(
                "This model keeps synthetic columns in their silos", "partitioned", "Use sample_parts instead."
            )
        for shared, _ in self._batches(n, seed, batch):
            yield beside(shared.values())

    def _batches(self, n: int, seed: int | None, batch: int) -> Iterator[tuple[dict[str, Table], dict[str, Party]]]:
        """Of each batch: the columns that were shared, by silo, and the parties, which have the others."""
        n = whole_number("The number of rows to sample", n, positive=True)
        size = whole_number("The number of rows of a batch", batch, positive=True)
        seed = None if seed is None else whole_number("A seed", seed)
        sampling.check_identifiers_fit(self._schema, n)
        streams = sampling.sampling_streams(Streams(self.seed), self._calls, seed)
        self._calls += seed is None
        parties = self._parties(streams)
        for one in sampling.batches(n, size):
            conversation = sampling.draw(
                self._entry, self.roster, self.config, self.coordinator, one, streams, self.device
            )
            yield self._converse(parties, conversation), parties

    @property
    def _schema(self) -> Schema:
        """All columns' kinds, in the frame's order."""
        return sampling.all_columns(self.schemas, self._entry.horizontal).select(self.columns)


def load(path: str | Path, device: str = "auto") -> Model:
    """The model that `Model.save` wrote. Loading executes no code and works on any device.

    Raises:
        StorageError: the file is missing, damaged, of a newer version, or not a model.
    """
    return Model.load(path, device)


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
    """``value`` as an int; NumPy's integers are taken, too.

    Raises:
        ConfigError: it is no integer, or, with ``positive``, not above zero.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (positive and number < 1):
        raise ConfigError(f"{what} is a {'positive ' * positive}whole number", value, "Pass an int.")
    return number


def _without_reasons(schema: Schema) -> Schema:
    """Without the reasons why kinds were inferred: these describe the rows."""
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
