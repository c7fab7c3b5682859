"""A silo's side of a job: it checks its policy, opens its own table, aligns, and lets its party answer.

Every ask and every reply passes through `DeploymentSilo.answer`, and so through the policy. The first refusal ends the
job at this silo: a coordinator that went on might learn from later replies what the refused one would have told. What
the silo keeps lies in the job's own folder: checkpoints, its part of the model, the synthetic table.
"""

from __future__ import annotations

import json
import secrets
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from silosynth import catalog
from silosynth.algorithms.marginals.protocol import AskPossible
from silosynth.alignment import Aligner, canonical
from silosynth.core.conditions import Condition
from silosynth.core.conversation import (
    COORDINATOR,
    Party,
    Roster,
    State,
    SyntheticColumns,
    Turns,
    check_place,
    maybe,
    often,
    once,
)
from silosynth.core.errors import CheckpointError, DataError, ProtocolError, SilosynthError, StorageError, nearest
from silosynth.core.files import PRIVATE, locked, make_folder, read, write_atomic
from silosynth.core.messages import Done, Message, from_state, to_state, wire_name
from silosynth.core.schema import Column, Schema, Table, pseudonyms
from silosynth.core.streams import Chain, Digest, Streams
from silosynth.counting.distances import TakeShares
from silosynth.counting.judge import HOLDOUT
from silosynth.data import infer, sources
from silosynth.deployment import audits, conditions, forgetting, holdout, label, protocol, silo_sampling, upgrades
from silosynth.deployment.approval import Approvals
from silosynth.deployment.counted import keep_counted
from silosynth.deployment.kept import CLOSED, JOB, REFERENCE, KeptPart, check_kept, keep_part, part_to_draw_from
from silosynth.deployment.policy import Releases, SiloPolicy, refusal
from silosynth.deployment.rows import RowSource, repeated_identifiers
from silosynth.deployment.rows_used import rows_used
from silosynth.deployment.silo_ledger import FILE, Head, SiloLedger
from silosynth.deployment.silo_sampling import SiloSampling, under_own_rules
from silosynth.deployment.snapshot import Snapshot
from silosynth.deployment.tallies import DRAWN, AskedConditions, BegunJobs, ComparedIdentifiers, DrawnRows, ExactHoldout
from silosynth.models.nearness import COUNTED
from silosynth.privacy import agreement
from silosynth.privacy.accounting import affords
from silosynth.privacy.events import Event, Target, draws_noise
from silosynth.privacy.sealed import Seat
from silosynth.runtime.wire import encode, pack, unpack
from silosynth.simulation import federation, model
from silosynth.simulation.accepting import FIRST_TRIES, TRIES
from silosynth.simulation.ruling import Ruling

if TYPE_CHECKING:
    import pandas as pd

SYNTHETIC, REFERENCE_LOCK = "synthetic.parquet", "reference.lock"
FIGURES = "figures-opened"  # a job of this folder has opened figures
_HEADS = protocol.AskNonce, protocol.SealHead, protocol.RelayedHeads  # by which silos compare their ledgers
_LABEL = protocol.SignLabel, protocol.KeepLabel
_HOLDOUT_KEY = protocol.AskHoldoutKey, protocol.RelayedHoldoutKeys
_HOLDOUT_TAG = protocol.AskHoldoutTag, protocol.ShownHoldoutTags
_PASSED_ON = tuple(protocol.PASSED_ON.values())
_OWN = (
    protocol.AskColumns, protocol.PrepareRows, protocol.KeepPart, protocol.PrepareSynthesis, protocol.AskConditions,
    protocol.PreparePool, protocol.PrepareGroup, *silo_sampling.ASKS, protocol.Publish, *_HOLDOUT_KEY, *_HOLDOUT_TAG,
    *_PASSED_ON, *_HEADS, *_LABEL,
)  # fmt: skip
_PASSING = (StorageError, CheckpointError, OSError, MemoryError)  # a job may go on once these are mended


def common_streams(job: protocol.Job) -> Streams:
    """The seed that all silos use for the common order, besides their own keys: different for each job."""
    return protocol.job_streams(job).child("alignment")


def _closed() -> ProtocolError:
    return ProtocolError(
        "A job ends at a silo with the first message that it refuses", "another message", "Submit the job anew."
    )


