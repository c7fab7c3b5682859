"""Frames over FLARE's relay: the coordinator's end calls each party, and the party's end answers in a thread.

A frame has a number. The party holds a call for a moment and then returns the reply or says that it is still at work;
so a call never lasts long, and a broken one is simply made again: nothing is computed twice.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

from silosynth.core.errors import MessageError, SilosynthError, StoppedError
from silosynth.runtime import hub
from silosynth.runtime.link import PARTY_THREADS

PENDING, UNKNOWN = None, b""
_PAUSE = 0.5  # seconds between attempts to reach a party


class Line(Protocol):
    """How to call one party. Any exception means that it could not be reached in time."""

    def answer(self, number: int, frame: bytes) -> bytes | None:
        """Deliver a frame: returns the reply, or None while the party is still at work."""

    def collect(self, number: int) -> bytes | None:
        """Ask for the reply again: the reply, None, or b"" if the party does not know the frame."""


class FlareHub(hub.Hub):
    """A `Hub` whose parties are called instead of dialling in.

    Args:
        lines: how to call each party.
        patience: seconds for which a party may be unreachable.
        first: number of the first frame; a second hub on the same lines continues the first one's numbers.
    """

    def __init__(self, lines: Mapping[str, Line], patience: float = 60.0, first: int = 1) -> None:
        self.lines, self._first = lines, first
        super().__init__(lines, patience)
        self._stopped = threading.Event()
        self._ended: dict[str, str] = {}
        self._aborted = ""
        self._outboxes = {name: hub.Outbox() for name in lines}
        for name, line in lines.items():
            self._slots[name].outbox = self._outboxes[name]
            threading.Thread(target=self._call, args=(name, line), daemon=True, name=f"silosynth-flare-{name}").start()

    def dead(self, name: str) -> str | None:
        """See `Hub.dead`."""
        return self._ended.get(name)

    def gone(self, party: str, reason: str) -> None:
        """Note that a party's process has ended and will not come back to this job."""
        with self._changed:
            if party in self._slots:
                self._ended[party] = reason
                self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Note that the engine ends the job, and wake waiting threads."""
        with self._changed:
            self._aborted = reason
            self._changed.notify_all()

    def stop(self) -> None:
        """Let go of the parties; may be called twice. The engine ends their processes."""
        self._stopped.set()
        for outbox in self._outboxes.values():
            outbox.put(None)

    def _check_faults(self, names: Iterable[str]) -> None:
        """Raise what a party has done wrong; or a `StoppedError`, if the engine ends the job."""
        if self._aborted and not self._ended:
            raise StoppedError("A job runs to its end", self._aborted, "Submit it again: it resumes where it stopped.")
        super()._check_faults(names)

    def _call(self, name: str, line: Line) -> None:
        """A caller's main loop: one frame after the other, each until it is answered."""
        slot, outbox, number = self._slots[name], self._outboxes[name], self._first
        while (frame := outbox.get()) is not None:
            try:
                reply = self._until_answered(slot, outbox, line, number, frame.to_bytes())
                if reply is None:
                    return
                self._received(name, slot, hub.frame_from_bytes(reply))
            except MessageError as error:
                self._set_fault(slot, error)
                return
            number += 1

    def _until_answered(
        self, slot: hub.PartySlot, outbox: hub.Outbox, line: Line, number: int, blob: bytes
    ) -> bytes | None:
        """The reply; None if the hub is stopped."""
        known = False
        while not self._stopped.is_set():
            try:
                reply = line.collect(number) if known else line.answer(number, blob)
            except Exception:  # whatever the engine raises, the party is unreachable for now
                self._unreachable(slot)
                self._stopped.wait(_PAUSE)
                continue
            self._reachable(slot, outbox)
            if reply:
                return reply
            known = reply is PENDING
        return None

    def _unreachable(self, slot: hub.PartySlot) -> None:
        with self._changed:
            if slot.outbox is not None:
                slot.outbox, slot.since = None, time.monotonic()
                self._changed.notify_all()

    def _reachable(self, slot: hub.PartySlot, outbox: hub.Outbox) -> None:
        if slot.outbox is None:
            with self._changed:
                slot.outbox = outbox


HOLD = 2.0
"""Seconds for which a call waits for a reply before it returns without one."""

Answer = Callable[[bytes], bytes]
"""A party's answer to an encoded frame, as an encoded frame."""


class Inbox:
    """The party's end. Answers frames with the function that ``begin`` returns when the first frame comes.

    Args:
        name: the party's name, which signs the reply if ``begin`` fails.
        begin: returns the function that answers.
    """

    def __init__(self, name: str, begin: Callable[[], Answer]) -> None:
        self._name, self._begin = name, begin
        self._changed = threading.Condition()
        self._number = 0  # of the current frame
        self._frame: bytes | None = None
        self._reply: bytes | None = PENDING
        threading.Thread(target=self._work, daemon=True, name="silosynth-flare-party").start()

    def answer(self, number: int, frame: bytes) -> bytes | None:
        """Accept a frame, once; then like `collect`."""
        with self._changed:
            if number > self._number:
                self._number, self._frame, self._reply = number, frame, PENDING
                self._changed.notify_all()
        return self.collect(number)

    def collect(self, number: int) -> bytes | None:
        """The reply to frame ``number``; None if not done within `HOLD` seconds; b"" if another frame is current."""
        with self._changed:
            self._changed.wait_for(lambda: number != self._number or self._reply is not PENDING, HOLD)
            return self._reply if number == self._number else UNKNOWN

    def _work(self) -> None:
        torch.set_num_threads(PARTY_THREADS)
        answer: Answer | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frame is not None)
                number, frame, self._frame = self._number, self._frame, None
            assert frame is not None
            try:
                answer = answer or self._begin()
                reply = answer(frame)
            except SilosynthError as error:
                reply = self._error_reply(frame, hub.REFUSED, hub.error_body(error))
            except Exception as error:
                traceback.print_exception(error, file=sys.stderr)  # its text may quote the data, so it stays here
                reply = self._error_reply(frame, hub.CRASHED, type(error).__name__.encode())
            with self._changed:
                if number == self._number:
                    self._reply = reply
                    self._changed.notify_all()

    def _error_reply(self, blob: bytes, kind: str, body: bytes) -> bytes:
        try:
            ask = hub.frame_from_bytes(blob)
        except SilosynthError:
            ask = hub.Frame(hub.CRASHED, "", 0, self._name)
        return hub.Frame(kind, ask.job, ask.step, self._name, body).to_bytes()
