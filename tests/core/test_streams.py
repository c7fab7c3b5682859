from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings, strategies as st
from scipy import stats

from silosynth.core.streams import Chain, Digest, Keystream, Streams, integers, keyed, normals, uniforms

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


def test_picks_depend_on_all_128_bits_of_their_key() -> None:
    assert np.array_equal(Streams(7).child("a").picks().random(5), Streams(7).child("a").picks().random(5))
    keys = [bytes(16), *((1 << bit).to_bytes(16, "big") for bit in range(128))]
    assert len({float(keyed(key).random()) for key in keys}) == 129
    assert keyed(keys[1] + b"what follows").random() == keyed(keys[1]).random()


@settings(max_examples=50)
@given(paths, paths, st.integers(0, 2**128), st.integers(0, 2**128))
def test_noise_of_different_paths_and_seeds_is_different(
    a: tuple[str, ...], b: tuple[str, ...], seed: int, other: int
) -> None:
    same = (seed, a) == (other, b)
    assert np.array_equal(Streams(seed, a).noise().words(2), Streams(other, b).noise().words(2)) == same


class TestKeystream:
    def test_words_are_those_of_chacha20(self) -> None:
        """RFC 8439, appendix A.1, test vector 1."""
        words = Keystream(bytes(32)).words(2)
        assert words.tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"

    def test_numbers_depend_on_all_256_bits_of_the_key(self) -> None:
        keys = [bytes(32), *((1 << bit).to_bytes(32, "big") for bit in range(256))]
        assert len({int(Keystream(key).words(1)[0]) for key in keys}) == 257

    def test_a_stream_goes_on_where_it_was(self) -> None:
        whole, parts = Keystream(bytes(32)), Keystream(bytes(32))
        assert whole.words(7).tolist() == [*parts.words(3).tolist(), *parts.words(4).tolist()]

    @pytest.mark.parametrize("bound", [1, 2, 3, 7 * 2**50, 2**63 - 1])
    def test_numbers_below_a_bound_are_uniform(self, bound: int) -> None:
        drawn = Streams(1).noise().below(np.full(9000, bound))
        assert drawn.dtype == np.int64 and drawn.min() >= 0 and drawn.max() < bound
        parts = np.bincount((drawn.astype(object) * 3 // bound).astype(int), minlength=3) if bound > 2 else None
        assert parts is None or stats.chisquare(parts).pvalue > 0.01

    def test_what_does_not_fit_a_bound_evenly_is_drawn_again(self) -> None:
        """Words above the last whole multiple of 2⁶³ − 1 (those from 2⁶⁴ − 2 on) would favour 0 and 1."""

        given = [[2**64 - 1, 5], [2**64 - 2], [9]]

        class Scripted(Keystream):
            def words(self, count: int) -> np.ndarray:
                return np.array(given.pop(0), dtype=np.uint64)

        assert Scripted(bytes(32)).below(np.full(2, 2**63 - 1)).tolist() == [9, 5]

    def test_normals_are_normal(self) -> None:
        drawn = Streams(2).noise().normals(3, 6667)
        assert drawn.shape == (3, 6667) and drawn.dtype == np.float64
        assert stats.kstest(drawn.ravel(), "norm").pvalue > 0.01
        assert abs(np.corrcoef(drawn.ravel()[::2][:10000], drawn.ravel()[1::2])[0, 1]) < 0.04
        assert Streams(2).noise().normals(0).shape == (0,) and Streams(2).noise().normals().shape == ()

    def test_tensors_have_the_usual_dtypes(self) -> None:
        draw = Streams(3).noise()
        assert (normals(draw, 2, 3).dtype, normals(draw, 2, 3).shape) == (torch.float32, (2, 3))
        assert uniforms(draw, 5).dtype == torch.float32 and integers(draw, 4, 5).dtype == torch.int64

    def test_rounding_to_32_bits_does_not_reach_one(self) -> None:
        class Highest(Keystream):
            def words(self, count: int) -> np.ndarray:
                return np.full(count, 2**64 - 1, dtype=np.uint64)

        assert float(uniforms(Highest(bytes(32)), 1)) < 1.0
        assert np.isfinite(Highest(bytes(32)).normals(2)).all()


def test_neighbouring_streams_do_not_correlate() -> None:
    draws = torch.stack([torch.randn(4000, generator=Streams(7).child("round", t).torch()) for t in range(20)])
    correlations = torch.corrcoef(draws) - torch.eye(20)
    assert correlations.abs().max() < 5 / 4000**0.5


def test_global_randomness_is_neither_read_nor_set() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    stream = Streams(3).child("x")
    stream.torch(), stream.numpy().normal(), stream.noise().normals(3), stream.picks().random()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert 0 <= stream.integer() < 2**63


def test_the_stream_of_a_silo_is_named_in_one_place() -> None:
    assert Streams(7).party("bank") == Streams(7).child("party", "bank")


@pytest.mark.parametrize("asks", [0, 1, 63, 64, 65, 200])
def test_a_chain_is_that_of_each_ask_hashed_at_once(asks: int) -> None:
    chain, again, wanted = Chain(b"job"), Chain(b"job"), b"job"
    for number in range(asks):
        asked = number.to_bytes(4, "big")
        chain.add(Digest(asked))
        again.add(Digest(asked))
        wanted = blake3(wanted + blake3(asked).digest()).digest()
        if number % 7 == 0:
            assert again.value == wanted
    assert chain.value == again.value == wanted
