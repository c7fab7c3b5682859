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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from silosynth import catalog
from silosynth.core import conversation
from silosynth.core.conditions import Condition, Made, from_text, parse
from silosynth.core.conversation import Conversation, Exchange, Progress, Roster, expect
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done
from silosynth.core.rules import Rule, UniqueKey
from silosynth.core.schema import Schema, Table, below, beside, distinct_columns
from silosynth.core.streams import Streams
from silosynth.data.rules import bind
from silosynth.deployment.protocol import (
    AcceptKeys,
    AcceptRows,
    AskCodes,
    AskConditions,
    ConditionsRead,
    GivenColumn,
    Job,
    LevelRows,
    OtherShares,
    PrepareGroup,
    PrepareSynthesis,
    Publish,
    RowCodes,
    RowsAccepted,
    TakeRows,
    comparing,
    drawing_streams,
    rows_purpose,
)  # fmt: skip
from silosynth.encoders.ruled import Ruled
from silosynth.privacy.agreement import agree
from silosynth.privacy.simultaneous import go_together
from silosynth.simulation.accepting import LEAST, Accepting, Parts
from silosynth.simulation.groups import by_level, mixed
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
        if comparing(job):
            yield from agree(roster, rows_purpose(job))
    ruling, drawn = Ruling(), list[Table]()
    if job.accepting:
        sampling = _Sampling(job, roster, streams, device, coordinator, schemas, form)
        ruling, drawn = yield from _accepted(sampling, rows)
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


def _accepted(sampling: _Sampling, rows: int) -> Conversation[tuple[Ruling, list[Table]]]:
    """The rules, bound, and rows that fulfil all conditions and keep all rules; none where these stay in silos."""
    job, streams = sampling.job, sampling.streams
    conditions, groups = yield from _read(sampling)
    if not groups:
        drawn = yield from sampling.accepted(rows, conditions, streams)
        return sampling.keeping.ruling, drawn
    drawn = []
    for number, group in enumerate(groups):
        if catalog.of_config(job.algorithm, job.config).parts:
            expect((yield sampling.roster.everyone(PrepareGroup(number))), Done)
        wanted = (group.condition, *conditions)
        drawn += yield from sampling.accepted(group.rows, wanted, streams.child("group", number))
    table = below(drawn).take(mixed(rows, streams).argsort())
    return sampling.keeping.ruling, [table.take(torch.arange(one.first, one.first + one.rows)) for one in batches(rows)]


