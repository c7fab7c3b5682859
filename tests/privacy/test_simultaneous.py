"""Codes by which a referee finds whether two silos' values go together: right in every case, and they tell no more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from silosynth.privacy.simultaneous import LEAST, MOST, Words, go_together, level_codes, order_codes, ordered

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def compared(low: Words, high: Words, key: bytes = KEY) -> tuple[Words, Words]:
    return order_codes(low, False, key), order_codes(high, True, key)


def test_order_is_that_of_numbers() -> None:
    ends = [0, 1, 2, 3, 2**31, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    pairs = np.array(list(itertools.product(ends, ends)), dtype=np.uint64)
    rng = np.random.default_rng(0)
    near = rng.integers(0, 2**63, 400).astype(np.uint64)
    low, high = (
        np.concatenate([pairs[:, 0], near]),
        np.concatenate([pairs[:, 1], near + rng.integers(0, 2, 400).astype(np.uint64)]),
    )
    assert (go_together(*compared(low, high)) == (low < high)).all()


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_numbers_become_integers_in_the_same_order(kind: type) -> None:
    special = {
        np.int64: [-(2**63), -1, 0, 1, 2**63 - 1],
        np.float64: [-np.inf, -1e300, -1.5, -0.0, 0.0, 5e-324, np.inf],
    }
    rng = np.random.default_rng(1)
    values = np.concatenate([np.array(special[kind], dtype=kind), (rng.normal(size=200) * 1e6).astype(kind)])  # type: ignore[index]
    made, inside = ordered(values), slice(1, -1)
    order = np.argsort(values[inside], kind="stable")
    assert (np.diff(made[inside][order].astype(object)) >= 0).all()
    assert len(np.unique(made[inside])) == len(np.unique(values[inside]))
    assert made.min() > LEAST and made.max() < MOST


def test_levels_go_together_where_both_agree_with_a_place() -> None:
    rng = np.random.default_rng(2)
    one = np.eye(5, dtype=bool)[rng.integers(0, 5, 300)]
    other = rng.random((300, 5)) < 0.4
    found = go_together(level_codes(one, KEY), level_codes(other, KEY))
    assert (found == (one & other).any(1)).all() and 0 < found.sum() < 300


def test_other_keys_find_nothing_and_no_row_is_no_error() -> None:
    numbers = np.arange(50, dtype=np.uint64)
    low, _ = compared(numbers, numbers + np.uint64(1))
    _, high = compared(numbers, numbers + np.uint64(1), OTHER)
    assert not go_together(low, high).any()
    assert not len(go_together(*compared(numbers[:0], numbers[:0])))


def place(low: Words, high: Words) -> Words:
    """Of rows that go together, the place where they do: what a referee sees beside the answer."""
    equal = low == high
    assert (equal.sum(1) <= 1).all()
    return equal.argmax(1)


def spread(places: Words) -> float:
    """Chi-square of places against equally many of each, in standard deviations."""
    counts = np.bincount(places, minlength=64)
    expected = counts.sum() / 64
    return float((((counts - expected) ** 2 / expected).sum() - 63) / np.sqrt(2 * 63))


def test_the_place_tells_how_far_numbers_are_apart_unless_places_are_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: the highest digit in which two numbers differ is the logarithm of how far they are apart."""
    near = np.full(4000, 1000, dtype=np.uint64)
    far = near + np.uint64(2**40)
    assert abs(spread(place(*compared(near, near + np.uint64(1))))) < 4 and abs(spread(place(*compared(near, far)))) < 4
    monkeypatch.setattr(np, "argsort", lambda words, **_: np.broadcast_to(np.arange(words.shape[1]), words.shape))
    assert set(place(*compared(near, far))) == {40}  # without, the referee knows it


def test_messages_look_alike_whatever_the_values_are() -> None:
    """Each silo's own codes: no byte is more frequent than another, and none comes twice, in rows or between them."""
    same, rng = np.full(500, 7, dtype=np.uint64), np.random.default_rng(3)
    mixed = rng.integers(0, 2**63, 500).astype(np.uint64)
    for codes in (*compared(same, same), *compared(mixed, mixed), level_codes(np.ones((500, 64), bool), KEY)):
        assert len(np.unique(codes)) == codes.size
        counts = np.bincount(np.frombuffer(codes.tobytes(), dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 4 * np.sqrt(2 * 255)


def made_up(answer: np.ndarray, seed: int) -> tuple[Words, Words]:
    """Both messages, from the answer alone: random codes, equal at one random place of rows that go together."""
    rng = np.random.default_rng(seed)
    low, high = (rng.integers(0, 2**64, (len(answer), 64), dtype=np.uint64) for _ in range(2))
    where = rng.integers(0, 64, len(answer))
    rows = answer.nonzero()[0]
    high[rows, where[rows]] = low[rows, where[rows]]
    return low, high


def test_messages_can_be_made_up_from_the_answer() -> None:
    """By what a referee can count: equal codes in a row, where, and how often codes come again anywhere."""
    rng = np.random.default_rng(4)
    low, high = (rng.integers(0, 2**20, 3000).astype(np.uint64) for _ in range(2))
    true, fake = compared(low, high), made_up(low < high, 5)
    for one in (true, fake):
        assert (go_together(*one) == (low < high)).all()
        assert abs(spread(place(*one)[low < high])) < 4
        assert len(np.unique(np.concatenate(one))) == 2 * 3000 * 64 - int((low < high).sum())


def test_a_key_that_is_used_twice_tells_which_digits_are_as_before() -> None:
    """Why it must not be: the referee sees it in one silo's two messages."""
    before, after = np.full(100, 1000, dtype=np.uint64), np.full(100, 1001, dtype=np.uint64)
    again = (order_codes(before, False, KEY) == order_codes(after, False, KEY)).sum(1)
    fresh = (order_codes(before, False, KEY) == order_codes(after, False, OTHER)).sum(1)
    assert (again > 50).all() and not fresh.any()


def test_a_referee_with_a_silo_s_key_reads_the_other_s_values() -> None:
    """The limit: who works together with the coordinator has the key. One digit after the other is tried."""
    secret = np.array([123_456_789], dtype=np.uint64)
    codes = order_codes(secret, True, KEY)
    found = 0
    for digit in reversed(range(64)):
        below = np.array([(found | (1 << digit)) - 1], dtype=np.uint64)
        if go_together(order_codes(below, False, KEY), codes)[0]:
            found |= 1 << digit
    assert found == secret[0]
