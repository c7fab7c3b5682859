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

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

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
    GivenRows,
    Job,
    LevelRows,
    OtherShares,
    PrepareGroup,
    PreparePool,
    PrepareSynthesis,
    Publish,
    RowCodes,
    RowsAccepted,
    TakeRows,
    comparing,
    drawing_streams,
    rows_purpose,
    silo_groups,
)  # fmt: skip
from silosynth.encoders.ruled import Ruled
from silosynth.privacy.agreement import agree
from silosynth.privacy.simultaneous import go_together
from silosynth.simulation.accepting import BATCH, LEAST, Accepting, Parts, SampleBatch
from silosynth.simulation.groups import Matching, by_level, check_led, mixed, of_rows
from silosynth.simulation.model import all_columns, batches, draw, makes_of
from silosynth.simulation.ruling import Keeping, Ruling, led, totals

LEAST_LED = 64  # rows of a batch, where silos lead rows to conditions
_ReadAll: TypeAlias = tuple[tuple[Condition, ...], tuple[LevelRows, ...], tuple[tuple[Condition, ...], ...]]


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
    columns, first = all_columns(schemas), 0
    for table in drawn or [Table(())]:
        asks = dict.fromkeys(roster, Publish(columns, table, first, rows))
        conversation.expect((yield Exchange(asks, missing=alike)), Done)
        first += len(table)


def _accepted(sampling: _Sampling, rows: int) -> Conversation[tuple[Ruling, list[Table]]]:
    """The rules, bound, and rows that fulfil all conditions and keep all rules; none where these stay in silos."""
    job, streams = sampling.job, sampling.streams
    conditions, groups, kinds = yield from _read(sampling)
    if job.frame is not None:
        return (yield from _framed(sampling, job.frame, kinds, rows))
    if not groups:
        drawn = yield from sampling.accepted(rows, conditions, streams)
        return sampling.keeping.ruling, drawn
    drawn = []
    for number, group in enumerate(groups):
        drawn += yield from sampling.of_group(number, group.rows, (group.condition, *conditions))
    return sampling.keeping.ruling, _in_batches(below(drawn).take(mixed(rows, streams).argsort()))


def _framed(
    sampling: _Sampling, frame: GivenRows, kinds: Sequence[tuple[Condition, ...]], rows: int
) -> Conversation[tuple[Ruling, list[Table]]]:
    """The rules, bound, and a row for each row of a frame, as `Model.sample` draws them."""
    groups = of_rows([kinds[kind] for kind in frame.kind_of])
    matching, drawn = Matching(groups.groups), list[Table]()
    numbers = {wanted: number for number, wanted in reversed([*enumerate(kinds)])}
    if groups.apart:
        for number in itertools.count():
            if not matching.take(below((yield from sampling.of_pool(number, matching.batch)))):
                break
        check_led(sum(left > 0 for left in matching.left))
    for found, left, (wanted, _) in zip(matching.found, matching.left, groups.groups, strict=True):
        drawn += found
        if left:
            drawn += yield from sampling.of_group(numbers[wanted], left, wanted)
    return sampling.keeping.ruling, _in_batches(below(drawn).take(groups.place_N.argsort()))


