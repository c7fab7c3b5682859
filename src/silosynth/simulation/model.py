"""The result of a training: what generators and representations share, and how the generator, `Model`, is sampled."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from typing_extensions import Self

from silosynth.catalog import Algorithm, AlgorithmKind, algorithm, of_config, partitioned
from silosynth.core import conditions, files, messages, notebook
from silosynth.core.conditions import Condition, Made
from silosynth.core.conversation import Conversation, Party, Progress, Roster
from silosynth.core.errors import ConfigError, SilosynthError, StorageError
from silosynth.core.rules import UniqueKey
from silosynth.core.schema import UNMODELLED, Column, ColumnSchema, Kind, Schema, Table, below, beside, union
from silosynth.core.streams import Streams
from silosynth.data import dtypes, frames, infer
from silosynth.data.personal import substitutes
from silosynth.encoders.column import RARE
from silosynth.privacy.events import Target, draws_noise
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import known_noise, noise_is_known, statement, totals
from silosynth.runtime import driver, wire
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import resolve_device
from silosynth.runtime.progress import RichProgress
from silosynth.simulation.accepting import BATCH, LEAST, TRIES, Parts, SampleBatch, accepted
from silosynth.simulation.groups import Matching, check_led, grouped, is_frame
from silosynth.simulation.imputing import POOL, Imputation, completed, filled, to_impute
from silosynth.simulation.ruling import Keeping, Ruling, led
from silosynth.simulation.silos import InProcess


def sampling_streams(streams: Streams, call: int = 0, seed: int | None = None) -> Streams:
    """The streams of one sampling: those of its seed; without one, of the model's ``call``-th sampling, from 0."""
    return streams.child("sample", f"call {call}" if seed is None else f"seed {seed}")


def batches(rows: int, size: int = BATCH) -> Iterator[SampleBatch]:
    """The batches in which ``rows`` rows are drawn."""
    for number, first in enumerate(range(0, rows, size)):
        yield SampleBatch(number, first, min(size, rows - first))


def draw(
    entry: Algorithm, roster: Roster, config: messages.Struct, coordinator: Mapping[str, Any], batch: SampleBatch,
    streams: Streams, device: torch.device, given: Sequence[Condition] = (),
) -> Conversation[dict[str, Table]]:  # fmt: skip
    """The coordinator's side of drawing a batch: synthetic columns by silo, without those that stay in their silo.

    ``streams`` are those of all batches (`sampling_streams`). Silos that have parts of the model have been told those
    of the conditions ``given`` that are about their columns; else the coordinator leads rows to them itself.
    """
    how = roster, config, coordinator, batch.rows, streams.child(batch.number), device
    if given and entry.synthesise_given is not None:
        return entry.synthesise_given(*how) if entry.parts else entry.synthesise_given(*how, given)
    assert entry.synthesise is not None  # a generator has it
    return entry.synthesise(*how)


def all_columns(schemas: Mapping[str, Schema]) -> Schema:
    """The columns of all silos, in silos' order, each once: several hold a pseudonym, or all columns of other rows."""
    every = Schema(tuple(column for schema in schemas.values() for column in schema.columns))
    return every.select(list(dict.fromkeys(every.names)))


def to_synthetic_frame(
    parts: Sequence[Table],
    schema: Schema,
    streams: Streams,
    start: int = 1,
    flavour: str = "pandas",
    types: bytes = b"",
) -> Any:
    """A frame of the schema's columns: batches of modelled columns, identifiers as running numbers from ``start``, and
    substitutes for pseudonyms.

    Args:
        parts: tables of the modelled columns, to be set one below the other.
        schema: the columns of the frame, in order.
        streams: of the whole sampling: a synthetic row has the same substitutes wherever they are the same.
        start: the first running number.
        flavour, types: "pandas", "polars" or "arrow", and what `silosynth.data.frames.arrow_types` gave.
    """
    modelled = below(parts)
    others = [column for column in schema.columns if column.kind in UNMODELLED]
    made = [
        (_surrogate if _is_identifier(column) else partial(_substitutes, streams))(column, start, len(modelled))
        for column in others
    ]
    table = beside([modelled, Table(tuple(made))]).select(schema.names)
    return frames.to_frame(table, flavour, types)  # type: ignore[arg-type]


