"""Frames on a stream: what is said, about which step of which job, by whom; cut into pieces a network can carry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from silosynth.core.errors import MessageError, SilosynthError

PIECE = 2 << 20
"""Bytes of body per piece; gRPC refuses more than 4 MiB by default."""
LARGEST = 1 << 36
"""No frame is larger; a declared length above it is a lie."""

WELCOME, BYE = "welcome", "bye"
ASK, REPLY = "ask", "reply"
SAVE, RESTORE, DONE = "save", "restore", "done"
REFUSED, CRASHED = "refused", "crashed"
OPEN = "open"  # of a job, before anything is asked: over the engine only
_KINDS = frozenset({WELCOME, BYE, ASK, REPLY, SAVE, RESTORE, DONE, REFUSED, CRASHED, OPEN})
_FIRST, _NEXT = b"\x01", b"\x02"
_FIELDS = {"kind": str, "job": str, "step": int, "sender": str, "size": int}


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing said on a stream.

    Attributes:
        kind: one of the words above. Only ``ask`` and ``reply`` carry messages.
        job: which conversation it belongs to.
        step: the exchange's step, or the checkpoint's number.
        sender: a party's name, or the coordinator.
        body: an encoded message, or the description of an error. Of a message that came in one piece it is a view of
            that piece: a copy would take longer than the rest of the way.
    """

    kind: str
    job: str
    step: int
    sender: str
    body: bytes = b""

    def pieces(self) -> Iterator[bytes]:
        """The frame as pieces of at most `PIECE` bytes and a little; the first tells how long it all is."""
        yield b"".join((self._front(), self.body[:PIECE]))
        for start in range(PIECE, len(self.body), PIECE):
            yield _NEXT + self.body[start : start + PIECE]

    def whole(self) -> bytes:
        """The frame as one piece, for carriers that cut by themselves; `from_whole` reads it."""
        return b"".join((self._front(), self.body))

    def _front(self) -> bytes:
        head = {"kind": self.kind, "job": self.job, "step": self.step, "sender": self.sender, "size": len(self.body)}
        text = json.dumps(head, separators=(",", ":")).encode("ascii")
        return b"".join((_FIRST, len(text).to_bytes(4, "little"), text))


def described(error: SilosynthError) -> bytes:
    """The body of a frame that tells of an error; the coordinator makes the same error of it."""
    told = {"class": type(error).__name__, "rule": error.rule, "value": error.value, "remedy": error.remedy}
    return json.dumps(told).encode()


def from_whole(data: bytes) -> Frame:
    """The frame that `Frame.whole` made ``data`` from.

    Raises:
        MessageError: it is something else, or cut short.
    """
    frame = Joiner().add(data)
    if frame is None:
        raise MessageError("A frame is as long as it says", f"{len(data)} bytes in all", _FOREIGN)
    return frame


class Joiner:
    """Puts pieces together again, for one stream."""

    def __init__(self) -> None:
        self._head: Frame | None = None
        self._size = 0
        self._chunks: list[memoryview] = []
        self._length = 0

    def add(self, piece: bytes) -> Frame | None:
        """The frame that ``piece`` completes, or None.

        Raises:
            MessageError: the piece is not what `Frame.pieces` makes, or does not belong here.
        """
        if piece[:1] == _FIRST and self._head is None:
            self._begin(piece)
        elif piece[:1] == _NEXT and self._head is not None:
            self._append(memoryview(piece)[1:])
        else:
            raise MessageError("Pieces of a frame come in order", piece[:1], _FOREIGN)
        if self._length < self._size or self._head is None:
            return None
        head, self._head = self._head, None
        seen, self._chunks = self._chunks, []
        body = seen[0] if len(seen) == 1 and head.kind in (ASK, REPLY) else b"".join(seen)
        return Frame(head.kind, head.job, head.step, head.sender, cast("bytes", body))

    def _begin(self, piece: bytes) -> None:
        end = 5 + int.from_bytes(piece[1:5], "little")
        try:
            head = json.loads(piece[5:end])
        except (ValueError, RecursionError) as error:
            raise MessageError("A frame begins with a JSON header", str(error)[:80], _FOREIGN) from error
        if not isinstance(head, dict) or {k: type(v) for k, v in head.items()} != _FIELDS or head["kind"] not in _KINDS:
            fields = [str(key)[:20] for key in head][:8] if isinstance(head, dict) else type(head).__name__
            raise MessageError("A frame's header has its fields", fields, _FOREIGN)
        if not 0 <= head["size"] <= LARGEST:
            raise MessageError(f"A frame is no longer than {LARGEST} bytes", head["size"], _FOREIGN)
        self._head = Frame(head["kind"], head["job"], head["step"], head["sender"])
        self._size, self._length, self._chunks = head["size"], 0, []
        self._append(memoryview(piece)[end:])

    def _append(self, chunk: memoryview) -> None:
        self._length += len(chunk)
        if self._length > self._size or (not chunk and self._size > self._length):
            raise MessageError("A frame is as long as it says", f"{self._length} of {self._size} bytes", _FOREIGN)
        self._chunks.append(chunk)


_FOREIGN = "The other side is not silosynth, or another version of it."
