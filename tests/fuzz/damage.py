"""Valid bytes of every kind that a network or a file brings, ways to damage them, and what reading them must satisfy.

An input of the fuzzer is one byte that says which reader it is for, and what that reader is given:

0  a message (`wire.decode`, all types)            3  a state in a file, with its checksum put right
1  a message of few allowed types                  4  frames of a stream, one after the other
2  a state in a file (`wire.unpack`)               5  an envelope, as a message, that is then opened
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import types
import typing
import zlib
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

import torch

import silosynth.catalog  # noqa: F401  # with `deployment`, defines every message type
from silosynth.core.errors import SilosynthError
from silosynth.core.messages import STRUCTS, Struct, fields_of
from silosynth.core.streams import Streams
from silosynth.deployment import protocol  # noqa: F401
from silosynth.privacy.sealed import Envelope, seats
from silosynth.runtime.hub import ASK, REPLY, Frame, frame_from_bytes, read_frame
from silosynth.runtime.tensors import DTYPES
from silosynth.runtime.wire import MAGIC, decode, encode, pack, unpack

MESSAGE, ALLOWED, STATE, CHECKED, FRAMES, SEALED = range(6)
_HEAD = len(MAGIC) + 16  # of a file
_SEATS = seats(("bank", "clinic"), Streams(5))
KINDS = {name: kind for name, kind in sorted(STRUCTS.items()) if kind.__module__.startswith("silosynth.")}
FEW = {name: kind for name, kind in KINDS.items() if name.startswith(("core.", "algorithms.vtgan"))}


# What reading must satisfy.


def read(data: bytes) -> str:
    """Give an input to its reader: what became of it, in a word. Any error but ours is raised.

    Raises:
        AssertionError: what was read is not written as it was read.
    """
    which, body = (data[0] % 6 if data else 0), data[1:]
    refusal: SilosynthError | None = None
    try:
        _READERS[which](body)
    except SilosynthError as error:
        refusal = error
    assert refusal is None or (str(refusal) and refusal.rule)
    return "read" if refusal is None else type(refusal).__name__


def _message(body: bytes) -> None:
    _same_again(decode(body))


def _allowed(body: bytes) -> None:
    assert type(decode(body, FEW)) in FEW.values()


def _same_again(message: Struct) -> None:
    blob = encode(message)
    assert encode(decode(blob)) == blob


def _state(body: bytes) -> None:
    blob = pack(unpack(body))
    assert pack(unpack(blob)) == blob


def _checked(body: bytes) -> None:
    _state(checked(body))


def _frames(body: bytes) -> None:
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return body[at - size : at]

    while at < len(body):
        frame = read_frame(take)
        assert frame_from_bytes(frame.to_bytes()) == frame


def _sealed(body: bytes) -> None:
    envelope = decode(body)
    if isinstance(envelope, Envelope):
        assert _SEATS["clinic"].open(envelope, "a purpose, step 3") == b"a secret"


_READERS: tuple[Callable[[bytes], None], ...] = (_message, _allowed, _state, _checked, _frames, _sealed)


# Valid inputs.


def seeds(rng: random.Random) -> list[bytes]:
    """Valid inputs of every kind: a message of each type that silosynth has, states, frames, an envelope."""
    messages = [message for kind in KINDS.values() if (message := example(kind, rng)) is not None]
    blobs = [encode(message) for message in messages]
    states = [pack({}), pack({"a": [1, 2.5, float("nan")], "t": torch.arange(5), 3: (b"x", None, True, {"n": "é"})})]
    frames = [Frame(kind, "job", 3, "bank", blob) for kind in (ASK, REPLY) for blob in blobs[:6]]
    envelope = _SEATS["bank"].seal("clinic", "a purpose, step 3", b"a secret")
    return [
        *(bytes([which]) + blob for which in (MESSAGE, ALLOWED) for blob in blobs),
        *(bytes([which]) + state for which in (STATE, CHECKED) for state in states),
        bytes([FRAMES]) + b"".join(frame.to_bytes() for frame in frames[:3]),
        *(bytes([FRAMES]) + frame.to_bytes() for frame in frames),
        bytes([SEALED]) + encode(envelope),
    ]


def checked(body: bytes) -> bytes:
    """A file whose length and checksum fit."""
    rest = body[_HEAD:]
    return body[: len(MAGIC) + 4] + len(rest).to_bytes(8, "little") + zlib.crc32(rest).to_bytes(4, "little") + rest


def example(kind: type[Struct], rng: random.Random, tries: int = 20) -> Struct | None:
    """Some value of a struct class, or None where its own checks do not let one be made from its fields alone.

    Structs within it are tried half as often: one that holds any other would take ever more otherwise.
    """
    for _ in range(tries):
        with contextlib.suppress(SilosynthError, ValueError, TypeError, IndexError, RuntimeError):
            sizes = {letter: rng.randrange(4) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
            others = rng.choice((0.0, 0.5))  # share of fields with a default that are given all the same
            given = {
                field.name: _value(hint, rng, _shape(field.name, sizes), max(1, tries // 2))
                for field, (_, hint) in zip(dataclasses.fields(kind), fields_of(kind), strict=True)  # type: ignore[arg-type]
                if field.default is dataclasses.MISSING or rng.random() < others
            }
            return kind(**given)
    return None


def _shape(name: str, sizes: dict[str, int]) -> list[int] | None:
    """The shape that a field's name says: of "z_NL" N and L; None where it says none."""
    letters = name.rpartition("_")[2] if "_" in name else ""
    return [sizes[letter] for letter in letters] if letters.isalpha() and letters.isupper() else None


