"""Frames (a message or control word with its job, step and sender), and the coordinator's view of the parties.

A `Hub` sends frames to several parties and gathers their answers, however they are reached. Whoever carries frames
(`silosynth.runtime.stream`, `silosynth.deployment.flare.relay`) puts an outbox into a party's slot while it is
connected, reports each frame received from it, and removes the outbox when the connection breaks.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from silosynth.core.errors import MessageError, SilosynthError

MAX_BODY = 1 << 36
"""Bytes of the largest body; a longer declared length is refused."""
PREFIX = 5
"""Bytes before a frame's header: a marker byte and the header's length."""
_HEADER = 1 << 16  # bytes of the longest header

HELLO, WELCOME, BUSY, BYE = "hello", "welcome", "busy", "bye"
ASK, REPLY = "ask", "reply"
SAVE, RESTORE, DONE = "save", "restore", "done"
REFUSED, CRASHED = "refused", "crashed"
OPEN = "open"  # opens a job before the first ask; only over the engine
ENDED = "ended"  # says how it ended, after the last ask; likewise
_KINDS = frozenset({HELLO, WELCOME, BUSY, BYE, ASK, REPLY, SAVE, RESTORE, DONE, REFUSED, CRASHED, OPEN, ENDED})
_MARKER = b"\x01"
_FIELDS = {"kind": str, "job": str, "step": int, "sender": str, "size": int}

ReadExactly = Callable[[int], "bytes | bytearray | memoryview"]
"""Returns exactly the given number of incoming bytes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        kind: one of the constants above. Only ``ask`` and ``reply`` carry messages.
        job: the conversation it belongs to.
        step: the exchange's step, or the checkpoint's number.
        sender: a party's name, or the coordinator.
        body: an encoded message, or the description of an error. For a received message it is a view of the receive
            buffer: copying would take longer than everything else.
    """

    kind: str
    job: str
    step: int
    sender: str
    body: bytes = b""

    def header(self) -> bytes:
        """The bytes before the body."""
        head = {"kind": self.kind, "job": self.job, "step": self.step, "sender": self.sender, "size": len(self.body)}
        text = json.dumps(head, separators=(",", ":")).encode("ascii")
        return b"".join((_MARKER, len(text).to_bytes(4, "little"), text))

    def to_bytes(self) -> bytes:
        """The frame as bytes; `frame_from_bytes` reads them."""
        return b"".join((self.header(), self.body))


def error_body(error: SilosynthError) -> bytes:
    """The body of a frame that reports an error; the coordinator raises the same error from it."""
    fields = {"class": type(error).__name__, "rule": error.rule, "value": error.value, "remedy": error.remedy}
    return json.dumps(fields).encode()


def read_frame(take: ReadExactly, largest: int = MAX_BODY) -> Frame:
    """The next frame of a stream; its body has at most ``largest`` bytes.

    Raises:
        MessageError: the bytes are not a frame.
    """
    prefix = bytes(take(PREFIX))
    length = int.from_bytes(prefix[1:], "little")
    if prefix[:1] != _MARKER or length > _HEADER:
        raise MessageError(f"A frame begins with a marker and its header's length, at most {_HEADER}", prefix, _FOREIGN)
    head = _header(bytes(take(length)), largest)
    body = take(head.pop("size"))
    view = memoryview(body) if head["kind"] in (ASK, REPLY) else bytes(body)
    return Frame(**head, body=cast("bytes", view))


def frame_from_bytes(data: bytes) -> Frame:
    """The frame that `Frame.to_bytes` wrote.

    Raises:
        MessageError: the bytes are something else, cut short, or longer than declared.
    """
    view, at = memoryview(data), 0

    def take(size: int) -> memoryview:
        nonlocal at
        at += size
        if at > len(data):
            raise MessageError("A frame is as long as its header says", f"{len(data)} bytes in all", _FOREIGN)
        return view[at - size : at]

    frame = read_frame(take)
    if at != len(data):
        raise MessageError("A frame is as long as its header says", f"{len(data) - at} bytes more", _FOREIGN)
    return frame


def _header(text: bytes, largest: int) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError("A frame begins with a JSON header", str(error)[:80], _FOREIGN) from error
    if not isinstance(head, dict) or {k: type(v) for k, v in head.items()} != _FIELDS or head["kind"] not in _KINDS:
        fields = [str(key)[:20] for key in head][:8] if isinstance(head, dict) else type(head).__name__
        raise MessageError(f"A frame's header has the fields {', '.join(_FIELDS)}", fields, _FOREIGN)
    if not 0 <= head["size"] <= largest:
        raise MessageError(f"A frame is no longer than {largest} bytes", head["size"], _FOREIGN)
    return head


_FOREIGN = "The other side is not silosynth, or runs another version of it."


_POLL = 0.1  # seconds between checks whether a silent party is still alive


class Lost(Exception):
    """A party is gone. Links turn it into `PartyLostError`."""

    def __init__(self, party: str, reason: str) -> None:
        super().__init__(party, reason)
        self.party, self.reason = party, reason


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of `Hub.gather`.

    Attributes:
        replies: by party, in the order of the frames.
        lost: parties that were sent a frame and were lost, and why.
        before: parties that were already lost and were sent nothing, and why.
        late: answers to earlier frames, from parties that were lost and are back.
    """

    replies: dict[str, Frame]
    lost: dict[str, str]
    before: dict[str, str]
    late: list[Frame]


