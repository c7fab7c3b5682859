"""The protocol of a job: messages around an algorithm's own conversation, and the coordinator's side from start to end.

In talking order: `Greet` → `Greeted`, `Begin` → `Done`, (agreement on the job), (alignment), `PrepareRows` →
`PreparedSchema` or `PreparedRows`, (training), `KeepPart` → `Done`, `PrepareSynthesis` → `Done`, (sampling), `Publish`
→ `Done`, `AskNonce` → `DrawnNonce`, `SealHead` → `SealedHeads`, `RelayedHeads` → `Done`. If the table is shared, silos
then sign what they say of it: `SignLabel` → `LabelSigned`, `KeepLabel` → `Done` (`silosynth.deployment.label`).

Jobs that count (`silosynth.catalog`, kind "counting") train nothing, and leave no part of a model. In place of all from
`KeepPart` to `Publish` silos are passed on what opened: `CountedTables` or `NoisedTables` → `Done`.

One silo may deal for such a job. It needs no rows, and takes part in nothing but greeting, `Begin`, `PrepareRows` and
the counting: it is told neither the secret that silos agree on nor what opens.

Jobs that draw (`Drawing`) take up no rows: in place of all between the agreement and `PrepareSynthesis` silos load the
part of the model that they keep of another job.

In jobs with a hold-out of silos with different columns (`silosynth.deployment.holdout`) also, before the alignment,
`AskHoldoutKey` → `SealedHoldoutKey`, `RelayedHoldoutKeys` → `Done`; and after `PrepareRows`, `AskHoldoutTag` →
`HoldoutTag`, `ShownHoldoutTags` → `Done`.

Silos take all options from the job, and none from other messages. That all were told the same job they prove to each
other, past the coordinator: they agree on a secret (`silosynth.privacy.agreement`) whose purpose is a hash of the job.

By the last three, silos compare their ledgers past the coordinator: whether all were asked the same, by the messages
that are declared to be common (`silosynth.deployment.silo_ledger`). Nonces keep heads of earlier attempts out.

Checkpoints of the training carry what came before it, so that a resumed job does not align again.

What parties learn besides the algorithm's own messages: the coordinator learns the names, kinds and dtypes of each
silo's columns; from an alignment each silo's number of rows and how many of them all silos have in common, by `Placed`
and by the lengths of what silos seal for each other; without differential privacy the number of rows in any case.
Silos learn the synthetic table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from silosynth import catalog
from silosynth.alignment import AlignConfig, Matched, align
from silosynth.core import conversation
from silosynth.core.conversation import Conversation, Exchange, Replies, Roster, State
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, Release, Struct, from_state, to_state
from silosynth.core.schema import Schema, Table, agreed, below, beside, check_partition, pseudonyms, same_columns
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.privacy.agreement import agree
from silosynth.privacy.events import Event, Target, draws_noise
from silosynth.privacy.sealed import Envelope, framed
from silosynth.runtime.wire import encode, pack
from silosynth.simulation.model import all_columns, batches, draw, sampling_streams

ROOMS = (
    "__init__.py", "algorithms", "alignment", "catalog.py", "core", "counting", "data", "deployment", "encoders",
    "experiment", "models", "privacy", "runtime", "simulation",
)  # fmt: skip
"""Files and folders of the package that `sources` covers: all from which a job's processes import, as a test checks."""
R = TypeVar("R")
SHARES = tuple(part / 20 for part in range(20))
"""What share of its rows a job may hold out."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class Drawing(Struct):
    """What a job draws rows from, in place of training.

    Attributes:
        job: the job that trained.
        seed: that this one fixed, if any.
    """

    job: str
    seed: int | None

    def _check(self) -> None:
        check_name(self.job)


class Job(Struct):
    """A training run and its synthetic table; or more rows of what another job has trained.

    Attributes:
        name: unique in the federation.
        algorithm, preset, config: the algorithm and all its options.
        silos: participants, in order.
        seed: of all randomness, silos' own included; None if each draws its own.
        align: how rows are linked; None if silos hold different rows, or the same rows in the same order.
        rows: of the synthetic table; None for as many as there are to train on (with differential privacy, the noised
            number).
        submitter: the operator who started it.
        holdout: share of the rows that silos set aside before training, in whole twentieths: what two jobs with
            different shares tell apart is then no single person, but a twentieth of all.
        drawing: what rows are drawn from; None of a job that trains, or counts. ``seed`` is then that of the drawing.

    Raises:
        ConfigError: the name has other characters than `check_name` allows, or the share is another; or a job that
            draws does not say how many rows, or links or holds out any.
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
    holdout: float = 0.0
    drawing: Drawing | None = None

    @property
    def training_seed(self) -> int | None:
        """The seed that the training fixed from which rows are drawn; None of a secret one."""
        return self.seed if self.drawing is None else self.drawing.seed

    def _check(self) -> None:
        check_name(self.name)
        if self.drawing is not None and (not self.rows or self.align is not None or self.holdout):
            raise ConfigError("A job that draws says how many rows, and takes up none", self.rows, "Give --rows.")
        if self.holdout not in SHARES:
            raise ConfigError(
                "A job holds out a share of the rows in whole twentieths: 0, 0.05, 0.1 … 0.95", self.holdout,
                "Write [split] holdout = 0.2, say.",
            )  # fmt: skip


