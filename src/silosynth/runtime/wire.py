"""Messages and state as bytes: a JSON skeleton followed by tensors. Never pickle; the same value gives the same bytes.

`encode` and `decode` are for messages; `pack` and `unpack` are for checkpoints and models on disk, where a magic word,
a format version and a checksum tell damaged, foreign and newer files apart.

Layout: 8 bytes little-endian length of the skeleton, the skeleton (ASCII JSON), then the tensors. In the skeleton
``{"t": n}`` stands for tensor n, ``{"b": n}`` for bytes kept as a uint8 tensor, ``{"f": hex}`` for a float that JSON
cannot write, ``{"u": […]}`` for a tuple, ``{"d": [[key, value], …]}`` for a dictionary and ``{"s": name, "v": {…}}``
for a struct. Everything else is itself.

Tensors follow in safetensors' format (`runtime.tensors`). Messages that differ in their tensors' numbers alone are
written and read by the form of the first one (`runtime.forms`).

Reading allocates at most 64 bytes for each byte of skeleton and tensor header (an empty list is two bytes in JSON and
seventy in Python), three times the rest, and a megabyte, whatever the bytes are. A declared size, shape or offset
allocates nothing before that many bytes are there. Time grows linearly with the length. A message's skeleton has at
most `SKELETON` bytes; a file may have any length.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from struct import Struct as Layout
from typing import Any, NoReturn

import torch

from silosynth.core.conversation import State
from silosynth.core.errors import MessageError, SilosynthError, StorageError, nearest
from silosynth.core.messages import STRUCTS, Struct, field_names, wire_name
from silosynth.runtime import forms
from silosynth.runtime.tensors import DTYPES, LENGTH, Span, compact_json, plain, read_spans, to_buffers

DEPTH = 100
"""Levels at most to which values may be nested, so that whoever walks through them need not fear deeper ones."""
_DEEP = f"Values are nested at most {DEPTH} levels deep"


_ALIGNED = "Both sides must run the same version of silosynth."

Find = Callable[[str], "type[Struct]"]
"""Struct class of a wire name; raises `Malformed` if the name is unknown or not allowed."""


class Malformed(ValueError):
    """A value that cannot be written, or bytes that cannot be read. Callers turn it into their own error."""

    def __init__(self, rule: str, value: object, remedy: str) -> None:
        super().__init__(rule, value, remedy)
        self.rule, self.value, self.remedy = rule, value, remedy
        self.path: list[str] = []


def dump(value: object) -> bytes:
    """``value`` as bytes: leaves, lists, tuples, dictionaries (string or integer keys) and structs.

    Raises:
        Malformed: ``value`` contains something else.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        skeleton = compact_json(_down(value, tensors)).encode("ascii")
    except RecursionError as error:  # lists that hold themselves, and a caller that is deep already
        raise Malformed(_DEEP, "deeper", "Flatten the value.") from error
    blob = to_buffers(tensors) if tensors else []
    return b"".join((len(skeleton).to_bytes(LENGTH, "little"), skeleton, *blob))


def parse(blob: bytes | memoryview, find: Find, longest: int | None = None) -> Any:
    """The value that `dump` wrote; ``find`` decides which structs may be created.

    Args:
        blob: untrusted bytes.
        find: struct class of a wire name.
        longest: the skeleton's maximum length in bytes; None for any.

    Raises:
        Malformed: the bytes were not written by `dump`.
    """
    return _parsed(memoryview(blob), find, longest)[0]


