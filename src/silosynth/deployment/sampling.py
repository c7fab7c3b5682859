"""The coordinator's side of drawing rows: under conditions and rules, until there are enough that all accept.

Rows are those that a simulated model draws (`silosynth.simulation.model`), with the same random numbers. Who sees what:

- *Shared columns*: a silo undoes by itself what rules about its own columns have changed, and leads its own columns to
  conditions as far as its algorithm can. The coordinator gets all rows that are drawn, compares their values, and
  publishes those that are accepted. So it has more synthetic rows than others, all of which policies count.
- *Columns that stay*: silos say of each row whether they accept it, and keep those that all accept. The coordinator
  and, by which rows remain, all silos learn one bit of each row from each silo: of synthetic rows.

Conditions and rules are in the job, which all silos are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from silosynth import catalog
from silosynth.core import conversation
from silosynth.core.conditions import Condition, Made, from_text, parse
from silosynth.core.conversation import Conversation, Exchange, Progress, Roster, expect
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done
from silosynth.core.rules import UniqueKey
from silosynth.core.schema import Schema, Table, below, beside, distinct_columns
from silosynth.core.streams import Streams
from silosynth.data.rules import bind
from silosynth.deployment.protocol import (
    AcceptKeys,
    AcceptRows,
    AskConditions,
    ConditionsRead,
    GivenColumn,
    Job,
    PrepareSynthesis,
    Publish,
    RowsAccepted,
    TakeRows,
    drawing_streams,
)  # fmt: skip
from silosynth.encoders.ruled import Ruled
from silosynth.simulation.accepting import LEAST, Accepting, Parts
from silosynth.simulation.model import BATCH, all_columns, batches, draw, makes_of
from silosynth.simulation.ruling import Keeping, Ruling, totals

LEAST_LED = 64  # rows of a batch, where silos lead rows to conditions


def synthesise(
    job: Job, roster: Roster, streams: Streams, device: torch.device, coordinator: dict[str, Any],
    schemas: Mapping[str, Schema], rows: int, form: Ruled | None,
) -> Conversation[tuple[Table | None, Ruling]]:  # fmt: skip
    """The synthetic table, as the first `Model.sample` draws it, and the rules that it keeps; every silo gets it too.

    ``form`` is how silos that hold different rows describe these under rules.

    Raises:
        ConfigError: so few rows are accepted that it would take too long.
    """
    entry, streams = catalog.of_config(job.algorithm, job.config), drawing_streams(job, streams)
    if entry.parts:
        expect((yield roster.everyone(PrepareSynthesis())), Done)
    ruling, drawn = Ruling(), list[Table]()
    if job.accepting:
        ruling, drawn = yield from _accepted(job, roster, streams, device, coordinator, schemas, rows, form)
    else:
        for batch in batches(rows):
            yield Progress("sampling rows", batch.first, rows)
            shared = yield from draw(entry, roster, job.config, coordinator, batch, streams, device)
            drawn += [beside(shared.values())] if shared else []
    yield Progress("sampling rows", rows, rows)
    yield from _publish(roster, drawn, schemas, rows, entry.horizontal)
    return below(drawn) if drawn else None, ruling


def _publish(
    roster: Roster, drawn: list[Table], schemas: Mapping[str, Schema], rows: int, alike: bool
) -> Conversation[None]:
    """Send every silo the synthetic rows; an empty table if columns stay in their silos.

    If silos hold the same columns, training may have gone on without one; then so does this.
    """
    columns, first = all_columns(schemas, horizontal=alike), 0
    for table in drawn or [Table(())]:
        asks = dict.fromkeys(roster, Publish(columns, table, first, rows))
        conversation.expect((yield Exchange(asks, missing=alike)), Done)
        first += len(table)


def _accepted(
    job: Job, roster: Roster, streams: Streams, device: torch.device, coordinator: dict[str, Any],
    schemas: Mapping[str, Schema], rows: int, form: Ruled | None,
) -> Conversation[tuple[Ruling, list[Table]]]:  # fmt: skip
    """The rules, bound, and rows that fulfil all conditions and keep all rules; none where these stay in silos."""
    entry = catalog.of_config(job.algorithm, job.config)
    conditions = yield from _read(job, roster, coordinator, schemas, form)
    asked = (("fulfils the conditions", job.given), ("keeps the rules", job.rules))
    what = " and ".join(words for words, some in asked if some)
    accepting = Accepting(rows, what, largest=BATCH, least=LEAST_LED if job.given else LEAST)
    ruling, drawn = Ruling(), list[Table]()
    keeping = Keeping(ruling)
    for batch in accepting.batches():
        shared: Parts = yield from draw(
            entry, roster, job.config, coordinator, batch, streams, device, given=bool(job.given)
        )
        if not shared:
            yield from _have_taken(job, roster, schemas, batch.number, accepting)
        else:
            if job.rules and not ruling.rules:
                ruling = _bound(job, schemas, shared, form)
                keeping = Keeping(ruling)
            parts = ruling.restored(shared, streams.child(batch.number)) if job.rules else shared
            taken = accepting.taken(keeping.accepts(parts, conditions))
            drawn += [beside(parts.values()).take(taken)] if len(taken) else []
        yield accepting.progress
    return ruling, drawn


def _read(
    job: Job, roster: Roster, coordinator: Mapping[str, Any], schemas: Mapping[str, Schema], form: Ruled | None
) -> Conversation[tuple[Condition, ...]]:
    """The job's conditions, as silos read them; or the coordinator, where it holds the whole model."""
    if not job.given:
        return ()
    if catalog.of_config(job.algorithm, job.config).parts:
        replies = expect((yield roster.everyone(AskConditions())), ConditionsRead)
        return tuple(condition for reply in replies for condition in reply.conditions)
    whole = all_columns(schemas, horizontal=True)
    ruling = Ruling(forms={} if form is None else {"": form})
    return read_given(job.given, makes_of(encoder_fields(coordinator), ruling, whole))


