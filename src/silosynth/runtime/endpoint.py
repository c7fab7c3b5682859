"""A party's endpoint: decodes asks, has the party answer, encodes replies. The same wherever the party runs."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from silosynth.core.conversation import Party
from silosynth.core.errors import ProtocolError, SilosynthError
from silosynth.core.messages import Message, Several, Struct, wire_name
from silosynth.core.streams import Digest
from silosynth.runtime import checkpoint, hub, link, wire


class Book(Protocol):
    """Where a party's asks and replies are recorded. The coordinator gets nothing that could not be."""

    def asked(self, step: int, ask: Message, blob: bytes) -> Digest:
        """An ask came, in these bytes, whose digest is returned."""

    def replied(self, step: int, reply: Message, blob: bytes) -> None:
        """Its reply is about to leave."""

    def refused(self, step: int, error: Exception) -> None:
        """An error is about to leave in its place."""

    def saved(self, number: int) -> None:
        """A checkpoint was written."""

    def restored(self, number: int) -> None:
        """A checkpoint is about to be restored."""

    def settle(self) -> None:
        """The coordinator has gone."""


class PartyFailure(Exception):
    """A party raised something unforeseen; the original is the cause. Links turn it into `PartyLostError`."""


class PartyEndpoint:
    """Bytes in, bytes out. A repeated step gets the last reply, or the last error, again.

    It answers one frame at a time, whichever threads bring them: a coordinator could call on several ways at once.

    Args:
        name: the party's name.
        party: the party that answers.
        folder: where the party's own parts of checkpoints go; None to keep none.
        book: where asks and replies are recorded; None for nowhere.
        log: where errors are written in full if the coordinator, in another organisation, is told their class and rule
            alone; None if it may read everything.
        release: called once it has retired.
    """

    def __init__(
        self, name: str, party: Party, folder: Path | None, book: Book | None = None,
        log: Callable[[str], None] | None = None, release: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.name, self.party, self._book, self._log, self._release = name, party, book, log, release
        self._parts = None if folder is None else checkpoint.PartStore(folder)
        self._last: tuple[str, int] | None = None
        self._reply: bytes | Exception = b""
        self._one = threading.Lock()  # what comes in and what leaves is checked and recorded in one order
        self._retired = False

    def retire(self) -> None:
        """Answer no more, once what is being answered is done: the job has been opened anew."""
        with self._one:
            self._retired = True
            self._release()

    def handle(self, frame: hub.Frame) -> hub.Frame:
        """The reply to one frame. Whatever goes wrong, the coordinator gets an answer."""
        with self._one:
            return self._handle(frame)

    def _handle(self, frame: hub.Frame) -> hub.Frame:
        def reply(kind: str, body: bytes = b"") -> hub.Frame:
            return hub.Frame(kind, frame.job, frame.step, self.name, body)

        try:
            if self._retired:
                raise ProtocolError(
                    "A silo answers where a job was opened last", "an earlier opening", "Start it again."
                )
            if frame.kind == hub.ASK:
                return reply(hub.REPLY, self.answer(frame.job, frame.step, frame.body))
            if frame.kind == hub.SAVE:
                self.save(frame.step)
            elif frame.kind == hub.RESTORE:
                self.restore(frame.step)
            else:
                raise ProtocolError("A coordinator asks, saves, restores or says goodbye", frame.kind)
        except SilosynthError as error:
            return reply(hub.REFUSED, hub.error_body(self._told(error)))
        except Exception as error:
            cause = error.__cause__ if isinstance(error, PartyFailure) and error.__cause__ else error
            # The text of a foreign error may quote the data, so it stays in this silo's own log.
            traceback.print_exception(cause, file=sys.stderr)
            return reply(hub.CRASHED, self._crash(cause).encode())
        return reply(hub.DONE)

    def _told(self, error: SilosynthError) -> SilosynthError:
        """The error as the coordinator reads it."""
        if self._log is None:
            return error
        self._log(f"{type(error).__name__}: {error}")
        return error.public()

    def _crash(self, error: BaseException) -> str:
        """What the coordinator reads of an error that nobody foresaw."""
        if self._log is None:
            return _type_and_line(error)
        self._log(f"failed: {_type_and_line(error)}")
        return type(error).__name__

    def answer(self, job: str, step: int, blob: bytes) -> bytes:
        """The encoded reply to an encoded ask.

        Raises:
            SilosynthError: what the party raised on purpose, or an ask that cannot be decoded.
            PartyFailure: anything else that it raised.
        """
        if (job, step) == self._last:
            if isinstance(self._reply, Exception):
                raise self._reply
            return self._reply
        before = self._last[1] if self._last is not None and self._last[0] == job else None
        if before is not None and step < before:
            raise ProtocolError("Steps of a conversation go forward", f"{step} after {before}")
        self._last = job, step
        try:
            self._reply = self._answer_all(step, before, blob)
        except Exception as error:
            self._reply = error  # raised again if asked again: the party may have done part of the work
            if self._book is not None:
                self._book.refused(step, error)
            self.party.refuse(error)
            raise
        return self._reply

    def save(self, number: int) -> None:
        """Write the party's part of checkpoint ``number``."""
        if self._parts is None:
            raise link.missing_folder(self.name)
        self._parts.save(number, self.party.state())
        if self._book is not None:
            self._book.saved(number)

    def restore(self, number: int) -> None:
        """Continue from the party's part of checkpoint ``number``."""
        if self._parts is None:
            raise link.missing_folder(self.name)
        if self._book is not None:
            self._book.restored(number)
        self.party.restore(self._parts.load(number))
        self._last = None

    def settle(self) -> None:
        """Nothing is asked any more, or not for long."""
        if self._book is not None:
            self._book.settle()

    def _answer_all(self, step: int, before: int | None, blob: bytes) -> bytes:
        ask = wire.decode(blob)
        if not isinstance(ask, Several):
            return self._answer_one(step, ask, blob)
        if not (before or 0) < ask.steps[0] <= ask.steps[-1] <= step:
            raise ProtocolError("Steps of a conversation go forward", f"{ask.steps} after {before}")
        parts = zip(ask.steps, ask.messages, strict=True)
        return wire.encode(Several(ask.steps, tuple(self._answer_part(*part) for part in parts)))

    def _answer_part(self, step: int, blob: bytes) -> bytes:
        ask = wire.decode(blob)
        try:
            return self._answer_one(step, ask, blob)
        except SilosynthError as error:
            raise link.with_location(error, f"step {step}, on {wire_name(type(ask))}") from error.__cause__

    def _answer_one(self, step: int, ask: Struct, blob: bytes) -> bytes:
        if not isinstance(ask, Message):
            raise ProtocolError("A party is asked with a message", type(ask).__name__)
        if self._book is not None:
            self.party.hear(self._book.asked(step, ask, blob))
        try:
            reply = self.party.answer(ask)
        except SilosynthError:
            raise
        except Exception as error:
            raise PartyFailure from error
        if not isinstance(reply, Message):
            raise ProtocolError("A party answers with a message", type(reply).__name__, "Return Done() at least.")
        encoded = wire.encode(reply)
        if self._book is not None:
            self._book.replied(step, reply, encoded)
        return encoded


def _type_and_line(error: BaseException) -> str:
    stack = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(stack[-1].filename).name}, line {stack[-1].lineno}" if stack else ""
    return type(error).__name__ + where