class DeploymentSilo(Party):
    """One silo in one job.

    Args:
        seat: its name and key, and all silos' pinned public keys.
        rows: the source of its rows, read when a job begins.
        policy: its rules.
        folder: for its files of this job.
        releases: everything it has released with noise, in all jobs.
        device: where it computes.
        submitter: the operator whose signature on the job was verified; None to trust the coordinator's word.
        say: called with one line per event.
        book: its ledger of the job; None to compare none with other silos'.
        snapshot: keeps its rows while the job runs; None reads the table again when the job resumes.
    """

    def __init__(
        self, seat: Seat, rows: RowSource, policy: SiloPolicy, folder: Path, releases: Releases, device: torch.device,
        submitter: str | None = None, say: Callable[[str], None] = lambda line: None,
        book: SiloLedger | None = None, snapshot: Snapshot | None = None,
    ) -> None:  # fmt: skip
        self.seat, self.rows, self.policy, self._snapshot = seat, rows, policy, snapshot
        self.folder, self.releases, self.device = folder, releases, device
        self._submitter, self._say, self._book, self._nonce = submitter, say, book, b""
        self.job: protocol.Job | None = None
        self._secret, self._chain = 0, Chain(b"")
        self._heard: Digest | None = None  # the digest of the ask that is answered
        self._allowed = set[type[Message]]()  # by the policy, whatever a message of the type holds
        self._leaving = set[tuple[type[Message], bool, bool]]()  # replies that the policy allows; see `_check_reply`
        self._frame: pd.DataFrame | None = None  # until its rows become a table
        self._order: torch.Tensor | None = None
        self._schema, self._digest, self._n_rows = Schema(()), "", 0
        self._ruling = Ruling()  # the rules about its own columns
        self._behind: Table | None = None  # its rows, of columns that conditions may be on
        self._given: tuple[Condition, ...] = ()  # conditions on its own columns
        self._groups: tuple[protocol.LevelRows, ...] = ()  # of rows, if other shares are of its column
        self._kinds: tuple[tuple[Condition, ...], ...] = ()  # of rows of a frame: conditions on its own columns
        self._sampling: SiloSampling | None = None  # of a job with conditions or rules
        self._aligner: Aligner | None = None
        self._party: Party | None = None
        self._part: State | None = None  # of the model, once training has ended
        self._drawn: list[Table] = []
        self._turns = Turns()  # of a job's own messages
        self._terms: agreement.Group | None = None  # which agrees with the other silos on the job, until it has
        self._agreed: agreement.Group | None = None  # and once it has
        self._offer = agreement.OfferShares("", fresh=True)  # what it agrees on
        self._names: list[bytes | None] | None = None  # identifiers of the table's rows, until these are prepared
        self._sampled: torch.Tensor | None = None  # rows that the job takes up, until they are prepared; None for all
        self._holdout_key = holdout.HoldoutKey(releases.path.parent)
        self._key = b""  # by which this job holds out rows
        self._held = torch.zeros(0, dtype=torch.bool)  # which of the job's rows are held out
        self._of = 0  # how many rows the table has, if a sample of them goes by their place
        self._alone = torch.zeros(0, dtype=torch.int64)  # rows that no other silo has, if the job trains on them too
        self._own: Table | None = None  # these, once they are a table
        self._closed = (folder / CLOSED).exists()
        self._drawn_rows, self._begun_jobs = DrawnRows(folder), BegunJobs(releases.path.parent)
        self._identifiers = ComparedIdentifiers(folder)
        self._approvals = Approvals(folder, policy, say, book)
        self._charged = False  # whether the job is private, and all that its model has from rows was charged
        self._head: Head | None = None  # of its ledger, as it told the others
        self._heads: dict[str, Head] = {}  # of the others
        self._compared: tuple[str, tuple[str, ...]] = ("", ())  # what heads were sealed for, and whose are awaited

    def answer(self, ask: Message) -> Message:
        """Answer, if the policy allows both the ask and the reply; the first error ends the job at this silo.

        Raises:
            PolicyError: a rule forbids it.
            ProtocolError: the message comes at the wrong time, after an error, or does not fit what came before.
        """
        if self._closed:
            raise _closed()
        try:
            check_kept(self.folder)
            if type(ask) not in self._allowed:
                self._check_ask(ask)
            self._chain.add(Digest(encode(ask)) if self._heard is None else self._heard)
            reply = self._answered(ask)
            events = getattr(reply, "events", ())
            if (type(reply), bool(events), self._charged) not in self._leaving:
                self._check_reply(reply, bool(events))
            if events:
                self._charge(events)
            if isinstance(reply, SyntheticColumns):
                self._hold(reply)
        except Exception as error:
            self.refuse(error)
            raise
        finally:
            self._heard = None
        return reply

    def hear(self, digest: Digest) -> None:
        """See `Party.hear`: without it, `answer` encodes and hashes the ask."""
        self._heard = digest

    def refuse(self, error: Exception) -> None:
        """Answer no more; nor from a checkpoint, unless the error is one of this machine, which may be mended."""
        if self._closed:
            return
        self._closed = True
        cause = "" if error.__cause__ is None else f" [{type(error.__cause__).__name__}]"
        known = isinstance(error, SilosynthError)
        self._say(f"refused: {error}{cause}" if known else f"failed: {type(error).__name__}")
        if not isinstance(error, _PASSING):
            write_atomic(make_folder(self.folder) / CLOSED, f"{type(error).__name__}\n".encode(), PRIVATE)

    def _hold(self, reply: SyntheticColumns) -> None:
        """Wait until a person has approved of synthetic columns, if the policy says so."""

        def table() -> pd.DataFrame:
            schema = self._schema.select(reply.table.names)
            made: pd.DataFrame = model.to_synthetic_frame([reply.table], schema, Streams(0))  # no pseudonyms among them
            return made

        job = self._begun()
        self._approvals.hold(reply, table, job, job.rows or self._n_rows)

    def _check_ask(self, ask: Message) -> None:
        """The policy's rules on asks: on their types, once for each; and on rows drawn."""
        self.policy.check_message(ask)
        if type(ask) not in DRAWN:
            self._allowed.add(type(ask))
            return
        most = self.policy.most_rows_drawn
        drawn = of_model = self._drawn_rows.with_ask(ask, min(most, self._rows_of_job))
        if self.job is not None and self.job.drawing is not None and drawn <= self._rows_of_job:
            chance = f"secret {self._secret}" if self.job.seed is None else f"seed {self.job.seed}"
            of_model = DrawnRows(self._trained_at).with_ask(ask, most, chance)
        if of_model > most:
            raise refusal("most_rows_drawn", f"of a job's model at most {most:,} rows are drawn", wire_name(type(ask)))
        if drawn > self._rows_of_job:
            raise ProtocolError(
                "A silo draws twice as many rows as a job asks for, or as there are to train on, at most",
                wire_name(type(ask)), "Name the number of rows in the job.",
            )  # fmt: skip

    def _check_reply(self, reply: Message, noised: bool) -> None:
        """The policy's rules on replies: once for each type, with events or without, charged or not."""
        self.policy.check_message(reply)
        self.policy.check_reply(reply, self._charged)
        self._leaving.add((type(reply), noised, self._charged))

    @property
    def _rows_of_job(self) -> float:
        """What a job may draw by what it says itself; twice, as a resumed one may draw other rows."""
        if self.job is None or (self.job.rows is None and self._private):
            return float("inf")  # as many as a noised number, which only the coordinator knows
        rows = self._n_rows if self.job.rows is None else self.job.rows
        return 2 * (FIRST_TRIES + TRIES * rows if self.job.accepting else rows)

    def _answered(self, ask: Message) -> Message:
        """The reply. What an ask of a wrong shape breaks somewhere in the computation is a refusal like others."""
        try:
            return self._answer(ask)
        except SilosynthError as error:
            if error.events:
                self._charge(error.events)
            raise
        except (OSError, MemoryError):
            raise
        except Exception as error:
            traceback.print_exception(error, file=sys.stderr)  # its text may quote the data, so it stays here
            raise ProtocolError(
                "A silo is asked for what fits its columns and what came before", wire_name(type(ask)),
                "Do both sides run the same version, unchanged?",
            ) from error  # fmt: skip

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.Greet():
                return self._greet(ask)
            case protocol.Begin():
                return self._begin(ask.job)
            case protocol.Forget():
                return self._forget(ask)
            case protocol.Consider():
                return self._consider(ask)
        if self._terms is not None or isinstance(ask, _OWN):
            with self._turns.taken(ask):
                return self._answer_own(ask)
        if self._party is not None:
            if isinstance(ask, TakeShares):
                self._open_figures_once()
            if isinstance(ask, AskPossible) and not set(ask.rules) <= set(self._begun().rules):
                raise ProtocolError("A silo is asked about the job's own rules", "others", "Start a new run.")
            return self._party.answer(ask) if self._part is None else self._synthesised(self._party, ask)
        if self._aligner is not None:
            reply = self._aligner.answer(ask)
            self._identifiers.record(self._aligner.asked)
            return reply
        raise ProtocolError(
            "A silo aligns and trains once a job has begun, until it keeps its part", type(ask).__name__,
            "Start the job again.",
        )  # fmt: skip

    def _answer_own(self, ask: Message) -> Message:
        """Answer one of a job's own messages."""
        match ask:
            case protocol.AskColumns():
                return self._columns()
            case protocol.PrepareRows():
                return self._prepare()
            case protocol.KeepPart():
                return self._keep()
            case protocol.PrepareSynthesis():
                return self._prepare_synthesis()
            case protocol.AskConditions():
                return protocol.ConditionsRead(self._given, self._groups, self._kinds)
            case protocol.PreparePool():
                return self._prepare_pool(ask.number)
            case protocol.PrepareGroup():
                return self._prepare_group(ask.number)
            case protocol.AcceptRows():
                return self._accepting().accept(ask, self._working())
            case protocol.AcceptKeys():
                return self._accepting().accept_keys(ask)
            case protocol.AskCodes():
                key = self._group().key(f"rule {ask.rule}, batch {ask.number}")
                return self._accepting().codes(ask, key)
            case protocol.TakeRows():
                return self._accepting().take(ask)
            case protocol.Publish():
                return self._publish(ask)
            case protocol.AskHoldoutKey():
                sealed = holdout.seal_key(self._group(), self.seat.name, self._holdout_key.read())
                return protocol.SealedHoldoutKey(sealed)
            case protocol.RelayedHoldoutKeys():
                return self._take_key(ask)
            case protocol.AskHoldoutTag():
                return protocol.HoldoutTag(holdout.tag(self._group(), self.seat.name, self._held, self._of))
            case protocol.ShownHoldoutTags():
                silos = protocol.own_group(self._begun(), self.seat.name)
                holdout.check_tags(self._group(), silos, self._held, ask.tags, self._of)
                return Done()
            case protocol.CountedTables() | protocol.CountedFigures() | protocol.NoisedTables():
                return self._keep_counted(ask)
            case protocol.AskNonce():
                self._nonce = secrets.token_bytes(32)
                return protocol.DrawnNonce(self._nonce)
            case protocol.SealHead():
                return self._seal_head(ask)
            case protocol.RelayedHeads():
                return self._compare(ask)
            case protocol.SignLabel():
                return self._sign_label()
            case protocol.KeepLabel():
                label.keep_label(self.folder, label.facts(self._begun(), self._published()), ask.signed)
                return Done()
        return self._agree(ask)

    def _state(self, training: bool) -> State:
        """The job and the party that it has made; once it has trained, the silo's part of the model."""
        if not training:
            return {} if self._part is None else self._part
        if self._party is None and self._part is None:
            raise ProtocolError("A job can be taken up again once its silos are prepared", "they are not")
        return {
            "sources": list(protocol.installed()),
            "job": to_state(self._begun()),
            "secret": str(self._secret),
            "chain": self._chain.value,
            "charged": self._charged,
            "order": self._order,
            "held": self._held,
            "alone": self._alone,
            "digest": self._digest,
            "part": None if self._begun().drawing is not None else self._part,
            "party": None if self._party is None or self._part is not None else self._party.state(),
            "draws": self._party is not None and self._part is not None,
            "turns": self._turns.state(),
        }

    def restore(self, state: State) -> None:
        """See `Party.restore`. The current policy applies, and the table must not have changed."""
        check_kept(self.folder)
        if (self.folder / CLOSED).exists():
            raise _closed()
        version, sources = state["sources"]
        protocol.check_same("the checkpoint", (version, sources), "this silo", protocol.installed())
        self.job = job = from_state(protocol.Job, state["job"])
        self._admit(job)
        self._approvals.begin(job, self._submitter or job.submitter)
        self._secret, self._chain = int(state["secret"]), Chain(state["chain"])
        self._party, self._aligner, self._terms = None, None, None
        if job.drawing is not None:
            self._take_up_part(job)
        else:
            self._restore_rows(job, state)
        if state["draws"]:
            self._prepare_synthesis()
        self._turns = self._script(job)
        self._turns.restore(state["turns"])
        self._closed = False
        self._say("resumes from a checkpoint")

    def _restore_rows(self, job: protocol.Job, state: State) -> None:
        """The part of `restore` of a job that takes rows up."""
        self._order, self._part, self._charged = state["order"], state["part"], state["charged"]
        self._held, self._alone = state["held"], state["alone"]
        if protocol.dealer(job) != self.seat.name:
            kept = None if self._snapshot is None else self._snapshot.rows()
            self._frame = self.rows.read() if kept is None else kept
            self._check_identifiers(self._frame)
        party = self._make_party(self._table())
        if self._digest != state["digest"]:
            raise CheckpointError(
                "A silo's table is the one that the job began with", "it has changed",
                "Restore the table, or submit the job anew; with snapshot = true in silo.toml later jobs keep theirs.",
            )  # fmt: skip
        if state["party"] is not None:
            self._party = party
            party.restore(state["party"])

    # The steps of a job.

    def _check_version(self, ask: protocol.Greet | protocol.Consider) -> None:
        mine = protocol.installed()
        protocol.check_same("the coordinator", (ask.version, ask.sources), f"silo {self.seat.name!r}", mine)

    def _greet(self, ask: protocol.Greet) -> protocol.Greeted:
        self._check_version(ask)
        self.policy.check_greeting(ask.algorithm, self._submitter or ask.submitter)
        self._say(f"job of {self._submitter or ask.submitter}: {ask.algorithm}")
        return protocol.Greeted(*protocol.installed())

    def _begin(self, job: protocol.Job) -> Done:
        self._admit(job)
        self._check_exact(job)
        self._approvals.begin(job, self._submitter or job.submitter)
        if not self._begun_jobs.with_job(job.name, most := self.policy.jobs_per_day):
            raise refusal("jobs_per_day", f"at most {most} jobs begin within 24 hours", "more", "Wait.")
        self.job, self._party, self._part, self._order, self._aligner = job, None, None, None, None
        deals = protocol.dealer(job) == self.seat.name
        self._turns, self._terms = self._script(job), None if deals else agreement.Group(self._own_seat(job))
        self._offer = agreement.OfferShares(protocol.purpose(job), fresh=True)
        self._agreed, self._key, self._names, self._sampled = None, b"", None, None
        self._alone, self._own = torch.zeros(0, dtype=torch.int64), None
        self._secret = secrets.randbits(256)
        self._chain = Chain(protocol.digest(job, str(self._secret)))
        self._charged = False
        if deals:
            self._say("it deals random numbers, and takes part with no rows")
        elif job.drawing is not None:
            self._take_up_part(job)
        else:
            self._open_rows(job)
        write_atomic(make_folder(self.folder) / JOB, pack(to_state(job)), PRIVATE)
        upgrades.note(self.folder)
        return Done()

    def _forget(self, ask: protocol.Forget) -> protocol.Forgot:
        """Remove what another job has left."""
        if self.job is not None:
            raise ProtocolError("A job that has begun has no other forgotten", ask.job, "Start another.")
        receipts = forgetting.forget(self.folder.parent, ask.job, COORDINATOR, self.seat)
        self._say(f"job {ask.job} was forgotten, as the coordinator asked: {len(receipts)} receipts")
        return protocol.Forgot(json.dumps(receipts))

    def _consider(self, ask: protocol.Consider) -> protocol.Considered:
        """Say whether this silo would refuse a job, by its policy and version; no row is read, and nothing counts."""
        if self.job is not None:
            raise ProtocolError("A job is considered before any has begun", ask.job.name, "Start another.")
        found, checks = list[str](), (partial(self._check_version, ask), partial(self._admit, ask.job))
        for check in checks:
            try:
                check()
            except SilosynthError as error:
                self._say(f"would refuse a job of {self._submitter or ask.job.submitter}: {error}")
                found.append(str(error.public()))
        if not found:
            self._say(f"would take part in a job of {self._submitter or ask.job.submitter}: {ask.job.algorithm}")
        return protocol.Considered(tuple(found))

    def _take_up_part(self, job: protocol.Job) -> None:
        """Load what rows are drawn from: by the policy of now, and without the rows that it was trained on."""
        kept = part_to_draw_from(self._trained_at, job)
        if kept.rows:
            self.policy.check_rows(kept.rows)
        self._part, self._schema, self._charged = kept.part, kept.schema, kept.charged
        self._ruling = Ruling.from_state(kept.ruling) if kept.ruling else Ruling()
        self._take_conditions(job)
        self._say(f"{job.rows or 0:,} rows are drawn from what job {self._trained_in} has trained")

    def _take_conditions(self, job: protocol.Job) -> None:
        """Read the conditions on this silo's columns, if its policy allows them; the ledger notes who asks."""
        if not job.asked:
            return
        if self._book is not None:
            by = self._submitter or job.submitter
            self._book.conditioned(job.asked, by, self._submitter is not None)
        own = self._schema.names if self._entry.parts else None
        conditions.check_columns(self.policy, job, own)
        if own is None:  # the coordinator has the whole model
            return
        assert self._part is not None
        self._given = silo_sampling.read_own(job, self._part, self._ruling, self._schema)
        self._groups = silo_sampling.read_groups(job, self._part, self._ruling, self._schema)
        self._kinds = silo_sampling.read_rows(job, self._part, self._ruling, self._schema)
        if not self._charged:
            asked, before = self._wanted() or (self._given,), AskedConditions(self.releases.path.parent)
            conditions.check_rows_behind(self.policy, job, own, asked, self._trained_at, before)

    def _wanted(self) -> tuple[tuple[Condition, ...], ...]:
        """The conditions on its own columns, of each group of rows; none if shares are of another silo's column."""
        return self._kinds or tuple((group.condition, *self._given) for group in self._groups)

    @property
    def _trained_in(self) -> str:
        """The job whose model rows are drawn from."""
        job = self._begun()
        return job.name if job.drawing is None else job.drawing.job

    @property
    def _trained_at(self) -> Path:
        """Its folder."""
        return self.folder if self._begun().drawing is None else self.folder.parent / self._trained_in

    def _open_rows(self, job: protocol.Job) -> None:
        """Read the table, and be ready to link its rows."""
        frame = self.rows.read()
        self._frame = frame = frame if self._snapshot is None else self._snapshot.keep(frame)
        self._check_identifiers(frame)
        alike = protocol.horizontal(job)
        links = protocol.links(job, self.seat.name)
        if links or ((job.holdout or job.sample < 1) and alike and self.rows.identifiers):
            kinds = dict.fromkeys(self.rows.identifiers, "identifier")
            self._names = canonical(federation.read_table(frame[self.rows.identifiers], kinds)[1].columns)
        self._say(f"{len(frame):,} rows read")
        if alike and not protocol.by_key(job):
            self._key = holdout.own_key(self.seat)
            self._take_sample()
        if not protocol.by_key(job) or job.sample == 1:
            self._link()
        if links and (lost := repeated_identifiers(frame, list(self.rows.identifiers))):
            self._say(f"warning: {lost}")

    def _take_sample(self) -> None:
        """Draw the rows that the job takes up, before any is linked."""
        job = self._begun()
        if job.sample == 1:
            return
        assert self._frame is not None
        rows = len(self._frame) if self._names is None else self._names
        taken = holdout.held_out(holdout.sample_key(self._key), job.sample, rows)
        self._sampled = taken.nonzero().flatten()
        if self._names is not None:  # those of others are needed no more
            self._names = [name if used else None for name, used in zip(self._names, taken.tolist(), strict=True)]
        self._say(f"{len(self._sampled):,} rows are the job's sample")
        if self._book is not None:
            self._book.sampled(job.sample, len(self._sampled))

    def _link(self) -> None:
        """Be ready to link the rows that the job takes up, if it links any."""
        job = self._begun()
        if not protocol.links(job, self.seat.name) or job.align is None or self._names is None:
            return
        names = self._names if self._sampled is None else [self._names[row] for row in self._sampled.tolist()]
        more = job.align, self.policy.psi_queries, self._identifiers.number
        self._aligner = Aligner(names, self._group_seat(job), common_streams(job), *more)

    def _open_figures_once(self) -> None:
        """Refuse to open figures in a second attempt: a dealer could choose anew what they tell besides."""
        if (self.folder / FIGURES).exists():
            raise ProtocolError(
                "A silo opens the figures of a job once, all attempts together", "a second time",
                "Submit the job anew, under another name.",
            )  # fmt: skip
        write_atomic(make_folder(self.folder) / FIGURES, b"", PRIVATE)

    def _check_exact(self, job: protocol.Job) -> None:
        """Refuse another hold-out than that of earlier jobs, if tables of it open without noise."""
        counts = catalog.algorithm(job.algorithm, kind=None).kind == "counting"
        if not counts or not job.holdout or protocol.opening(job) == "noised":
            return
        first = ExactHoldout(self.releases.path.parent).first(job.holdout)
        if first != job.holdout:
            raise refusal(
                "open_tables", "without noise tables open of one hold-out, that of the first such job",
                f"{job.holdout:g}, not {first:g}", "Name the share of the first job, or have tables open with noise.",
            )  # fmt: skip

    def _script(self, job: protocol.Job) -> Turns:
        """A job's own messages, each once, but for batches of published rows; other messages come between them."""
        entry = self._entry
        if protocol.dealer(job) == self.seat.name:
            return Turns(*once(protocol.PrepareRows))
        ends = once(*_HEADS, *(_LABEL if protocol.shares_table(job) else ()))
        accept = often(*silo_sampling.ASKS) if job.accepting and not protocol.shares_table(job) else ()
        compare = once(*agreement.ASKS) if protocol.comparing(job) else ()
        if job.drawing is not None:
            parts = once(protocol.PrepareSynthesis) if entry.parts else ()
            given = once(protocol.AskConditions) if entry.parts and job.asked else ()
            pools = often(protocol.PreparePool, by="number") if entry.parts and job.frame is not None else ()
            groups = often(protocol.PrepareGroup, by="number") if entry.parts and job.grouped else ()
            return Turns(
                *once(*agreement.ASKS),
                *parts,
                *compare,
                *given,
                *pools,
                *groups,
                *accept,
                *often(protocol.Publish, by="first"),
                *ends,
            )
        key, tag = (once(*_HOLDOUT_KEY), once(*_HOLDOUT_TAG)) if protocol.by_key(job) else ((), ())
        apart = once(*agreement.ASKS) if key and protocol.silo_groups(job) else ()
        begin = (*once(*agreement.ASKS), *apart, *key, *maybe(protocol.AskColumns), *once(protocol.PrepareRows), *tag)
        if entry.kind == "counting":
            return Turns(*begin, *once(protocol.PASSED_ON[protocol.opening(job)], *_HEADS))
        parts = once(protocol.KeepPart, protocol.PrepareSynthesis) if entry.parts else ()
        return Turns(*begin, *parts, *compare, *accept, *often(protocol.Publish, by="first"), *ends)

    def _agree(self, ask: Message) -> Message:
        """Agree with the other silos on the job that this one was told, before any row is touched; or is drawn.

        Silos of a group that holds out rows agree on a secret of their own after that.
        """
        if isinstance(ask, agreement.OfferShares) and ask != self._offer:
            raise ProtocolError(
                "All silos of a job are told the same job", "another, or a secret that is not new",
                "Do not trust this coordinator; or both sides run different versions of silosynth.",
            )  # fmt: skip
        assert self._terms is not None
        reply = self._terms.answer(ask)
        assert reply is not None  # it was its turn
        if self._terms.ready:
            self._agreed, self._terms = self._terms, None
            job, offer = self._begun(), self._offer
            if protocol.by_key(job) and protocol.silo_groups(job) and type(offer) is agreement.OfferShares:
                self._terms = agreement.Group(self._group_seat(job))
                self._offer = agreement.OfferGroupShares(protocol.holdout_purpose(job), fresh=True)
        return reply

    def _group(self) -> agreement.Group:
        """The silos of the job, which have agreed on it."""
        if self._agreed is None:
            raise ProtocolError("Silos agree on a job before they hold out rows", "they have not", "Start a new run.")
        return self._agreed

    def _take_key(self, ask: protocol.RelayedHoldoutKeys) -> Done:
        """Keep the key by which silos that hold the same rows hold out some; and draw the job's sample by it."""
        job = self._begun()
        silos = protocol.own_group(job, self.seat.name)
        if protocol.silo_groups(job) and len(silos) < 2:
            self._key = holdout.own_key(self.seat)
        else:
            self._key = holdout.agreed_key(self._group(), silos, ask.sealed)
            self._holdout_key.keep(self._key)
        if job.sample < 1:
            self._take_sample()
            self._link()
        return Done()

    def _admit(self, job: protocol.Job) -> None:
        """Refuse a job that the policy forbids, or that is not for this silo."""
        catalog.algorithm(job.algorithm, kind=None).check_config(job.config)
        self.policy.check_job(job, self._submitter or job.submitter)
        if catalog.algorithm(job.algorithm, kind=None).kind == "counting" and bool(job.holdout) is not bool(
            getattr(job.config, "holdout", False)
        ):
            raise ProtocolError(
                "The options of a job that counts say whether there is a hold-out, as the job does", job.holdout,
                "Both sides must run the same version of silosynth.",
            )  # fmt: skip
        if job.rules and catalog.algorithm(job.algorithm, kind=None).kind != "generator":
            raise ProtocolError("Rules are for rows that a generator draws", job.algorithm, "Leave them out.")
        if job.drawing is not None and catalog.algorithm(job.algorithm, kind=None).kind != "generator":
            raise ProtocolError("Rows are drawn from a generator", job.algorithm, "Name a job that has trained one.")
        if self.seat.name not in job.silos:
            raise ProtocolError("A silo is asked to take part only in its own jobs", job.silos, "Compare names.")

    def _columns(self) -> protocol.ColumnsTold:
        """The names of its columns, without identifiers that are not declared pseudonyms."""
        assert self._frame is not None
        linking = pseudonyms(self.rows.declared)
        names = [str(name) for name in self._frame.columns if name in linking or name not in self.rows.identifiers]
        return protocol.ColumnsTold(tuple(names), tuple(name for name in names if name in linking))

    def _check_identifiers(self, frame: pd.DataFrame) -> None:
        for name in self.rows.identifiers:
            if name not in frame.columns:
                raise DataError(
                    "A silo's table has the columns that its silo.toml names as identifiers", name,
                    nearest(name, map(str, frame.columns)),
                )  # fmt: skip
        if protocol.links(self._begun(), self.seat.name) and not self.rows.identifiers:
            raise DataError(
                "Rows are linked by columns that each silo's silo.toml names as identifiers", "none",
                'Write identifiers = ["…"] into [data] of silo.toml.',
            )  # fmt: skip

    def _prepare(self) -> Message:
        if protocol.dealer(self._begun()) == self.seat.name:
            self._party = self._make_party(self._table())
            return protocol.PreparedSchema(Schema(()))
        if self._aligner is not None:
            linked, self._aligner = self._aligner.rows, None
            self._order = linked if self._sampled is None else self._sampled[linked]
        self._hold_out()
        table = self._table()
        self._party = self._make_party(table)
        what = "count" if self._entry.kind == "counting" else "train on"
        self._say(f"{len(table):,} rows to {what}, {len(self._schema.columns)} columns")
        if self._own is not None:
            self._say(f"and {len(self._own):,} that no other silo has, by which autoencoders are trained")
            if self._book is not None:
                self._book.trained_on(len(table), len(self._own))
        if self._entry.horizontal and self._entry.kind != "counting":  # its own messages report ranges
            told = Schema(tuple(replace(column, reason="", missing=()) for column in self._schema.columns))
            if self._begun().rules and not protocol.silo_groups(self._begun()):
                return protocol.PreparedRuled(told, self._ruling.forms[self.seat.name])
            return protocol.PreparedSchema(told)
        public = tuple(replace(column, low=None, high=None, reason="", missing=()) for column in self._schema.columns)
        if catalog.public(self._begun().config) and self._ruling.rules:
            return protocol.PreparedRuled(Schema(public), self._ruling.forms[self.seat.name])
        if self._private or protocol.horizontal(
            self._begun()
        ):  # the algorithm's own messages tell a noised number, if any
            return protocol.PreparedSchema(Schema(public))
        return protocol.PreparedRows(Schema(public), len(table))

    def _hold_out(self) -> None:
        """Set rows aside: the order of the job's rows is that of the others."""
        assert self._frame is not None
        names, self._names, share = self._names, None, self._begun().holdout
        order, sampled, self._sampled = self._order, self._sampled, None
        if order is None:
            order = torch.arange(len(self._frame)) if sampled is None else sampled
            self._of = 0 if sampled is None else len(self._frame)
        held = torch.zeros(len(self._frame), dtype=torch.bool)
        if share:
            held = holdout.held_out(self._key, share, len(self._frame) if names is None else names)
        if getattr(self._begun().config, "own_rows", False):
            others = ~held if sampled is None else torch.zeros_like(held).index_fill(0, sampled, True) & ~held
            others[order] = False
            self._alone = others.nonzero().flatten()
        if sampled is not None:
            self._order, self._held = order, held[order]
        if not share:
            return self._note_rows(order)
        self._held = held[order]
        self._order = order if self._entry.kind == "counting" else order[~self._held]
        self._say(f"{int(self._held.sum()):,} rows held out")
        self._note_rows(order)

    def _note_rows(self, order: torch.Tensor) -> None:
        """Keep which rows are trained on, for reports on them."""
        assert self._frame is not None
        if self._entry.kind == "generator":
            rows_used(self._frame, order, self._held).keep(self.folder)

    def _keep(self) -> Done:
        party = self._working()
        self._part, self._party = party.trained(), None
        self._keep_reference(party)
        ruling = self._ruling.to_state() if self._ruling.rules else {}
        keep_part(self.folder, self._begun(), KeptPart(self._part, self._schema, self._n_rows, self._charged, ruling))
        if not self._charged:
            conditions.keep_rows_behind(self.folder, self._behind)
        self._say("trained")
        return Done()

    def _keep_counted(self, ask: protocol.CountedTables | protocol.CountedFigures | protocol.NoisedTables) -> Done:
        """Keep what a job that counts has opened, as it was passed on."""
        self._party = None
        linked = self._begun().align is not None
        keep_counted(self.folder, self._begun(), unpack(ask.content), self._n_rows if linked else None)
        self._say("tables kept, as they were passed on")
        return Done()

    def _prepare_synthesis(self) -> Done:
        """Make a party that synthesises from the silo's part of the model, as `silosynth.Model.sample` does."""
        if self._part is None:
            raise ProtocolError(
                "Rows are synthesised after training has ended", "no trained part", "Start the job again."
            )
        job = self._begun()
        self._synthesise_by(protocol.drawing_streams(job, self._streams()), self._given)
        if protocol.comparing(job):
            self._terms = agreement.Group(self._own_seat(job))
            self._offer = agreement.OfferShares(protocol.rows_purpose(job), fresh=True)
        return Done()

    def _prepare_group(self, number: int) -> Done:
        """Make another party, for rows of one group."""
        if wanted := self._wanted():
            check_place("The number of a group of rows", number, len(wanted))
        streams = protocol.drawing_streams(self._begun(), self._streams())
        self._synthesise_by(streams.child("group", number), wanted[number] if wanted else self._given)
        return Done()

    def _prepare_pool(self, number: int) -> Done:
        """Make another party, for rows among which those of many groups are looked for."""
        streams = protocol.drawing_streams(self._begun(), self._streams())
        self._synthesise_by(streams.child("pool").child(number), ())
        return Done()

    def _synthesise_by(self, streams: Streams, wanted: Sequence[Condition]) -> None:
        """Make a party whose rows are of these streams, and are led to conditions on this silo's columns."""
        assert self._part is not None
        self._party = party = self._make_party(Table(()), streams)
        party.restore(self._part)
        job, self._sampling = self._begun(), None
        if job.accepting:
            self._sampling = SiloSampling(self.seat.name, job, self._schema, self._ruling, wanted, streams)
            self._sampling.restrict(party)

    def _accepting(self) -> SiloSampling:
        if self._sampling is None:
            raise ProtocolError("Rows are accepted under conditions or rules", "none", "Start the job again.")
        return self._sampling

    def _synthesised(self, party: Party, ask: Message) -> Message:
        """The reply to an ask for rows of the model, judged by all such asks of all jobs up to now."""
        with locked(self._trained_at / REFERENCE_LOCK):
            check_kept(self._trained_at)  # still
            party.judge_by(self._reference())
            reply = party.answer(ask)
            self._keep_reference(party)
        if self._sampling is not None and isinstance(reply, SyntheticColumns):
            return self._sampling.shown(reply)
        return reply

    def _reference(self) -> State:
        """What asks for synthetic rows are judged by; on disk, so that no restored checkpoint forgets any of them."""
        path = self._trained_at / REFERENCE
        return unpack(read(path)) if path.exists() else {}

    def _keep_reference(self, party: Party) -> None:
        if reference := party.reference():
            counted = {key: value for key, value in self._reference().items() if key in COUNTED}
            if self._part is not None and party is not self._party:
                reference = {**reference, **counted}
            write_atomic(make_folder(self._trained_at) / REFERENCE, pack(reference), PRIVATE)

    def _publish(self, ask: protocol.Publish) -> Done:
        """Keep the synthetic table: the published one, or the own columns that stay here."""
        table = ask.table if ask.table.columns else (self._sampling or self._working()).take_kept()
        if not self._entry.parts:
            self._party = None  # which trains no more
        self._drawn = [*(self._drawn if ask.first else []), table]
        if sum(map(len, self._drawn)) >= ask.total:
            schema = ask.columns if ask.table.columns else self._schema
            streams = protocol.drawing_streams(self._begun(), protocol.job_streams(self._begun()))
            made = model.to_synthetic_frame(self._drawn, schema, streams)
            sources.write(made, make_folder(self.folder) / SYNTHETIC)
            self._drawn = []
            self._say(f"{ask.total:,} synthetic rows kept")
        return Done()

    # The comparison of ledgers.

    def _seal_head(self, ask: protocol.SealHead) -> protocol.SealedHeads:
        job, silos, all_silos = self._begun(), ask.silos, set(protocol.holders(self._begun()))
        away = sorted(all_silos - set(silos))
        known = len(set(silos)) == len(silos) == len(ask.nonces) and set(silos) <= all_silos
        own = known and self._nonce and (self.seat.name, self._nonce) in zip(silos, ask.nonces, strict=True)
        if not own or (away and not self._entry.horizontal):
            raise ProtocolError(
                "Silos of a job compare ledgers, all that take part, with the number that each has drawn", silos,
                "Do not trust this coordinator.",
            )  # fmt: skip
        if away:
            self._say(f"ledgers are not compared with those of {', '.join(away)}, which went away")
        purpose = protocol.heads_purpose(job.name, ask)
        self._nonce, self._compared = b"", (purpose, tuple(silo for silo in silos if silo != self.seat.name))
        self._head = None if self._book is None else self._book.head()
        head = b"" if self._head is None else pack(to_state(self._head))
        seat = self._seat(job)
        return protocol.SealedHeads(tuple(seat.seal(silo, purpose, head) for silo in self._compared[1]))

    def _compare(self, ask: protocol.RelayedHeads) -> Done:
        """Whether all silos were asked the same, by what they say themselves."""
        (purpose, silos), self._compared = self._compared, ("", ())
        senders = tuple(one.sender for one in ask.envelopes)
        if not purpose or sorted(senders) != sorted(silos):
            raise ProtocolError("Each silo is told the head of each other silo's ledger", senders, "Start a new run.")
        seat = self._seat(self._begun())
        told = {one.sender: seat.open(one, purpose) for one in ask.envelopes}
        if self._book is None:
            return Done()
        self._heads = {silo: from_state(Head, unpack(head)) for silo, head in told.items()}
        verdict = self._book.compare(self._heads)
        if verdict:
            raise ProtocolError("All silos are asked the same", verdict, "Do not trust this coordinator.")
        self._say("all silos were asked the same")
        return Done()

    def _sign_label(self) -> protocol.LabelSigned:
        """Sign what this silo has found out by itself of the table that it was sent."""
        table = self._published()
        stated = label.facts(self._begun(), table)
        ledgers = [place / FILE for place in dict.fromkeys((self._trained_at, self.folder))]
        made = audits.mentioned(self.folder, lambda columns: label.digest(table[columns], raw_text=True))
        return label.sign_label(self.seat, stated, self._head, self._heads, ledgers, made)

    def _published(self) -> pd.DataFrame:
        """The table that this silo was sent."""
        if self._drawn or not (self.folder / SYNTHETIC).exists():
            raise ProtocolError("A table is signed once it is published", "it is not", "Start a new run.")
        return sources.read(self.folder / SYNTHETIC)

    # Helpers.

    def _begun(self) -> protocol.Job:
        if self.job is None:
            raise ProtocolError("A job must have begun", "nothing has begun", "Start the job again.")
        return self.job

    @property
    def _entry(self) -> catalog.Algorithm:
        """The job's algorithm."""
        return catalog.of_config(self._begun().algorithm, self._begun().config, None)

    @property
    def _private(self) -> bool:
        """Whether the job keeps a target."""
        return getattr(self._begun().config, "dp", Target()).private

    def _working(self) -> Party:
        if self._party is None:
            raise ProtocolError("A silo must be prepared before it trains", "not prepared", "Start the job again.")
        return self._party

    def _streams(self) -> Streams:
        """Its own randomness: of its secret, and noise also of all asks so far; or of the seed that the job fixes."""
        seed = self._begun().seed
        return Streams(self._secret, chain=self._chain) if seed is None else Streams(seed)

    def _seat(self, job: protocol.Job) -> Seat:
        """This silo's seat among the silos of the job, in the job's order, with the keys pinned here."""
        roster = Roster(job.silos, tuple(self.seat.roster.key(silo) for silo in job.silos))
        return Seat(self.seat.name, self.seat.private, roster)

    def _own_seat(self, job: protocol.Job) -> Seat:
        """The same among those that hold rows."""
        roster = Roster(protocol.holders(job), tuple(self.seat.roster.key(silo) for silo in protocol.holders(job)))
        return Seat(self.seat.name, self.seat.private, roster)

    def _group_seat(self, job: protocol.Job) -> Seat:
        """The same among those that hold the same rows."""
        own = self._own_seat(job)
        return replace(own, roster=own.roster.only(protocol.own_group(job, self.seat.name)))

    def _table(self) -> Table:
        """The training rows in the common order, without identifiers that are not declared pseudonyms."""
        if protocol.dealer(self._begun()) == self.seat.name:
            return Table(())
        assert self._frame is not None
        frame, self._frame = self._frame, None
        dropped = [name for name in self.rows.identifiers if name not in pseudonyms(self.rows.declared)]
        frame = frame.drop(columns=dropped)
        if self._order is not None:
            frame = frame.iloc[torch.cat([self._order, self._alone]).numpy()].reset_index(drop=True)
        linked = len(frame) - len(self._alone)
        declared = {name: kind for name, kind in self.rows.declared.items() if name not in dropped}
        counts = self._entry.kind == "counting"
        self.policy.check_rows(linked - int(self._held.sum()) * counts)
        schema, table = federation.read_table(frame, declared)
        hidden = Schema(tuple(replace(column, forms=()) for column in schema.columns))
        self._schema = hidden if self._private or self.policy.min_count > infer.FEWEST_ROWS else schema
        entry, job = self._entry, self._begun()
        self._behind = None if counts else conditions.rows_behind(self.policy, schema, table.take(slice(linked)))
        private = draws_noise(job.config)
        self._ruling, table, said = under_own_rules(self.seat.name, job, self._schema, table, private, entry.horizontal)
        for text in () if counts else (*said, *entry.cautions(job.config, self._described, table)):
            self._say(f"warning: {text}")
        if counts and self._begun().holdout:
            table = Table((*table.columns, _flags(HOLDOUT, self._held)))
        if counts:
            self.policy.check_counts(self._begun(), table)
        table = table.own_levels() if entry.horizontal else table
        if len(self._alone):
            table, self._own = table.take(slice(linked)).own_levels(), table.take(slice(linked, None)).own_levels()
            self._digest, self._n_rows = federation.digest({self.seat.name: table, "own": self._own}), linked
            return table
        self._digest, self._n_rows = federation.digest({self.seat.name: table}), len(table)
        return table

    def _make_party(self, table: Table, streams: Streams | None = None) -> Party:
        job = self._begun()
        own = self._own if streams is None else None  # to synthesise takes no rows
        streams = (self._streams() if streams is None else streams).party(self.seat.name)
        party = self._entry.party(table, self._described, self._seat(job), streams, self.device, job.config)
        if own is not None:
            party.also(own)
        return party

    @property
    def _described(self) -> Schema:
        """What the algorithm knows of this silo's columns: as rules have them described."""
        return self._ruling.schemas({self.seat.name: self._schema})[self.seat.name]

    def _charge(self, events: tuple[Event, ...]) -> None:
        """Record a noised release before it leaves: once for the same asks, which get the same noise."""
        with self.releases.locked():
            asked, job, used = self._chain.value.hex(), self._trained_in, forgetting.uses_before(self._trained_at)
            job = f"{job}~{used}" if used else job  # others of this name have been forgotten, and counted
            of_job = self.releases.without(asked, job)
            self.policy.check_spending(events, of_job, self.releases.without(asked))
            self._check_target([*of_job, *events])
            self.releases.add(job, asked, events)
        self._charged = self._charged or (self._private and any(event.scope != "readers" for event in events))

    def _check_target(self, events: list[Event]) -> None:
        """Refuse to release more than the job's own target, whatever was asked before a checkpoint was restored."""
        target = getattr(self._begun().config, "dp", Target())
        if target.private and not affords(target, events):
            raise ProtocolError(
                "A silo releases no more in a job than the job's target, all attempts together",
                f"epsilon above {target.epsilon:g}", "Submit the job anew, under another name.",
            )  # fmt: skip


def _flags(name: str, values: torch.Tensor) -> Column:
    """A boolean column without missing values."""
    return Column(name, "bool", values.to(torch.int64), torch.zeros(len(values), dtype=torch.bool), (False, True))