def _parsed(blob: memoryview, find: Find, longest: int | None) -> tuple[Any, list[tuple[torch.Tensor, Span]]]:
    """What `parse` returns, and the tensors in their order in the bytes."""
    length = int.from_bytes(blob[:LENGTH], "little")
    if len(blob) < LENGTH or length > len(blob) - LENGTH:
        _bad(f"A message of {len(blob)} bytes is cut short", f"its header declares {length} bytes")
    if longest is not None and length > longest:
        _bad(f"All but the tensors takes at most {longest} bytes", f"{length} bytes")
    try:
        skeleton = _DECODER.decode(str(blob[LENGTH : LENGTH + length], "ascii"))
        rest = blob[LENGTH + length :]
        spans, numbers = read_spans(rest) if rest else ([], rest)
        found = [(span.read(numbers), span) for span in spans]
        tensors = {span.name: tensor for tensor, span in found}
        value = _up(skeleton, tensors, find)
    except Malformed:
        raise
    except Exception as error:  # json, struct and torch raise many undocumented types
        raise Malformed("A message is JSON followed by safetensors", _first_line(error), "It is damaged.") from error
    if tensors:
        _bad("Every tensor of a message is used once", f"{len(tensors)} left over")
    return value, found


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _down(value: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    kind = type(value)
    if kind in forms.PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"f": struct.pack(">d", value).hex()}
    if isinstance(value, torch.Tensor):
        return {"t": _put(value, tensors)}
    if isinstance(value, Struct):
        return {
            "s": wire_name(kind),
            "v": {name: _at(name, getattr(value, name), tensors, depth) for name in field_names(kind)},
        }
    if kind is tuple:
        return {"u": [_at(i, item, tensors, depth) for i, item in enumerate(value)]}
    if kind is list:
        return [_at(i, item, tensors, depth) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {"d": [[_key(key), _at(key, item, tensors, depth)] for key, item in value.items()]}
    if kind is bytes:
        return {"b": _put(torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _EMPTY, tensors)}
    raise Malformed(
        "Only tensors, numbers, strings, bytes, None, and lists, tuples and dictionaries of these can be written",
        f"{kind.__module__}.{kind.__qualname__}",
        "Turn it into such values first: float(x) for a NumPy number, torch.from_numpy(x) for an array.",
    )


def _at(key: object, item: Any, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    if depth >= DEPTH:
        raise Malformed(_DEEP, "deeper", "Flatten the value.")
    try:
        return _down(item, tensors, depth + 1)
    except Malformed as error:
        error.path.insert(0, str(key))
        raise


def _key(key: object) -> str | int:
    if type(key) is str or type(key) is int:
        return key
    raise Malformed("Dictionary keys are strings or integers", type(key).__name__, "Use str(key).")


def _put(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES or tensor.is_meta:
        raise Malformed(
            "Tensors are dense, and hold bool, 8- to 64-bit integers or 16- to 64-bit floats",
            f"{tensor.layout}, {tensor.dtype} on {tensor.device}",
            "Convert it, for example with .to_dense() or .to(torch.float32).",
        )
    name = str(len(tensors))
    tensors[name] = plain(tensor)
    return name


def _up(node: Any, tensors: dict[str, torch.Tensor], find: Find, depth: int = 0) -> Any:
    if not isinstance(node, (list, dict)):
        return node
    if depth > DEPTH:
        _bad(_DEEP, "deeper")
    if isinstance(node, list):
        return [_up(item, tensors, find, depth + 1) for item in node]
    if len(node) == 1:
        ((tag, body),) = node.items()
        if tag == "t":
            return _take(body, tensors)
        if tag == "u" and isinstance(body, list):
            return tuple([_up(item, tensors, find, depth + 1) for item in body])
        if tag == "d" and isinstance(body, list):
            return _dictionary(body, tensors, find, depth)
        if tag == "f" and isinstance(body, str) and len(body) == 16:
            return struct.unpack(">d", bytes.fromhex(body))[0]
        if tag == "b":
            return _bytes(_take(body, tensors))
    if node.keys() == {"s", "v"}:
        return _struct(node["s"], node["v"], tensors, find, depth)
    _bad("A message holds known kinds of values only", sorted(node)[:5])


def _take(name: object, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    tensor = tensors.pop(name, None) if isinstance(name, str) else None
    if tensor is None:
        _bad("A message refers to each of its tensors once", _shown(name))
    return tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        _bad("Bytes travel as a one-dimensional uint8 tensor", f"{tensor.dtype}, {tuple(tensor.shape)}")
    return bytes(tensor.numpy())


def _dictionary(pairs: list[Any], tensors: dict[str, torch.Tensor], find: Find, depth: int) -> dict[str | int, Any]:
    result: dict[str | int, Any] = {}
    huge = 0
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int) and pair[0] not in result):
            _bad("A dictionary is written as pairs with distinct keys", _shown(pair))
        huge += type(pair[0]) is int and not -_HASHED < pair[0] < _HASHED
        if huge > _HUGE:
            _bad(f"At most {_HUGE} keys of a dictionary have more than 60 bits", huge)
        result[pair[0]] = _up(pair[1], tensors, find, depth + 1)
    return result


def _struct(name: object, fields: object, tensors: dict[str, torch.Tensor], find: Find, depth: int) -> Struct:
    if not isinstance(name, str) or not isinstance(fields, dict):
        _bad("A struct is written as its name and its fields", _shown(name))
    kind = find(name)
    if fields.keys() != set(field_names(kind)):
        differing = sorted(fields.keys() ^ set(field_names(kind)))
        raise Malformed(f"The fields of {name} are {', '.join(field_names(kind)) or 'none'}", differing, _ALIGNED)
    values = {key: _up(item, tensors, find, depth + 1) for key, item in fields.items()}
    try:
        return kind(**values)
    except Malformed:
        raise
    except Exception as error:  # whatever the struct's own checks raise, the value is not valid
        remedy = (error.remedy if isinstance(error, SilosynthError) else "") or _ALIGNED
        raise Malformed(f"A {name} must be valid", _first_line(error), remedy) from error


_HASHED, _HUGE = sys.hash_info.modulus, 1000
"""Integers from the first on can be chosen to collide in their hash; inserting many such keys would take hours."""


def _bad(rule: str, value: object) -> NoReturn:
    raise Malformed(rule, value, "It is damaged, or was written by something else.")


def _shown(value: Any) -> Any:
    """A value for an error text: itself, or its type if it could be nested too deeply to be printed."""
    return value if isinstance(value, (str, int, float)) else type(value).__name__


def _no_constant(text: str) -> NoReturn:
    _bad("Numbers are written as JSON numbers", text)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_EMPTY = torch.empty(0, dtype=torch.uint8)


MAGIC = b"silosynth\r\n\x00"  # carriage return and newline reveal a transfer in text mode
VERSION = 1
SKELETON = 1 << 26
"""Maximum bytes of a message apart from its tensors."""
_NAME = 200  # characters of an unknown name that are compared with known names
_HEAD = Layout("<12sIQI")  # magic, version, length of the payload, its CRC-32


def encode(message: Struct) -> bytes:
    """A message as bytes; equal messages give equal bytes.

    Raises:
        MessageError: a field holds something that cannot travel.
    """
    if not isinstance(message, Struct):
        raise MessageError("Only messages and structs can be sent", type(message).__qualname__, "Make it a Message.")
    try:
        if (blob := forms.write(message)) is None:
            blob = dump(message)
            forms.keep_written(message, blob)
        return blob
    except (Malformed, ValueError) as error:
        raise _as_message_error(error) from error


def decode(blob: bytes | memoryview, allowed: Mapping[str, type[Struct]] | None = None) -> Struct:
    """The message that `encode` wrote.

    Args:
        blob: one encoded message.
        allowed: struct classes that may appear in it, by wire name; None for all that are imported.

    Raises:
        MessageError: unknown or forbidden type, wrong fields, or damaged bytes.
    """

    known = STRUCTS if allowed is None else allowed

    def find(name: str) -> type[Struct]:
        if name in known:
            return known[name]
        rule = "Only message types that this side knows" if allowed is None else "Only message types allowed here"
        raise Malformed(f"{rule} can be read", name, nearest(name[:_NAME], known))

    blob = memoryview(blob)  # slices are not copied
    if (message := forms.read(blob, known)) is not None:
        return message
    try:
        value, tensors = _parsed(blob, find, SKELETON)
    except Malformed as error:
        raise _as_message_error(error) from error
    if not isinstance(value, Struct):
        raise MessageError("The bytes hold one message", type(value).__name__, "It was written by something else.")
    forms.keep_read(blob, value, tensors)
    return value


def pack(state: State) -> bytes:
    """State as the bytes of a file.

    Raises:
        StorageError: the state holds something that cannot be stored; says where.
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
        size = f"{len(body)} of {length} bytes"
        raise StorageError("The file has its declared length", size, "It was cut short or added to: restore a copy.")
    if zlib.crc32(body) != checksum:
        raise StorageError("The file's checksum matches", "a different one", "It is damaged: restore a copy.")
    try:
        state = parse(body, _no_structs)
    except Malformed as error:
        raise StorageError(error.rule, error.value, error.remedy) from error
    if not isinstance(state, dict):
        raise StorageError("A file holds one dictionary", type(state).__name__, "It was written by something else.")
    return state


def _no_structs(name: str) -> NoReturn:
    raise Malformed("Files hold plain state, no structs", name, "Write structs with silosynth.core.messages.to_state.")


def _as_message_error(error: Exception) -> MessageError:
    return MessageError(*_parts(error))


def _parts(error: Exception) -> tuple[str, Any, str]:
    if not isinstance(error, Malformed):  # an integer of thousands of digits, a lone surrogate…
        return "Every value can be written", str(error)[:120], "Shorten it."
    where = f"{'.'.join(error.path)}: " if error.path else ""
    return where + error.rule, error.value, error.remedy