def digest(job: Job, *more: str) -> bytes:
    """A hash of the sources that are installed here, of all of the job, and of ``more``: 32 bytes."""
    return hashlib.sha256(framed(*installed(), encode(job), *more)).digest()


def purpose(job: Job) -> str:
    """What silos agree on a secret for before anything else: two that were told different jobs cannot."""
    return f"deployment: job {digest(job).hex()}"


def job_streams(job: Job) -> Streams:
    """The streams that all of a job share: those of its seed; without one, of its name, which is no secret."""
    name = int.from_bytes(hashlib.sha256(job.name.encode()).digest()[:7], "big")
    return Streams(name if job.seed is None else job.seed)


def drawing_streams(job: Job, streams: Streams) -> Streams:
    """The streams of a job's synthetic table, given its own: as of the first `Model.sample`, or one with a seed."""
    if job.drawing is None or job.seed is None:
        return sampling_streams(streams)
    hidden = job.drawing.seed is None or draws_noise(job.config)  # as `silosynth.Model.seed` is then
    return sampling_streams(Streams(-1 if hidden or job.drawing.seed is None else job.drawing.seed), seed=job.seed)


def opening(job: Job) -> str:
    """How the tables of a job that counts open: "noised", unless its options say otherwise."""
    return str(getattr(job.config, "opening", "noised"))


def horizontal(job: Job) -> bool:
    """Whether silos of a job hold different rows of the same columns, and not different columns of the same rows."""
    return catalog.algorithm(job.algorithm, kind=None).horizontal or bool(getattr(job.config, "horizontal", False))


def dealer(job: Job) -> str:
    """The silo that deals for a job that counts, and holds no rows of it; empty if the coordinator deals."""
    return str(getattr(job.config, "dealer", ""))


def holders(job: Job) -> tuple[str, ...]:
    """The silos of a job that hold rows: all but one that deals."""
    return tuple(silo for silo in job.silos if silo != dealer(job))


def check_name(name: str) -> str:
    """The name of a job, which is also a folder name.

    Raises:
        ConfigError: it is too long, or has other characters.
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
    rooms = (root / room for room in ROOMS)
    for path in sorted(path for room in rooms for path in ([room] if room.is_file() else room.rglob("*.py"))):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def installed() -> tuple[str, str]:
    """Version and `sources` of the silosynth that is installed here."""
    return VERSION, sources()


class Greet(Message, common=True):
    """Coordinator: my version of silosynth, the algorithm I want to run, and who submitted it."""

    algorithm: str
    submitter: str
    version: str
    sources: str


class Greeted(Message):
    """Silo: agreed; my version of silosynth."""

    version: str
    sources: str


class Begin(Message, common=True):
    """Coordinator: open your table and get ready for this job."""

    job: Job


class AskHoldoutKey(Message, common=True):
    """Coordinator: seal for all silos of the job the key by which you hold out rows, if you keep one."""


class SealedHoldoutKey(Message, release=Release.SEALED):
    """Silo: the key that I keep, or that I keep none, sealed for the silos of the job."""

    sealed: bytes


class RelayedHoldoutKeys(Message, release=Release.SEALED, common=True):
    """Coordinator: what all silos sealed, in the job's order."""

    sealed: tuple[bytes, ...]


class AskHoldoutTag(Message, common=True):
    """Coordinator: prove to the other silos which rows you hold out."""


class HoldoutTag(Message):
    """Silo: a tag (32 bytes) that only silos of the job can make, of the rows that I hold out."""

    tag: bytes


