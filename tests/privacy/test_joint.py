"""Noise that two parties draw together: its law against slow ones, and that it is worth what it is charged as."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy import stats
from scipy.special import log_ndtr

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.privacy import joint
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import gaussian_table
from silosynth.privacy.joint import charged, draw, law, told_apart, weights

VARIANCES = (16, 17, 30, 55, 56, 150, 229, 230, 700, 842, 1900, 5001, 20_000)
ALL = [*VARIANCES, *range(18, 400, 7), *map(int, np.geomspace(400, 60_000, 40))]


@pytest.mark.parametrize("variance", [1, 3, *VARIANCES, 2**27])
def test_weights_have_the_variance_and_a_whole_middle(variance: int) -> None:
    of = weights(variance)
    assert sum(weight**2 for weight in of) == 4 * variance and sum(of) % 2 == 0
    assert len(of) <= joint.GROUPS * joint.GROUP + 9 * (1 + math.log2(max(of)))
    grouped = of[: joint.GROUP * joint.groups(len(of))]
    assert all(len(set(grouped[start : start + joint.GROUP])) == 1 for start in range(0, len(grouped), joint.GROUP))


@pytest.mark.parametrize("variance", [1, 2, 3, 4])
def test_the_law_is_that_of_all_bits_counted_one_by_one(variance: int) -> None:
    of = weights(variance)
    free = [place for place in range(len(of)) if place % 9 != 8 or place >= 9 * joint.groups(len(of))]
    found = np.zeros(sum(of) + 1)
    for bits in itertools.product((0, 1), repeat=len(free)):
        all_bits = dict(zip(free, bits, strict=True))
        for last in set(range(len(of))) - set(free):
            all_bits[last] = all_bits[last - 1] ^ all_bits[last - 2] ^ all_bits[last - 3]
        found[sum(of[place] * bit for place, bit in all_bits.items())] += 0.5 ** len(free)
    assert np.allclose(found, law(variance), rtol=0, atol=1e-15)


@pytest.mark.parametrize("variance", [30, 842, 5001])
def test_the_law_has_the_transform_of_its_parts(variance: int) -> None:
    of, theta = np.array(weights(variance)), np.linspace(0, np.pi, 200)
    grouped = joint.GROUP * joint.groups(len(of))
    parts = np.ones(len(theta))
    for start in range(0, grouped, joint.GROUP):
        parts *= np.cos(theta * of[start] / 2) ** 5 * (6 + 2 * np.cos(2 * theta * of[start])) / 8
    for weight in of[grouped:]:
        parts *= np.cos(theta * weight / 2)
    k = np.arange(len(law(variance))) - len(law(variance)) // 2
    assert np.allclose([(law(variance) * np.cos(one * k)).sum() for one in theta], parts, atol=1e-12)
    assert np.allclose(law(variance), law(variance)[::-1], rtol=1e-12, atol=0)


def noise(own: np.ndarray, others: np.ndarray, variance: int) -> np.ndarray:
    of = np.array(weights(variance))
    return (own ^ others).astype(np.int64) @ of - of.sum() // 2


def refuted(found: np.ndarray, variance: int) -> float:
    """The probability of so large a chi-square, in cells of about as many draws."""
    half = len(law(variance)) // 2
    edges = np.unique(np.searchsorted(np.cumsum(law(variance)), np.arange(1, 40) / 40))
    expected = np.add.reduceat(law(variance), np.append(0, edges + 1)) * len(found)
    counts = np.bincount(np.searchsorted(edges, found + half), minlength=len(edges) + 1)
    return float(stats.chisquare(counts, expected).pvalue)


@pytest.mark.parametrize("variance", [16, 56, 842])
def test_whatever_one_party_has_drawn_the_others_bits_make_noise_of_the_law(variance: int) -> None:
    count, cells = len(weights(variance)), 20_000
    others = draw(cells, count, Streams(1).noise())
    owns = [draw(1, count, Streams(2).noise())[0], draw(cells, count, Streams(3).noise())]
    for own in (np.zeros(count, np.uint8), *owns):
        assert refuted(noise(own, others, variance), variance) > 1e-4
    assert refuted(noise(owns[1], others, variance) // 2, variance) < 1e-10  # the check can fail
    own_part = owns[1].astype(np.int64) @ np.array(weights(variance))
    assert abs(np.corrcoef(own_part, noise(owns[1], others, variance))[0, 1]) < 5 / math.sqrt(cells)


@pytest.mark.parametrize("variance", [60, 200, 842, 5001, 20_000])
def test_a_party_whose_groups_break_the_rule_leaves_nine_tenths_of_the_deviation(variance: int) -> None:
    of, chances = weights(variance), np.ones(1)
    grouped = joint.GROUP * joint.groups(len(of))
    for place, weight in enumerate(of):
        inside = place % joint.GROUP if place < grouped else 0
        if inside < joint.GROUP - 1 - joint.PARITY:
            chances = np.convolve(chances, [0.5, *[0.0] * (weight - 1), 0.5])
        elif inside == joint.GROUP - 1:  # one or three of four are set, and never none, two or all
            gap = [0.0] * (weight - 1)
            chances = np.convolve(chances, [0.0, *gap, 0.5, *gap, 0.0, *gap, 0.5])
    ends = np.nonzero(chances)[0]
    chances = chances[ends[0] : ends[-1] + 1]
    deviation, slip = math.sqrt(variance), joint.SLIP * 1e-5
    assert joint._dominated(chances, 0.9 * deviation, slip)
    assert not joint._dominated(chances, 0.95 * deviation, slip)


def test_half_of_the_bits_and_bits_without_their_exclusive_or_are_other_laws() -> None:
    count = len(weights(842))
    own, others = (draw(40_000, count, Streams(seed).noise()) for seed in (4, 5))
    assert refuted(noise(own, others, 842), 842) > 1e-4
    half = others * (np.arange(count) % 2).astype(np.uint8)
    assert refuted(noise(own * (np.arange(count) % 2).astype(np.uint8), half, 842), 842) < 1e-10
    assert np.array_equal(others[:, 8], others[:, 5] ^ others[:, 6] ^ others[:, 7])


def gaussian(deviation: float, epsilon: np.ndarray) -> np.ndarray:
    """What tells neighbours apart under continuous noise, at thresholds of exp(epsilon)."""
    mu = 1 / deviation
    return np.exp(log_ndtr(mu / 2 - epsilon / mu)) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_no_threshold_tells_neighbours_apart_better_than_what_is_charged(delta: float) -> None:
    """One by one, in both directions, against discrete noise and against what a filter takes it for."""
    for variance in VARIANCES:
        deviation, slip = charged(variance, delta)
        assert deviation < math.sqrt(variance) and slip == 1e-6 * delta
        half = len(law(variance)) // 2
        k = np.arange(-half - math.ceil(9 * deviation), half + math.ceil(9 * deviation) + 1)
        discrete = np.exp(-((k / deviation) ** 2) / 2)
        discrete /= discrete.sum()
        epsilon = np.linspace(-9, 9, 400) / deviation
        for chances in (law(variance), law(variance)[::-1]):
            here, there = np.append(chances, 0), np.append(0, chances)
            left = np.array([np.maximum(here - math.exp(one) * there, 0).sum() for one in epsilon])
            shifted = np.append(0, discrete[:-1])
            right = np.array([np.maximum(discrete - math.exp(one) * shifted, 0).sum() for one in epsilon])
            assert (left <= (1 - slip) * right + slip + 1e-15).all()
            wider = gaussian(deviation / (1 + 1 / (23 * deviation**2)), epsilon)
            assert (left <= (1 - slip) * wider + slip + 1e-15).all()
            assert np.allclose(told_apart(chances, np.exp(epsilon)), left, atol=1e-12)


def test_little_more_is_charged_than_the_variance_is_worth() -> None:
    for variance in ALL:
        deviation, _ = charged(variance, 1e-5)
        least = 0.98 if variance > 200 else 0.97 if variance > 40 else 0.9
        assert deviation >= least * math.sqrt(variance), variance


def test_a_training_costs_no_more_than_is_stated_and_hardly_less() -> None:
    """The exact law of forty tables' noise, composed, beside their events."""
    deviation, slip = charged(842, 1e-5)
    event = gaussian_table("", deviation)
    stated = spent([event] * 40, 1e-5 - 40 * slip).epsilon
    half = len(law(842)) // 2
    first = {int(k): math.log(chance) for k, chance in zip(range(-half, half + 1), law(842), strict=True)}
    second = {k + 1: chance for k, chance in first.items()}
    one = losses.from_two_probability_mass_functions(first, second, value_discretization_interval=2e-5)
    exact = one.self_compose(40).get_epsilon_for_delta(1e-5)
    assert 0.97 * stated < exact <= stated


def test_it_would_be_refused_as_more_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for variance in (30, 842):
        deviation, slip = charged(variance, 1e-5)
        assert not joint._dominated(law(variance), deviation + 0.002 * math.sqrt(variance), slip)
        assert not joint._dominated(law(variance // 2), deviation, slip)
        binomial = stats.binom.pmf(np.arange(4 * variance // 16 + 1), 4 * variance // 16, 0.5)
        gaps = np.zeros(4 * (len(binomial) - 1) + 1)
        gaps[::4] = binomial  # of weight 4, of the same variance, without what fills the gaps
        assert not joint._dominated(gaps, deviation / 2, slip)
    with pytest.raises(ConfigError, match="a variance that its delta allows"):
        charged(2, 1e-5)
    with pytest.raises(ConfigError, match="at least 1"):
        weights(0)
