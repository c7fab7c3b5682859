"""The protocol of a job: messages around an algorithm's own conversation, and the coordinator's side from start to end.

In talking order: `Greet` → `Greeted`, `Begin` → `Done`, (alignment), `PrepareRows` → `PreparedSchema` or
`PreparedRows`, (training), `KeepPart` → `Done`, `PrepareSynthesis` → `Done`, (sampling), `Publish` → `Done`.

Checkpoints of the training carry what came before it, so that a resumed job does not align again.

What parties learn besides the algorithm's own messages: the coordinator learns each silo's number of rows, how many of
them all silos have in common, and the names, kinds and dtypes of its columns; silos learn the synthetic table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from silosynth import catalog
from silosynth.alignment import AlignConfig, Matched, align
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Replies, State
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release, Struct
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table, agreed, below, beside, check_partition
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.privacy.target import Target
from silosynth.simulation.sampling import all_columns, batches, draw, sampling_streams

ROOMS = (
    "__init__.py", "algorithms", "alignment", "catalog.py", "core", "data", "deployment", "encoders", "experiment",
    "models", "privacy", "runtime", "simulation",
)  # fmt: skip
"""What `sources` covers: files and folders of the package from which a job's processes import (tests/deployment)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True, slots=True)
class Job(Struct):
    """A training and its synthetic table.

    Attributes:
        name: of the job; no other job of the federation has it.
        algorithm, preset, config: what is fitted, and all its options.
        silos: who takes part, in order.
        seed: of all randomness, silos' own included; None where each draws its own.
        align: how rows are linked; None where silos hold different rows, or the same in the same order.
        rows: of the synthetic table; None for as many as there are to train on, with differential privacy a noised
            number.
        submitter: who started it.

    Raises:
        ConfigError: the name is no plain word.
    """

    name: str
    algorithm: str
    preset: str
    config: Struct
    silos: tuple[str, ...]
    seed: int | None
    align: AlignConfig | None
    rows: int | None
    submitter: str

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_name(self.name)


def check_name(name: str) -> str:
    """The name of a job, by which folders are called.

    Raises:
        ConfigError: it is no plain word.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "A job's name is 1 to 80 letters, digits, '_', '.' or '-', and starts with a letter or digit", name
        )
    return name


@cache
def sources() -> str:
    """SHA-256 of the sources that a job's processes import: silos with equal digests run the same algorithms.

    Papers, attacks, evaluation and commands are left out: they never run in a silo, and may differ between silos.
    """
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    files = [
        file for room in ROOMS for file in ([root / room] if room.endswith(".py") else (root / room).rglob("*.py"))
    ]
    for path in sorted(files):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Greet(Message):
    """Coordinator: this is my silosynth, and what I want to start on whose behalf. Is yours the same, and may I?"""

    algorithm: str
    submitter: str
    version: str
    sources: str


@dataclass(frozen=True, slots=True)
class Greeted(Message):
    """Silo: yes. This is mine."""

    version: str
    sources: str


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Coordinator: open your table, and get ready for this job."""

    job: Job


@dataclass(frozen=True, slots=True)
class PrepareRows(Message):
    """Coordinator: rows are linked. Keep those in common, in the common order, and tell what your columns are."""


@dataclass(frozen=True, slots=True)
class PreparedSchema(Message):
    """Silo: my columns; neither their ranges nor why a kind was inferred."""

    release: ClassVar[Release] = Release.SCHEMA
    schema: Schema


@dataclass(frozen=True, slots=True)
class PreparedRows(Message):
    """The same of a silo whose rows are those of the others: and so many rows."""

    release: ClassVar[Release] = Release.COUNTS
    schema: Schema
    rows: int


@dataclass(frozen=True, slots=True)
class KeepPart(Message):
    """Coordinator: training has ended. Keep your part of the model."""


@dataclass(frozen=True, slots=True)
class PrepareSynthesis(Message):
    """Coordinator: get ready to draw synthetic rows from your part of the model."""


@dataclass(frozen=True, slots=True)
class Publish(Message):
    """Coordinator: the synthetic table, or some rows of it, to keep beside your own."""

    release: ClassVar[Release] = Release.SYNTHETIC
    columns: Schema
    table: Table
    first: int
    total: int


R = TypeVar("R")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Outcome:
    """What a job has led to.

    Attributes:
        coordinator: the coordinator's part of the model.
        schemas: each silo's columns; where silos hold different rows, the same ones.
        rows: to train on: aligned ones, or of all silos; a noised number under differential privacy.
        matched: of each silo, how many rows were linked; empty without alignment.
        table: synthetic columns of all silos; None where they stay there.
    """

    coordinator: dict[str, Any]
    schemas: dict[str, Schema]
    rows: int
    matched: dict[str, Matched]
    table: Table | None