def check_identifiers_fit(schema: Schema, rows: int) -> None:
    """Refuse more rows than an identifier's dtype can number.

    Raises:
        ConfigError: names the column, and how many rows it can number.
    """
    for column in filter(_is_identifier, schema.columns):
        dtype = dtypes.resolve(column.dtype)
        if dtype.kind not in "iuf":
            continue
        width = f"{dtype.kind}{dtype.itemsize}"
        most = 2 ** (np.finfo(width).nmant + 1) if dtype.kind == "f" else int(np.iinfo(width).max)
        if rows > most:
            raise ConfigError(
                f"Identifier column {column.name!r} of dtype {column.dtype} can number at most {most:,} rows",
                rows,
                "Sample fewer, or train with the column cast to int64, declared another kind, or left out.",
            )


def _is_identifier(column: ColumnSchema) -> bool:
    return column.kind == Kind.IDENTIFIER.value


def _surrogate(schema: ColumnSchema, start: int, size: int) -> Column:
    """Running numbers in place of an identifier: as numbers, or as texts."""
    numbers = torch.arange(start, start + size)
    missing = torch.zeros(size, dtype=torch.bool)
    kind = dtypes.resolve(schema.dtype).kind
    if kind in "iuf":
        return Column(schema.name, schema.dtype, numbers.double() if kind == "f" else numbers, missing)
    texts = tuple(f"synthetic-{i}" for i in numbers.tolist())
    return Column(schema.name, schema.dtype, torch.arange(size), missing, texts)


def _substitutes(streams: Streams, schema: ColumnSchema, start: int, size: int) -> Column:
    """Substitutes for the rows' pseudonyms: whole numbers, or texts; none is missing."""
    kind, key = dtypes.resolve(schema.dtype).kind, streams.child("pseudonyms", schema.name).integer()
    levels_dtype = schema.dtype.startswith("category")  # whose detail is no form
    declared = "" if levels_dtype else dtypes.detail(schema.dtype)
    forms = (declared,) if declared else schema.forms or (("00000000",) if kind in "iu" else ())
    texts, missing = substitutes(forms, start, size, key), torch.zeros(size, dtype=torch.bool)
    if kind in "iu":
        return Column(schema.name, schema.dtype, torch.tensor([int(text) for text in texts]), missing)
    dtype = schema.dtype if levels_dtype else dtypes.bare(schema.dtype)
    levels = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = torch.tensor([levels[text] for text in texts])
    return Column(schema.name, dtype, codes, missing, tuple(levels))


R = TypeVar("R")
_FLAVOURS = ("pandas", "polars", "arrow")


@contextmanager
def fitting_together(what: str) -> Iterator[None]:
    """What does not fit together in a file is reported as such, whatever it made Python or PyTorch raise.

    Raises:
        StorageError: names the part, and the first line of that error.
    """
    try:
        yield
    except SilosynthError:
        raise
    except Exception as error:  # an altered file can make any line fail
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StorageError(f"The parts of a model's file fit together; {what} does not", first, _ALTERED) from error


_ALTERED = "It was altered, or written by another version: restore a copy, or fit the model again."


def _is(value: Any, kind: type, what: str) -> Any:
    """``value``, which is of that type.

    Raises:
        StorageError: it is not; names what it should be.
    """
    if type(value) is not kind:
        raise StorageError(f"In a model's file, {what} is a {kind.__name__}", type(value).__name__, _ALTERED)
    return value


