"""A quick sample of what `tests.fuzz.wire` does at length, what it found, and the bound on what reading allocates."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load
from tests.fuzz.damage import (
    ALLOWED,
    CHECKED,
    FRAMES,
    KINDS,
    MESSAGE,
    SEALED,
    STATE,
    checked,
    damage,
    example,
    read,
    seeds,
)

from silosynth.core.errors import MessageError, SilosynthError
from silosynth.core.messages import Message
from silosynth.runtime import wire
from silosynth.runtime.hub import frame_from_bytes
from silosynth.runtime.tensors import read_spans
from silosynth.runtime.wire import MAGIC, decode, encode, unpack

VALID = seeds(random.Random(1))
steady = settings(max_examples=400, derandomize=True)


class Flag(Message):
    flag: torch.Tensor


def test_valid_inputs_are_read() -> None:
    assert {read(data) for data in VALID if data[0] != ALLOWED} == {"read"}
    assert {data[0] for data in VALID} == {MESSAGE, ALLOWED, STATE, CHECKED, FRAMES, SEALED}
    assert len(VALID) > 100


def test_messages_of_every_room_are_damaged() -> None:
    made = {kind for kind in KINDS if example(KINDS[kind], random.Random(1)) is not None}
    asked = ("AskCodes", "RowCodes", "AcceptKeys", "AskConditions", "ConditionsRead", "PrepareGroup", "LevelRows")
    asked += ("PreparePool", "GivenRows")
    assert {f"deployment.{kind}" for kind in asked} <= made
    assert {"algorithms.silofuse.WeighLatents", "algorithms.silofuse.LatentWeights", "core.Condition"} <= made


@steady
@given(st.integers(0, 2**32))
def test_damaged_inputs_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        read(damage(rng.choice(VALID), rng, VALID))


@steady
@given(
    st.sampled_from(VALID), st.lists(st.tuples(st.integers(0), st.binary(max_size=9), st.integers(0, 9)), max_size=3)
)
def test_replaced_bytes_are_read_or_refused(data: bytes, changes: list[tuple[int, bytes, int]]) -> None:
    for at, put, out in changes:
        at %= len(data) + 1
        data = data[:at] + put + data[at + out :]
    read(data)


@steady
@given(st.integers(0, 5), st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(which: int, body: bytes) -> None:
    read(bytes([which]) + body)


def test_tensors_are_read_as_the_library_reads_them() -> None:
    seen = 0
    for data in VALID:
        text = 9 + int.from_bytes(data[1:9], "little")
        if data[0] == MESSAGE and data[text:]:
            spans, numbers = read_spans(memoryview(data)[text:])
            ours, theirs = {span.name: span.read(numbers) for span in spans}, load(data[text:])
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
            assert all(ours[name].dtype is theirs[name].dtype for name in ours)
            seen += 1
    assert seen > 20


def framed(skeleton: bytes | str, header: object = None, body: bytes = b"") -> bytes:
    """A frame of these parts, with correct lengths."""
    skeleton = skeleton.encode() if isinstance(skeleton, str) else skeleton
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    tail = b"" if header is None else len(text).to_bytes(8, "little") + text + body
    return len(skeleton).to_bytes(8, "little") + skeleton + tail


def one(dtype: str, shape: list[object], size: int = 0) -> dict[str, object]:
    """The header of a single tensor."""
    return {"0": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def same_hash(keys: int) -> str:
    """Keys whose hashes collide in Python's dictionary: each is compared with all before it."""
    return ",".join(f"[{(2**61 - 1) * number},0]" for number in range(1, keys))


FOUND = {  # once raised a foreign error, or were read, or read very slowly; and their neighbours
    "a size that torch cannot hold": framed('{"t":"0"}', one("F32", [2**63, 0])),
    "a size that overflows": framed('{"t":"0"}', one("F32", [0, 2**62, 2**62])),
    "hexadecimal with spaces": framed('{"f":"00 00 00 00 0000"}'),
    "a type of tensor that torch has not": framed('{"t":"0"}', one("F8_E8M0", [0])),
    "a name that is nested": framed(b'{"t":' + nested(300) + b"}"),
    "a struct's name that is nested": framed(b'{"s":' + nested(300) + b',"v":{}}'),
    "a key that is nested": framed(b'{"d":[[' + nested(300) + b",0]]}"),
    "keys of one hash": framed('{"d":[' + same_hash(200_000) + "]}"),
    "a name without end": framed('{"s":"' + "core.messages.Don" * 60_000 + '","v":{}}'),
    "a truth value of 2": framed('{"s":"Flag","v":{"flag":{"t":"0"}}}', one("BOOL", [1], 1), b"\x02"),
}