def conduct(
    job: Job, streams: Streams, device: torch.device, state: State | None = None, *, missing: str | None = None
) -> Conversation[Outcome]:
    """Carry out a job, or go on from a checkpoint's ``state``. Silos lost in training are dealt with as by ``missing``.

    Raises:
        PolicyError, ConfigError, DataError, ProtocolError: a silo refuses, or cannot take part; or versions differ.
    """
    roster, entry = Roster(job.silos), catalog.algorithm(job.algorithm)
    if state is None:
        state = yield from _begin(job, roster)
    schemas = {silo: from_state(Schema, schema) for silo, schema in state["schemas"].items()}
    if state["stage"] == "train":
        coordinate = entry.under(missing)
        training = coordinate(roster, job.config, streams.child("coordinator"), device, state["inner"])
        coordinator = yield from _within(training, {**state, "inner": None})
        if entry.parts:
            yield roster.everyone(KeepPart())
        state = {**state, "stage": "draw", "inner": coordinator}
        yield Checkpoint(state)
    coordinator = state["inner"]
    if getattr(job.config, "dp", Target()).private:
        rows = max(1, int(coordinator["rows"]))  # noised
    else:
        rows = state["rows"] or sum(coordinator["rows"])  # of silos with different rows: as far as they have told
    table = yield from _draw(job, roster, streams, device, coordinator, schemas, job.rows or rows)
    matched = {silo: from_state(Matched, counts) for silo, counts in state["matched"].items()}
    return Outcome(coordinator, schemas, rows, matched, table)


def _begin(job: Job, roster: Roster) -> Conversation[State]:
    """Greetings, alignment, and what silos' columns are."""
    mine = (VERSION, sources())
    greeted = yield roster.everyone(Greet(job.algorithm, job.submitter, *mine))
    for silo in roster:
        theirs = _said(silo, greeted[silo], Greeted)
        check_same(f"silo {silo!r}", (theirs.version, theirs.sources), "the coordinator", mine)
    yield roster.everyone(Begin(job))
    matched: dict[str, Matched] = {}
    if job.align is not None:
        matched = yield from align(roster, job.align)
    told = yield roster.everyone(PrepareRows())
    schemas, rows = _stacked(told) if catalog.algorithm(job.algorithm).horizontal else _side_by_side(told)
    return {
        "stage": "train",
        "schemas": {silo: to_state(schema) for silo, schema in schemas.items()},
        "matched": {silo: to_state(counts) for silo, counts in matched.items()},
        "rows": rows,
        "inner": None,
    }


def check_same(who: str, theirs: tuple[str, str], whom: str, mine: tuple[str, str]) -> None:
    """Refuse to work with another version, or other sources, of silosynth.

    Raises:
        ProtocolError: names both values.
    """
    for what, one, other in zip(("version", "sources (SHA-256)"), theirs, mine, strict=True):
        if one != other:
            raise ProtocolError(
                f"All of a federation run the same silosynth; its {what} is {one} at {who}",
                f"{other} at {whom}",
                "Install the same release everywhere.",
            )


def _stacked(told: Replies) -> tuple[dict[str, Schema], int]:
    """The columns of silos that hold different rows; nobody has told how many."""
    schemas = {silo: _said(silo, reply, PreparedSchema).schema for silo, reply in told.items()}
    return dict.fromkeys(schemas, agreed(schemas)), 0


def _side_by_side(told: Replies) -> tuple[dict[str, Schema], int]:
    """Each silo's columns, and the number of rows, if they fit together."""
    said = {silo: _said(silo, reply, PreparedRows) for silo, reply in told.items()}
    counts = {silo: reply.rows for silo, reply in said.items()}
    schemas = {silo: reply.schema for silo, reply in said.items()}
    check_partition([name for schema in schemas.values() for name in schema.names], _names(schemas))
    if len(set(counts.values())) > 1:
        raise ProtocolError(
            "Silos that hold different columns have the same rows, in the same order",
            ", ".join(f"{silo}: {rows}" for silo, rows in counts.items()),
            'Have rows linked: [align] method = "psi".',
        )
    return schemas, next(iter(counts.values()))


def _names(schemas: Mapping[str, Schema]) -> dict[str, list[str]]:
    return {silo: list(schema.names) for silo, schema in schemas.items()}


def _draw(
    job: Job, roster: Roster, streams: Streams, device: torch.device, coordinator: dict[str, Any],
    schemas: Mapping[str, Schema], rows: int,
) -> Conversation[Table | None]:  # fmt: skip
    """The synthetic table, as the first `Model.sample` draws it; then every silo gets it."""
    entry, streams = catalog.algorithm(job.algorithm), sampling_streams(streams)
    if entry.parts:
        yield roster.everyone(PrepareSynthesis())
    drawn: list[Table] = []
    for batch in batches(rows):
        yield Progress("sampling rows", batch.first, rows)
        shared = yield from draw(entry, roster, job.config, coordinator, batch, streams, device)
        drawn += [beside(shared.values())] if shared else []
    yield Progress("sampling rows", rows, rows)
    yield from _publish(roster, drawn, schemas, rows, entry.horizontal)
    return below(drawn) if drawn else None


def _publish(
    roster: Roster, drawn: list[Table], schemas: Mapping[str, Schema], rows: int, alike: bool
) -> Conversation[None]:
    """Give every silo what was drawn; an empty table where its own columns never left it.

    Where silos hold the same columns, training may have gone on without one; then this does as well.
    """
    columns, first = all_columns(schemas, horizontal=alike), 0
    for table in drawn or [Table(())]:
        yield Exchange(dict.fromkeys(roster, Publish(columns, table, first, rows)), missing=alike)
        first += len(table)


def _within(part: Conversation[R], around: State) -> Conversation[R]:
    """Lead a part of the job; its checkpoints hold what is ``around`` it, and their own state as "inner"."""
    try:
        step = next(part)
        while True:
            if isinstance(step, Checkpoint):
                step = Checkpoint({**around, "inner": step.state})
            step = part.send((yield step))
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        part.close()


def _said(silo: str, reply: Message, kind: type[M]) -> M:
    if not isinstance(reply, kind):
        raise ProtocolError(f"Silo {silo!r} answers what it was asked", type(reply).__name__, "Compare versions.")
    return reply
