"""Messages by the forms of earlier ones: the same bytes, values and refusals as without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.runtime.test_wire import same, tensors

from silosynth.core.errors import DataError, MessageError
from silosynth.core.messages import STRUCTS, Bound, Message, Struct, wire_name
from silosynth.runtime import forms, wire
from silosynth.runtime.wire import decode, encode


class Flat(Message):
    first_NL: torch.Tensor
    count: int
    rate: float
    flag: bool
    text: str
    maybe: torch.Tensor | None = None
    mixed: int | float | str | bool | None = None


class Free(Message):
    one: torch.Tensor
    other: torch.Tensor | None
    mixed: int | float | str | bool | None


class Empty(Message):
    pass


class EvenSum(Message):
    values: torch.Tensor

    def _check(self) -> None:
        if int(self.values.sum()) % 2:
            raise DataError("The sum is even", int(self.values.sum()))


class Finite(Message):
    values: Annotated[torch.Tensor, Bound("finite", lambda values: bool(values.isfinite().all()))]


class Below(Message):
    share: Annotated[float, Bound("below 1", lambda number: number < 1)]
    values: torch.Tensor


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
messages = st.builds(Free, tensors(), st.none() | tensors(), plain)


@pytest.fixture(autouse=True)
def _no_forms() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    forms._read.clear()
    forms._written.clear()


def flat(seed: int = 0, rows: int = 3, **fields: object) -> Flat:
    first = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    return Flat(**{"first_NL": first, "count": 1, "rate": 0.5, "flag": True, "text": "a", **fields})  # type: ignore[arg-type]


def parsed(blob: bytes) -> object:
    """What the bytes say without any form; or why they say nothing."""
    try:
        return wire.parse(blob, lambda name: STRUCTS[name])
    except wire.Malformed as error:
        return type(error)


@settings(max_examples=300)
@given(st.lists(messages, min_size=1, max_size=4))
def test_bytes_and_values_are_those_without_forms(some: list[Free]) -> None:
    for message in [*some, *some]:
        blob = encode(message)
        assert blob == wire.dump(message)
        for _ in range(2):
            assert same(decode(blob), message)


@settings(max_examples=300)
@given(messages, st.data())
def test_bytes_with_a_known_head_are_read_or_refused_as_without_its_form(message: Free, data: st.DataObject) -> None:
    blob = bytearray(encode(message))
    decode(bytes(blob))
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(blob)))
    changed = bytes(blob[:kept] if data.draw(st.booleans()) else blob) + data.draw(st.binary(max_size=3))
    expected = parsed(changed)
    if isinstance(expected, Struct):
        assert same(decode(changed), expected)
    else:
        with pytest.raises(MessageError):
            decode(changed)


def test_a_second_message_of_a_form_is_neither_dumped_nor_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = encode(flat(0))
    decode(blob)
    monkeypatch.setattr(wire, "dump", None)
    monkeypatch.setattr(wire, "_parsed", None)
    other = flat(1)
    assert same(decode(encode(other)), other) and same(decode(blob), flat(0))


def test_a_form_is_found_out_by_reading_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [encode(flat(seed, maybe=torch.arange(seed, seed + 4))) for seed in (0, 1)]
    forget()
    decode(blobs[0])
    monkeypatch.setattr(wire, "_parsed", None)
    assert same(decode(blobs[1]), flat(1, maybe=torch.arange(1, 5)))


def test_tensors_that_a_sender_has_put_in_another_order_are_read_in_that_order() -> None:
    blob = encode(Free(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), None))
    first, second, between = (f'{{"t":"{name}"}}'.encode() for name in "01x")
    swapped = blob.replace(first, between).replace(second, first).replace(between, second)
    forget()
    for _ in range(2):
        message = decode(swapped)
        assert isinstance(message, Free) and message.other is not None
        assert (message.one.tolist(), message.other.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    assert encode(message) == wire.dump(message) != swapped


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), (math.nan, math.inf), ("1", 1), (None, False)]
)
def test_values_that_are_equal_or_odd_are_told_apart(one: object, other: object) -> None:
    for value in (one, other, one):
        message = flat(mixed=value)
        assert same(decode(encode(message)), message)


def test_tensors_with_gradients_and_views_are_written_by_a_form() -> None:
    encode(flat())
    table = torch.arange(6.0).reshape(2, 3)
    for tensor in (table.T, torch.zeros(3, 2).requires_grad_(), torch.nn.Parameter(torch.ones(3, 2)), table.T.flip(0)):
        assert encode(flat(first_NL=tensor)) == wire.dump(flat(first_NL=tensor))


def test_tensors_of_messages_share_no_memory() -> None:
    blob = encode(Free(torch.zeros(2), torch.zeros(2), None))
    first, second = decode(blob), decode(blob)
    assert isinstance(first, Free) and isinstance(second, Free) and first.other is not None
    first.one.add_(1)
    assert second.one.sum() == first.other.sum() == 0
    assert decode(blob).one.sum() == 0  # type: ignore[attr-defined]


def test_messages_that_came_by_a_form_are_frozen() -> None:
    blob = encode(flat())
    message = decode(blob)
    with pytest.raises(AttributeError):
        message.count = 2  # type: ignore[attr-defined]


def test_a_class_that_is_not_allowed_is_refused_though_its_form_is_known() -> None:
    blob = encode(flat())
    assert same(decode(blob, {wire_name(Flat): Flat}), flat())
    for _ in range(2):
        with pytest.raises(MessageError, match="allowed here"):
            decode(blob, {wire_name(Free): Free})


def test_checks_of_numbers_are_made_of_every_message() -> None:
    blobs = [bytearray(encode(EvenSum(torch.tensor([2, number])))) for number in (2, 4)]
    decode(bytes(blobs[0]))
    blobs[1][-8] = 5
    with pytest.raises(MessageError, match="The sum is even"):
        decode(bytes(blobs[1]))


def test_a_bool_that_is_neither_is_refused_of_every_message() -> None:
    blob = bytearray(encode(Free(torch.tensor([True, False]), None, None)))
    decode(bytes(blob))
    blob[-1] = 2
    with pytest.raises(MessageError, match="0 or 1"):
        decode(bytes(blob))


def test_bounds_of_tensors_are_checked_of_every_message() -> None:
    blobs = [encode(Finite(torch.tensor([1.0])))]
    blobs.append(blobs[0][:-4] + torch.tensor([math.inf]).numpy().tobytes())
    decode(blobs[0])
    with pytest.raises(MessageError, match="finite"):
        decode(blobs[1])


def test_what_a_reader_refuses_is_refused_though_it_was_written_here() -> None:
    message = flat()
    object.__setattr__(message, "count", "many")
    for _ in range(2):
        with pytest.raises(MessageError, match="count must be int"):
            decode(encode(message))


def test_bounds_of_plain_values_are_checked_whatever_form_is_known() -> None:
    blob = encode(Below(0.5, torch.zeros(2)))
    decode(blob)
    with pytest.raises(MessageError, match="below 1"):
        decode(blob.replace(b"0.5", b"1.5"))


def test_forms_are_bounded_in_number_and_length() -> None:
    for count in range(3 * forms._MOST):
        decode(encode(flat(count=count)))
    assert len(forms._read) <= forms._MOST and len(forms._written) <= forms._MOST
    forget()
    decode(encode(flat(text="a" * forms._LONGEST)))
    assert not forms._read and not forms._written


def test_messages_without_fields_have_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = encode(Empty())
    decode(blob)
    monkeypatch.setattr(wire, "_parsed", None)
    assert decode(blob) == Empty()
