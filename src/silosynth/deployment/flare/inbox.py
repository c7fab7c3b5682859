"""A party's end: one frame at a time is answered in a thread of its own, while callers come and ask for the reply."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import torch

from silosynth.core.errors import SilosynthError
from silosynth.deployment.flare.hub import PENDING, UNKNOWN
from silosynth.runtime.frames import CRASHED, REFUSED, Frame, described, from_whole
from silosynth.runtime.link import PARTY_THREADS

HOLD = 2.0
"""Seconds for which a caller is kept waiting for a reply before it is told to come again."""

Answer = Callable[[bytes], bytes]
"""What a party does with a frame: bytes in, bytes out."""


class Inbox:
    """Answers frames with what ``begin`` returns, which is called once, when the first frame comes.

    Args:
        name: the party's name, which signs what is said when ``begin`` fails.
        begin: makes the function that answers.
    """

    def __init__(self, name: str, begin: Callable[[], Answer]) -> None:
        self._name, self._begin = name, begin
        self._changed = threading.Condition()
        self._number = 0  # of the frame in hand
        self._frame: bytes | None = None
        self._reply: bytes | None = PENDING
        threading.Thread(target=self._work, daemon=True, name="silosynth-flare-party").start()

    def answer(self, number: int, frame: bytes) -> bytes | None:
        """Take a frame, once; then see `collect`."""
        with self._changed:
            if number > self._number:
                self._number, self._frame, self._reply = number, frame, PENDING
                self._changed.notify_all()
        return self.collect(number)

    def collect(self, number: int) -> bytes | None:
        """The reply to frame ``number``; None if it is not done in `HOLD` seconds; b"" if another one is in hand."""
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
                reply = self._says(frame, REFUSED, described(error))
            except Exception as error:
                traceback.print_exception(error, file=sys.stderr)  # its text may quote the data: it stays here
                reply = self._says(frame, CRASHED, type(error).__name__.encode())
            with self._changed:
                if number == self._number:
                    self._reply = reply
                    self._changed.notify_all()

    def _says(self, blob: bytes, kind: str, body: bytes) -> bytes:
        try:
            ask = from_whole(blob)
        except SilosynthError:
            ask = Frame(CRASHED, "", 0, self._name)
        return Frame(kind, ask.job, ask.step, self._name, body).whole()