Outbox = queue.SimpleQueue["Frame | None"]
"""The frames to be sent over one open connection. None ends it."""


class PartySlot:
    """The hub's record of one party: its outbox while it is connected, the last frame it was sent, and its reply.

    One frame at a time: the next one is sent only after the last is answered, however late that is.
    """

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        self.since = time.monotonic()  # of being disconnected
        self.asked: Frame | None = None
        self.before: Frame | None = None
        self.reply: Frame | None = None
        self.fault: SilosynthError | None = None
        self.lost: str | None = None  # why it was given up, until it answers the last frame it was sent

    @property
    def owes(self) -> bool:
        """Whether the last frame is still unanswered."""
        return self.asked is not None and self.reply is None

    def send(self, frame: Frame) -> None:
        """Send the next frame."""
        self.before, self.asked, self.reply = self.asked, frame, None
        if self.outbox is not None:
            self.outbox.put(frame)

    def expects(self, frame: Frame) -> bool:
        """Whether this answers the last frame."""
        return _answers(frame, self.asked)

    def repeats(self, frame: Frame) -> bool:
        """Whether this answers an earlier frame: one that was resent after a broken connection is answered twice."""
        asked = self.asked
        older = asked is not None and frame.job == asked.job and frame.step < asked.step
        return older or _answers(frame, self.before)

    def why_lost(self, patience: float, waited: float, limit: float | None) -> str | None:
        """Why to give the party up after ``waited`` seconds, or None."""
        if self.outbox is None and time.monotonic() - self.since > patience:
            return f"its connection broke and did not come back within {patience:g} s"
        if limit is not None and waited > limit:
            return f"it did not answer within {limit:g} s"
        return None


def _answers(frame: Frame, asked: Frame | None) -> bool:
    return asked is not None and (frame.job, frame.step) == (asked.job, asked.step)


