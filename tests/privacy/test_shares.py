from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings, strategies as st
from tests.oracles import aggregation as slow

from silosynth.core.errors import ProtocolError
from silosynth.privacy import masks as shares

SECRET = bytes(range(32))


def test_the_prime_is_one() -> None:
    """Miller and Rabin, forty bases: a composite passes with a probability below 2⁻⁸⁰."""
    odd, twos = shares.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        powers = [pow(base, odd << i, shares.PRIME) for i in range(twos)]
        assert powers[0] == 1 or shares.PRIME - 1 in powers


@settings(max_examples=60)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.data())
def test_any_threshold_of_shares_restores_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    made = shares.split(secret, count, threshold)
    assert [len(share) for share in made] == [shares.SHARE] * count
    places = data.draw(st.lists(st.integers(1, count), unique=True, min_size=threshold))
    chosen = {place: made[place - 1] for place in places}
    assert shares.join(chosen, shares.weights(places)) == slow.joined(chosen) == secret


def test_one_share_too_few_gives_another_secret() -> None:
    made = shares.split(SECRET, 5, 3)
    for places in itertools.combinations(range(1, 6), 2):
        chosen = {place: made[place - 1] for place in places}
        with contextlib.suppress(ProtocolError):  # what comes out may have more than 32 bytes
            assert shares.join(chosen, shares.weights(list(places))) != SECRET


def test_the_greatest_secret() -> None:
    made = shares.split(b"\xff" * 32, 3, 2)
    assert shares.join({1: made[0], 3: made[2]}, shares.weights([1, 3])) == b"\xff" * 32


def test_shares_look_random() -> None:
    """Splitting the same secret twice gives different shares; all of them are below the prime."""
    first, second = (shares.split(SECRET, 4, 2) for _ in range(2))
    assert not set(first) & set(second) and SECRET not in {share[1:] for share in first}
    assert all(int.from_bytes(share, "big") < shares.PRIME for share in first)


def test_shares_that_join_to_no_secret_are_refused() -> None:
    with pytest.raises(ProtocolError, match="of one secret"):
        shares.join({1: (shares.PRIME - 1).to_bytes(33, "big")}, {1: 1})