def _value(hint: Any, rng: random.Random, named: list[int] | None = None, tries: int = 10) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(rng.choice(args), rng, named, tries)
    if origin is typing.cast(Any, Literal):
        return rng.choice(args)
    if origin is tuple:
        many = args[:1] * rng.randrange(3) if args[-1:] == (Ellipsis,) else args
        return tuple(_value(arg, rng, tries=tries) for arg in many)
    if hint is torch.Tensor:
        shape = [rng.randrange(4) for _ in range(rng.randrange(3))] if named is None else named
        return torch.ones(shape).to(rng.choice(list(DTYPES)))
    if isinstance(hint, type) and issubclass(hint, Struct):
        kinds = [kind for kind in KINDS.values() if issubclass(kind, hint)]
        return example(rng.choice(kinds), rng, tries)
    leaves: dict[Any, list[Any]] = {bool: [False, True], int: [0, 1, 7], float: [0.0, 1.5], str: ["", "bank", "é"]}
    return rng.choice(leaves.get(hint, [b"", b"\0abc"] if hint is bytes else [None]))


# Damage.

ODD = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, 10**400, 1.5, 1e308, "", "0", "1", "\ud800", "é" * 9, [], {}, [[]]),
    *({"t": "0"}, {"t": 0}, {"t": [[[]]]}, {"b": "0"}, {"u": []}, {"u": 3}, {"d": []}, {"d": [["a", 1], ["a", 2]]}),
    *({"f": "7ff0000000000000"}, {"f": "00 00 00 00 0000"}, {"f": "7ff8"}, {"s": "core.Done", "v": {}}),
    *({"s": "x" * 300, "v": {}}, {"s": "core.Done", "v": {"a": 1}}, {"s": 1, "v": 2}, {"d": [[2**61 - 1, 0]]}),
)
_HEADER_ODD = (
    0,
    1,
    -1,
    8,
    2**31,
    2**40,
    2**63,
    2**64,
    10**30,
    1.5,
    "1",
    None,
    [],
    "F32",
    "BOOL",
    "C64",
    "F8_E5M2",
    "X",
)


def damage(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """An input, damaged in one to four places: anywhere, or where it hurts."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(_WAYS)(data, rng, others)
    return data


def _flip(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    found = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 3))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice((data[:a], data[:a] + data[b:], data[:b] + data[a:]))  # cut off, cut out, twice


def _splice(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _number(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Eight bytes anywhere, or at a length, become another number."""
    at = rng.choice((1, 1 + _HEAD, rng.randrange(len(data) + 1)))
    number = rng.choice((0, 1, 7, 255, len(data), 2**20, 2**31, 2**32, 2**40, 2**63, 2**64 - 1))
    return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]


def _structure(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Skeleton or tensors' header are changed as JSON, with lengths that fit, mostly."""
    start = 1 if data[:1] and data[0] % 6 in (MESSAGE, ALLOWED, SEALED) else 1 + _HEAD
    before, body = data[:start], data[start:]
    length = int.from_bytes(body[:8], "little")
    skeleton, blob = body[8 : 8 + length], body[8 + length :]
    long = int.from_bytes(blob[:8], "little")
    header, rest = blob[8 : 8 + long], blob[8 + long :]
    if rng.random() < 0.5 and header:
        header = _changed(header, rng, _HEADER_ODD)
    else:
        skeleton = _changed(skeleton, rng, ODD)
    off = rng.choice((0, 0, 0, 0, 1, -1))
    blob = max(0, len(header) + off).to_bytes(8, "little") + header + rest if header else blob
    return before + len(skeleton).to_bytes(8, "little") + skeleton + blob


def _changed(text: bytes, rng: random.Random, odd: tuple[Any, ...]) -> bytes:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if rng.random() < 0.02:
        return b"[" * rng.choice((100, 900, 1000, 5000)) + text
    holders = [node for node in _nodes(tree) if node]
    if not holders:
        return json.dumps(rng.choice(odd)).encode()
    at = rng.choice(holders)
    key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
    what = rng.randrange(5)
    if what == 0:
        del at[key]
    elif what == 1 and isinstance(at, dict):
        at[rng.choice(("t", "s", "v", "0", "dtype", "x", *KINDS))] = at.pop(key)
    elif what == 2:
        at[key] = rng.choice([node for node in _nodes(tree) if not _nodes_hold(node, at)] or [0])
    else:
        at[key] = rng.choice(odd)
    return json.dumps(tree).encode()


def _nodes(tree: Any) -> list[Any]:
    """Every list and dictionary of a JSON tree."""
    found, todo = [], [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            todo += node.values() if isinstance(node, dict) else node
    return found


def _nodes_hold(node: Any, sought: Any) -> bool:
    return any(one is sought for one in _nodes(node))


_WAYS = (_flip, _cut, _splice, _number, _structure, _structure, _structure)
