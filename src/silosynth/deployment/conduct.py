"""The coordinator's side of a job, from the first greeting to the published table: one conversation around others.

Checkpoints of the training carry what came before it, so that a job that is taken up again does not align anew.

Who learns what besides the algorithm's own messages: the coordinator learns each silo's number of rows, how many it has
in common with the others, and the names, kinds and dtypes of its columns; silos, the synthetic table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from silosynth import catalog
from silosynth.alignment import Matched, align
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Replies, State
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table, agreed, below, beside, check_partition
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.deployment.job import (
    Begin,
    Draw,
    Greet,
    Greeted,
    Job,
    Keep,
    Prepare,
    Prepared,
    PreparedRows,
    Publish,
    sources,
)
from silosynth.privacy.target import Target
from silosynth.simulation.model import BATCH

R = TypeVar("R")
M = TypeVar("M", bound=Message)
CALL = "call 0"  # the name of a model's first sampling, in `Model.sample` as well


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
            yield roster.everyone(Keep())
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
    told = yield roster.everyone(Prepare())
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
    schemas = {silo: _said(silo, reply, Prepared).schema for silo, reply in told.items()}
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
    """The synthetic table, in the batches and from the streams that `Model.sample` has; then every silo gets it."""
    entry, streams = catalog.algorithm(job.algorithm), streams.child("sample", CALL)
    if entry.parts:
        yield roster.everyone(Draw())
    drawn: list[Table] = []
    for number, first in enumerate(range(0, rows, BATCH)):
        yield Progress("sampling rows", first, rows)
        size = min(BATCH, rows - first)
        shared = yield from entry.synthesise(roster, job.config, coordinator, size, streams.child(number), device)
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
    held = list(schemas.values())[: 1 if alike else None]
    columns, first = Schema(tuple(column for schema in held for column in schema.columns)), 0
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