class ShownHoldoutTags(Message, common=True):
    """Coordinator: the tags of all silos, in the job's order."""

    tags: tuple[bytes, ...]


class PrepareRows(Message, common=True):
    """Coordinator: keep the common rows, in the common order, and describe your columns."""


class PreparedSchema(Message, release=Release.SCHEMA):
    """Silo: my columns, without the reasons for inferred kinds and what stands for missing values.

    The reply of silos with different rows; and, without ranges, of all that train with differential privacy.
    """

    schema: Schema


class PreparedRows(Message, release=Release.COUNTS):
    """Silo: my columns, without ranges, reasons and marks of missing values; and my row count, the same in all silos.

    Of pseudonyms the forms that at least five rows have are named, unless the training is differentially private.
    """

    schema: Schema
    rows: int


class KeepPart(Message, common=True):
    """Coordinator: training has ended; keep your part of the model."""


class PrepareSynthesis(Message, common=True):
    """Coordinator: load your part of the model to synthesise rows from it."""


class Publish(Message, release=Release.SYNTHETIC, common=True):
    """Coordinator: the synthetic table, or a batch of its rows, for you to keep.

    ``first`` is the batch's first row, ``total`` the rows of the table. ``table`` is empty if columns stay in silos.
    """

    columns: Schema
    table: Table
    first: int
    total: int


class CountedTables(Message, release=Release.TABLES, common=True):
    """Coordinator: the tables that opened exactly, for you to keep. ``content`` is a packed state."""

    content: bytes


class CountedFigures(Message, release=Release.FIGURES, common=True):
    """Coordinator: the figures that opened, for you to keep. ``content`` is a packed state."""

    content: bytes


class NoisedTables(Message, release=Release.NOISED, common=True):
    """Coordinator: what opened with noise, for you to keep: a packed state; and the events that all silos listed."""

    content: bytes
    events: tuple[Event, ...]


PASSED_ON: Mapping[str, type[Message]] = {
    "exact": CountedTables, "figures": CountedFigures, "noised": NoisedTables,
}  # fmt: skip
"""What silos are passed on, by how a job's tables open."""


class Forget(Message):
    """Coordinator: remove what a job has left with you, and what was drawn from it. The first and last ask of a job."""

    job: str

    def _check(self) -> None:
        check_name(self.job)


class Forgot(Message):
    """Silo: done, with signed receipts, as JSON: names of files, and which ledger stays."""

    receipts: str


class AskNonce(Message, common=True):
    """Coordinator: draw a number for the comparison of ledgers."""


class DrawnNonce(Message):
    """Silo: 32 random bytes."""

    nonce: bytes


class SealHead(Message, common=True):
    """Coordinator: seal for each other of these silos what your ledger says. ``nonces`` are theirs, in their order."""

    silos: tuple[str, ...]
    nonces: tuple[bytes, ...]


def heads_purpose(job: str, ask: SealHead) -> str:
    """What heads are sealed for: this comparison, and no other."""
    numbers = hashlib.sha256(framed(*ask.silos, *ask.nonces)).hexdigest()
    return f"silosynth: ledgers of job {job}, {numbers}"


class SealedHeads(Message, release=Release.SEALED):
    """Silo: my ledger's head, sealed for each other silo."""

    envelopes: tuple[Envelope, ...]


class RelayedHeads(Message, release=Release.SEALED):
    """Coordinator: the other silos' heads."""

    envelopes: tuple[Envelope, ...]


class SignLabel(Message, common=True):
    """Coordinator: sign what you say of the table that you were sent."""


class LabelSigned(Message):
    """Silo: my statement, as JSON, the key of my signatures in hexadecimal, and my signature on it and on the facts."""

    statement: str
    key: str
    signature: str


