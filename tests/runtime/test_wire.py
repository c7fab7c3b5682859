from __future__ import annotations

import contextlib
import json
import math
import struct
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load, save

from silosynth.core.errors import DataError, MessageError, StorageError
from silosynth.core.messages import STRUCTS, Message, Struct
from silosynth.runtime.tensors import DTYPES
from silosynth.runtime.wire import MAGIC, decode, encode, pack, unpack

quick = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


class Inner(Struct):
    name: str
    values: torch.Tensor
    levels: tuple[str | int | float | bool, ...] | None = None


class Outer(Message):
    flag: bool
    count: int
    rate: float
    text: str
    blob: bytes
    numbers: torch.Tensor
    inner: Inner | None
    many: tuple[Inner, ...]
    mixed: int | float | str | bool | None = None


class Positive(Message):
    value: int

    def _check(self) -> None:
        if self.value <= 0:
            raise DataError("A positive number is positive", self.value)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor.transpose(0, -1) if draw(st.booleans()) and tensor.dim() else tensor


floats = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", bits.to_bytes(8, "big"))[0])
scalars = st.none() | st.booleans() | st.integers() | floats | st.text() | st.binary(max_size=20)
leaves = scalars | tensors()
trees = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), below, max_size=4)
    ),
    max_leaves=12,
)
levels = st.none() | st.lists(st.text() | st.integers() | floats | st.booleans(), max_size=4).map(tuple)
inners = st.builds(Inner, st.text(), tensors(), levels)
outers = st.builds(
    Outer,
    *(st.booleans(), st.integers(), floats | st.integers(), st.text(), st.binary(max_size=20), tensors()),
    *(st.none() | inners, st.lists(inners, max_size=3).map(tuple)),
    st.integers() | floats | st.text() | st.booleans() | st.none(),
)


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, and of the same type."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    return bool(a == b)


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@quick
@given(outers)
def test_messages_come_back_as_they_were(message: Outer) -> None:
    blob = encode(message)
    assert same(decode(blob), message)
    assert encode(decode(blob)) == blob


@quick
@given(trees)
def test_state_comes_back_as_it_was(tree: Any) -> None:
    blob = pack({"tree": tree})
    assert same(unpack(blob), {"tree": tree})
    assert pack(unpack(blob)) == blob


@quick
@given(outers, st.data())
def test_a_cut_or_longer_frame_is_refused(message: Outer, data: st.DataObject) -> None:
    blob = encode(message)
    with pytest.raises(MessageError):
        decode(blob[: data.draw(st.integers(0, len(blob) - 1))])
    with pytest.raises(MessageError):
        decode(blob + data.draw(st.binary(min_size=1, max_size=9)))


@quick
@given(outers, st.data())
def test_altered_bytes_never_raise_anything_but_a_message_error(message: Outer, data: st.DataObject) -> None:
    blob = bytearray(encode(message))
    for _ in range(3):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        decode(bytes(blob))


@quick
@given(st.binary(max_size=60))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(MessageError):
        decode(noise)
    with pytest.raises(StorageError):
        unpack(noise)


@quick
@given(trees, st.data())
def test_a_damaged_file_is_a_storage_error(tree: Any, data: st.DataObject) -> None:
    blob = bytearray(pack({"tree": tree}))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageError):
        unpack(bytes(blob))


def frame(skeleton: object, rest: bytes = b"") -> bytes:
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    return len(text).to_bytes(8, "little") + text + rest


NAME = "tests.runtime.Positive"


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (frame({"s": "builtins.eval", "v": {}}), "eval"),
        (frame({"s": f"{NAME}s", "v": {"value": 1}}), "Did you mean"),
        (frame({"s": NAME, "v": {"valeu": 1}}), "valeu"),
        (frame({"s": NAME, "v": {}}), "value"),
        (frame({"s": NAME, "v": {"value": 1, "more": 2}}), "more"),
        (frame({"s": NAME, "v": {"value": 0}}), "positive"),
        (frame({"s": NAME, "v": {"value": "1"}}), "must be valid"),
        (frame({"s": NAME, "v": {"value": True}}), "must be valid"),
        (frame({"s": NAME, "v": {"value": {"t": "0"}}}), "once"),
        (frame({"s": NAME, "v": {"value": {"x": 1}}}), "known kinds"),
        (frame({"s": NAME, "v": [1]}), "name and its fields"),
        (frame({"s": [], "v": {}}), "name and its fields"),
        (frame(b'{"s": NaN}'), "NaN"),
        (frame(b"[" * 100_000), "JSON"),
        (frame(b"\xff\xfe"), "JSON"),
        (frame(b'{"a":' + b"9" * 10_000 + b"}"), "JSON"),
        (frame([1, 2]), "one message"),
        (frame({"s": NAME, "v": {"value": 1}}, b"x"), "safetensors"),
        ((2**63).to_bytes(8, "little") + b"{}", "cut short"),
        (b"", "cut short"),
    ],
)
def test_each_malformation_is_named(blob: bytes, says: str) -> None:
    with pytest.raises(MessageError, match=says) as caught:
        decode(blob)
    assert caught.value.remedy


