from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.oracles import aggregation as slow

from silosynth.core.errors import ProtocolError
from silosynth.privacy import masks

SEED = bytes(range(32))
numbers = st.floats(-(2**20), 2**20, width=32)


class TestFixedPoint:
    @settings(max_examples=100)
    @given(st.lists(numbers, min_size=1, max_size=9), st.floats(1e-3, 1.0))
    def test_it_is_the_nearest_whole_number(self, update: list[float], weight: float) -> None:
        words = masks.to_words(torch.tensor(update), weight, "bank")
        expected = [slow.fixed(x * weight) for x in update] + [slow.fixed(weight)]
        assert words.view(np.int64).tolist() == expected
        off = masks.to_numbers(words, 1)[:-1] - torch.tensor(update).double() * weight
        assert off.abs().max() <= 2.0**-30

    def test_the_most_silos_with_the_largest_numbers_do_not_wrap(self) -> None:
        largest = masks.to_words(torch.tensor([2.0**20, -(2.0**20)]), 1.0, "bank")
        total = largest * np.uint64(10_000)
        assert masks.to_numbers(total, 10_000).tolist() == [10_000 * 2.0**20, -10_000 * 2.0**20, 10_000.0]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2.0**20 + 1, -(2.0**20) - 1])
    @pytest.mark.parametrize("place", [0, 2])
    def test_what_does_not_fit_is_refused_and_not_shown(self, bad: float, place: int) -> None:
        update = torch.zeros(3)
        update[place] = bad
        with pytest.raises(ProtocolError, match="Silo 'bank' masks finite numbers within") as caught:
            masks.to_words(update, 1.0, "bank")
        assert caught.value.value == "one that is not" and caught.value.remedy

    def test_the_weight_counts(self) -> None:
        with pytest.raises(ProtocolError, match="within ±1048576"):
            masks.to_words(torch.tensor([2.0**19]), 2.5, "bank")

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 2.0**21])
    def test_weights(self, weight: float) -> None:
        with pytest.raises(ProtocolError, match="a weight above 0"):
            masks.to_words(torch.zeros(3), weight, "bank")

    @pytest.mark.parametrize("update", [torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64)])
    def test_only_vectors(self, update: torch.Tensor) -> None:
        with pytest.raises(ProtocolError, match="a vector of numbers"):
            masks.to_words(update, 1.0, "bank")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_precisions(self, dtype: torch.dtype) -> None:
        words = masks.to_words(torch.tensor([0.5, -3.0], dtype=dtype, requires_grad=True), 2.0, "bank")
        assert masks.to_numbers(words, 1).tolist() == [1.0, -6.0, 2.0]

    def test_masks_that_are_left_are_noticed(self) -> None:
        words = masks.to_words(torch.zeros(50), 1.0, "bank")
        masks.add_mask(words, SEED, 1)
        with pytest.raises(ProtocolError, match="Without masks a sum over 4 silos"):
            masks.to_numbers(words, 4)
        with pytest.raises(ProtocolError):  # the one number whose absolute value is no int64
            masks.to_numbers(np.array([2**63], dtype=np.uint64), 10_000)


class TestMasks:
    @pytest.mark.parametrize("words", [0, 1, 8, 9, 100])
    def test_they_are_the_keystream(self, words: int) -> None:
        made = np.zeros(words, dtype=np.uint64)
        masks.add_mask(made, SEED, 1)
        assert made.tolist() == slow.keystream(SEED, words)

    def test_parts_of_a_long_one_join(self) -> None:
        long, one = np.zeros(masks._STEP + 9, dtype=np.uint64), np.zeros(masks._STEP, dtype=np.uint64)
        masks.add_mask(long, SEED, 1)
        masks.add_mask(one, SEED, 1)
        assert np.array_equal(long[: masks._STEP], one) and len(set(long.tolist())) == len(long)

    def test_what_was_added_is_subtracted(self) -> None:
        words = masks.to_words(torch.linspace(-3, 3, 7), 1.5, "bank")
        before = words.copy()
        masks.add_mask(words, SEED, 1)
        assert (words != before).all()
        masks.add_mask(words, SEED, -1)
        assert np.array_equal(words, before)

    @settings(max_examples=10)
    @given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=40))
    def test_both_sides_of_a_pair_have_one_seed(self, one: bytes, other: bytes, about: bytes) -> None:
        here = masks.pair_seed(one, masks.public_key(other), about)
        assert here == masks.pair_seed(other, masks.public_key(one), about)
        assert here == slow.pair_seed(one, masks.public_key(other), about)
        assert here != masks.pair_seed(one, masks.public_key(other), about + b"!")

    @pytest.mark.parametrize("key", [bytes(32), bytes(31), b"\1" + bytes(31)])
    def test_keys_that_everybody_knows_the_result_of(self, key: bytes) -> None:
        with pytest.raises(ProtocolError, match="not of low order"):
            masks.pair_seed(SEED, key, b"")
