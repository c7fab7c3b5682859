"""A party's desk: bytes in, bytes out. What is the same wherever the party sits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from silosynth.core.conversation import Party
from silosynth.core.errors import ProtocolError, SilosynthError
from silosynth.core.messages import Message, Several, Struct, wire_name
from silosynth.runtime.checkpoint import PartStore
from silosynth.runtime.link import named, no_folder
from silosynth.runtime.wire import decode, encode

Note = Callable[[int, Message, int, Message, int], None]


class PartyFailure(Exception):
    """A party raised something unforeseen; the original is the cause. Links turn it into `PartyLostError`."""


class PartyEndpoint:
    """Decodes asks, has the party answer, encodes replies; repeats its last reply, or error, when a step comes again.

    Args:
        name: the party's name.
        party: who answers.
        folder: where the party's own parts of checkpoints go; None when there are none.
        note: told of each step, before its reply leaves: the step, the ask and its length, the reply and its length.
    """

    def __init__(self, name: str, party: Party, folder: Path | None, note: Note | None = None) -> None:
        self.name, self.party, self._note = name, party, note
        self._parts = None if folder is None else PartStore(folder)
        self._last: tuple[str, int] | None = None
        self._reply: bytes | Exception = b""

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
            self._reply = self._all(step, before, blob)
        except Exception as error:
            self._reply = error  # the same again, if asked again: part of it may have been done
            raise
        return self._reply

    def _all(self, step: int, before: int | None, blob: bytes) -> bytes:
        ask = decode(blob)
        if not isinstance(ask, Several):
            return self._one(step, ask, len(blob))
        if not (before or 0) < ask.steps[0] <= ask.steps[-1] <= step:
            raise ProtocolError("Steps of a conversation go forward", f"{ask.steps} after {before}")
        parts = zip(ask.steps, ask.messages, strict=True)
        return encode(Several(ask.steps, tuple(self._part(*part) for part in parts)))

    def _part(self, step: int, blob: bytes) -> bytes:
        ask = decode(blob)
        try:
            return self._one(step, ask, len(blob))
        except SilosynthError as error:
            raise named(error, f"step {step}, on {wire_name(type(ask))}") from error.__cause__

    def _one(self, step: int, ask: Struct, size: int) -> bytes:
        if not isinstance(ask, Message):
            raise ProtocolError("A party is asked with a message", type(ask).__name__)
        try:
            reply = self.party.answer(ask)
        except SilosynthError:
            raise
        except Exception as error:
            raise PartyFailure from error
        if not isinstance(reply, Message):
            raise ProtocolError("A party answers with a message", type(reply).__name__, "Return Done() at least.")
        encoded = encode(reply)
        if self._note is not None:
            self._note(step, ask, size, reply, len(encoded))
        return encoded

    def save(self, number: int) -> None:
        """Write the party's part of checkpoint ``number``."""
        if self._parts is None:
            raise no_folder(self.name)
        self._parts.save(number, self.party.state())

    def restore(self, number: int) -> None:
        """Continue from the party's part of checkpoint ``number``."""
        if self._parts is None:
            raise no_folder(self.name)
        self.party.restore(self._parts.load(number))
        self._last = None
