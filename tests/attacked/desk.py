"""One real silo behind its real desk and policy: its files, and a coordinator that sends whatever a test wants."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deployment.common import customers, seated

from silosynth import catalog
from silosynth.algorithms.silofuse.protocol import FitCoder
from silosynth.alignment import AlignConfig
from silosynth.core.conversation import COORDINATOR
from silosynth.core.messages import Message
from silosynth.deployment.entry import JobAnswerer
from silosynth.deployment.kits import KEY, StartKit
from silosynth.deployment.policy import POLICY, read_policy
from silosynth.deployment.protocol import Begin, Job, KeepPart, PrepareRows, PrepareSynthesis, purpose
from silosynth.privacy.agreement import Confirmations, Group, OfferShares, RelayedShares
from silosynth.runtime.hub import ASK, CRASHED, OPEN, REPLY, RESTORE, SAVE, Frame, frame_from_bytes
from silosynth.runtime.link import raise_if_failed
from silosynth.runtime.wire import decode, encode

COLUMNS = {
    "bank": "[schema.age]\nlow = 18\nhigh = 80\n[schema.income]\nlow = 0\nhigh = 8000\n",
    "shop": "[schema.visits]\nlow = 0\nhigh = 40\n",
}
HELD = {"bank": ["age", "income"], "shop": ["visits", "paid"]}
OPENED = "least_rows = 10\nrequire_alignment = false\n"


def a_job(algorithm: str = "silofuse", **changes: Any) -> Job:
    """Of a bank and a shop that hold the same rows in the same order."""
    given: dict[str, Any] = {
        "name": "trial", "preset": "fast", "silos": ("bank", "shop"), "seed": None, "align": None, "rows": 20,
        "submitter": "alice",
    } | changes  # fmt: skip
    config = catalog.algorithm(algorithm).configure(given["preset"], given.pop("options", {}))
    return Job(algorithm=algorithm, config=config, **given)


PSI = AlignConfig("psi")


@dataclass
class Desk:
    """A silo's job process.

    Attributes:
        folder: of its kit.
        policy: the text of ``policy.toml``.
        identifiers: as in ``silo.toml``.
        silo: its name; its columns follow from it.
        rows: of its table.
        sent: all frames that the coordinator got, as bytes.
    """

    folder: Path
    policy: str = OPENED
    identifiers: tuple[str, ...] = ()
    silo: str = "bank"
    rows: int = 120
    sent: list[bytes] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        roster = seated({"bank": None, "shop": None})["bank"].roster  # type: ignore[dict-item]
        seat = seated({"bank": None, "shop": None})[self.silo]  # type: ignore[dict-item]
        self.kit = StartKit(self.folder, self.silo, "trial", "coordinator.example.org", 8002, 8003, roster)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / KEY).write_bytes(base64.b64encode(seat.private))
        (self.folder / POLICY).write_text(self.policy)
        data = f'[data]\npath = "rows.csv"\nidentifiers = {json.dumps(self.identifiers)}\n'
        (self.folder / "silo.toml").write_text(data + COLUMNS[self.silo])
        linking = [] if not self.identifiers else ["customer"]
        customers(self.rows)[[*linking, *HELD[self.silo]]].to_csv(self.folder / "rows.csv", index=False)
        self.answer = JobAnswerer(self.kit, read_policy(self.folder), "alice")

    def hand(self, kind: str, body: bytes = b"", step: int | None = None) -> Frame:
        """Send a frame; raises what the coordinator is told."""
        self.step += 1
        frame = Frame(kind, "trial", self.step if step is None else step, COORDINATOR, body)
        blob = self.answer(frame.to_bytes())
        self.sent.append(blob)
        reply = frame_from_bytes(blob)
        assert reply.kind != CRASHED, bytes(reply.body)
        raise_if_failed(reply, f"Silo {self.silo!r}")
        return reply

    def open(self, job: str = "trial", stream: str | None = None, revoked: str | None = None) -> Desk:
        """Open a job."""
        self.hand(OPEN, json.dumps({"job": job, "attempt": "1", "stream": stream, "revoked": revoked}).encode())
        return self

    def ask(self, message: Message) -> Message:
        """The silo's reply; raises what the coordinator is told."""
        reply = self.hand(ASK, encode(message))
        assert reply.kind == REPLY
        said = decode(bytes(reply.body))
        assert isinstance(said, Message)
        return said

    def begin(self, job: Job) -> Desk:
        """Open and begin a job."""
        self.open(job.name).ask(Begin(job))
        return self.agree(job)

    def agree(self, job: Job) -> Desk:
        """Agree on a job with the other silo, which was told the same."""
        seats = seated({"bank": None, "shop": None})  # type: ignore[dict-item]
        (name,) = set(seats) - {self.silo}
        other, offer = Group(seats[name]), OfferShares(purpose(job), fresh=True)
        own, theirs = self.ask(offer), other.answer(offer)
        tags = {self.silo: self.ask(RelayedShares(theirs.envelopes)), name: other.answer(RelayedShares(own.envelopes))}  # type: ignore[attr-defined, union-attr]
        self.ask(Confirmations(tuple(tags[silo].tag for silo in job.silos)))  # type: ignore[attr-defined, union-attr]
        return self

    def prepared(self, job: Job) -> Desk:
        """The same, and have it prepare its rows."""
        self.begin(job).ask(PrepareRows())
        return self

    def sampling(self, job: Job) -> int:
        """The same, and have it draw rows from encoders alone; the number of its latents."""
        width: int = self.prepared(job).ask(FitCoder()).latents  # type: ignore[attr-defined]
        self.ask(KeepPart())
        self.ask(PrepareSynthesis())
        return width

    def save(self, number: int) -> None:
        """Have it write a checkpoint."""
        self.hand(SAVE, step=number)

    def restore(self, number: int) -> None:
        """Have it continue from one."""
        self.hand(RESTORE, step=number)

    @property
    def log(self) -> str:
        """All that it has written for its own operator."""
        return "".join(path.read_text() for path in sorted((self.folder / "work").rglob("log.txt")))

    def heard(self, text: str) -> bool:
        """Whether the coordinator has read a text."""
        return any(text.encode() in blob for blob in self.sent)