@dataclass
class _Sampling:
    """What a job draws its rows from, and what they are compared with.

    Attributes:
        job, roster, streams, device, coordinator, schemas, form: see `synthesise`.
        keeping: the rules, once rows show of which types columns are; and keys of the rows so far.
    """

    job: Job
    roster: Roster
    streams: Streams
    device: torch.device
    coordinator: dict[str, Any]
    schemas: Mapping[str, Schema]
    form: Ruled | None
    keeping: Keeping = field(default_factory=lambda: Keeping(Ruling()))

    def accepted(self, rows: int, wanted: Sequence[Condition], streams: Streams) -> Conversation[list[Table]]:
        """So many rows that fulfil conditions and keep all rules; none where these stay in silos."""
        job, drawn = self.job, list[Table]()
        entry = catalog.of_config(job.algorithm, job.config)
        asked = (("fulfils the conditions", job.asked), ("keeps the rules", job.rules))
        what = " and ".join(words for words, some in asked if some)
        accepting = Accepting(rows, what, largest=BATCH, least=LEAST_LED if job.asked else LEAST)
        for batch in accepting.batches():
            how = entry, self.roster, job.config, self.coordinator, batch, streams, self.device
            shared: Parts = yield from draw(*how, given=bool(job.asked))
            if not shared:
                yield from self._have_taken(batch.number, accepting)
            else:
                parts = self._restored(shared, streams.child(batch.number))
                taken = accepting.taken(self.keeping.accepts(parts, wanted))
                drawn += [beside(parts.values()).take(taken)] if len(taken) else []
            yield accepting.progress
        return drawn

    def _restored(self, shared: Parts, streams: Streams) -> Parts:
        """Silos' columns under the rules, which are bound to them first."""
        if not self.job.rules:
            return shared
        if not self.keeping.ruling.rules:
            self.keeping = Keeping(_bound(self.job, self.schemas, shared, self.form))
        return self.keeping.ruling.restored(shared, streams)

    def _have_taken(self, number: int, accepting: Accepting) -> Conversation[None]:
        """Have silos keep those of the rows that they drew last which all of them accept."""
        accepted_N = yield from _all_accept(self.roster, AcceptRows(number))
        of = [self._owners(rule) for rule in self.job.rules]
        for place in (place for place, owners in enumerate(of) if len(owners) > 1):
            accepted_N = yield from self._compared(number, place, of[place], accepted_N)
        for place, rule in enumerate(self.job.rules):
            if isinstance(rule, UniqueKey):
                accepted_N = yield from _all_accept(of[place], AcceptKeys(number, place, accepted_N))
        taken = accepting.taken(accepted_N)
        expect((yield self.roster.everyone(TakeRows(number, accepted_N, len(taken)))), Done)

    def _owners(self, rule: Rule) -> Roster:
        """The silos that have its columns."""
        return Roster(tuple(s for s, own in self.schemas.items() if not set(rule.named).isdisjoint(own.names)))

    def _compared(self, number: int, place: int, owners: Roster, accepted_N: Tensor) -> Conversation[Tensor]:
        """Which of the rows (N,) that are accepted so far keep a rule across two silos, by these silos' codes."""
        replies = expect((yield owners.everyone(AskCodes(number, place, accepted_N))), RowCodes)
        one, other = (reply.codes for reply in replies)
        rows = int(accepted_N.sum())
        if one.dtype is not torch.int64 or one.shape != other.shape or one.ndim != 2 or len(one) != rows:
            raise ProtocolError("Two silos send codes of the same rows and places", [one.shape, other.shape])
        kept_N = accepted_N.clone()
        kept_N[accepted_N] = torch.from_numpy(go_together(one.numpy(), other.numpy()))
        return kept_N


def _read(sampling: _Sampling) -> Conversation[tuple[tuple[Condition, ...], tuple[LevelRows, ...]]]:
    """The job's conditions and groups of rows, as silos read them; or the coordinator, where it holds all of the model.

    Raises:
        ProtocolError: the groups that silos tell are not those of the job.
    """
    job = sampling.job
    if not job.asked:
        return (), ()
    if catalog.of_config(job.algorithm, job.config).parts:
        replies = expect((yield sampling.roster.everyone(AskConditions())), ConditionsRead)
        groups = tuple(group for reply in replies for group in reply.groups)
        if job.shares is not None and sum(group.rows for group in groups) != job.rows:
            raise ProtocolError("One silo says how many rows each level has, as many as are drawn", len(groups))
        return tuple(condition for reply in replies for condition in reply.conditions), groups
    form, whole = sampling.form, all_columns(sampling.schemas, horizontal=True)
    ruling = Ruling(forms={} if form is None else {"": form})
    columns = makes_of(encoder_fields(sampling.coordinator), ruling, whole)
    return read_given(job.given, columns), read_shares(job.shares, job.rows or 0, columns) if job.shares else ()


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


def read_shares(shares: OtherShares, rows: int, columns: Mapping[str, Made]) -> tuple[LevelRows, ...]:
    """The groups of so many rows, by levels of a column, that have these shares.

    Raises:
        ConfigError: the column has no levels, or no such ones; or shares are no JSON, or do not add up.
    """
    try:
        shift = {shares.column: json.loads(shares.shift)} if shares.shift else None
    except ValueError as error:
        raise ConfigError(
            "Shares of levels are a JSON object, or a number", shares.shift, 'As in {"yes": 0.4}.'
        ) from error
    groups = by_level(rows, None if shift else shares.column, shift, columns)
    return tuple(LevelRows(condition, size) for condition, size in groups)


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
