"""A party's place at the coordinator's end: its stream, what it was sent, what it said, whether it is lost."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass

from silosynth.core.errors import SilosynthError
from silosynth.runtime.frames import Frame


class Lost(Exception):
    """A party is gone. Links turn it into `PartyLostError`."""

    def __init__(self, party: str, reason: str) -> None:
        super().__init__(party, reason)
        self.party, self.reason = party, reason


@dataclass(frozen=True, slots=True)
class Gathered:
    """What `Hub.gather` brought in.

    Attributes:
        replies: by party, in the order of the frames.
        lost: who was sent a frame and got lost, and why.
        before: who was lost before and sent nothing, and why.
        late: answers to earlier frames, of parties that were lost and are back.
    """

    replies: dict[str, Frame]
    lost: dict[str, str]
    before: dict[str, str]
    late: list[Frame]


class Stream:
    """One open connection: frames to be sent. None ends it."""

    def __init__(self) -> None:
        self.outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()


class Seat:
    """One party's place: its stream while it has one, the frame it was sent last, and what it said to that.

    One frame at a time: the next one is sent once the last is answered, however late that is.
    """

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.since = time.monotonic()
        self.asked: Frame | None = None
        self.before: Frame | None = None
        self.reply: Frame | None = None
        self.fault: SilosynthError | None = None
        self.lost: str | None = None  # why it was given up; until the frame that it was sent last is answered

    @property
    def owes(self) -> bool:
        """Whether the last frame is not answered yet."""
        return self.asked is not None and self.reply is None

    def send(self, frame: Frame) -> None:
        """Send the next frame."""
        self.before, self.asked, self.reply = self.asked, frame, None
        if self.stream is not None:
            self.stream.outbox.put(frame)

    def expects(self, frame: Frame) -> bool:
        """Whether this answers the last frame."""
        return _answers(frame, self.asked)

    def repeats(self, frame: Frame) -> bool:
        """Whether this answers an earlier frame: one that was sent again after a broken stream is answered twice."""
        asked = self.asked
        older = asked is not None and frame.job == asked.job and frame.step < asked.step
        return older or _answers(frame, self.before)

    def why_lost(self, patience: float, waited: float, limit: float | None) -> str | None:
        """Why to give it up after ``waited`` seconds, or None."""
        if self.stream is None and time.monotonic() - self.since > patience:
            return f"its connection broke and did not come back within {patience:g} s"
        if limit is not None and waited > limit:
            return f"it did not answer within {limit:g} s"
        return None


def _answers(frame: Frame, asked: Frame | None) -> bool:
    return asked is not None and (frame.job, frame.step) == (asked.job, asked.step)