def test_a_tensor_nobody_refers_to_is_refused() -> None:
    with pytest.raises(MessageError, match="left over"):
        decode(frame({"s": NAME, "v": {"value": 1}}, save({"0": torch.ones(2)})))


def test_a_huge_declared_tensor_is_refused_without_memory() -> None:
    header = json.dumps({"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    blob = frame(
        {"s": "tests.runtime.Inner", "v": {"name": "", "values": {"t": "0"}, "levels": None}},
        len(header).to_bytes(8, "little") + header,
    )
    with pytest.raises(MessageError, match="safetensors"):
        decode(blob)


def test_only_allowed_types_are_read() -> None:
    blob = encode(Positive(3))
    assert decode(blob, {NAME: Positive}) == Positive(3)
    with pytest.raises(MessageError, match="allowed here"):
        decode(blob, {"tests.runtime.Inner": Inner})


def test_only_structs_are_encoded() -> None:
    with pytest.raises(MessageError, match="dict"):
        encode({"a": 1})  # type: ignore[arg-type]


def test_the_tensors_are_plain_safetensors() -> None:
    z = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    blob = encode(Inner("z", z))
    rest = blob[8 + int.from_bytes(blob[:8], "little") :]
    assert torch.equal(load(rest)["0"], z)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, device="meta"),
    ],
)
def test_tensors_that_cannot_travel_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(MessageError, match=r"values: Tensors are dense"):
        encode(Inner("x", tensor))


def test_views_gradients_and_conjugates_travel() -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    imaginary = torch.tensor([1 + 2j]).conj().imag
    for tensor in (base, base[1:], base.T, base[:, ::2], base.expand(2, 3, 4), imaginary, torch.nn.Parameter(base)):
        back = decode(encode(Inner("x", tensor)))
        assert isinstance(back, Inner)
        assert torch.equal(back.values, tensor)
        assert not back.values.requires_grad
        back.values.add_(1)  # the receiver's own memory
    assert same(unpack(pack({"a": base[:2], "b": base[:2], "c": base})), {"a": base[:2], "b": base[:2], "c": base})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu_arrive_on_the_cpu() -> None:
    back = decode(encode(Inner("x", torch.ones(3, device="cuda"))))
    assert isinstance(back, Inner)
    assert back.values.device.type == "cpu"


def test_an_optimiser_and_a_network_can_be_stored() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    adam = torch.optim.Adam(net.parameters(), betas=(0.5, 0.9))
    net(torch.ones(4, 3)).sum().backward()
    adam.step()
    stored = unpack(pack({"net": net.state_dict(), "adam": adam.state_dict()}))
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict(stored["net"])
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(stored["adam"])
    assert pack({"net": other.state_dict(), "adam": again.state_dict()}) == pack(
        {"net": net.state_dict(), "adam": adam.state_dict()}
    )


@pytest.mark.parametrize("value", [np.float64(1), np.arange(3), object(), {1, 2}, 1j, {(1, 2): 3}, {True: 1}])
def test_values_that_cannot_be_stored_are_refused_with_their_path(value: object) -> None:
    with pytest.raises(StorageError, match=r"party\.1\.odd") as caught:
        pack({"party": [0, {"odd": value}]})
    assert caught.value.remedy


def test_too_deep_or_too_long_values_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(StorageError, match="deep"):
        pack({"deep": deep})
    with pytest.raises(MessageError, match="digits"):
        encode(Positive(10**5000))


def test_files_of_other_kinds_and_versions_are_told_apart() -> None:
    blob = pack({"a": 1})
    for bad, says in (
        (b"PK\x03\x04" + blob, "other kind"),
        (blob[:12] + (2).to_bytes(4, "little") + blob[16:], "matching"),
        (blob[:-1], "cut short"),
        (blob + b"\n", "added to"),
        (blob[:-1] + b"?", "damaged"),
        (blob.replace(b"\r\n", b"\n"), "other kind"),
    ):
        with pytest.raises(StorageError, match=says):
            unpack(bad)
    assert blob.startswith(MAGIC)


def test_files_hold_no_structs() -> None:
    with pytest.raises(StorageError, match="to_state"):
        unpack(pack({"inner": Inner("x", torch.ones(1))}))


def test_every_message_type_is_found_by_its_name_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(encode(Positive(2))) == Positive(2)
    assert STRUCTS[NAME] is Positive
