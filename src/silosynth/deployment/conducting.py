"""The coordinator's side of a job, from the first greeting to the results; messages and their order: `protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeVar

import torch

from silosynth import catalog
from silosynth.alignment import AlignConfig, Matched, align
from silosynth.core import conversation
from silosynth.core.conversation import Conversation, Exchange, Replies, Roster, State
from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.messages import Done, from_state, to_state
from silosynth.core.rules import Inequality
from silosynth.core.schema import (
    Schema,
    Table,
    agreed,
    check_groups,
    check_partition,
    grouped,
    pseudonyms,
    same_columns,
)
from silosynth.core.streams import Streams
from silosynth.data.rules import check_alike
from silosynth.deployment.protocol import (
    AskColumns,
    AskHoldoutKey,
    AskHoldoutTag,
    AskNonce,
    Begin,
    ColumnsTold,
    Consider,
    Considered,
    CountedFigures,
    CountedTables,
    DrawnNonce,
    Forget,
    Forgot,
    Greet,
    Greeted,
    HoldoutTag,
    Job,
    KeepLabel,
    KeepPart,
    LabelSigned,
    NoisedTables,
    PreparedRows,
    PreparedRuled,
    PreparedSchema,
    PrepareRows,
    RelayedGroupKeys,
    RelayedHeads,
    RelayedHoldoutKeys,
    SealedHeads,
    SealedHoldoutKey,
    SealHead,
    ShownGroupTags,
    ShownHoldoutTags,
    SignLabel,
    by_key,
    check_same,
    dealer,
    holders,
    holdout_purpose,
    horizontal,
    installed,
    opening,
    own_group,
    purpose,
    shares_table,
    silo_groups,
)  # fmt: skip
from silosynth.deployment.sampling import synthesise
from silosynth.encoders.ruled import Ruled
from silosynth.privacy.agreement import agree
from silosynth.privacy.events import Event, Target
from silosynth.runtime.wire import pack
from silosynth.simulation.ruling import Ruling, across, check_across

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        coordinator: the coordinator's part of the model.
        schemas: each silo's columns; the same for all if silos hold different rows.
        rows: number of training rows, aligned or of all silos; noised under differential privacy.
        matched: each silo's counts of the alignment; empty without one.
        table: synthetic columns of all silos; None if they stay in the silos.
        signed: what silos say of it.
        form: how silos that hold different rows describe them under rules; None of others.
        forms: how each silo of others describes its rows, where it hands over what its columns are drawn from.
        ruling: the rules that rows keep, as far as the coordinator sees these rows.
    """

    coordinator: dict[str, Any]
    schemas: dict[str, Schema]
    rows: int
    matched: dict[str, Matched]
    table: Table | None
    signed: tuple[LabelSigned, ...] = ()
    form: Ruled | None = None
    forms: Mapping[str, Ruled] = field(default_factory=dict)
    ruling: Ruling = field(default_factory=Ruling)


@dataclass(frozen=True)
class Counted:
    """The result of a job that counts.

    Attributes:
        result: what opened, as the algorithm's `coordinate` returns it: plain state.
        schemas, matched: as of an `Outcome`.
    """

    result: dict[str, Any]
    schemas: dict[str, Schema]
    matched: dict[str, Matched]