class KeepLabel(Message, common=True):
    """Coordinator: what all silos have signed, for you to check and keep."""

    signed: tuple[LabelSigned, ...]


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
    """

    coordinator: dict[str, Any]
    schemas: dict[str, Schema]
    rows: int
    matched: dict[str, Matched]
    table: Table | None
    signed: tuple[LabelSigned, ...] = ()


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
        training = coordinate(roster, job.config, streams.child("coordinator"), device, state["inner"])
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
    table = yield from _synthesise(job, roster, streams, device, coordinator, schemas, job.rows or rows)
    silos = yield from _compare_ledgers(roster, entry.horizontal)
    signed = yield from _have_signed(job, silos)
    return Outcome(coordinator, schemas, rows, matched, table, signed)


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
    rows = job.rows or 0
    table = yield from _synthesise(job, roster, streams, device, trained.coordinator, trained.schemas, rows)
    silos = yield from _compare_ledgers(roster, catalog.of_config(job.algorithm, job.config).horizontal)
    signed = yield from _have_signed(job, silos)
    return Outcome(trained.coordinator, trained.schemas, trained.rows, {}, table, signed)


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
    if job.holdout and not alike:
        sealed = conversation.expect((yield roster.everyone(AskHoldoutKey())), SealedHoldoutKey)
        asked = RelayedHoldoutKeys(tuple(reply.sealed for reply in sealed))
        conversation.expect((yield roster.everyone(asked)), Done)
    if job.align is not None:
        matched = yield from align(roster, job.align)
    prepared = yield roster.everyone(PrepareRows())
    if by := dealer(job):
        conversation.expect((yield Exchange({by: PrepareRows()})), PreparedSchema)
    schemas, rows = _same_columns(prepared) if alike else _same_rows(job, prepared)
    if job.holdout and not alike:
        tags = conversation.expect((yield roster.everyone(AskHoldoutTag())), HoldoutTag)
        shown = ShownHoldoutTags(tuple(reply.tag for reply in tags))
        conversation.expect((yield roster.everyone(shown)), Done)
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
                public=f"All of a federation run the same silosynth; its {what} is {one} at {who}, {other} at {whom}",
            )


def _same_columns(prepared: Replies) -> tuple[dict[str, Schema], int]:
    """The columns of silos that hold different rows; their number is not reported yet, so 0."""
    schemas = dict(
        zip(prepared, (reply.schema for reply in conversation.expect(prepared, PreparedSchema)), strict=True)
    )
    return dict.fromkeys(schemas, agreed(schemas)), 0


def _same_rows(job: Job, prepared: Replies) -> tuple[dict[str, Schema], int]:
    """Each silo's columns, and the number of rows (0 where it is not told), after checking that they fit together."""
    replies = conversation.expect(prepared, PreparedRows, PreparedSchema)
    schemas = {silo: reply.schema for silo, reply in zip(prepared, replies, strict=True)}
    names = {silo: list(schema.names) for silo, schema in schemas.items()}
    kinds: list[set[str]] = [pseudonyms({c.name: c.kind for c in schema.columns}) for schema in schemas.values()]
    linking = set[str]().union(*kinds)
    both = catalog.algorithm(job.algorithm, kind=None).across_rows is not None and len(names) > 1
    if both and same_columns({silo: set(columns) - linking for silo, columns in names.items()}):
        raise ConfigError(
            "A job says whether silos hold different rows of the same columns",
            f"the same columns in {', '.join(names)}", "Set algorithm.options.horizontal = true.",
        )  # fmt: skip
    check_partition([name for columns in names.values() for name in columns], names, linking)
    rows = [reply.rows if isinstance(reply, PreparedRows) else 0 for reply in replies]
    conversation.check_same_rows(prepared, rows)
    return schemas, rows[0]


def _synthesise(
    job: Job, roster: Roster, streams: Streams, device: torch.device, coordinator: dict[str, Any],
    schemas: Mapping[str, Schema], rows: int,
) -> Conversation[Table | None]:  # fmt: skip
    """The synthetic table, as the first `Model.sample` draws it; every silo gets it as well."""
    entry, streams = catalog.of_config(job.algorithm, job.config), drawing_streams(job, streams)
    if entry.parts:
        conversation.expect((yield roster.everyone(PrepareSynthesis())), Done)
    drawn: list[Table] = []
    for batch in batches(rows):
        yield conversation.Progress("sampling rows", batch.first, rows)
        shared = yield from draw(entry, roster, job.config, coordinator, batch, streams, device)
        drawn += [beside(shared.values())] if shared else []
    yield conversation.Progress("sampling rows", rows, rows)
    yield from _publish(roster, drawn, schemas, rows, entry.horizontal)
    return below(drawn) if drawn else None


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


def shares_table(job: Job) -> bool:
    """Whether a job of a generator publishes its table, rather than leaving columns in their silos."""
    return getattr(job.config, "synthesis", "shared") == "shared"


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
                step = conversation.Checkpoint({**around, "inner": step.state})
            step = part.send((yield step))
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        part.close()
