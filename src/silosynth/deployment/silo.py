"""A silo's side of a job: it checks its policy, opens its own table, aligns, and lets its party answer.

Every ask and every reply passes through `DeploymentSilo.answer`, and so through the policy. The first refusal ends the
job at this silo: a coordinator that went on might learn from later replies what the refused one would have told. What
the silo keeps lies in the job's own folder: checkpoints, its part of the model, the synthetic table.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from silosynth import catalog
from silosynth.alignment import Aligner, canonical
from silosynth.core.conversation import Party, Roster, State
from silosynth.core.errors import CheckpointError, DataError, ProtocolError, SilosynthError, StorageError, nearest
from silosynth.core.files import PRIVATE, make_folder, write_atomic
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.schema import Schema, Table, pseudonyms
from silosynth.core.streams import Streams
from silosynth.data import sources
from silosynth.deployment import protocol
from silosynth.deployment.policy import Releases, RowSource, SiloPolicy
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat
from silosynth.runtime.wire import pack
from silosynth.simulation import federation, model

if TYPE_CHECKING:
    import pandas as pd

SYNTHETIC, PART, CLOSED = "synthetic.parquet", "part.silosynth", "closed"
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
    """

    def __init__(
        self, seat: Seat, rows: RowSource, policy: SiloPolicy, folder: Path, releases: Releases, device: torch.device,
        submitter: str | None = None, say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.seat, self.rows, self.policy = seat, rows, policy
        self.folder, self.releases, self.device = folder, releases, device
        self._submitter, self._say = submitter, say
        self.job: protocol.Job | None = None
        self._secret, self._attempt, self._n_releases = 0, "", 0
        self._frame: pd.DataFrame | None = None  # until its rows become a table
        self._order: torch.Tensor | None = None
        self._schema, self._digest = Schema(()), ""
        self._aligner: Aligner | None = None
        self._party: Party | None = None
        self._part: State | None = None  # of the model, once training has ended
        self._drawn: list[Table] = []
        self._closed = (folder / CLOSED).exists()

    def answer(self, ask: Message) -> Message:
        """Answer, if the policy allows both the ask and the reply; the first error ends the job at this silo.

        Raises:
            PolicyError: a rule forbids it.
            ProtocolError: the message comes at the wrong time, or after an error.
        """
        if self._closed:
            raise _closed()
        try:
            self.policy.check_message(ask)
            reply = self._answer(ask)
            self.policy.check_message(reply)
            self._release(reply)
        except Exception as error:
            self._close(error)
            raise
        return reply

    def _close(self, error: Exception) -> None:
        """Answer no more; nor from a checkpoint, unless the error is one of this machine, which may be mended."""
        self._closed = True
        self._say(f"refused: {error}" if isinstance(error, SilosynthError) else f"failed: {type(error).__name__}")
        if not isinstance(error, _PASSING):
            write_atomic(make_folder(self.folder) / CLOSED, f"{type(error).__name__}\n".encode(), PRIVATE)

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.Greet():
                return self._greet(ask)
            case protocol.Begin():
                return self._begin(ask.job)
            case protocol.PrepareRows():
                return self._prepare()
            case protocol.KeepPart():
                return self._keep()
            case protocol.PrepareSynthesis():
                return self._prepare_synthesis()
            case protocol.Publish():
                return self._publish(ask)
        if self._party is not None:
            return self._party.answer(ask)
        if self._aligner is not None:
            return self._aligner.answer(ask)
        raise ProtocolError("A job must have begun", type(ask).__name__, "Start the job again.")

    def _state(self, training: bool) -> State:
        """The job and the party that it has made; once it has trained, the silo's part of the model."""
        if not training:
            return {} if self._part is None else self._part
        return {
            "sources": list(protocol.installed()),
            "job": to_state(self._begun()),
            "secret": str(self._secret),
            "attempt": self._attempt,
            "noised": self._n_releases,
            "order": self._order,
            "digest": self._digest,
            "part": self._part,
            "party": None if self._party is None else self._party.state(),
        }

    def restore(self, state: State) -> None:
        """See `Party.restore`. The current policy applies, and the table must not have changed."""
        if (self.folder / CLOSED).exists():
            raise _closed()
        version, sources = state["sources"]
        protocol.check_same("the checkpoint", (version, sources), "this silo", protocol.installed())
        self.job = job = from_state(protocol.Job, state["job"])
        self._admit(job)
        self._secret, self._attempt, self._n_releases = int(state["secret"]), state["attempt"], state["noised"]
        self._order, self._part = state["order"], state["part"]
        self._frame = self.rows.read()
        self._check_identifiers(self._frame)
        party = self._make_party(self._table())
        if self._digest != state["digest"]:
            raise CheckpointError(
                f"The table of silo {self.seat.name!r} is the one that the job began with", "it has changed",
                "Restore the table, or submit the job anew.",
            )  # fmt: skip
        self._party = party
        if state["party"] is not None:
            party.restore(state["party"])
        self._closed = False
        self._say("resumes from a checkpoint")

    # The steps of a job.

    def _greet(self, ask: protocol.Greet) -> protocol.Greeted:
        mine = protocol.installed()
        protocol.check_same("the coordinator", (ask.version, ask.sources), f"silo {self.seat.name!r}", mine)
        self.policy.check_job(ask.algorithm, self._submitter or ask.submitter)
        self._say(f"job of {self._submitter or ask.submitter}: {ask.algorithm}")
        return protocol.Greeted(*mine)

    def _begin(self, job: protocol.Job) -> Done:
        self._admit(job)
        self.job, self._party, self._part, self._order, self._aligner = job, None, None, None, None
        self._secret, self._attempt, self._n_releases = secrets.randbits(256), secrets.token_hex(8), 0
        self._frame = frame = self.rows.read()
        self._check_identifiers(frame)
        if job.align is not None:
            kinds = dict.fromkeys(self.rows.identifiers, "identifier")
            keys = federation.read_table(frame[self.rows.identifiers], kinds)[1]
            self._aligner = Aligner(canonical(keys.columns), self._seat(job), common_streams(job))
        self._say(f"{len(frame):,} rows read")
        return Done()

    def _admit(self, job: protocol.Job) -> None:
        """Refuse a job that the policy forbids, or that is not for this silo."""
        self.policy.check_job(job.algorithm, self._submitter or job.submitter)
        self.policy.check_options(job.seed, getattr(job.config, "synthesis", "shared"))
        if self.seat.name not in job.silos:
            raise ProtocolError("A silo is asked to take part only in its own jobs", job.silos, "Compare names.")

    def _check_identifiers(self, frame: pd.DataFrame) -> None:
        for name in self.rows.identifiers:
            if name not in frame.columns:
                raise DataError(
                    f"Silo {self.seat.name!r}: the table has the columns that are named as identifiers", name,
                    nearest(name, map(str, frame.columns)),
                )  # fmt: skip
        if self._begun().align is not None and not self.rows.identifiers:
            raise DataError(
                f"Silo {self.seat.name!r}: rows are linked by columns that are named as identifiers", "none",
                'Write identifiers = ["…"] into [data] of silo.toml.',
            )  # fmt: skip

    def _prepare(self) -> Message:
        if self._aligner is not None:
            self._order, self._aligner = self._aligner.rows, None
        table = self._table()
        self._party = self._make_party(table)
        self._say(f"{len(table):,} rows to train on, {len(self._schema.columns)} columns")
        if catalog.algorithm(self._begun().algorithm).horizontal:  # its own messages report ranges
            return protocol.PreparedSchema(
                Schema(tuple(replace(column, reason="", missing=()) for column in self._schema.columns))
            )
        public = tuple(replace(column, low=None, high=None, reason="", missing=()) for column in self._schema.columns)
        return protocol.PreparedRows(Schema(public), len(table))

    def _keep(self) -> Done:
        self._part = self._working().trained()
        write_atomic(
            make_folder(self.folder) / PART, pack({"job": to_state(self._begun()), "part": self._part}), PRIVATE
        )
        self._say("trained")
        return Done()

    def _prepare_synthesis(self) -> Done:
        """Make a party that synthesises from the silo's part of the model, as `silosynth.Model.sample` does."""
        if self._part is None:
            raise ProtocolError(
                "Rows are synthesised after training has ended", "no trained part", "Start the job again."
            )
        self._party = self._make_party(Table(()), model.sampling_streams(self._streams()))
        self._party.restore(self._part)
        return Done()

    def _publish(self, ask: protocol.Publish) -> Done:
        """Keep the synthetic table: the published one, or the own columns that stay here."""
        table = ask.table if ask.table.columns else self._working().take_kept()
        self._drawn = [*(self._drawn if ask.first else []), table]
        if sum(map(len, self._drawn)) >= ask.total:
            schema = ask.columns if ask.table.columns else self._schema
            streams = model.sampling_streams(protocol.job_streams(self._begun()))
            made = model.to_synthetic_frame(self._drawn, schema, streams)
            sources.write(made, make_folder(self.folder) / SYNTHETIC)
            self._drawn = []
            self._say(f"{ask.total:,} synthetic rows kept")
        return Done()

    # Helpers.

    def _begun(self) -> protocol.Job:
        if self.job is None:
            raise ProtocolError("A job must have begun", "nothing has begun", "Start the job again.")
        return self.job

    def _working(self) -> Party:
        if self._party is None:
            raise ProtocolError("A silo must be prepared before it trains", "not prepared", "Start the job again.")
        return self._party

    def _streams(self) -> Streams:
        seed = self._begun().seed
        return Streams(self._secret if seed is None else seed)

    def _seat(self, job: protocol.Job) -> Seat:
        """This silo's seat among the silos of the job, in the job's order, with the keys pinned here."""
        roster = Roster(job.silos, tuple(self.seat.roster.key(silo) for silo in job.silos))
        return Seat(self.seat.name, self.seat.private, roster)

    def _table(self) -> Table:
        """The training rows in the common order, without identifiers that are not declared pseudonyms."""
        assert self._frame is not None
        frame, self._frame = self._frame, None
        dropped = [name for name in self.rows.identifiers if name not in pseudonyms(self.rows.declared)]
        frame = frame.drop(columns=dropped)
        if self._order is not None:
            frame = frame.iloc[self._order.numpy()].reset_index(drop=True)
        declared = {name: kind for name, kind in self.rows.declared.items() if name not in dropped}
        self.policy.check_rows(len(frame))
        schema, table = federation.read_table(frame, declared)
        private = getattr(self._begun().config, "dp", Target()).private
        self._schema = Schema(tuple(replace(column, forms=()) for column in schema.columns)) if private else schema
        entry = catalog.algorithm(self._begun().algorithm)
        for text in entry.cautions(self._begun().config, schema, table):
            self._say(f"warning: {text}")
        table = table.own_levels() if entry.horizontal else table
        self._digest = federation.digest({self.seat.name: table})
        return table

    def _make_party(self, table: Table, streams: Streams | None = None) -> Party:
        job = self._begun()
        streams = (self._streams() if streams is None else streams).party(self.seat.name)
        return catalog.algorithm(job.algorithm).party(table, self._schema, self._seat(job), streams, self.device)

    def _release(self, reply: Message) -> None:
        """Record a noised release before it leaves; the same noise of one attempt counts once."""
        if not (events := getattr(reply, "events", ())):
            self.policy.check_release(reply, ())
            return
        with self.releases.locked():
            self.policy.check_release(reply, self.releases.without(self._attempt, self._n_releases))
            self.releases.add(self._begun().name, self._attempt, self._n_releases, events)
        self._n_releases += 1