def encoder_fields(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of the column encoders in a part of a model."""
    return [encoder["fields"] for encoder in part.get("encoders") or []]


def read_given(given: Sequence[GivenColumn], columns: Mapping[str, Made]) -> tuple[Condition, ...]:
    """The conditions on those of these columns that are given.

    Raises:
        ConfigError: one cannot be read, or no row could fulfil it.
    """
    read: list[Condition] = []
    for one in given:
        found = from_text([one.text], columns)
        if set(found) != {one.column}:
            raise ProtocolError("A condition is on the column that the job names", sorted(found), "Compare versions.")
        read += parse(found, columns)
    return tuple(read)


def _bound(job: Job, schemas: Mapping[str, Schema], drawn: Parts, form: Ruled | None) -> Ruling:
    """The job's rules by the types of the columns that silos have drawn."""
    schema = all_columns(schemas, horizontal=form is not None)
    if form is not None:  # whose drawn descriptions become columns first
        like = form.restore(distinct_columns(drawn.values()), Streams(0).numpy())
        return Ruling(bind(job.rules, schema, like), {"": form}, True)
    like = distinct_columns(drawn.values())
    bound = bind(job.rules, schema, like)
    apart = [rule for rule in bound if not any(set(rule.named) <= set(own.names) for own in schemas.values())]
    return Ruling(bound, across=totals(apart, schema, like))


def _have_taken(
    job: Job, roster: Roster, schemas: Mapping[str, Schema], number: int, accepting: Accepting
) -> Conversation[None]:
    """Have silos keep those of the rows that they drew last which all of them accept."""
    accepted_N = yield from _all_accept(roster, AcceptRows(number))
    for place, rule in enumerate(job.rules):
        if isinstance(rule, UniqueKey):
            owner = next(silo for silo, own in schemas.items() if set(rule.named) <= set(own.names))
            accepted_N = yield from _all_accept(Roster((owner,)), AcceptKeys(number, place, accepted_N))
    taken = accepting.taken(accepted_N)
    expect((yield roster.everyone(TakeRows(number, accepted_N, len(taken)))), Done)


def _all_accept(roster: Roster, ask: AcceptRows | AcceptKeys) -> Conversation[Tensor]:
    """Which rows (N,) all of these silos accept."""
    replies = expect((yield roster.everyone(ask)), RowsAccepted)
    for reply in replies:
        check_flags("Which rows a silo accepts", reply.accepted_N, len(replies[0].accepted_N))
    return torch.stack([reply.accepted_N for reply in replies]).all(0)


def check_flags(what: str, flags_N: Tensor, rows: int) -> None:
    """Check yes or no for each of so many rows.

    Raises:
        ProtocolError: it is something else.
    """
    if flags_N.dtype is not torch.bool or tuple(flags_N.shape) != (rows,):
        raise ProtocolError(f"{what}: yes or no for {rows} rows", f"{tuple(flags_N.shape)}, {flags_N.dtype}")