class Hub(ABC):
    """The parties called ``names``.

    Args:
        names: who takes part.
        patience: seconds for which a party may be disconnected.
    """

    _awaited: frozenset[str] = frozenset()  # `gather` need not be woken before all of these have answered

    def __init__(self, names: Iterable[str], patience: float) -> None:
        self._slots = {name: PartySlot() for name in names}
        self._late: list[Frame] = []
        self._patience = patience
        self._changed = threading.Condition()

    @abstractmethod
    def stop(self) -> None:
        """Let go of the parties; may be called twice."""

    def dead(self, name: str) -> str | None:
        """Why a party is known to have ended, or None; consulted by `gather`. This class never knows."""
        return None

    def wait_for_all(self, seconds: float, dead: Callable[[str], str | None]) -> None:
        """Wait until every party is connected.

        Args:
            seconds: the longest to wait.
            dead: why a party cannot come any more, or None.

        Raises:
            Lost: a party is dead or late.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while missing := [name for name, slot in self._slots.items() if slot.outbox is None]:
                for name in missing:
                    if reason := dead(name):
                        raise Lost(name, reason)
                if time.monotonic() > until:
                    raise Lost(missing[0], f"it did not connect within {seconds:g} s")
                self._changed.wait(_POLL)

    def gather(
        self,
        frames: Mapping[str, Frame],
        dead: Callable[[str], str | None],
        limit: float | None = None,
        missing: bool = False,
    ) -> Gathered:
        """Send each party its frame and wait until all have answered, or one has refused.

        A party that still owes an answer to an earlier frame is sent the new one after that answer.

        Args:
            frames: what to send, by party.
            dead: why a party is known to be dead, or None.
            limit: seconds for all to answer; None waits as long as they live.
            missing: continue without parties that get lost, and send nothing to those that are lost already.

        Raises:
            Lost: a party died, stayed away or was too slow; not if ``missing``.
            SilosynthError: a party broke the protocol.
        """
        begun = time.monotonic()
        with self._changed:
            self._check_faults(frames)
            before = {name: why for name in frames if missing and (why := self._slots[name].lost) is not None}
            asked = {name: frame for name, frame in frames.items() if name not in before}
            lost: dict[str, str] = {}
            quiet = False
            while True:
                replies = self._replies(asked)
                lost = {name: why for name, why in lost.items() if name not in replies}  # back in time after all
                refused = any(frame.kind in (REFUSED, CRASHED) for frame in (*replies.values(), *self._late))
                if refused or len(replies) + len(lost) == len(asked):
                    late, self._late = [frame for frame in self._late if frame is not replies.get(frame.sender)], []
                    return Gathered(replies, lost, before, late)
                waited = [name for name in asked if name not in replies and name not in lost]
                self._awaited = frozenset(name for name in waited if self._slots[name].asked is asked[name])
                gone = self._newly_lost(waited, dead, begun, limit, quiet)
                if gone and not missing:
                    raise Lost(*next(iter(gone.items())))
                lost |= gone
                quiet = not gone and not self._changed.wait(_POLL)

    def lost(self) -> tuple[str, ...]:
        """Parties that `gather` gave up and that have not answered since."""
        with self._changed:
            return tuple(name for name, slot in self._slots.items() if slot.lost is not None)

    def _replies(self, asked: Mapping[str, Frame]) -> dict[str, Frame]:
        """Answers so far. Sends the new frame to parties that owe no answer to an earlier one."""
        replies = {}
        for name, frame in asked.items():
            slot = self._slots[name]
            if slot.asked is not frame and not slot.owes:
                slot.send(frame)
            elif slot.asked is frame and slot.reply is not None:
                replies[name] = slot.reply
        return replies

    def _check_faults(self, names: Iterable[str]) -> None:
        for name in names:
            if (fault := self._slots[name].fault) is not None:
                raise fault

    def _newly_lost(
        self, names: list[str], dead: Callable[[str], str | None], begun: float, limit: float | None, quiet: bool
    ) -> dict[str, str]:
        """Which of them are lost by now, and why. Connected parties are checked only after a quiet interval."""
        self._check_faults(names)
        gone, waited = {}, time.monotonic() - begun
        for name in names:
            slot = self._slots[name]
            if slot.outbox is not None and not quiet:
                continue
            if (why := dead(name) or self.dead(name) or slot.why_lost(self._patience, waited, limit)) is not None:
                gone[name] = slot.lost = why
        return gone

    def _received(self, name: str, slot: PartySlot, frame: Frame) -> None:
        if frame.sender != name:
            raise MessageError(f"Silo {name!r} signs its frames with its own name", frame.sender)
        with self._changed:
            if not slot.expects(frame):
                if slot.repeats(frame):
                    return
                raise MessageError(f"Silo {name!r} answers what it was asked", f"step {frame.step}")
            if slot.reply is None:
                slot.reply = frame
                if slot.lost is not None:
                    slot.lost = None
                    self._late.append(frame)
                if self._wakes_gather(name, frame):
                    self._changed.notify_all()

    def _wakes_gather(self, name: str, frame: Frame) -> bool:
        """Whether `gather` can act on this frame; it is not woken while it still waits for others."""
        if name not in self._awaited or frame.kind in (REFUSED, CRASHED):
            return True
        self._awaited -= {name}
        return not self._awaited

    def _set_fault(self, slot: PartySlot, error: SilosynthError) -> None:
        with self._changed:
            slot.fault = error
            self._changed.notify_all()

    def _disconnected(self, slot: PartySlot, outbox: Outbox) -> None:
        """A connection has broken: patience begins."""
        with self._changed:
            if slot.outbox is outbox:
                slot.outbox, slot.since = None, time.monotonic()
                self._changed.notify_all()