def _in_batches(table: Table) -> list[Table]:
    return [table.take(torch.arange(one.first, one.first + one.rows)) for one in batches(len(table))]


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

    def of_group(self, number: int, rows: int, wanted: Sequence[Condition]) -> Conversation[list[Table]]:
        """So many rows of a group, whose silos make parties anew."""
        yield from self._prepared(PrepareGroup(number))
        return (yield from self.accepted(rows, wanted, self.streams.child("group", number)))

    def of_pool(self, number: int, rows: int) -> Conversation[list[Table]]:
        """So many rows of no group, for which silos make parties anew."""
        yield from self._prepared(PreparePool(number))
        streams = self.streams.child("pool").child(number)
        if self.job.rules:
            return (yield from self.accepted(rows, (), streams))
        drawn = []
        for batch in batches(rows):
            shared = yield from self._drawn(batch, streams, ())
            drawn.append(beside(shared.values()))
        return drawn

    def accepted(self, rows: int, wanted: Sequence[Condition], streams: Streams) -> Conversation[list[Table]]:
        """So many rows that fulfil conditions and keep all rules; none where these stay in silos."""
        job, drawn = self.job, list[Table]()
        asked = (("fulfils the conditions", wanted), ("keeps the rules", job.rules))
        what = " and ".join(words for words, some in asked if some)
        accepting = Accepting(rows, what, largest=BATCH, least=LEAST_LED if wanted else LEAST)
        for batch in accepting.batches():
            shared = yield from self._drawn(batch, streams, wanted)
            if not shared:
                yield from self._have_taken(batch.number, accepting)
            else:
                parts = self._restored(shared, streams.child(batch.number))
                taken = accepting.taken(self.keeping.accepts(parts, wanted))
                drawn += [beside(parts.values()).take(taken)] if len(taken) else []
            yield accepting.progress
        return drawn

    def _prepared(self, ask: PreparePool | PrepareGroup) -> Conversation[None]:
        if catalog.of_config(self.job.algorithm, self.job.config).parts:
            expect((yield self.roster.everyone(ask)), Done)

    def _drawn(self, batch: SampleBatch, streams: Streams, given: Sequence[Condition]) -> Conversation[Parts]:
        entry = catalog.of_config(self.job.algorithm, self.job.config)
        own = given if entry.parts else led(given, self.form, self.job.rules)
        how = entry, self.roster, self.job.config, self.coordinator, batch, streams, self.device
        return (yield from draw(*how, own))

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


def _read(sampling: _Sampling) -> Conversation[_ReadAll]:
    """The job's conditions, groups of rows, and kinds of rows, as silos read them, or who has all of the model.

    Raises:
        ProtocolError: the groups, or kinds, that silos tell are not those of the job.
    """
    job = sampling.job
    if not job.asked:
        return (), (), ()
    if catalog.of_config(job.algorithm, job.config).parts:
        replies = expect((yield sampling.roster.everyone(AskConditions())), ConditionsRead)
        groups = tuple(group for reply in replies for group in reply.groups)
        if job.shares is not None and sum(group.rows for group in groups) != job.rows:
            raise ProtocolError("One silo says how many rows each level has, as many as are drawn", len(groups))
        if any(len(reply.kinds) != (len(job.frame.kinds) if job.frame else 0) for reply in replies):
            raise ProtocolError("Silos read each kind of row of a frame", [len(reply.kinds) for reply in replies])
        kinds = tuple(sum(own, ()) for own in zip(*(reply.kinds for reply in replies), strict=True))
        return tuple(condition for reply in replies for condition in reply.conditions), groups, kinds
    form, whole = sampling.form, all_columns(sampling.schemas)
    ruling = Ruling(forms={} if form is None else {"": form})
    columns = makes_of(encoder_fields(sampling.coordinator), ruling, whole)
    shares = read_shares(job.shares, job.rows or 0, columns) if job.shares else ()
    return read_given(job.given, columns), shares, read_kinds(job, columns)


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


def read_kinds(job: Job, columns: Mapping[str, Made]) -> tuple[tuple[Condition, ...], ...]:
    """What each kind of row of a job's frame says of these columns; none without a frame.

    Raises:
        ConfigError: see `read_given`.
    """
    read = cache(lambda one: read_given([one], columns)[0])
    kinds = () if job.frame is None else job.frame.kinds
    return tuple(tuple(read(one) for one in kind if one.column in columns) for kind in kinds)


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
    schema = all_columns(schemas)
    if form is not None:  # whose drawn descriptions become columns first
        like = form.restore(distinct_columns(drawn.values()), Streams(0).numpy())
        return Ruling(bind(job.rules, schema, like), {"": form}, True)
    like = distinct_columns(drawn.values())
    bound = bind(job.rules, schema, like)
    alone = () if silo_groups(job) else schemas.values()  # in which a rule is a silo's own
    apart = [rule for rule in bound if not any(set(rule.named) <= set(own.names) for own in alone)]
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
