from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.streams import Streams, keyed

paths = st.lists(st.text(alphabet=st.sampled_from("ab\x1e\x1f01"), max_size=3), max_size=4).map(tuple)


def test_the_same_path_gives_the_same_numbers() -> None:
    one, two = Streams(7).child("party", "bank", 3), Streams(7).child("party").child("bank").child("3")
    assert one == two
    assert one.integer() == two.integer()
    assert torch.equal(torch.randn(5, generator=one.torch()), torch.randn(5, generator=two.torch()))
    assert np.array_equal(one.numpy().normal(size=5), two.numpy().normal(size=5))


@pytest.mark.live
def test_numbers_are_the_same_in_every_process_and_version() -> None:
    """Changing them changes every published table."""
    assert Streams(7).child("a", "b").integer() == 5521140739405985863
    code = "from silosynth.core.streams import Streams; print(Streams(7).child('a', 'b').integer())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 5521140739405985863


@settings(max_examples=200)
@given(paths, paths, st.integers(0, 3), st.integers(0, 3))
def test_different_paths_are_different_streams(a: tuple[str, ...], b: tuple[str, ...], seed: int, other: int) -> None:
    same = (seed, a) == (other, b)
    assert (Streams(seed, a).integer() == Streams(other, b).integer()) == same


@pytest.mark.parametrize(
    ("a", "b"),
    [(("a\x1f", "b"), ("a", "\x1fb")), (("a", "", "b"), ("a\x1fb",)), (("1", "1"), ("11",)), ((), ("",))],
)
def test_paths_that_look_alike_are_told_apart(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert Streams(1, a).integer() != Streams(1, b).integer()


def test_noise_depends_on_all_128_bits_of_its_key() -> None:
    assert np.array_equal(Streams(7).child("a").noise().normal(size=5), Streams(7).child("a").noise().normal(size=5))
    keys = [bytes(16), *((1 << bit).to_bytes(16, "big") for bit in range(128))]
    assert len({float(keyed(key).random()) for key in keys}) == 129
    assert keyed(keys[1] + b"what follows").random() == keyed(keys[1]).random()


@settings(max_examples=50)
@given(paths, paths, st.integers(0, 2**128), st.integers(0, 2**128))
def test_noise_of_different_paths_and_seeds_is_different(
    a: tuple[str, ...], b: tuple[str, ...], seed: int, other: int
) -> None:
    same = (seed, a) == (other, b)
    assert (Streams(seed, a).noise().random() == Streams(other, b).noise().random()) == same


def test_neighbouring_streams_do_not_correlate() -> None:
    draws = torch.stack([torch.randn(4000, generator=Streams(7).child("round", t).torch()) for t in range(20)])
    correlations = torch.corrcoef(draws) - torch.eye(20)
    assert correlations.abs().max() < 5 / 4000**0.5


def test_global_randomness_is_neither_read_nor_set() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    stream = Streams(3).child("x")
    stream.torch(), stream.numpy().normal(), stream.noise().normal()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert 0 <= stream.integer() < 2**63


def test_the_stream_of_a_silo_is_named_in_one_place() -> None:
    assert Streams(7).party("bank") == Streams(7).child("party", "bank")
