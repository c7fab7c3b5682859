"""Frames: a message or control word with its job, step and sender; and how frames are read from a stream of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
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
_KINDS = frozenset({HELLO, WELCOME, BUSY, BYE, ASK, REPLY, SAVE, RESTORE, DONE, REFUSED, CRASHED, OPEN})
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
