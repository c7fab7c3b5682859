"""Values as bytes: a JSON skeleton followed by one safetensors blob. Never pickle; the same value gives the same bytes.

Layout: 8 bytes little-endian length of the skeleton, the skeleton (ASCII JSON), then the tensors. In the skeleton
``{"t": n}`` stands for tensor n, ``{"b": n}`` for bytes kept as a uint8 tensor, ``{"f": hex}`` for a float that JSON
cannot write, ``{"u": […]}`` for a tuple, ``{"d": [[key, value], …]}`` for a dictionary and ``{"s": name, "v": {…}}``
for a struct. Everything else is itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from silosynth.core.errors import SilosynthError
from silosynth.core.messages import Struct, wire_name
from silosynth.runtime.tensors import DTYPES, LENGTH, from_buffer, to_buffers

_PLAIN = frozenset({str, bool, int, type(None)})
_ALIGNED = "Both sides must run the same version of silosynth."

Find = Callable[[str], "type[Struct]"]
"""Struct class of a wire name; raises `Malformed` for one that is not known or not allowed."""


class Malformed(ValueError):
    """A value that cannot be written, or bytes that cannot be read. Callers turn it into an error of their own."""

    def __init__(self, rule: str, value: object, remedy: str) -> None:
        super().__init__(rule, value, remedy)
        self.rule, self.value, self.remedy = rule, value, remedy
        self.path: list[str] = []


def dump(value: object) -> bytes:
    """``value`` as bytes: leaves, lists, tuples, dictionaries (text or whole-number keys) and structs.

    Raises:
        Malformed: something in ``value`` is none of these.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        skeleton = _ENCODE(_down(value, tensors)).encode("ascii")
    except RecursionError as error:
        raise Malformed("Values may be nested a few hundred levels deep", "deeper", "Flatten the value.") from error
    blob = to_buffers(tensors) if tensors else []
    return b"".join((len(skeleton).to_bytes(LENGTH, "little"), skeleton, *blob))


