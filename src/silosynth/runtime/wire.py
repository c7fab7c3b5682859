"""Messages as frames, and state as files. Formats are described in `silosynth.runtime.tree`.

`encode` and `decode` are for what crosses a border; `pack` and `unpack` are for checkpoints and models on disk, where
a magic word, a format version and a checksum tell a damaged, foreign or newer file apart.

Whatever the bytes, reading them allocates at most 64 bytes for each byte of skeleton and of the tensors' header (an
empty list in JSON is two bytes, in Python seventy), three times the rest, and a megabyte. No declared size, shape or
offset allocates anything before there are as many bytes. Time grows in proportion to the length too. A message's
skeleton has `SKELETON` bytes at most; a file may be of any length.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from struct import Struct as Layout
from typing import Any, NoReturn

from silosynth.core.conversation import State
from silosynth.core.errors import MessageError, StorageError, nearest
from silosynth.core.messages import Struct, all_structs, wire_name
from silosynth.runtime.tree import Malformed, dump, parse

MAGIC = b"silosynth\r\n\x00"  # carriage return and newline reveal a transfer in text mode
VERSION = 1
SKELETON = 1 << 26
"""Bytes that a message may take beside its tensors."""
_NAME = 200  # characters of an unknown name that are compared with the known ones
_HEAD = Layout("<12sIQI")  # magic, version, length of the payload, its CRC-32
_kinds: dict[str, type[Struct]] = {}  # walking all subclasses for every message would cost more than decoding it


def encode(message: Struct) -> bytes:
    """A message as bytes; the same message gives the same bytes.

    Raises:
        MessageError: a field holds something that cannot travel.
    """
    kind = type(message)
    if not isinstance(message, Struct):
        raise MessageError("Only messages and structs cross a border", kind.__qualname__, "Make it a Message.")
    _kinds[wire_name(kind)] = kind
    try:
        return dump(message)
    except (Malformed, ValueError) as error:
        raise _as_message_error(error) from error


def decode(blob: bytes | memoryview, allowed: Mapping[str, type[Struct]] | None = None) -> Struct:
    """The message that `encode` wrote.

    Args:
        blob: one whole frame.
        allowed: struct classes that may appear in it, by wire name; all that are imported when None.

    Raises:
        MessageError: unknown or forbidden type, wrong fields, or a damaged frame.
    """

    def find(name: str) -> type[Struct]:
        known = allowed if allowed is not None else _kinds if name in _kinds else _refresh()
        if name in known:
            return known[name]
        rule = "Only message types that this side knows" if allowed is None else "Only message types allowed here"
        raise Malformed(f"{rule} can be read", name, nearest(name[:_NAME], known))

    try:
        value = parse(blob, find, SKELETON)
    except Malformed as error:
        raise _as_message_error(error) from error
    if not isinstance(value, Struct):
        raise MessageError("A frame holds one message", type(value).__name__, "It was written by something else.")
    return value


def pack(state: State) -> bytes:
    """State as the bytes of a file.

    Raises:
        StorageError: the state holds something that cannot be stored; names where.
    """
    try:
        body = dump(state)
    except (Malformed, ValueError) as error:
        rule, value, remedy = _parts(error)
        raise StorageError(rule, value, remedy) from error
    return b"".join((_HEAD.pack(MAGIC, VERSION, len(body), zlib.crc32(body)), body))


def unpack(blob: bytes) -> State:
    """The state that `pack` wrote. Nothing in the file is ever executed.

    Raises:
        StorageError: the file is foreign, newer, cut short, or damaged; says which.
    """
    if len(blob) < _HEAD.size or blob[: len(MAGIC)] != MAGIC:
        start = blob[:12]
        raise StorageError("A silosynth file starts with its magic word", start, "This is some other kind of file.")
    _, version, length, checksum = _HEAD.unpack_from(blob)
    body = memoryview(blob)[_HEAD.size :]
    if version != VERSION:
        raise StorageError(f"This version reads file format {VERSION}", version, "Install a matching silosynth.")
    if len(body) != length:
        found = f"{len(body)} of {length} bytes"
        raise StorageError("The file is as long as it says", found, "It was cut short or added to: restore a copy.")
    if zlib.crc32(body) != checksum:
        raise StorageError("The file's checksum is right", "another one", "It is damaged: restore a copy.")
    try:
        state = parse(body, _no_structs)
    except Malformed as error:
        raise StorageError(error.rule, error.value, error.remedy) from error
    if not isinstance(state, dict):
        raise StorageError("A file holds one dictionary", type(state).__name__, "It was written by something else.")
    return state


def _no_structs(name: str) -> NoReturn:
    raise Malformed("Files hold plain state", name, "Write structs with silosynth.core.state.to_state.")


def _refresh() -> Mapping[str, type[Struct]]:
    _kinds.update(all_structs())
    return _kinds


def _as_message_error(error: Exception) -> MessageError:
    return MessageError(*_parts(error))


def _parts(error: Exception) -> tuple[str, Any, str]:
    if not isinstance(error, Malformed):  # a whole number of thousands of digits, a lone surrogate…
        return "Every value can be written", str(error)[:120], "Shorten it."
    where = f"{'.'.join(error.path)}: " if error.path else ""
    return where + error.rule, error.value, error.remedy