@dataclass(repr=False, kw_only=True)
class TrainedModel:
    """What a `Model` and a `Representation` have in common.

    Attributes:
        algorithm, preset, seed: how it was trained; -1 for a secret seed, and for a given one that made noise, which is
            not kept: whoever has it subtracts the noise.
        config: all options.
        roster: the silos in order.
        schemas: each silo's column kinds.
        coordinator: the coordinator's part.
        parts: each silo's part.
        rows: number of training rows; a noised one under differential privacy.
        ledger: who sent what in training and (since) in use: step, from, to, type, bytes, privacy.
        device: where it computes.
        threads: that single operations of its coordinator had: fitted with as many, it has the same bytes.
    """

    KIND: ClassVar[AlgorithmKind]
    FORM: ClassVar[str]
    """The first entry of its files: what they hold."""
    NAME: ClassVar[str] = "algorithm"
    """The key of the algorithm's name in a file."""

    algorithm: str
    preset: str
    seed: int
    config: messages.Struct
    roster: Roster
    schemas: Mapping[str, Schema]
    coordinator: dict[str, Any]
    parts: Mapping[str, dict[str, Any]]
    rows: int
    ledger: list[dict[str, Any]] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1
    _loaded: bool = field(default=False, init=False)  # from a file, which may have been altered

    def save(self, path: str | Path) -> None:
        """Write everything to one file (safetensors and JSON; no code).

        Raises:
            StorageError: the file cannot be written, and what was there before is untouched; or its name ends in
                anything but ``.silosynth``.
        """
        files.check_suffix(path, (".silosynth", ""))
        names = ("preset", "seed", "rows", "threads")
        metadata = {self.NAME: self.algorithm} | {name: getattr(self, name) for name in names}
        content = {
            "form": self.FORM,
            "about": metadata | self._about() | {"silos": list(self.roster), "ledger": json.dumps(self.ledger)},
            "config": messages.to_state(self.config),
            "schemas": {name: messages.to_state(schema) for name, schema in self.schemas.items()},
            "coordinator": self.coordinator,
            "parts": dict(self.parts),
        }
        files.write_atomic(Path(path), wire.pack(content | self._content()))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """What `save` wrote. Loading executes no code and works on any device.

        Raises:
            StorageError: the file is missing, damaged, of a newer version, or holds something else.
        """
        content = wire.unpack(files.read(Path(path)))
        if content.get("form") != cls.FORM:
            raise StorageError(f"This file is not a {cls.FORM}", str(path), "Pass a file that save() wrote.")
        with fitting_together("its head"):
            model = cls(**cls._checked(content), device=resolve_device(device))
        model._loaded = True
        return model

    @classmethod
    def _checked(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """All fields but the device, each of its type; what is in the parts is checked when they are used."""
        about, config = _is(content["about"], dict, "its head"), messages.from_state(messages.Struct, content["config"])
        entry = algorithm(_is(about[cls.NAME], str, "the algorithm"), cls.KIND)
        if type(config) not in {type(preset) for preset in entry.presets.values()}:
            raise StorageError("A model has options of its algorithm", type(config).__name__, _ALTERED)
        roster = Roster(tuple(_is(name, str, "a silo's name") for name in _is(about["silos"], list, "the roster")))
        schemas = _is(content["schemas"], dict, "the columns")
        parts = _is(content["parts"], dict, "the silos' parts")
        if set(schemas) != set(roster) or not set(parts) <= set(roster):
            raise StorageError("A model has columns, and parts, of its silos", list(schemas), _ALTERED)
        ledger = _is(json.loads(_is(about["ledger"], str, "the ledger")), list, "the ledger")
        return {
            "algorithm": about[cls.NAME],
            "preset": _is(about["preset"], str, "the preset"),
            "seed": _is(about["seed"], int, "the seed"),
            "rows": _is(about["rows"], int, "the number of rows"),
            "threads": _is(about.get("threads", 1), int, "the number of threads"),  # older files have none
            "config": config,
            "roster": roster,
            "schemas": {name: messages.from_state(Schema, schema) for name, schema in schemas.items()},
            "coordinator": _is(content["coordinator"], dict, "the coordinator's part"),
            "parts": {name: _is(part, dict, "a silo's part") for name, part in parts.items()},
            "ledger": [_is(record, dict, "a record of the ledger") for record in ledger],
            **cls._restored(content),
        }

    def _fitting(self, what: str) -> AbstractContextManager[None]:
        """`fitting_together` for a model that comes from a file."""
        return fitting_together(what) if self._loaded else nullcontext()

    def describe(self) -> dict[str, Any]:
        """What it is, as plain values: algorithm, options, silos and columns, traffic, pooling, guarantee."""
        with self._fitting("what it says of itself"):
            return self._described()

    def _described(self) -> dict[str, Any]:
        grouped = bool(getattr(self.config, "silo_groups", ()))
        privacy = statement(self.ledger, horizontal=self._entry.horizontal, grouped=grouped)
        return {
            "algorithm": self.algorithm,
            "summary": self._entry.summary,
            "preset": self.preset,
            "seed": self.seed,
            "seeded": self.seed != -1 or noise_is_known(self.ledger),
            "rows": self.rows,
            "threads": self.threads,
            "partition": "mixed" if grouped else "horizontal" if self._entry.horizontal else "vertical",
            "silos": {name: list(self.schemas[name].names) for name in self.roster},
            "columns": {column.name: column.kind for schema in self.schemas.values() for column in schema.columns},
            "sent": totals(self.ledger),
            "pooled": list(dict.fromkeys(fields["name"] for fields in self._encoders() if fields.get("rare"))),
            "ranges": self._ranges(),
            "guarantee": privacy["summary"],
            "privacy": privacy,
            "config": _plain(messages.to_state(self.config)),
        }

    def _repr_html_(self) -> str:
        facts = self.describe()
        kinds = facts["columns"]
        silos = [(s, len(held), ", ".join(f"{c} ({kinds[c]})" for c in held)) for s, held in facts["silos"].items()]
        lines = (
            seed_in_words(facts["seed"], facts["seeded"]),
            f"privacy guarantee: {facts['guarantee']}",
            f"rare levels pooled in: {', '.join(facts['pooled']) or 'no column'}",
        )
        return notebook.table(("silo", "columns", ""), silos, repr(self)) + notebook.paragraph("; ".join(lines))

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
        return of_config(self.algorithm, self.config, self.KIND)

    def _encoders(self) -> list[dict[str, Any]]:
        """The fields of all column encoders."""
        parts = [*self.parts.values(), self.coordinator]
        return [encoder["fields"] for part in parts for encoder in part.get("encoders") or []]

    def _ranges(self) -> dict[str, dict[str, Any]]:
        """The ends of each column of numbers or instants (nanoseconds since 1970), and whether one was declared."""
        declared = {
            column.name: column.low is not None or column.high is not None
            for silo, schema in self._modelled.items()
            for column in schema.columns
            if column in self.schemas[silo].columns  # and is not described anew, under a rule
        }
        return {
            fields["name"]: {"low": fields["low"], "high": fields["high"], "declared": declared[fields["name"]]}
            for fields in self._encoders()
            if "low" in fields and fields["name"] in declared
        }

    @property
    def _modelled(self) -> Mapping[str, Schema]:
        """Each silo's columns as they were trained on."""
        return self.schemas

    def _parties(self, streams: Streams, tables: Mapping[str, Table] | None = None) -> dict[str, Party]:
        """Each silo's side as training left it, at its seat of training, with the rows of ``tables`` or none."""
        parties = {}
        for silo, seat in seats(self.roster, Streams(self.seed).child("seats")).items():
            table = Table(()) if tables is None else tables[silo]
            own = table, self._modelled[silo], seat, streams.party(silo), self.device
            with self._fitting(f"the part of silo {silo!r}"):
                parties[silo] = self._entry.party(*own, self.config)
                parties[silo].restore(self.parts[silo])
        return parties

    def _converse(self, parties: Mapping[str, Party], conversation: Conversation[R]) -> R:
        """Drive a conversation with its parties, and add what they send to the ledger."""
        ledger = Ledger()
        with self._fitting("what its rows are drawn from"), InProcess(parties) as link:
            result = driver.drive(lambda _: conversation, link, ledger)
        self.ledger += ledger.entries()
        return result


@dataclass(repr=False, kw_only=True)
class Model(TrainedModel):
    """What `silosynth.fit` returns. Of a simulated federation it holds every silo's part; each part knows only its own.

    Attributes: those of `TrainedModel`, where under differential privacy bytes in the ledger are left out, as 0; and
        columns: the columns that `sample` returns, in order.
        flavour, types: the kind of frame that `sample` returns, and its columns' types (`arrow_types`).
        ruling: the rules that its rows keep.
        acceptance: the share of rows drawn in the last sampling that kept all rules; None where nothing was drawn.
    """

    KIND, FORM = "generator", "silosynth model"

    columns: tuple[str, ...]
    flavour: str
    types: bytes = b""
    ruling: Ruling = field(default_factory=Ruling)
    acceptance: float | None = field(default=None, init=False)
    _calls: int = field(default=0, init=False)  # samplings without a seed

    def __post_init__(self) -> None:
        """Keep no seed that made noise; under differential privacy nothing of rows that was not charged for either."""
        if self.seed != -1 and draws_noise(self.config):
            self.seed, self.ledger = -1, known_noise(self.ledger)
        if getattr(self.config, "dp", Target()).private:
            self.rows = int(self.coordinator.get("rows", 0))  # noised
            self.schemas = {silo: _without_reasons(schema) for silo, schema in self.schemas.items()}
            self.ledger = [record | {"bytes": 0} for record in self.ledger]  # which reveal how many rows were sampled

    def __repr__(self) -> str:
        """What it is; no weights, and nothing of encoders."""
        return f"Model of {self.algorithm!r} ({self.preset}): {len(self.columns)} columns, {self.rows} training rows"

    def sample(
        self,
        n: int | None = None,
        seed: int | None = None,
        *,
        given: Any = None,
        balance: str | None = None,
        shift: Mapping[str, Any] | None = None,
        tries: int = TRIES,
        progress: bool = False,
    ) -> Any:
        """A synthetic table of ``n`` rows, with the columns, order, dtypes and flavour of the training frame.

        Without ``seed``, the first call gives the same rows in every copy of the model and each further call fresh
        ones. Identifier columns are not modelled: they hold running numbers.

        Args:
            n: how many rows.
            seed: of the rows.
            given: conditions on columns that all rows fulfil, such as ``{"health": "poor", "age": (60, 80)}``: a level,
                a list of levels, a range with its ends, or None for no value (see `silosynth.core.conditions`). Or a
                frame with a row of conditions for each synthetic row, in its order, where empty cells are no
                conditions; or a list of such mappings.
            balance: a column of whose levels there are equally many rows.
            shift: other shares of a column's levels: ``{"smoker": {"yes": 0.4}}``, or ``{"smoker": 0.4}`` for the
                second of two. Other levels keep their proportions, and other columns what was learnt of them.
            tries: under conditions, how many rows may be drawn for each that is wanted.
            progress: show how many rows fulfil the conditions, as they are drawn.

        Raises:
            ConfigError: ``n`` is not a positive integer, or more than an identifier's dtype can number; or the model
                keeps synthetic columns in their silos; or a condition cannot be read, or is too rare.
        """
        framed = given is not None and is_frame(given)
        n = whole_number("The number of rows to sample", len(given) if n is None and framed else n, positive=True)
        streams = self._sampling(n, seed)
        if balance is None and shift is None and not framed:
            with self._wanted(given, tries, progress) as wanted:
                return self._frame(list(self._tables(n, BATCH, streams, wanted)), self.schema, streams)
        groups = grouped(n, given, balance, shift, self.makes(), streams)
        drawn: list[Table] = []
        with self._wanted(None, tries, progress) as wanted:
            matching = Matching(groups.groups)
            if groups.apart:
                self._match(matching, streams.child("pool"), wanted)
            for number, (own, _) in enumerate(groups.groups):
                drawn += matching.found[number]
                if left := matching.left[number]:
                    group = replace(
                        wanted, conditions=own, watch=partial(_of_all, wanted.watch, sum(map(len, drawn)), n)
                    )
                    drawn += self._tables(left, BATCH, streams.child("group", number), group)
        return self._frame([below(drawn).take(groups.place_N.argsort())], self.schema, streams)

    def _match(self, matching: Matching, streams: Streams, wanted: _Wanted) -> None:
        """Draw rows without conditions as long as many of them are those of a group.

        Raises:
            ConfigError: rows of too many groups are left, to be drawn one by one.
        """
        for number in itertools.count():
            drawn = self._tables(matching.batch, BATCH, streams.child(number), wanted)
            if not matching.take(below(list(drawn))):
                break
        check_led(sum(left > 0 for left in matching.left))

    def sample_batches(
        self,
        n: int,
        batch: int = BATCH,
        seed: int | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        tries: int = TRIES,
        progress: bool = False,
    ) -> Iterator[Any]:
        """``n`` rows in frames of at most ``batch`` rows, in bounded memory; running numbers go on across frames.

        They have the distribution of `sample`. With the default ``batch`` and the same seed they are its rows; other
        batch sizes draw other rows.

        Raises:
            ConfigError: see `sample`.
        """
        start, streams = 1, self._sampling(n, seed)
        with self._wanted(given, tries, progress) as wanted:
            for table in self._tables(n, batch, streams, wanted):
                yield self._frame([table], self.schema, streams, start)
                start += len(table)

    def sample_parts(
        self,
        n: int,
        seed: int | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        tries: int = TRIES,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Each silo's synthetic columns by themselves, as its own party holds them; row i is the same row everywhere.

        Identifier columns hold the same running numbers in every silo. With ``synthesis = "partitioned"`` columns never
        leave their silo: no synthetic column enters the ledger. Of conditions, each silo then says for each row whether
        it fulfils those on its own columns.

        Raises:
            ConfigError: see `sample`; or silos hold different rows, and no columns of their own.
        """
        if self._entry.horizontal:
            rule = "The coordinator has all of a model of silos with different rows: there are no parts"
            raise ConfigError(rule, self.algorithm, "Use sample.")
        streams = self._sampling(n, seed)
        with self._wanted(given, tries, progress) as wanted:
            drawn = list(self._parts(n, BATCH, streams, wanted))
        return {
            name: self._frame([parts[name] for parts in drawn], self.schemas[name], streams) for name in self.roster
        }

    def impute(self, partial: Any, draws: int = 5, seed: int | None = None, *, progress: bool = False) -> Imputation:
        """The rows of a frame with each missing cell filled in ``draws`` times, by what other cells say of it.

        What they say is learnt from rows that the model draws; silos are asked for nothing else, and ``partial`` goes
        nowhere. See `silosynth.simulation.imputing`.

        Args:
            partial: rows of some or all columns, of one silo or several. Identifiers and pseudonyms stay as they are.
            draws: how many complete tables there are to be.
            seed: the same seed fills in the same values again.
            progress: show progress.

        Raises:
            ConfigError: a column that the model does not have, or none that is modelled; columns of several silos, of a
                model that keeps synthetic columns in their silos; draws that are no positive integer.
            DataError, SchemaError: the frame or a column cannot be used.
        """
        draws, streams = whole_number("The number of draws", draws, positive=True), self._sampling(POOL, seed)
        names = to_impute(frames.to_pandas(partial), self.schema)
        marks = {one.name: {"missing": list(one.missing)} for one in self.schema.columns if one.missing}
        frame = infer.without_marks(partial, {name: mark for name, mark in marks.items() if name in names})
        known = frames.to_table(frame, self.schema.select(names))
        rules = [rule for rule in self.ruling.rules if not isinstance(rule, UniqueKey) and set(rule.named) <= {*names}]
        with self._wanted(None, TRIES, progress) as wanted:
            made = self._generated(names, streams, wanted)
            found = filled(known, made, draws, rules, streams.child("imputed").numpy(), wanted.watch)
        types = self.types if frames.flavour(partial) == self.flavour else b""
        return completed(found, partial, frame, known, types)

    def _generated(self, names: Sequence[str], streams: Streams, wanted: _Wanted) -> Table:
        """Rows of these columns, of all silos or of the one that has them, from which missing cells are filled in."""
        if not partitioned(self.config):
            return below(list(self._tables(POOL, BATCH, streams, wanted))).select(names)
        owners = [silo for silo in self.roster if set(names) <= set(self.schemas[silo].names)]
        if not owners:
            rule = "This model keeps synthetic columns in their silos, so it fills in columns of one silo at a time"
            raise ConfigError(rule, list(names), "Leave out the columns of the others.")
        return below([parts[owners[0]] for parts in self._parts(POOL, BATCH, streams, wanted)]).select(names)

    def _frame(self, parts: Sequence[Table], schema: Schema, streams: Streams, start: int = 1) -> Any:
        with self._fitting("what its columns are made from"):
            return to_synthetic_frame(parts, schema, streams, start, self.flavour, self.types)

    def _about(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "flavour": self.flavour, "types": self.types}

    def _content(self) -> dict[str, Any]:
        return {"ruling": self.ruling.to_state()} if self.ruling.rules else {}

    @classmethod
    def _restored(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        about = content["about"]
        columns = tuple(_is(name, str, "a column's name") for name in _is(about["columns"], list, "the columns' list"))
        if about["flavour"] not in _FLAVOURS:
            raise StorageError(f"A frame is one of {', '.join(_FLAVOURS)}", about["flavour"], _ALTERED)
        ruling = Ruling.from_state(_is(content["ruling"], dict, "the rules")) if "ruling" in content else Ruling()
        types = _is(about["types"], bytes, "the types")
        return {"columns": columns, "flavour": about["flavour"], "types": types, "ruling": ruling}

    @property
    def _modelled(self) -> Mapping[str, Schema]:
        return self.ruling.schemas(self.schemas)

    def _tables(self, n: int, batch: int, streams: Streams, wanted: _Wanted) -> Iterator[Table]:
        """All silos' synthetic columns, batch by batch."""
        if partitioned(self.config):
            raise ConfigError(
                "This model keeps synthetic columns in their silos", "partitioned", "Use sample_parts instead."
            )
        for parts in self._parts(n, batch, streams, wanted):
            yield beside(parts.values())

    def _sampling(self, n: int, seed: int | None) -> Streams:
        """The streams of a sampling of ``n`` rows; without a seed, each call has other ones."""
        n = whole_number("The number of rows to sample", n, positive=True)
        seed = None if seed is None else seed_number(seed)
        with self._fitting("its columns"):
            check_identifiers_fit(self.schema, n)
        streams = sampling_streams(Streams(self.seed), self._calls, seed)
        self._calls += seed is None
        return streams

    def _parts(self, n: int, batch: int, streams: Streams, wanted: _Wanted) -> Iterator[Parts]:
        """Synthetic columns by silo, batch by batch: shared ones, and those that are kept."""
        n = whole_number("The number of rows to sample", n, positive=True)
        size = whole_number("The number of rows of a batch", batch, positive=True)
        parties, given = self._parties(streams), wanted.conditions
        if self._entry.parts:
            self._restrict(parties, given)
        else:
            given = led(given, next(iter(self.ruling.forms.values()), None), self.ruling.rules)

        def drawn(one: SampleBatch) -> Parts:
            how = self._entry, self.roster, self.config, self.coordinator
            conversation = draw(*how, one, streams, self.device, given)
            shared = self._converse(parties, conversation)
            kept = [] if self._entry.horizontal else [name for name in self.roster if name not in shared]
            parts = {**shared, **{name: parties[name].take_kept() for name in kept}}
            with self._fitting("what its rules say"):
                return self.ruling.restored(parts, streams.child(one.number)) if self.ruling.rules else parts

        keeping, asked = wanted.keeping, (wanted.conditions, self.ruling.rules)
        if not any(asked):
            yield from map(drawn, batches(n, size))
            return
        what = [words for words, some in zip(("fulfils the conditions", "keeps the rules"), asked, strict=True) if some]
        sizes = {"largest": size, "least": 64 if wanted.conditions else LEAST}
        accepts = partial(keeping.accepts, wanted=wanted.conditions)
        yield from accepted(drawn, n, accepts, " and ".join(what), **sizes, tries=wanted.tries, watch=wanted.watch)
        self.acceptance = keeping.rate if self.ruling.rules else None

    def _restrict(self, parties: Mapping[str, Party], given: Sequence[Condition]) -> None:
        """Tell each silo the conditions on its own columns."""
        for name in parties if given else ():
            own = [condition for condition in given if condition.column in self.schemas[name].names]
            with self._fitting(f"the part of silo {name!r}"):
                parties[name].restrict(led(own, self.ruling.forms.get(name), self.ruling.rules))

    @contextmanager
    def _wanted(self, given: Mapping[str, Any] | None, tries: int, progress: bool) -> Iterator[_Wanted]:
        """What rows must be, read before any is drawn."""
        found = () if given is None else conditions.parse(given, self.makes())
        tries = whole_number("The number of rows that may be drawn for each", tries, positive=True)
        with RichProgress(quiet=not progress) as watch:
            yield _Wanted(found, tries, watch, Keeping(self.ruling))

    def makes(self) -> dict[str, Made]:
        """What can be made of each modelled column: by this, conditions on it are read."""
        with self._fitting("what its columns are made from"):
            return makes_of(self._encoders(), self.ruling, self.schema)

    @property
    def schema(self) -> Schema:
        """All columns' kinds, in the frame's order."""
        return all_columns(self.schemas).select(self.columns)


@dataclass(frozen=True)
class _Wanted:
    """What the rows of a sampling must be, and how long they may be looked for; see `Model.sample`."""

    conditions: tuple[Condition, ...]
    tries: int
    watch: Callable[[Progress], None]
    keeping: Keeping  # of all groups of rows, which have different keys


def _of_all(watch: Callable[[Progress], None], before: int, rows: int, of_group: Progress) -> None:
    """Tell of a group's progress as of that of all rows, of which there are so many before it."""
    watch(replace(of_group, done=before + of_group.done, total=rows))


def makes_of(encoders: Sequence[Mapping[str, Any]], ruling: Ruling, schema: Schema) -> dict[str, Made]:
    """What can be made of each modelled column of a schema, given the fields of its encoders, under rules."""
    known = {name: facts for name, facts in map(_encoded, encoders) if name}
    for name, facts in (_looked_up(fields) for fields in encoders if "keys" in fields):
        known[name] = facts if name not in known else _either(known[name], facts)
    known |= _under(ruling, known)
    return {
        name: Made(
            name=name, read=partial(infer.read_number, schema[name]), **known[name],
            whole=schema[name].kind == Kind.INTEGER.value,
        )
        for name in schema.modelled
    }  # fmt: skip


def _facts(levels: Sequence[Any] | None, low: Any, high: Any, missing: bool) -> dict[str, Any]:
    return {"levels": None if levels is None else tuple(levels), "low": low, "high": high, "missing": missing}


def _encoded(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A column's name, and what its encoder makes of it; no name for what is no column's encoder."""
    if "every" in fields:
        return _encoded(fields["every"]["fields"])
    if "kept" in fields:
        pooled = [RARE] if fields["rare"] and fields["text"] else []
        return fields["name"], _facts([*fields["kept"], *pooled], None, None, fields["missing"])
    if "low" in fields:
        return fields["name"], _facts(None, fields["low"], fields["high"], bool(fields.get("missing")))
    return "", {}


def _looked_up(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A column's name, and what is made of it where another one determines it."""
    column = fields["values"]["fields"]
    present = column["values"][~column["missing"]]
    low, high = (None, None) if not len(present) else (float(present.min()), float(present.max()))
    ends = (None, None) if column["levels"] is not None else (low, high)
    return column["name"], _facts(column["levels"], *ends, bool(column["missing"].any()))


def _under(ruling: Ruling, known: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is made of columns that are described anew, under a rule."""
    found = {}
    for form in ruling.forms.values():
        for one in form.joined:
            keys = one.allowed or [str(level) for level in known[one.name]["levels"] if level != RARE]
            for column in one.columns_of(keys):
                present = column.values[~column.missing].tolist() if column.levels is None else []
                ends = min(present, default=None), max(present, default=None)
                found[column.name] = _facts(column.levels, *ends, bool(column.missing.any()))
        for other in form.computed:
            missing = known[other.name]["missing"] if other.name in known else False
            found[other.name] = _facts(None, None, None, missing)
    return found


def _either(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    levels = None if one["levels"] is None else union([one["levels"], other["levels"] or ()])
    ends = [(choose, [facts[end] for facts in (one, other)]) for choose, end in ((min, "low"), (max, "high"))]
    low, high = (None if None in both else choose(both) for choose, both in ends)
    return _facts(levels, low, high, one["missing"] or other["missing"])


def load(path: str | Path, device: str = "auto") -> Model:
    """The model that `Model.save` wrote. Loading executes no code and works on any device.

    Raises:
        StorageError: the file is missing, damaged, of a newer version, or not a model.
    """
    return Model.load(path, device)


def seed_in_words(seed: int, seeded: bool) -> str:
    """A model's seed, as texts name it. ``seeded``: it was given, even if it is not kept."""
    if seed != -1:
        return f"seed {seed}"
    return "a given seed, which is not kept" if seeded else "a secret seed"


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


def seed_number(value: Any) -> int:
    """A seed as an int, at least 0: below, it is not one that somebody gave (`TrainedModel.seed`).

    Raises:
        ConfigError: it is none.
    """
    if (seed := whole_number("A seed", value)) < 0:
        raise ConfigError("A seed is at least 0", seed, "Give another, or none.")
    return seed


def _without_reasons(schema: Schema) -> Schema:
    """Without the reasons why kinds were inferred, and the forms of pseudonyms: these describe the rows."""
    return Schema(tuple(replace(column, reason="", forms=()) for column in schema.columns))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.get("fields", state).items()}
    return [_plain(item) for item in state] if isinstance(state, list) else state