def conduct(
    job: Job, streams: Streams, device: torch.device, state: State | None = None, *, missing: str | None = None
) -> Conversation[Outcome | Counted]:
    """Run a job, or resume it from a checkpoint's ``state``. ``missing`` is the policy for silos lost in training.

    Raises:
        PolicyError, ConfigError, DataError, ProtocolError: a silo refuses or cannot take part, or versions differ.
    """
    roster, entry = Roster(job.silos), catalog.of_config(job.algorithm, job.config, None)
    if state is None:
        state = yield from _begin(job, roster)
    schemas = {silo: from_state(Schema, schema) for silo, schema in state["schemas"].items()}
    matched = {silo: from_state(Matched, counts) for silo, counts in state["matched"].items()}
    form = None if state["form"] is None else from_state(Ruled, state["form"])
    forms = {silo: from_state(Ruled, one) for silo, one in state["forms"].items()}
    if entry.kind == "counting":
        counting = entry.under(missing)(roster, job.config, streams.child("coordinator"), device, state["inner"])
        listed: dict[Event, None] = {}
        result = yield from _within(_noticing(counting, listed), {**state, "inner": None})
        content = pack(result)
        exact = CountedFigures if opening(job) == "figures" else CountedTables
        passed_on = NoisedTables(content, tuple(listed)) if opening(job) == "noised" else exact(content)
        conversation.expect((yield Roster(holders(job)).everyone(passed_on)), Done)
        yield from _compare_ledgers(Roster(holders(job)), alike=False)
        return Counted(result, schemas, matched)
    if state["stage"] == "train":
        coordinate = entry.under(missing)
        held = {silo: schema.names for silo, schema in schemas.items()}
        rules = {"rules": across(job.rules, held)} if entry.ruled else {}
        training = coordinate(roster, job.config, streams.child("coordinator"), device, state["inner"], **rules)
        coordinator = yield from _within(training, {**state, "inner": None})
        if entry.parts:
            conversation.expect((yield roster.everyone(KeepPart())), Done)
        state = {**state, "stage": "draw", "inner": coordinator}
        yield conversation.Checkpoint(state)
    coordinator = state["inner"]
    if getattr(job.config, "dp", Target()).private:
        rows = max(1, int(coordinator["rows"]))  # noised
    else:
        told = coordinator.get("rows", 0)  # with different rows: as far as silos have reported them, or their sum
        rows = state["rows"] or (sum(told) if isinstance(told, list) else int(told))
    trained = Outcome(coordinator, schemas, rows, matched, None, form=form, forms=forms)
    return (yield from _drawn(job, trained, streams, device))