@pytest.mark.parametrize("found", FOUND, ids=str)
def test_bugs_from_fuzzing_stay_fixed(found: str) -> None:
    with pytest.raises(SilosynthError):
        decode(FOUND[found], {"Flag": Flag})
    with pytest.raises(SilosynthError):
        unpack(MAGIC + (1).to_bytes(4, "little") + checked(bytes(28) + FOUND[found])[16:])


def test_every_depth_of_nesting_is_read_or_refused() -> None:
    """Near Python's limit, what is still read may be too deep to be written into an error."""
    for depth in (*range(1, 900, 11), *range(900, 1100, 3)):
        for skeleton in (nested(depth), b'{"t":' + nested(depth) + b"}", b'{"d":[[' + nested(depth) + b",0]]}"):
            with pytest.raises(MessageError):
                decode(framed(skeleton))
        head = b'{"kind":' + nested(depth) + b"}"
        with pytest.raises(MessageError):
            frame_from_bytes(b"\x01" + len(head).to_bytes(4, "little") + head)


def greedy(n: int) -> dict[str, bytes]:
    """About n bytes each, that take the most memory per byte."""
    return {
        "empty lists": framed("[" + "[]," * (n // 3) + "[]]"),
        "lists": framed("[" + "[0]," * (n // 4) + "[0]]"),
        "dictionaries": framed("[" + '{"":0},' * (n // 7) + "0]"),
        "ours": framed("[" + '{"d":[]},' * (n // 9) + "0]"),
        "wide text": framed('"' + "a" * n + '\\ud83d\\ude00"'),
        "fields": framed('{"s":"Flag","v":{' + ",".join(f'"{i:x}":0' for i in range(n // 10)) + "}}"),
        "empty tensors": framed("0", {str(i): one("U8", [0])["0"] for i in range(n // 60)}),
        "dimensions": framed('{"t":"0"}', one("U8", [0] + [1] * (n // 2))),
        "bytes": framed('{"b":"0"}', one("U8", [n], n), bytes(n)),
        "a declared skeleton": (2**63 - 1).to_bytes(8, "little") + bytes(n),
        "a declared header": framed("0", b"{}")[:9] + (2**62).to_bytes(8, "little") + bytes(n),
        "a declared tensor": framed('{"t":"0"}', one("U8", [2**40], 2**40), bytes(n)),
        "a declared shape": framed('{"t":"0"}', one("F64", [2**45], n), bytes(n)),
        "an empty shape": framed('{"t":"0"}', one("F64", [0, 2**60])),
    }


def peak(work: Callable[[], None]) -> int:
    """Bytes by which Python's memory grows meanwhile, and the process's, where the system tells."""
    gc.collect()
    before = _resident(reset=True)
    work()
    grown = _resident() - before
    gc.collect()
    tracemalloc.start()
    work()
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return max(grown, traced)


def _resident(reset: bool = False) -> int:
    """The most memory that the process has held since the last reset; 0 where the system does not tell."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("n", [100_000, pytest.param(400_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", greedy(0), ids=str)
def test_reading_allocates_no_more_than_documented(name: str, n: int) -> None:
    blob = greedy(n)[name]

    def work() -> None:
        with pytest.raises(MessageError):
            decode(blob, {"Flag": Flag})

    text = 8 + int.from_bytes(blob[:8], "little") if "declared skeleton" not in name else 8
    header = min(len(blob) - text, 8 + int.from_bytes(blob[text : text + 8], "little")) if "declared" not in name else 0
    assert peak(work) <= 64 * (text + header) + 3 * (len(blob) - text - header) + (1 << 20)


def test_a_messages_skeleton_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SKELETON", 100)
    blob = encode(Flag(torch.zeros(100_000, dtype=torch.bool)))
    assert isinstance(decode(blob), Flag)
    with pytest.raises(MessageError, match=r"All but the tensors takes at most 100 bytes"):
        decode(framed('"' + "a" * 99 + '"'))
