"""Frames: what is said, about which step of which job, by whom; and how they are read from a stream of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from silosynth.core.errors import MessageError, SilosynthError

LARGEST = 1 << 36
"""No frame is larger; a declared length above it is a lie."""
PREFIX = 5
"""Bytes before a frame's header: a mark, and the header's length."""
_HEADER = 1 << 16  # bytes that a header may have

HELLO, WELCOME, BUSY, BYE = "hello", "welcome", "busy", "bye"
ASK, REPLY = "ask", "reply"
SAVE, RESTORE, DONE = "save", "restore", "done"
REFUSED, CRASHED = "refused", "crashed"
OPEN = "open"  # of a job, before anything is asked: over the engine only
_KINDS = frozenset({HELLO, WELCOME, BUSY, BYE, ASK, REPLY, SAVE, RESTORE, DONE, REFUSED, CRASHED, OPEN})
_MARK = b"\x01"
_FIELDS = {"kind": str, "job": str, "step": int, "sender": str, "size": int}

Take = Callable[[int], "bytes | bytearray | memoryview"]
"""Gives exactly so many bytes of what comes in."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing said.

    Attributes:
        kind: one of the words above. Only ``ask`` and ``reply`` carry messages.
        job: which conversation it belongs to.
        step: the exchange's step, or the checkpoint's number.
        sender: a party's name, or the coordinator.
        body: an encoded message, or the description of an error. Of a message that was read it is a view of where it
            came in: a copy would take longer than the rest of the way.
    """

    kind: str
    job: str
    step: int
    sender: str
    body: bytes = b""

    def front(self) -> bytes:
        """What stands before the body."""
        head = {"kind": self.kind, "job": self.job, "step": self.step, "sender": self.sender, "size": len(self.body)}
        text = json.dumps(head, separators=(",", ":")).encode("ascii")
        return b"".join((_MARK, len(text).to_bytes(4, "little"), text))

    def whole(self) -> bytes:
        """The frame as one blob; `from_whole` reads it."""
        return b"".join((self.front(), self.body))


def described(error: SilosynthError) -> bytes:
    """The body of a frame that tells of an error; the coordinator makes the same error of it."""
    told = {"class": type(error).__name__, "rule": error.rule, "value": error.value, "remedy": error.remedy}
    return json.dumps(told).encode()


def read_frame(take: Take, largest: int = LARGEST) -> Frame:
    """The next frame of a stream; its body has ``largest`` bytes at most.

    Raises:
        MessageError: what comes is no frame.
    """
    prefix = bytes(take(PREFIX))
    length = int.from_bytes(prefix[1:], "little")
    if prefix[:1] != _MARK or length > _HEADER:
        raise MessageError(f"A frame begins with a mark and its header's length, {_HEADER} at most", prefix, _FOREIGN)
    head = _header(bytes(take(length)), largest)
    body = take(head.pop("size"))
    view = memoryview(body) if head["kind"] in (ASK, REPLY) else bytes(body)
    return Frame(**head, body=cast("bytes", view))


def from_whole(data: bytes) -> Frame:
    """The frame that `Frame.whole` made ``data`` from.

    Raises:
        MessageError: it is something else, cut short, or longer than it says.
    """
    view, at = memoryview(data), 0

    def take(size: int) -> memoryview:
        nonlocal at
        at += size
        if at > len(data):
            raise MessageError("A frame is as long as it says", f"{len(data)} bytes in all", _FOREIGN)
        return view[at - size : at]

    frame = read_frame(take)
    if at != len(data):
        raise MessageError("A frame is as long as it says", f"{len(data) - at} bytes more", _FOREIGN)
    return frame


def _header(text: bytes, largest: int) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError("A frame begins with a JSON header", str(error)[:80], _FOREIGN) from error
    if not isinstance(head, dict) or {k: type(v) for k, v in head.items()} != _FIELDS or head["kind"] not in _KINDS:
        fields = [str(key)[:20] for key in head][:8] if isinstance(head, dict) else type(head).__name__
        raise MessageError("A frame's header has its fields", fields, _FOREIGN)
    if not 0 <= head["size"] <= largest:
        raise MessageError(f"A frame is no longer than {largest} bytes", head["size"], _FOREIGN)
    return head


_FOREIGN = "The other side is not silosynth, or another version of it."
