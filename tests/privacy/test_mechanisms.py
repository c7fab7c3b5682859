"""The noise has the distribution that its event's epsilon implies. Seeds are fixed, so no test fails by chance."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from tests.oracles.discrete_gaussian import draw as gaussian_oracle, law as gaussian_law
from tests.oracles.discrete_laplace import draw as oracle

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.streams import Keystream, Streams
from silosynth.privacy.events import DISCRETE_LAPLACE, THRESHOLDED, Event
from silosynth.privacy.mechanisms import (
    LEAST_VARIANCE,
    MOST_VARIANCE,
    discrete_gaussian,
    discrete_laplace,
    noised_counts,
    noised_histogram,
    noised_levels,
    part_noise,
    threshold,
)

EPSILONS = (0.05, 0.3, 1.0, 2.5)
epsilons = st.floats(1e-3, 20)


def rng(seed: int = 7) -> Keystream:
    return Streams(seed).noise()


def law(epsilon: float, k: np.ndarray) -> np.ndarray:
    q = math.exp(-epsilon)
    return (1 - q) / (1 + q) * q ** np.abs(k)


def tail(epsilon: float, t: int) -> float:
    """P(Z >= t), summed term by term."""
    k = np.arange(t, t + int(60 / epsilon) + 60)
    return float(law(epsilon, k).sum())


class TestGaussian:
    @pytest.mark.parametrize("variance", [1, 3, 8, 50])
    def test_it_has_its_law(self, variance: int) -> None:
        size, reach = 60_000, int(3.5 * math.sqrt(variance))
        drawn, k = discrete_gaussian(variance, size, rng(8)), np.arange(-reach, reach + 1)
        counts = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=len(k) + 2)
        inner = gaussian_law(variance, k)
        expected = size * np.array([(1 - inner.sum()) / 2, *inner, (1 - inner.sum()) / 2])
        kept = expected > 5
        assert stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue > 0.01

    def test_many_draws_at_once_are_as_those_of_the_paper_one_by_one(self) -> None:
        draw, size = random.Random(5), 1500
        slow = np.array([gaussian_oracle(Fraction(8), draw.randrange) for _ in range(size)])
        ends = np.arange(-6, 7)
        tables = [
            np.bincount(np.searchsorted(ends, of), minlength=14) for of in (slow, discrete_gaussian(8, size, rng()))
        ]
        assert stats.chi2_contingency(np.array(tables)).pvalue > 0.01

    @pytest.mark.parametrize("variance", [0.5, 1.0, 2.0])
    def test_two_draws_are_next_to_one_of_twice_the_variance(self, variance: float) -> None:
        """The bound of Kairouz, Liu and Steinke, which is not far off; nothing is left of it at `LEAST_VARIANCE`."""
        k = np.arange(-60, 61)
        both = np.convolve(gaussian_law(variance, k), gaussian_law(variance, k), "same")
        near = np.abs(k) < 12 * math.sqrt(variance)
        ratio = np.abs(np.log(both[near] / gaussian_law(2 * variance, k)[near])).max()
        assert 0 < ratio <= 10 * math.exp(-(math.pi**2) * variance)
        assert 10 * math.exp(-(math.pi**2) * LEAST_VARIANCE) < 1e-33

    def test_the_largest_stays_within_64_bits(self) -> None:
        drawn = discrete_gaussian(MOST_VARIANCE, 2000, rng())
        assert drawn.std() == pytest.approx(math.sqrt(MOST_VARIANCE), rel=0.05)
        for wrong in (0, -1, MOST_VARIANCE + 1):
            with pytest.raises(ConfigError, match="variance"):
                discrete_gaussian(wrong, 1, rng())

    def test_it_is_drawn_with_whole_numbers_alone(self) -> None:
        class WholeOnly(Keystream):
            def uniforms(self, *shape: int) -> np.ndarray:
                raise AssertionError("a float was drawn")

            normals = uniforms

        assert len(set(discrete_gaussian(50, 50, WholeOnly(bytes(32))).tolist())) > 5


class TestCounts:
    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_the_noise_has_the_law_that_its_epsilon_states(self, epsilon: float) -> None:
        size = 100_000
        noised, event = noised_counts(torch.full((size,), 1000), epsilon, "counts", rng())
        assert event == Event(DISCRETE_LAPLACE, epsilon, 0.0, "counts")
        reach = int(math.log(size / 100) / epsilon)  # cells with enough expected draws
        k = np.arange(-reach, reach + 1)
        drawn = (noised - 1000).numpy()
        seen = np.array([np.sum(drawn < -reach), *(np.sum(drawn == i) for i in k), np.sum(drawn > reach)])
        expected = size * np.array([tail(epsilon, reach + 1), *law(epsilon, k), tail(epsilon, reach + 1)])
        kept = expected > 5
        assert stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue > 0.01

    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_two_halves_have_the_law_of_the_whole_and_one_has_half_its_variance(self, epsilon: float) -> None:
        size, draw = 100_000, rng()
        halves = [part_noise(epsilon, 2, (size,), draw).numpy() for _ in range(2)]
        reach = int(math.log(size / 100) / epsilon)
        k, drawn = np.arange(-reach, reach + 1), halves[0] + halves[1]
        counts = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=len(k) + 2)
        expected = size * np.array([tail(epsilon, reach + 1), *law(epsilon, k), tail(epsilon, reach + 1)])
        kept = expected > 5
        assert stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue > 0.01
        q = math.exp(-epsilon)
        assert halves[0].var() == pytest.approx(q / (1 - q) ** 2, rel=0.05)
        for wrong in (0.0, math.inf):
            with pytest.raises(ConfigError):
                part_noise(wrong, 2, (1,), draw)

    @pytest.mark.parametrize("parts", [1, 3, 7])
    def test_so_many_parts_have_the_law_of_the_whole(self, parts: int) -> None:
        size, draw, k = 20_000, rng(), np.arange(-5, 6)
        drawn = sum(part_noise(0.8, parts, (size,), draw).numpy() for _ in range(parts))
        counts = np.bincount(np.clip(drawn, -6, 6) + 6, minlength=13)
        expected = size * np.array([tail(0.8, 6), *law(0.8, k), tail(0.8, 6)])
        assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 0.01
        with pytest.raises(ConfigError, match="finite epsilon"):
            part_noise(0.8, 0, (1,), draw)

    @pytest.mark.parametrize("epsilon", [Fraction(1, 4), Fraction(2), Fraction(5, 8)])
    def test_many_draws_at_once_are_as_those_of_the_paper_one_by_one(self, epsilon: Fraction) -> None:
        draw, size = random.Random(5), 3000
        slow = np.array([oracle(epsilon.numerator, epsilon.denominator, draw.randrange) for _ in range(size)])
        fast = discrete_laplace(float(epsilon), size, rng())
        ends = np.arange(-6, 7)
        tables = [np.bincount(np.searchsorted(ends, drawn), minlength=len(ends) + 1) for drawn in (slow, fast)]
        both = np.array(tables)[:, np.sum(tables, axis=0) > 10]
        assert stats.chi2_contingency(both).pvalue > 0.01

    def test_noise_is_drawn_with_whole_numbers_alone(self) -> None:
        """Floats would give some values a probability of zero that the law does not."""

        class WholeOnly(Keystream):
            def uniforms(self, *shape: int) -> np.ndarray:
                raise AssertionError("a float was drawn")

            normals = uniforms

        noised, _ = noised_counts(torch.arange(50), 0.3, "", WholeOnly(bytes(32)))
        assert len(set((noised - torch.arange(50)).tolist())) > 5

    def test_a_law_of_another_epsilon_fails_the_same_test(self) -> None:
        size, k = 200_000, np.arange(-5, 6)
        noised, _ = noised_counts(torch.zeros(size, dtype=torch.int64), 1.0, "counts", rng())
        seen = np.array([int((noised == i).sum()) for i in k])
        expected = law(1.02, k)
        assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue < 1e-3

    @pytest.mark.parametrize("epsilon", [0.3, 1.0])
    def test_neighbours_are_as_likely_but_for_a_factor_of_exp_epsilon(self, epsilon: float) -> None:
        size = 100_000
        one, _ = noised_counts(torch.full((size,), 10), epsilon, "", rng(1))
        more, _ = noised_counts(torch.full((size,), 11), epsilon, "", rng(2))
        for out in range(8, 14):
            few, many = sorted((int((one == out).sum()), int((more == out).sum())))
            assert abs(math.log(many / few) - epsilon) < 5 * math.sqrt(1 / few + 1 / many)  # the factor, and no more

    def test_whole_numbers_of_the_same_shape_and_the_input_is_left_alone(self) -> None:
        counts = torch.tensor([[3, 0], [10, 2]])
        noised, _ = noised_counts(counts, 0.5, "a cross table", rng())
        assert noised.dtype == torch.int64
        assert noised.shape == counts.shape
        assert counts.tolist() == [[3, 0], [10, 2]]
        assert not torch.equal(noised, counts)

    def test_the_same_generator_gives_the_same_noise(self) -> None:
        counts = torch.arange(50)
        first, _ = noised_counts(counts, 0.5, "", rng(3))
        again, _ = noised_counts(counts, 0.5, "", rng(3))
        assert torch.equal(first, again)
        assert not torch.equal(first, noised_counts(counts, 0.5, "", rng(4))[0])

    def test_an_infinite_epsilon_is_no_noise_and_no_event(self) -> None:
        counts = torch.tensor([3, 0, 10])
        noised, event = noised_counts(counts, math.inf, "", rng())
        assert event is None
        assert torch.equal(noised, counts)
        assert noised is not counts

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, -math.inf])
    def test_other_epsilons_are_refused(self, epsilon: float) -> None:
        with pytest.raises(ConfigError, match="Epsilon is at least"):
            noised_counts(torch.tensor([1]), epsilon, "", rng())

    def test_the_least_epsilon_stays_within_64_bits(self) -> None:
        noised, _ = noised_counts(torch.zeros(10_000, dtype=torch.int64), 1e-9, "", rng())
        assert noised.abs().max() < 2**50

    def test_counts_are_whole_numbers(self) -> None:
        with pytest.raises(DataError, match="whole numbers"):
            noised_counts(torch.tensor([1.0]), 1.0, "", rng())


class TestLevels:
    @given(epsilons, st.floats(1e-12, 0.49))
    def test_the_threshold_is_the_least_that_keeps_delta(self, epsilon: float, delta: float) -> None:
        """Against the tail q ** t / (1 + q) in integer arithmetic."""
        q, least = Fraction(math.exp(-epsilon)), threshold(epsilon, delta)
        allowed = Fraction(delta) * (1 + q)
        slack = 1 + Fraction(least, 10**12)  # exp(-epsilon * t) and q ** t round differently
        assert q ** (least - 1) <= allowed * slack
        assert least == 1 or q ** (least - 2) > allowed / slack

    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_the_closed_form_of_the_tail(self, epsilon: float) -> None:
        for t in (0, 1, 2, 7):
            assert tail(epsilon, t) == pytest.approx(math.exp(-epsilon * t) / (1 + math.exp(-epsilon)), rel=1e-9)

    def test_the_threshold_of_continuous_noise_would_be_too_low(self) -> None:
        epsilon, delta = 1.0, 0.5 * math.exp(-3)  # ln(1 / (2 delta)) / epsilon is 3: T = 4
        assert tail(epsilon, 3) > delta
        assert threshold(epsilon, delta) == 5

    @pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (0.3, 0.05), (2.5, 0.2)])
    def test_a_level_of_one_row_is_released_with_probability_delta_at_most(self, epsilon: float, delta: float) -> None:
        size = 100_000
        names = tuple(f"{i:06}" for i in range(size))
        shown, _, _ = noised_levels(names, torch.ones(size, dtype=torch.int64), epsilon, delta, "", rng())
        exact = tail(epsilon, threshold(epsilon, delta) - 1)
        assert exact <= delta
        assert abs(len(shown) / size - exact) < 4 * math.sqrt(exact / size)

    def test_common_levels_come_out_sorted_with_their_noised_counts(self) -> None:
        levels, counts = ("miner", "baker", "spy", "ghost"), torch.tensor([5000, 800, 1, 0])
        shown, noised, event = noised_levels(levels, counts, 1.0, 1e-6, "levels of column 'job'", rng())
        assert shown == ("baker", "miner")
        assert (noised - torch.tensor([800, 5000])).abs().max() < 30
        assert event == Event(THRESHOLDED, 1.0, 1e-6, "levels of column 'job'")

    @given(st.permutations(["a", "b", "c", "d"]))
    def test_the_order_of_levels_does_not_come_out(self, levels: list[str]) -> None:
        counts = torch.tensor([1000 * (1 + ord(name) - ord("a")) for name in levels])
        shown, noised, _ = noised_levels(tuple(levels), counts, 1.0, 1e-6, "", rng())
        assert shown == ("a", "b", "c", "d")
        assert noised.tolist() == sorted(noised.tolist())

    def test_levels_that_no_row_holds_are_never_released(self) -> None:
        names = tuple(str(i) for i in range(1000))
        shown, noised, _ = noised_levels(names, torch.zeros(1000, dtype=torch.int64), 0.1, 0.4, "", rng())
        assert shown == ()
        assert noised.shape == (0,)
        assert noised.dtype == torch.int64

    def test_an_infinite_epsilon_releases_all_levels_that_occur(self) -> None:
        shown, counts, event = noised_levels(("b", "a", "c"), torch.tensor([1, 2, 0]), math.inf, 0.0, "", rng())
        assert (shown, counts.tolist(), event) == (("a", "b"), [2, 1], None)

    @pytest.mark.parametrize("delta", [0.0, 0.5, 1.0, -0.1, math.nan])
    def test_other_deltas_are_refused(self, delta: float) -> None:
        with pytest.raises(ConfigError, match="delta"):
            noised_levels(("a",), torch.tensor([1]), 1.0, delta, "", rng())

    def test_every_level_has_one_count(self) -> None:
        with pytest.raises(DataError, match="one count"):
            noised_levels(("a", "a"), torch.tensor([1, 2]), 1.0, 1e-6, "", rng())
        with pytest.raises(DataError, match="one count"):
            noised_levels(("a", "b"), torch.tensor([1]), 1.0, 1e-6, "", rng())


class TestHistogram:
    @settings(max_examples=50)
    @given(st.lists(st.floats(-100, 100), max_size=40), st.floats(-50, 0), st.floats(1e-3, 50), st.integers(1, 9))
    def test_every_value_stands_in_one_bin(self, values: list[float], low: float, width: float, bins: int) -> None:
        numbers = torch.tensor(values, dtype=torch.float64)
        counts, _ = noised_histogram(numbers, low, low + width, bins, math.inf, "", rng())
        assert counts.shape == (bins,)
        assert int(counts.sum()) == len(values)

    def test_bins_are_those_of_numpy_and_values_outside_are_in_the_ends(self) -> None:
        values = torch.tensor([-5.0, 0.0, 0.5, 2.4, 2.5, 9.9, 10.0, 77.0, math.inf])
        counts, _ = noised_histogram(values, 0.0, 10.0, 4, math.inf, "", rng())
        expected, _ = np.histogram(values.clamp(0, 10).numpy(), 4, (0.0, 10.0))
        assert counts.tolist() == expected.tolist() == [4, 1, 0, 4]

    def test_one_event_for_all_bins(self) -> None:
        counts, event = noised_histogram(torch.rand(500), 0.0, 1.0, 20, 0.5, "a histogram of 'pay'", rng())
        assert event == Event(DISCRETE_LAPLACE, 0.5, 0.0, "a histogram of 'pay'")
        assert counts.dtype == torch.int64
        assert abs(int(counts.sum()) - 500) < 100

    @pytest.mark.parametrize(
        ("low", "high", "bins"), [(1.0, 1.0, 4), (2.0, 1.0, 4), (0.0, math.inf, 4), (math.nan, 1.0, 4), (0.0, 1.0, 0)]
    )
    def test_bounds_and_bins_are_checked(self, low: float, high: float, bins: int) -> None:
        with pytest.raises(ConfigError, match="two finite bounds"):
            noised_histogram(torch.rand(3), low, high, bins, 1.0, "", rng())

    def test_missing_values_are_refused(self) -> None:
        with pytest.raises(DataError, match="Leave missing values out"):
            noised_histogram(torch.tensor([1.0, math.nan]), 0.0, 2.0, 4, 1.0, "", rng())
