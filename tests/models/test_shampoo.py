"""Steps by Shampoo's left factor: against its formula in NumPy, and what sets them apart from AdamW's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from silosynth.algorithms.gdts.options import PRESETS as GDTS
from silosynth.algorithms.silofuse.options import END_TO_END_PRESETS, PRESETS
from silosynth.core.streams import Streams
from silosynth.models.denoisers import GatedMLP, wide
from silosynth.models.shampoo import Shampoo
from silosynth.models.training import Learner, build
from silosynth.privacy.events import Target

STEPS = 30  # of four batches: roots are renewed at the first 13, and at the 26th


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(shape: tuple[int, int], seed: int, steps: int = STEPS) -> torch.Tensor:
    """Of every step (T, n, m), in which some directions are much more common than others."""
    draw = generator(seed)
    common = torch.randn(shape[0], shape[0], generator=draw, dtype=torch.float64).tril()
    return common @ torch.randn(steps, *shape, generator=draw, dtype=torch.float64)


def trained(
    start: torch.Tensor, given_T: torch.Tensor, rate: float = 0.02, decay: float = 0.1, batches: int = 4
) -> torch.Tensor:
    """The weights at the end."""
    weight = start.clone()
    shampoo = Shampoo([weight], decay)
    for gradient in given_T:
        weight.grad = gradient.clone()
        shampoo.step(rate, batches)
    return weight


def by_formula(
    start: np.ndarray, given_T: np.ndarray, batches: int, rate: float = 0.02, decay: float = 0.1
) -> np.ndarray:
    """The same, step by step; of a tall matrix as of its transpose."""
    n, m = start.shape
    length = math.sqrt(min(n, m) * max(1, n / m))
    if n > m:
        start, given_T = start.T, given_T.transpose(0, 2, 1)
    weight, mean, factor, root = start.copy(), np.zeros_like(start), None, None
    kept, remembered = 0.95**batches, 0.974**batches
    for step, gradient in enumerate(given_T):
        mean = kept * mean + (1 - kept) * gradient
        seen = gradient @ gradient.T
        factor = seen if factor is None else remembered * factor + (1 - remembered) * seen
        done = range(step * batches + 1, (step + 1) * batches + 1)
        if step == 0 or any(batch % (52 if step * batches >= 52 else 4) == 0 for batch in done):
            values, directions = np.linalg.eigh(factor)
            root = directions @ np.diag(np.maximum(values, 1e-6 * values[-1]) ** -0.5) @ directions.T
        along = root @ ((1 - kept) * gradient + kept * mean)
        far = batches * rate
        weight = (1 - far * decay) * weight - far * length * along / np.linalg.norm(along)
    return weight.T if n > m else weight


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3, 4, 60]), st.integers(0, 2**31))
def test_steps_are_those_of_the_formula(n: int, m: int, batches: int, seed: int) -> None:
    given_T = gradients((n, m), seed)
    start = torch.randn(n, m, generator=generator(seed), dtype=torch.float64)
    expected = by_formula(start.numpy(), given_T.numpy(), batches)
    assert trained(start, given_T, batches=batches).numpy() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_matrix_moves_as_it_would_alone() -> None:
    shapes = [(3, 5), (4, 2), (3, 5), (4, 2), (5, 3)]
    start = [torch.randn(shape, generator=generator(i), dtype=torch.float64) for i, shape in enumerate(shapes)]
    given = [gradients(shape, i) for i, shape in enumerate(shapes)]
    weights = [weight.clone() for weight in start]
    shampoo = Shampoo(weights, 0.1)
    for step in range(STEPS):
        for weight, given_T in zip(weights, given, strict=True):
            weight.grad = given_T[step].clone()
        shampoo.step(0.02, 4)
    for weight, first, given_T in zip(weights, start, given, strict=True):
        assert weight.numpy() == pytest.approx(trained(first, given_T).numpy(), rel=1e-9, abs=1e-9)


def test_turning_the_rows_of_all_gradients_turns_the_steps() -> None:
    given_T, start = gradients((4, 7), 1), torch.zeros(4, 7, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator(2), dtype=torch.float64)).Q
    assert trained(start, turn @ given_T).numpy() == pytest.approx((turn @ trained(start, given_T)).numpy(), abs=1e-6)


def test_rare_directions_count_as_much_as_common_ones_whatever_their_axes() -> None:
    towards, noise_T = torch.randn(3, 5, generator=generator(3)), torch.randn(STEPS, 3, 5, generator=generator(4))
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator(5))).Q
    given_T = turn @ torch.diag(torch.tensor([30.0, 1.0, 0.3])) @ (towards + 0.5 * noise_T)
    by_weight = torch.zeros(3, 5, requires_grad=True)
    adam = torch.optim.AdamW([by_weight], lr=0.02, weight_decay=0.0)
    for gradient in given_T:
        by_weight.grad = gradient.clone()
        adam.step()
    moved = [
        (turn.T @ weight).norm(dim=1) for weight in (trained(torch.zeros(3, 5), given_T, decay=0.0), by_weight.detach())
    ]
    whitened, scaled = (float(lengths.max() / lengths.min()) for lengths in moved)
    assert whitened < 3 < 5 < scaled


def test_a_first_gradient_of_zeros_moves_nothing() -> None:
    assert torch.equal(trained(torch.ones(3, 4), torch.zeros(1, 3, 4), decay=0.0), torch.ones(3, 4))


def test_gradients_that_are_not_finite_end_in_weights_that_are_not_without_an_error() -> None:
    given_T = gradients((3, 4), 5, 9)
    given_T[5:] = math.nan
    assert trained(torch.zeros(3, 4, dtype=torch.float64), given_T).isnan().all()


@pytest.mark.parametrize("at", [7, 51, 63])
def test_a_restored_learner_continues_to_the_same_bytes(at: int) -> None:
    def fresh() -> Learner:
        network = build(GatedMLP, 3, 12, 2, generator=Streams(0).torch())
        return Learner(network, rate=1e-2, steps=70, average=0.5, wide=wide(network), wide_rate=0.02)

    def steps(learner: Learner, first: int, last: int) -> None:
        for i in range(first, last):
            x = torch.randn(8, 3, generator=Streams(i).torch())
            learner.descend((learner.network(x, torch.full((2,), 0.5)) - x).square().mean())

    straight, halted, resumed = fresh(), fresh(), fresh()
    steps(straight, 0, 70)
    steps(halted, 0, at)
    resumed.restore(halted.state())
    steps(resumed, at, 70)
    for one, other in zip(straight.weights + straight.smooth, resumed.weights + resumed.smooth, strict=True):
        assert torch.equal(one, other)


def test_blocks_have_shampoo_and_all_other_weights_have_adamw() -> None:
    network = build(GatedMLP, 3, 12, 2, generator=Streams(0).torch())
    learner = Learner(network, rate=1e-2, steps=70, wide=wide(network), wide_rate=0.02)
    wide_ones = [weight for alike in learner.shampoo.weights for weight in alike]
    names = {name for name, weight in network.named_parameters() if any(weight is one for one in wide_ones)}
    assert names == {f"blocks.{block}.{layer}.weight" for block in (0, 1) for layer in ("first", "second")}
    others = [weight for group in learner.optimizer.param_groups for weight in group["params"]]
    assert len(others) + len(names) == len(list(network.parameters()))
    assert not any(weight is one for weight in others for one in wide_ones)


@pytest.mark.parametrize("preset", GDTS)
def test_networks_that_silos_average_keep_adamw_and_its_steps(preset: str) -> None:
    latent = GDTS[preset].diffusion.latent
    assert (latent.wide_rate, latent.steps_per_rows) == (0.0, 3.3)


def test_where_steps_were_found_for_adamw_it_is_kept() -> None:
    release = replace(PRESETS["balanced"], dp=Target(epsilon=1.0, delta=1e-5), dp_mode="release").generator()
    others = [PRESETS["fast"].latent, PRESETS["paper"].latent, *(one.latent for one in END_TO_END_PRESETS.values())]
    assert {latent.wide_rate for latent in [release, *others]} == {0.0}
    assert PRESETS["balanced"].generator().wide_rate > 0
