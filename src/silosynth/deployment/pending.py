"""Exchanges that are in no line of a silo's ledger yet, where a killed process leaves them.

Lines of messages that come again and again are written several exchanges at a time. Until then each exchange lies,
before its reply leaves, in a file that is mapped into memory: what was stored there is the operating system's and
outlives the process, as what was written does, at a fraction of what a write costs. The lines follow from what lies
there, to the byte, so whoever reads the ledger can tell them (`silosynth.deployment.silo_ledger.whole_text`).

The file: how long the ledger is, and the hash of its last line; how many exchanges follow; the exchanges. The number is
one byte, which is stored last: an exchange during whose storing the process is killed does not count.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from silosynth.core.files import PRIVATE, close_to_others

FILE = "ledger.pending"
MOST = 255  # exchanges: their number is one byte
_SPACE = 2**16  # bytes
_HEAD = struct.Struct("<q32s")
_EXCHANGE = struct.Struct("<qqqq32sqq32sH")
_COUNT = _HEAD.size  # where the number stands
_BEGIN = _COUNT + 1


class AskAndReply(NamedTuple):
    """An ask and its reply.

    Attributes:
        step: of both.
        asked, ask_size, ask_digest: when it came (nanoseconds since 1970), its bytes and their BLAKE3.
        replied, reply_size, reply_digest: the same of the reply.
        frames: what lines of these two types hold besides, as the ledger has it.
    """

    step: int
    asked: int
    ask_size: int
    ask_digest: bytes
    replied: int
    reply_size: int
    reply_digest: bytes
    frames: bytes


class Place(NamedTuple):
    """Where exchanges belong: after so many bytes of the ledger, of which the last line has this hash."""

    size: int
    last: str


class Pending:
    """The exchanges that a ledger has not written yet.

    Args:
        path: the file, which is made with the first exchange.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._end, self._after = path, _BEGIN, 0
        self._map: mmap.mmap | None = None
        self.exchanges: list[AskAndReply] = []

    def add(self, exchange: AskAndReply, place: Place) -> bool:
        """Keep an exchange; False if it cannot be: there is no room, or no file can be mapped here."""
        if not self.exchanges and not self._begin(place):
            return False
        text = _EXCHANGE.pack(self._after, *exchange[:-1], len(exchange.frames)) + exchange.frames
        end, count = self._end + len(text), len(self.exchanges) + 1
        if self._map is None or end > _SPACE or count > MOST:
            return False
        self._map[self._end : end] = text
        self._map[_COUNT] = count
        self._end = end
        self.exchanges.append(exchange)
        return True

    def written(self) -> None:
        """All are in the ledger, which shows by its length that those of the file count no more."""
        self.exchanges.clear()

    def drop(self) -> None:
        """Remove the file, whose exchanges are all in the ledger; the next one makes it anew."""
        if self._map is not None and not self.exchanges:
            self._map = None
            self._path.unlink(missing_ok=True)

    def _begin(self, place: Place) -> bool:
        if self._map is None:
            self._map = _mapped(self._path)
        if self._map is None:
            return False
        self._map[_COUNT] = 0
        self._map[:_COUNT] = _HEAD.pack(place.size, bytes.fromhex(place.last))
        self._end, self._after = _BEGIN, place.size
        return True


def _mapped(path: Path) -> mmap.mmap | None:
    """An empty file, of which the disk has all bytes; None where that cannot be."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, PRIVATE)
        try:
            close_to_others(path)
            return mmap.mmap(file, _SPACE) if os.write(file, bytes(_SPACE)) == _SPACE else None
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None


def read_pending(path: Path) -> tuple[Place, list[AskAndReply]]:
    """What a file holds, although its process may be at work; no exchanges if it is missing or damaged."""
    try:
        text = path.read_bytes()
        size, last = _HEAD.unpack_from(text)
        found, begin = list[AskAndReply](), _BEGIN
        for _ in range(text[_COUNT]):
            after, *fields, length = _EXCHANGE.unpack_from(text, begin)
            if after != size:
                break  # it was stored after the head was read
            begin += _EXCHANGE.size + length
            found.append(AskAndReply._make((*fields, text[begin - length : begin])))
    except (OSError, struct.error, IndexError):
        return Place(0, ""), []
    return Place(size, last.hex()), found