def parse(blob: bytes | memoryview, find: Find, longest: int | None = None) -> Any:
    """The value that `dump` wrote; ``find`` decides which structs may be made.

    Args:
        blob: what `dump` wrote, or something else.
        find: struct class of a wire name.
        longest: bytes that the skeleton may have; None for any number.

    Raises:
        Malformed: the bytes are not what `dump` writes.
    """
    blob = memoryview(blob)  # so that no part of it is copied
    length = int.from_bytes(blob[:LENGTH], "little")
    if len(blob) < LENGTH or length > len(blob) - LENGTH:
        _bad(f"A frame of {len(blob)} bytes is cut short", f"its header declares {length} bytes")
    if longest is not None and length > longest:
        _bad(f"All but tensors takes up to {longest} bytes", f"{length} bytes")
    try:
        skeleton = _DECODER.decode(str(blob[LENGTH : LENGTH + length], "ascii"))
        rest = blob[LENGTH + length :]
        tensors = from_buffer(rest) if rest else {}
        value = _up(skeleton, tensors, find)
    except Malformed:
        raise
    except Exception as error:  # json, struct and torch raise many kinds, and list none
        raise Malformed("A frame is JSON followed by safetensors", _first_line(error), "It is damaged.") from error
    if tensors:
        _bad("Every tensor of a frame is used once", f"{len(tensors)} left over")
    return value


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _down(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"f": struct.pack(">d", value).hex()}
    if isinstance(value, torch.Tensor):
        return {"t": _put(value, tensors)}
    if isinstance(value, Struct):
        return {"s": wire_name(kind), "v": {name: _at(name, getattr(value, name), tensors) for name in _names(kind)}}
    if kind is tuple:
        return {"u": [_at(i, item, tensors) for i, item in enumerate(value)]}
    if kind is list:
        return [_at(i, item, tensors) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {"d": [[_key(key), _at(key, item, tensors)] for key, item in value.items()]}
    if kind is bytes:
        return {"b": _put(torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _EMPTY, tensors)}
    raise Malformed(
        "Only tensors, numbers, strings, bytes, None, and lists, tuples and dictionaries of these can be written",
        f"{kind.__module__}.{kind.__qualname__}",
        "Turn it into such values first: float(x) for a NumPy number, torch.from_numpy(x) for an array.",
    )


def _at(key: object, item: Any, tensors: dict[str, torch.Tensor]) -> Any:
    try:
        return _down(item, tensors)
    except Malformed as error:
        error.path.insert(0, str(key))
        raise


def _key(key: object) -> str | int:
    if type(key) is str or type(key) is int:
        return key
    raise Malformed("Dictionary keys are strings or whole numbers", type(key).__name__, "Use str(key).")


def _put(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES or tensor.is_meta:
        raise Malformed(
            "Tensors are dense, and hold bool, 8- to 64-bit integers or 16- to 64-bit floats",
            f"{tensor.layout}, {tensor.dtype} on {tensor.device}",
            "Convert it, for example with .to_dense() or .to(torch.float32).",
        )
    name = str(len(tensors))
    tensors[name] = tensor.detach().cpu().contiguous()
    return name


def _up(node: Any, tensors: dict[str, torch.Tensor], find: Find) -> Any:
    if isinstance(node, list):
        return [_up(item, tensors, find) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((tag, body),) = node.items()
        if tag == "t":
            return _take(body, tensors)
        if tag == "u" and isinstance(body, list):
            return tuple([_up(item, tensors, find) for item in body])
        if tag == "d" and isinstance(body, list):
            return _dictionary(body, tensors, find)
        if tag == "f" and isinstance(body, str) and len(body) == 16:
            return struct.unpack(">d", bytes.fromhex(body))[0]
        if tag == "b":
            return _bytes(_take(body, tensors))
    if node.keys() == {"s", "v"}:
        return _struct(node["s"], node["v"], tensors, find)
    _bad("A frame holds known kinds of values only", sorted(node)[:5])


def _take(name: object, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    tensor = tensors.pop(name, None) if isinstance(name, str) else None
    if tensor is None:
        _bad("A frame refers to each of its tensors once", _shown(name))
    return tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        _bad("Bytes travel as a row of uint8", f"{tensor.dtype}, {tuple(tensor.shape)}")
    return bytes(tensor.numpy())


def _dictionary(pairs: list[Any], tensors: dict[str, torch.Tensor], find: Find) -> dict[str | int, Any]:
    result: dict[str | int, Any] = {}
    alike = 0
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int) and pair[0] not in result):
            _bad("A dictionary is written as pairs with different keys", _shown(pair))
        alike += type(pair[0]) is int and not -_HASHED < pair[0] < _HASHED
        if alike > _ALIKE:
            _bad(f"Up to {_ALIKE} keys of a dictionary have more than 60 bits", alike)
        result[pair[0]] = _up(pair[1], tensors, find)
    return result


def _struct(name: object, fields: object, tensors: dict[str, torch.Tensor], find: Find) -> Struct:
    if not isinstance(name, str) or not isinstance(fields, dict):
        _bad("A struct is written as its name and its fields", _shown(name))
    kind = find(name)
    if fields.keys() != set(_names(kind)):
        differing = sorted(fields.keys() ^ set(_names(kind)))
        raise Malformed(f"The fields of {name} are {', '.join(_names(kind)) or 'none'}", differing, _ALIGNED)
    values = {key: _up(item, tensors, find) for key, item in fields.items()}
    try:
        return kind(**values)
    except Malformed:
        raise
    except Exception as error:  # whatever a struct's own checks raise means the same here: not a valid value
        remedy = (error.remedy if isinstance(error, SilosynthError) else "") or _ALIGNED
        raise Malformed(f"A {name} passes its own checks", _first_line(error), remedy) from error


def _names(kind: type[Struct]) -> tuple[str, ...]:
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


_HASHED, _ALIKE = sys.hash_info.modulus, 1000
"""Whole numbers from the first on can be chosen to have the same hash; many such keys would take hours to sort in."""


def _bad(rule: str, value: object) -> NoReturn:
    raise Malformed(rule, value, "It is damaged, or was written by something else.")


def _shown(value: Any) -> Any:
    """A value for an error: itself, or its type where it may be nested too deeply to be written."""
    return value if isinstance(value, (str, int, float)) else type(value).__name__


def _no_constant(text: str) -> NoReturn:
    _bad("Numbers are written as JSON numbers", text)


_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_FIELDS: dict[type[Struct], tuple[str, ...]] = {}
_EMPTY = torch.empty(0, dtype=torch.uint8)