def redraw(
    job: Job, trained: Outcome, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[Outcome]:
    """Draw rows from what a job has trained, or do it again from a checkpoint's ``state``: the same rows.

    Raises:
        PolicyError, ProtocolError: a silo refuses, has no such part of a model, or has forgotten it.
    """
    roster = Roster(job.silos)
    if state is None:
        yield from _agree(job, roster)
        yield conversation.Checkpoint({"stage": "draw"})
    return (yield from _drawn(job, replace(trained, matched={}), streams, device))


def _drawn(job: Job, trained: Outcome, streams: Streams, device: torch.device) -> Conversation[Outcome]:
    """Draw the table, compare ledgers, and have the table signed."""
    roster = Roster(job.silos)
    table, ruling = yield from synthesise(
        job, roster, streams, device, trained.coordinator, trained.schemas, job.rows or trained.rows, trained.form
    )
    silos = yield from _compare_ledgers(roster, catalog.of_config(job.algorithm, job.config).horizontal)
    signed = yield from _have_signed(job, silos)
    return replace(trained, table=table, signed=signed, ruling=ruling)


def have_considered(job: Job) -> Conversation[dict[str, tuple[str, ...]]]:
    """Why each silo of a job would refuse it; nothing of those that would take part."""
    replies = yield Roster(job.silos).everyone(Consider(job, *installed()))
    return {silo: tuple(conversation.expect_one(silo, reply, Considered).refusals) for silo, reply in replies.items()}


def have_forgotten(silo: str, job: str) -> Conversation[str]:
    """Have a silo forget a job; returns its receipts.

    Raises:
        ConfigError: the job is at work there.
    """
    (reply,) = conversation.expect((yield Exchange({silo: Forget(job)})), Forgot)
    return str(reply.receipts)


def _agree(job: Job, roster: Roster) -> Conversation[Roster]:
    """Greetings, and an agreement on the job among those that hold rows, who are returned."""
    mine = installed()
    greeted = yield roster.everyone(Greet(job.algorithm, job.submitter, *mine))
    for silo in roster:
        theirs = conversation.expect_one(silo, greeted[silo], Greeted)
        check_same(f"silo {silo!r}", (theirs.version, theirs.sources), "the coordinator", mine)
    conversation.expect((yield roster.everyone(Begin(job))), Done)
    roster = Roster(holders(job))
    yield from agree(roster, purpose(job))
    return roster


def _begin(job: Job, roster: Roster) -> Conversation[State]:
    """Greetings, alignment, and the silos' columns."""
    roster = yield from _agree(job, roster)
    alike = horizontal(job)
    matched: dict[str, Matched] = {}
    if by_key(job):
        yield from _tell_keys(job, roster)
    if job.align is not None:
        yield from _check_columns(job, roster)
        matched = yield from _linked(job, roster, job.align)
    prepared = yield roster.everyone(PrepareRows())
    if by := dealer(job):
        conversation.expect((yield Exchange({by: PrepareRows()})), PreparedSchema)
    form = _same_form(prepared) if alike and job.rules and not silo_groups(job) else None
    told = {} if alike else {silo: reply.form for silo, reply in prepared.items() if isinstance(reply, PreparedRuled)}
    schemas, rows = _same_columns(job, prepared) if alike else _same_rows(job, prepared)
    _check_rules(job, schemas)
    if by_key(job):
        replies = conversation.expect((yield roster.everyone(AskHoldoutTag())), HoldoutTag)
        tags = dict(zip(roster, (reply.tag for reply in replies), strict=True))
        shown = ShownGroupTags if silo_groups(job) else ShownHoldoutTags
        asks = {silo: shown(tuple(tags[one] for one in own_group(job, silo))) for silo in roster}
        conversation.expect((yield roster.each(asks)), Done)
    return {
        "stage": "train",
        "schemas": {silo: to_state(schema) for silo, schema in schemas.items()},
        "matched": {silo: to_state(counts) for silo, counts in matched.items()},
        "rows": rows,
        "form": None if form is None else to_state(form),
        "forms": {silo: to_state(one) for silo, one in told.items()},
        "inner": None,
    }


def _tell_keys(job: Job, roster: Roster) -> Conversation[None]:
    """Silos that hold the same rows tell each other by which key they hold out some: all, or those of each group."""
    if groups := silo_groups(job):
        purpose = holdout_purpose(job)
        yield from conversation.side_by_side([agree(roster.only(group), purpose, apart=True) for group in groups])
    replies = conversation.expect((yield roster.everyone(AskHoldoutKey())), SealedHoldoutKey)
    sealed = dict(zip(roster, (reply.sealed for reply in replies), strict=True))
    relayed = RelayedGroupKeys if groups else RelayedHoldoutKeys
    asks = {silo: relayed(tuple(sealed[one] for one in own_group(job, silo))) for silo in roster}
    conversation.expect((yield roster.each(asks)), Done)


def _linked(job: Job, roster: Roster, how: AlignConfig) -> Conversation[dict[str, Matched]]:
    """Link rows of all silos, or of each group of several; returns each silo's counts."""
    if not silo_groups(job):
        return (yield from align(roster, how))
    several = [group for group in silo_groups(job) if len(group) > 1]
    found = yield from conversation.side_by_side([align(roster.only(group), how, apart=True) for group in several])
    return {silo: counts for matched in found for silo, counts in matched.items()}


def _check_columns(job: Job, roster: Roster) -> Conversation[None]:
    """Refuse columns that two silos hold, before any row is linked; or that groups of silos do not all hold once."""
    told = yield roster.everyone(AskColumns())
    replies = dict(zip(told, conversation.expect(told, ColumnsTold), strict=True))
    names = {silo: list(reply.names) for silo, reply in replies.items()}
    linking = {name for reply in replies.values() for name in reply.linking}
    if silo_groups(job):
        check_groups({silo: [n for n in own if n not in linking] for silo, own in names.items()}, silo_groups(job))
    else:
        _check_divided(job, names, linking)


def _check_divided(job: Job, names: Mapping[str, list[str]], linking: set[str]) -> None:
    """Refuse columns that two silos hold, but for those of ``linking``."""
    both = catalog.algorithm(job.algorithm, kind=None).across_rows is not None and len(names) > 1
    if both and same_columns({silo: set(columns) - linking for silo, columns in names.items()}):
        raise ConfigError(
            "A job says whether silos hold different rows of the same columns",
            f"the same columns in {', '.join(names)}", "Set algorithm.options.horizontal = true.",
        )  # fmt: skip
    for one, other in combinations(names, 2):
        if clash := next((name for name in names[one] if name in names[other] and name not in linking), None):
            raise DataError(f"A column belongs to one silo; {clash!r} is in {one!r} and in {other!r}", clash, _CLASH)
    check_partition([name for columns in names.values() for name in columns], names, linking)


_CLASH = (
    "If it holds different values, have one of them write a prefix into [data] of its silo.toml; if the same, leave it "
    "to one. If it says whose rows these are, both declare it a pseudonym."
)


def _same_form(prepared: Replies) -> Ruled:
    """How all silos that hold different rows describe them under rules."""
    forms = {reply.form for reply in conversation.expect(prepared, PreparedRuled)}
    if len(forms) > 1:
        raise ConfigError(
            "Silos that hold different rows describe them alike under rules", f"{len(forms)} ways",
            "Declare kinds and bounds of their columns alike.",
        )  # fmt: skip
    return forms.pop()


def _check_rules(job: Job, schemas: Mapping[str, Schema]) -> None:
    """Refuse rules that nobody can keep, before anything is trained."""
    held = {silo: set(schema.modelled) for silo, schema in schemas.items()}
    every = set[str]().union(*held.values())
    for rule in job.rules:
        for name in rule.named:
            if name not in every:
                raise ConfigError(
                    f"Rule {rule.in_words!r}: a silo models such a column", name, nearest(name, sorted(every))
                )
    alone = [] if silo_groups(job) else held.values()  # in which a rule is a silo's own: none where silos are in groups
    apart = [rule for rule in job.rules if not any(set(rule.named) <= names for names in alone)]
    whole = Schema(tuple(column for schema in schemas.values() for column in schema.columns))
    for rule in apart:
        if isinstance(rule, Inequality):
            check_alike(rule, rule.named, whole)
    check_across(apart, held, not shares_table(job))


def _same_columns(job: Job, prepared: Replies) -> tuple[dict[str, Schema], int]:
    """The columns of silos, or groups of them, that hold different rows; their number is not reported yet, so 0."""
    replies = conversation.expect(prepared, PreparedSchema, PreparedRuled)
    schemas = {silo: reply.schema for silo, reply in zip(prepared, replies, strict=True)}
    if not silo_groups(job):
        return dict.fromkeys(schemas, agreed(schemas)), 0
    modelled = {silo: schema.select(schema.modelled) for silo, schema in schemas.items()}
    kinds = agreed(grouped(modelled, silo_groups(job)))
    return {silo: kinds.select(schema.names) for silo, schema in modelled.items()}, 0


def _same_rows(job: Job, prepared: Replies) -> tuple[dict[str, Schema], int]:
    """Each silo's columns, and the number of rows (0 where it is not told), after checking that they fit together."""
    public = catalog.public(job.config)
    replies: Sequence[PreparedSchema | PreparedRuled | PreparedRows] = (
        conversation.expect(prepared, PreparedSchema, PreparedRuled)
        if public
        else conversation.expect(prepared, PreparedRows, PreparedSchema)
    )
    schemas = {silo: reply.schema for silo, reply in zip(prepared, replies, strict=True)}
    names = {silo: list(schema.names) for silo, schema in schemas.items()}
    kinds: list[set[str]] = [pseudonyms({c.name: c.kind for c in schema.columns}) for schema in schemas.values()]
    linking = set[str]().union(*kinds)
    _check_divided(job, names, linking)
    rows = [reply.rows if isinstance(reply, PreparedRows) else 0 for reply in replies]
    conversation.check_same_rows(prepared, rows)
    return schemas, rows[0]


def _have_signed(job: Job, silos: tuple[str, ...]) -> Conversation[tuple[LabelSigned, ...]]:
    """What silos sign of the published table, which each of them is then passed on."""
    if not shares_table(job):
        return ()
    signed = tuple(conversation.expect((yield Exchange(dict.fromkeys(silos, SignLabel()))), LabelSigned))
    conversation.expect((yield Exchange(dict.fromkeys(silos, KeepLabel(signed)))), Done)
    return signed


def _compare_ledgers(roster: Roster, alike: bool) -> Conversation[tuple[str, ...]]:
    """Relay what silos tell each other of their ledgers. Silos that training has gone on without take no part.

    Returns those that took part.

    Raises:
        ProtocolError: silos were asked different things.
    """
    drawn = yield Exchange(dict.fromkeys(roster, AskNonce()), missing=alike)
    nonces = [reply.nonce for reply in conversation.expect(drawn, DrawnNonce)]
    ask = SealHead(tuple(drawn), tuple(nonces))
    sealed = conversation.expect((yield Exchange(dict.fromkeys(drawn, ask))), SealedHeads)
    sent = [envelope for reply in sealed for envelope in reply.envelopes]
    asks = {silo: RelayedHeads(tuple(one for one in sent if one.receiver == silo)) for silo in drawn}
    conversation.expect((yield Exchange(asks)), Done)
    return tuple(drawn)


def _noticing(part: Conversation[R], listed: dict[Event, None]) -> Conversation[R]:
    """Run a part of the job, and note the privacy events of all replies, each once."""
    replies: Replies | None = None
    try:
        while True:
            replies = yield part.send(replies)  # type: ignore[arg-type]
            for reply in replies.values() if replies else ():
                listed.update(dict.fromkeys(getattr(reply, "events", ())))
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        part.close()


def _within(part: Conversation[R], around: State) -> Conversation[R]:
    """Run a part of the job; its checkpoints hold the state ``around`` it, and their own as "inner"."""
    try:
        step = next(part)
        while True:
            if isinstance(step, conversation.Checkpoint):
                step = replace(step, state={**around, "inner": step.state})
            step = part.send((yield step))
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        part.close()
