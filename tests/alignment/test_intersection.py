"""Two parties' private set intersection, as functions of bytes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings, strategies as st

from silosynth.alignment import intersection
from silosynth.core.errors import ProtocolError

psi = pytest.importorskip("private_set_intersection.python")
tags = st.lists(st.integers(0, 30).map(lambda n: hashlib.sha256(bytes([n])).digest()), unique=True, max_size=15)


def found(asked: list[bytes], held: list[bytes]) -> list[int]:
    asker, holder = intersection.new_key(), intersection.new_key()
    answered = intersection.answer(holder, intersection.query(asker, asked))
    return intersection.matches(asker, intersection.encrypt(holder, held), answered, len(asked))


@settings(max_examples=40)
@given(asked=tags, held=tags)
def test_it_is_the_intersection_of_sets(asked: list[bytes], held: list[bytes]) -> None:
    assert found(asked, held) == [number for number, tag in enumerate(asked) if tag in held]


def test_many_are_found_as_few_are() -> None:
    """More than one thread works on them, where there are several cores."""
    asked, held = (
        [hashlib.sha256(b"%d" % n).digest() for n in part] for part in (range(0, 3000, 2), range(0, 3000, 3))
    )
    assert found(asked, held) == list(range(0, 1500, 3))


def test_there_are_no_false_positives_as_whole_points_are_compared() -> None:
    asked, held = ([hashlib.sha256(b"%d" % n).digest() for n in part] for part in (range(500), range(500, 3000)))
    assert found(asked, held) == []
    raw = psi.ServerSetup.FromString(intersection.encrypt(intersection.new_key(), held))
    assert len({*raw.raw.encrypted_elements}) == 2500 and all(len(one) == 33 for one in raw.raw.encrypted_elements)


def test_what_is_sent_is_a_function_of_the_key_and_says_nothing_without_it() -> None:
    asked = [hashlib.sha256(b"%d" % n).digest() for n in range(5)]
    one, other = intersection.new_key(), intersection.new_key()
    assert intersection.query(one, asked) == intersection.query(one, asked) != intersection.query(other, asked)
    held = intersection.encrypt(one, asked)
    assert held == intersection.encrypt(one, asked[::-1])  # nothing of the order of rows
    assert not [tag for tag in asked for sent in (held, intersection.query(one, asked)) if tag in sent]


@pytest.mark.parametrize(
    "asked", [b"", b"abc", b"\xff" * 40, psi.Request(reveal_intersection=False).SerializeToString()]
)
def test_a_query_that_is_none(asked: bytes) -> None:
    with pytest.raises(ProtocolError, match="a query that it cannot read"):
        intersection.answer(intersection.new_key(), asked)


def test_a_query_of_points_that_are_none() -> None:
    asked = psi.Request(reveal_intersection=True, encrypted_elements=[b"\x02" + b"\xff" * 32])
    with pytest.raises(ProtocolError, match="a query that it cannot read"):
        intersection.answer(intersection.new_key(), asked.SerializeToString())


def test_answers_that_do_not_fit() -> None:
    asked = [hashlib.sha256(b"%d" % n).digest() for n in range(3)]
    asker, holder = intersection.new_key(), intersection.new_key()
    held, answered = (
        intersection.encrypt(holder, asked),
        intersection.answer(holder, intersection.query(asker, asked)),
    )
    golomb = psi.server.CreateFromKey(holder, True).CreateSetupMessage(1e-9, 3, ["a"]).SerializeToString()
    for setup, answer, count in (
        (held, answered, 2),
        (held, answered, 4),
        (held, b"abc", 3),
        (b"abc", answered, 3),
        (b"", answered, 3),
        (golomb, answered, 3),
    ):
        with pytest.raises(ProtocolError, match="an answer that it cannot read"):
            intersection.matches(asker, setup, answer, count)
