"""Rows that are kept, and heads that are corrected, such that levels have given shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from scipy.optimize import minimize

from silosynth.core.streams import Streams
from silosynth.models.autoencoder import Buckets
from silosynth.models.encoded import RowShape
from silosynth.models.marginals import calibrate, rake


def rows_of(n: int, seed: int) -> torch.Tensor:
    """Two columns of three and two levels that hang together, and one of four that does not."""
    rng = np.random.default_rng(seed)
    first = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    second = np.where(rng.random(n) < 0.9, first > 0, first == 0)
    return torch.from_numpy(np.stack([first, second.astype(int), rng.choice(4, n)], axis=1))


SHAPE = RowShape((3, 2, 4))
COUNTS = torch.tensor([200, 300, 500, 260, 740, 250, 250, 250, 250])


def shares(levels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    weights = torch.ones(len(levels)) if weights is None else weights
    flat = torch.zeros(SHAPE.levels, dtype=torch.float64)
    for column in range(levels.shape[1]):
        flat.index_add_(0, levels[:, column] + SHAPE.starts[column], weights.double())
    return flat / weights.sum()


def test_kept_rows_have_the_wanted_shares_and_rows_stay_whole() -> None:
    made = rows_of(20_000, 0)
    raking = rake(made, COUNTS, SHAPE)

    def make(n: int, streams: Streams) -> tuple[torch.Tensor, torch.Tensor]:
        return rows_of(n, streams.integer() % 2**31), torch.arange(float(n))[:, None]

    levels, scores = raking.sample(40_000, make, SHAPE, Streams(1))
    again, _ = raking.sample(40_000, make, SHAPE, Streams(1))
    assert levels.shape == (40_000, 3) and scores.shape == (40_000, 1) and torch.equal(levels, again)
    assert (shares(levels) - torch.cat([p / p.sum() for p in COUNTS.double().split([3, 2, 4])])).abs().max() < 0.015
    before = (made[:, 1] == (made[:, 0] > 0).long()).double().mean()
    after = (levels[:, 1] == (levels[:, 0] > 0).long()).double().mean()
    assert abs(float(after - before)) < 0.03  # what hangs together in a row still does


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), counts=st.lists(st.integers(10, 40), min_size=9, max_size=9))
@example(seed=0, counts=[10, 10, 25, 24, 10, 10, 10, 10, 10])
@example(seed=0, counts=[10, 10, 24, 24, 10, 10, 10, 10, 10])
def test_weights_are_those_of_least_relative_entropy(seed: int, counts: list[int]) -> None:
    """Against a general optimiser of the dual: log-mean-exp of weights, less the wanted shares times the factors."""
    made, wanted = rows_of(300, seed), torch.tensor(counts)
    target = torch.cat([p / p.sum() for p in wanted.double().split([3, 2, 4])]).numpy()
    design = torch.nn.functional.one_hot(made + SHAPE.starts, SHAPE.levels).sum(1).double().numpy()
    if (design.sum(0) == 0).any():
        return  # a level that no row holds

    def dual(factors: np.ndarray) -> tuple[float, np.ndarray]:
        tilt = design @ factors
        weights = np.exp(tilt - tilt.max())
        return np.log(weights.mean()) + tilt.max() - target @ factors, design.T @ weights / weights.sum() - target

    with np.errstate(over="ignore", invalid="ignore"):  # where no weights give these shares, factors run away
        best = minimize(dual, np.zeros(SHAPE.levels), jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 5000})
    if not np.isfinite(best.x).all():
        return
    tilt = design @ best.x
    slow = np.exp(tilt - tilt.max()) / np.exp(tilt - tilt.max()).mean()
    if np.abs(shares(made, torch.from_numpy(slow)).numpy() - target).max() > 1e-4:
        return  # no weights give these shares
    raking = rake(made, wanted, SHAPE)
    fast = raking.logarithms(made, SHAPE).exp()
    assert float(fast.mean()) == pytest.approx(1, abs=1e-6)
    assert np.abs(shares(made, fast).numpy() - target).max() < 5e-3
    assert np.abs(fast.numpy() - slow).max() < 0.05 * slow.max()


def test_what_cannot_be_had_is_left_as_it_is() -> None:
    made = torch.tensor([[0, 0, 1], [1, 1, 2], [0, 1, 3]]).repeat(200, 1)
    counts = torch.tensor([1, 1, 1, 0, 0, 1, 1, 1, 1])  # a level that no row holds; a column without counts
    levels, _ = rake(made, counts, SHAPE).sample(
        50, lambda n, streams: (made[torch.arange(n) % len(made)], torch.zeros(n, 0)), SHAPE, Streams(0)
    )
    assert levels.shape == (50, 3) and set(levels[:, 0].tolist()) <= {0, 1}


def test_a_generator_that_hardly_knows_frequent_levels_is_drawn_from_in_time() -> None:
    """Three rows of a thousand have, each alone, what nearly all rows should have in one of three columns."""
    shape, drawn = RowShape((2, 2, 2)), 0
    common = torch.cat([torch.eye(3), torch.zeros(997, 3)]).long()
    raking = rake(common, torch.tensor([1, 10**6] * 3), shape)

    def make(n: int, streams: Streams) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal drawn
        drawn += n
        return common[torch.arange(n) % 1000], torch.zeros(n, 0)

    levels, _ = raking.sample(2000, make, shape, Streams(0))
    assert levels.shape == (2000, 3) and drawn < 25 * 2000
    assert float(levels.double().mean()) > 10 * float(common.double().mean())  # nearer to what they should have


def sure(on: torch.Tensor) -> torch.Tensor:
    """Logits (G, K) of four columns of two levels, all surely the second where ``on``, and of one that is unsure."""
    two = torch.where(on[:, None], torch.tensor([-4.0, 4.0]), torch.tensor([4.0, -4.0]))
    return torch.cat([two.repeat(1, 4), torch.zeros(len(on), 2)], dim=1)


def test_what_may_be_chance_is_not_corrected_where_other_rows_are_decoded() -> None:
    """Columns that are sure of the same rows would each take a large offset, and apart from the others."""
    buckets, draw = Buckets(RowShape((2,) * 5)), torch.Generator().manual_seed(1)
    found, wanted = torch.arange(4000) < 248, torch.tensor([0.944, 0.056] * 4 + [0.45, 0.55])  # 6.2 %, and 5.6
    nothing, others = torch.zeros(4000, 0), sure(torch.arange(4000) < 224)

    def apart(doubt: float) -> tuple[float, torch.Tensor]:
        offsets = calibrate(buckets, sure(found), nothing, wanted, draw, doubt=doubt).offsets
        levels = buckets.draw(others + offsets, draw)[:, :4]
        return float((levels != levels[:, :1]).any(1).double().mean()), offsets

    (chased, offsets), (kept, own) = apart(0.0), apart(2.0)
    assert chased > 2 * kept and kept < 0.003
    assert offsets[:8].abs().max() > 1 and own[:8].abs().max() < 0.1
    assert float(own[9] - own[8]) == pytest.approx(float(torch.tensor(0.55 / 0.45).log()), abs=0.02)  # no chance


def test_what_is_no_chance_is_corrected_whatever_the_doubt() -> None:
    buckets, draw = Buckets(RowShape((2,) * 5)), torch.Generator().manual_seed(1)
    wanted = torch.tensor([0.9, 0.1] * 4 + [0.5, 0.5])
    logits = sure(torch.arange(4000) < 200) / 6
    offsets = calibrate(buckets, logits, torch.zeros(4000, 0), wanted, draw, doubt=2.0).offsets
    got = buckets.probabilities(logits + offsets).mean(0)
    assert float((got - wanted).abs().max()) < 0.003
