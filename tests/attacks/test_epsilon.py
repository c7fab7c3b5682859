"""Lower bounds on epsilon: against closed forms, and never above what a mechanism truly keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from silosynth.attacks import canaries
from silosynth.attacks.canaries import Claim
from silosynth.attacks.generators import Catalogued
from silosynth.attacks.membership import Trainings
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.privacy.accounting import spent
from silosynth.privacy.mechanisms import noised_counts

SIDE = 16


@dataclass(frozen=True)
class Histogram:
    """A table of two columns from noised counts of a grid's cells: their event covers everything it releases."""

    epsilon: float
    rows: int = 4000

    def __call__(self, train: pd.DataFrame, seed: int) -> pd.DataFrame:
        draw = Streams(seed).numpy()
        cells = (train[["x", "y"]].to_numpy() * SIDE).astype(int).clip(0, SIDE - 1) @ [SIDE, 1]
        exact = torch.from_numpy(np.bincount(cells, minlength=SIDE**2))
        counts, _ = noised_counts(exact, self.epsilon, "cells", Streams(seed).noise())
        weights = np.maximum(counts.numpy(), 0) + 1e-12
        drawn = draw.choice(SIDE**2, self.rows, p=weights / weights.sum())
        corner = np.stack([drawn // SIDE, drawn % SIDE], axis=1)
        return pd.DataFrame((corner + draw.random((self.rows, 2))) / SIDE, columns=["x", "y"])

    @property
    def claim(self) -> Claim:
        """What the accountant makes of its event."""
        counts = torch.zeros(1, dtype=torch.int64)
        _, event = noised_counts(counts, self.epsilon, "cells", Streams(0).noise())
        assert event is not None
        budget = spent([event], 1e-6)
        return Claim(budget.epsilon, budget.delta)


def records(rows: int) -> pd.DataFrame:
    """All near a diagonal, so that nothing hides a canary beside it."""
    x = np.random.default_rng(1).random(rows)
    return pd.DataFrame({"x": x, "y": x})


def test_the_bound_of_a_perfect_attack_is_that_of_clopper_and_pearson() -> None:
    n, miss = 200, 0.05 / 4
    tail = miss ** (1 / n)  # the lower end for n of n, and one less the upper end for 0 of n
    assert canaries.epsilon_of_rates(n, n, 0, n, 0.0) == pytest.approx(math.log(tail / (1 - tail)))
    assert canaries.epsilon_of_rates(n, n, 0, n, 1e-3) == pytest.approx(math.log((tail - 1e-3) / (1 - tail)))


def test_an_attack_that_guesses_shows_nothing() -> None:
    assert canaries.epsilon_of_rates(50, 100, 50, 100, 0.0) == 0
    assert canaries.epsilon_of_rates(0, 100, 100, 100, 0.0) == canaries.epsilon_of_rates(100, 100, 0, 100, 0.0) * 0
    assert canaries.epsilon_of_one_run(50, 100, 100, 0.0) == 0
    assert canaries.epsilon_of_one_run(0, 0, 100, 0.0) == 0


@pytest.mark.parametrize(("hits", "inside", "false", "outside"), [(3, 2, 0, 1), (-1, 2, 0, 1), (0, 0, 0, 1)])
def test_counts_that_do_not_fit_are_refused(hits: int, inside: int, false: int, outside: int) -> None:
    with pytest.raises(ConfigError):
        canaries.epsilon_of_rates(hits, inside, false, outside, 0.0)
    with pytest.raises(ConfigError):
        canaries.epsilon_of_one_run(inside + 1, inside, 100, 0.0)


def test_the_bound_of_one_run_is_where_the_binomial_tail_is_the_level() -> None:
    bound = canaries.epsilon_of_one_run(90, 100, 100, 0.0)
    chance = 1 / (1 + math.exp(-bound))
    assert stats.binom.sf(89, 100, chance) == pytest.approx(0.05, abs=1e-6)
    assert canaries.epsilon_of_one_run(90, 100, 100, 1e-5) < bound
    assert canaries.epsilon_of_one_run(90, 100, 1000, 1e-5) < canaries.epsilon_of_one_run(90, 100, 100, 1e-5)


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_bounds_hold_for_randomised_response(true: float) -> None:
    """A bit that is told truly with probability e^ε / (1 + e^ε): the tightest mechanism there is."""
    draw = np.random.default_rng(5)
    chance, failures = 1 / (1 + math.exp(-true)), [0, 0]
    for _ in range(200):
        hits, false = int(draw.binomial(300, chance)), int(draw.binomial(300, 1 - chance))
        failures[0] += canaries.epsilon_of_rates(hits, 300, false, 300, 0.0) > true
        failures[1] += canaries.epsilon_of_one_run(int(draw.binomial(600, chance)), 600, 600, 0.0) > true
    assert max(failures) <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_threshold_is_found_on_either_side() -> None:
    high, low = np.arange(50.0, 100), np.arange(50.0)
    assert canaries.counted(high, low, canaries.best_threshold(high, low, 0.0), 0.0) > 2
    assert canaries.counted(low, high, canaries.best_threshold(low, high, 0.0), 0.0) > 2


@pytest.mark.parametrize(("budget", "least"), [(1.0, 0.0), pytest.param(40.0, 1.5, marks=pytest.mark.slow)])
def test_canaries_never_show_more_than_is_accounted_and_with_little_noise_much(budget: float, least: float) -> None:
    fit = Histogram(budget)
    found = canaries.many(records(60), fit, Trainings(60, seed=3), fit.claim)
    assert found.claimed == pytest.approx(budget, rel=1e-4)
    assert least <= found.score.value <= fit.claim.epsilon and not found.refuted
    assert found.score.low == found.score.value and found.score.high is None


NUMBERS = {name: {"kind": "continuous", "low": 0.0, "high": 1.0} for name in "xy"}
GAN = {"batch": 16, "noise": 4, "epochs": 1, "least_rounds": 5}
TINY = {
    "dplt": ("balanced", {}),
    "mst": ("fast", {"bins": 4}),
    "aim": ("fast", {"bins": 4}),
    "vflgan": ("private", GAN | {"critic_steps": 10, "generator": [16], "critic": [16], "shared": [8]}),
    "vtgan": ("fast", GAN | {"width": 16, "generator_width": 16}),
    "silofuse": ("fast", {"coder.steps": 20, "coder.hidden": [8], "latent.width": 8, "latent.steps": 20,
                          "latent.checks": 4, "latent.sample_steps": 3, "least_rows": 20}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "trainings", "least"),
    [("dplt", 300.0, 60, 1.0), ("dplt", 1.0, 60, 0.0), ("mst", 1.0, 60, 0.0), ("aim", 1.0, 60, 0.0),
     ("vflgan", 1.0, 20, 0.0), ("vtgan", 1.0, 20, 0.0), ("silofuse", 1.0, 20, 0.0)],
)  # fmt: skip
def test_canaries_in_generators_of_the_catalogue_show_no_more_than_is_accounted(
    name: str, target: float, trainings: int, least: float
) -> None:
    """With few trainings a bound says little: the first case shows that there are enough to see something."""
    preset, options = TINY[name]
    private = {"dp": {"epsilon": target, "delta": 1e-3}}
    fit = Catalogued(name, preset, options | private, {"one": ["x"], "two": ["y"]}, NUMBERS, 1000)
    found = canaries.many(records(60), fit, Trainings(trainings, seed=3), Claim(target, 1e-3))
    assert least <= found.score.value <= target and not found.refuted


def test_one_run_shows_copies_and_more_than_is_accounted_no_oftener_than_its_level() -> None:
    shown = canaries.one_run(records(200), Histogram(40.0), 30, Trainings(seed=1), Claim(40.0))
    assert 1 < shown.score.value <= 40
    hidden = [canaries.one_run(records(200), Histogram(0.1), 30, Trainings(seed=i), Claim(0.1)) for i in range(20)]
    assert sum(found.refuted for found in hidden) <= stats.binom.ppf(0.999, len(hidden), 0.05)


@pytest.mark.slow
def test_a_bound_above_the_claim_is_called_a_refutation() -> None:
    found = canaries.many(records(60), Histogram(40.0), Trainings(60, seed=3), Claim(0.5))
    assert found.refuted and found.to_dict()["refuted"]


def test_canaries_are_far_from_records_and_from_each_other() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=300), "y": draw.normal(size=300), "a": draw.choice(list("pq"), 300)})
    made = canaries.craft(frame, 4, Streams(0))
    assert list(made.columns) == list(frame.columns) and len(made.drop_duplicates()) == 4
    corners = made[["x", "y"]].abs().to_numpy()
    assert (corners > 1.5).all(axis=1).sum() >= 3
    assert made["x"].between(frame["x"].min(), frame["x"].max()).all() and set(made["a"]) <= {"p", "q"}
