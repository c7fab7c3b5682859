"""The coordinator's view of the parties: send frames to several and gather their answers, however they are reached.

Whoever carries frames (`silosynth.runtime.stream`, `silosynth.deployment.flare.relay`) attaches a stream to a party's
seat, reports each frame it receives, and detaches the stream when it breaks.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from silosynth.core.errors import MessageError, SilosynthError
from silosynth.runtime.frames import CRASHED, REFUSED, Frame


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


class Outbox:
    """One open connection: frames to be sent. None ends it."""

    def __init__(self) -> None:
        self.outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()


class PartySlot:
    """One party's place: its stream while it has one, the frame it was sent last, and what it said to that.

    One frame at a time: the next one is sent once the last is answered, however late that is.
    """

    def __init__(self) -> None:
        self.stream: Outbox | None = None
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


_GLANCE = 0.1  # seconds between looks at whether a silent party still lives


class Hub(ABC):
    """The parties called ``names``.

    Args:
        names: who takes part.
        patience: seconds for which a party may be without a stream.
    """

    _awaited: frozenset[str] = frozenset()  # whose answers would change what `gather` does next only together

    def __init__(self, names: Iterable[str], patience: float) -> None:
        self._seats = {name: PartySlot() for name in names}
        self._late: list[Frame] = []
        self._patience = patience
        self._changed = threading.Condition()

    @abstractmethod
    def stop(self) -> None:
        """Let go of the parties; may be called twice."""

    def dead(self, name: str) -> str | None:
        """Why a party is known to have ended, or None. Not known here."""
        return None

    def wait_for_all(self, seconds: float, dead: Callable[[str], str | None]) -> None:
        """Wait until every party is connected.

        Args:
            seconds: at most so long.
            dead: says why a party cannot come any more, or None.

        Raises:
            Lost: a party is dead or late.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while missing := [name for name, seat in self._seats.items() if seat.stream is None]:
                for name in missing:
                    if reason := dead(name):
                        raise Lost(name, reason)
                if time.monotonic() > until:
                    raise Lost(missing[0], f"it did not connect within {seconds:g} s")
                self._changed.wait(_GLANCE)

    def gather(
        self,
        frames: Mapping[str, Frame],
        dead: Callable[[str], str | None],
        limit: float | None = None,
        missing: bool = False,
    ) -> Gathered:
        """Send each party its frame and wait until all have answered, or one has refused.

        A party that still owes an answer to an earlier frame is sent the new one once that has come in.

        Args:
            frames: what to send, by party.
            dead: says why a party is known to be dead, or None.
            limit: seconds for all to answer; None waits as long as they live.
            missing: do without who gets lost, and send nothing to who is lost already.

        Raises:
            Lost: a party died, stayed away or was too slow; not if ``missing``.
            SilosynthError: a party broke the protocol.
        """
        begun = time.monotonic()
        with self._changed:
            self._check_faults(frames)
            before = {name: why for name in frames if missing and (why := self._seats[name].lost) is not None}
            asked = {name: frame for name, frame in frames.items() if name not in before}
            lost: dict[str, str] = {}
            quiet = False
            while True:
                replies = self._replies(asked)
                lost = {name: why for name, why in lost.items() if name not in replies}  # back in time after all
                refused = any(frame.kind in (REFUSED, CRASHED) for frame in (*replies.values(), *self._late))
                if refused or len(replies) + len(lost) == len(asked):
                    late, self._late = [one for one in self._late if one is not replies.get(one.sender)], []
                    return Gathered(replies, lost, before, late)
                waited = [name for name in asked if name not in replies and name not in lost]
                self._awaited = frozenset(name for name in waited if self._seats[name].asked is asked[name])
                gone = self._look_after(waited, dead, begun, limit, quiet)
                if gone and not missing:
                    raise Lost(*next(iter(gone.items())))
                lost |= gone
                quiet = not gone and not self._changed.wait(_GLANCE)

    def lost(self) -> tuple[str, ...]:
        """Who is lost: given up by `gather`, and has not answered since."""
        with self._changed:
            return tuple(name for name, seat in self._seats.items() if seat.lost is not None)

    def _replies(self, asked: Mapping[str, Frame]) -> dict[str, Frame]:
        """Answers so far. Who owes none to an earlier frame is sent the new one."""
        replies = {}
        for name, frame in asked.items():
            seat = self._seats[name]
            if seat.asked is not frame and not seat.owes:
                seat.send(frame)
            elif seat.asked is frame and seat.reply is not None:
                replies[name] = seat.reply
        return replies

    def _check_faults(self, names: Iterable[str]) -> None:
        for name in names:
            if (fault := self._seats[name].fault) is not None:
                raise fault

    def _look_after(
        self, names: list[str], dead: Callable[[str], str | None], begun: float, limit: float | None, quiet: bool
    ) -> dict[str, str]:
        """Which of them are lost by now, and why. Unless it has been quiet, those are well who have a stream."""
        self._check_faults(names)
        gone, waited = {}, time.monotonic() - begun
        for name in names:
            seat = self._seats[name]
            if seat.stream is not None and not quiet:
                continue
            if (why := dead(name) or seat.why_lost(self._patience, waited, limit)) is not None:
                gone[name] = seat.lost = why
        return gone

    def _heard(self, name: str, seat: PartySlot, frame: Frame) -> None:
        if frame.sender != name:
            raise MessageError(f"Silo {name!r} signs its frames with its own name", frame.sender)
        with self._changed:
            if not seat.expects(frame):
                if seat.repeats(frame):
                    return
                raise MessageError(f"Silo {name!r} answers what it was asked", f"step {frame.step}")
            if seat.reply is None:
                seat.reply = frame
                if seat.lost is not None:
                    seat.lost = None
                    self._late.append(frame)
                if self._matters(name, frame):
                    self._changed.notify_all()

    def _matters(self, name: str, frame: Frame) -> bool:
        """Whether `gather` has something to do now; one that still waits for others is not woken for nothing."""
        if name not in self._awaited or frame.kind in (REFUSED, CRASHED):
            return True
        self._awaited -= {name}
        return not self._awaited

    def _blame(self, seat: PartySlot, error: SilosynthError) -> None:
        with self._changed:
            seat.fault = error
            self._changed.notify_all()

    def _left(self, seat: PartySlot, stream: Outbox) -> None:
        """A stream has broken: patience begins."""
        with self._changed:
            if seat.stream is stream:
                seat.stream, seat.since = None, time.monotonic()
                self._changed.notify_all()
