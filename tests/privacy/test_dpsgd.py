from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.oracles.dpsgd import clipped_sum_by_rows
from torch import Tensor, nn
from torch.func import functional_call

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Keystream, Streams
from silosynth.privacy.dpsgd import block_clips, clipped_sum, noised, per_example, poisson_mask

sizes = st.integers(0, 7)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rng(seed: int = 0) -> Keystream:
    return Streams(seed).noise()


def penalised_critic(seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small critic, and its parameters drawn from a seed."""
    critic = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
    draw = stream(seed)
    return critic, {name: torch.randn(p.shape, generator=draw) for name, p in critic.named_parameters()}


def loss_of(critic: nn.Module) -> Callable[..., Tensor]:
    """A WGAN's loss of one row, with the gradient penalty inside."""

    def loss(parameters: Mapping[str, Tensor], real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        def of(x: Tensor) -> Tensor:
            return functional_call(critic, dict(parameters), (x,)).squeeze()

        slope = torch.func.grad(of)(fake + mix * (real - fake))
        return of(fake) - of(real) + 10 * (slope.norm() - 1) ** 2

    return loss


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), sizes, st.sampled_from([0.01, 0.5, 5.0, 1e9]))
def test_gradients_equal_a_loop_over_rows(seed: int, rows: int, clip: float) -> None:
    critic, parameters = penalised_critic(seed)
    draw = stream(seed + 1)
    real, fake = torch.randn(rows, 4, generator=draw), torch.randn(rows, 4, generator=draw)
    mix = torch.rand(rows, 1, generator=draw)
    fast = clipped_sum(per_example(loss_of(critic), parameters, real, fake, mix), clip)
    slow = clipped_sum_by_rows(loss_of(critic), parameters, (real, fake, mix), clip)
    scale = max(1.0, *(float(total.abs().max()) for total in slow.values()))
    for name, total in slow.items():
        assert torch.allclose(fast[name].float(), total, atol=1e-5 * scale, rtol=1e-5)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), sizes, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_row_more_changes_all_blocks_together_by_the_clip_at_most(
    seed: int, rows: int, size: float, clip: float
) -> None:
    draw = stream(seed)
    gradients = {
        "w": size * torch.randn(rows + 1, 3, 2, generator=draw),
        "b": torch.randn(rows + 1, generator=draw),
    }
    changes = []
    for name, part in zip(gradients, block_clips(clip, [3.0, 1.0]), strict=True):
        block = {name: gradients[name].double()}
        more, fewer = clipped_sum(block, part), clipped_sum({name: block[name][:-1]}, part)
        changes.append((more[name] - fewer[name]).norm().square())
    assert math.sqrt(sum(changes)) <= clip


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_an_example_that_is_not_finite_counts_as_nothing(bad: float) -> None:
    gradients = {"w": torch.tensor([[bad, 1.0], [0.5, 0.0]])}
    assert clipped_sum(gradients, 1.0)["w"].tolist() == [0.5, 0.0]


def test_rows_are_sampled_independently() -> None:
    drawn = torch.stack([poisson_mask(50, 0.1, rng(seed)) for seed in range(2000)]).double()
    assert drawn.mean() == pytest.approx(0.1, abs=0.005)
    assert drawn.sum(1).var() == pytest.approx(50 * 0.1 * 0.9, rel=0.15)  # a binomial count of rows
    assert len(poisson_mask(0, 0.5, rng())) == 0


def test_noise_has_the_deviation_asked_for() -> None:
    sums = {"w": torch.full((200, 200), 3.0)}
    drawn = noised(sums, 2.5, rng())["w"]
    assert float(drawn.mean()) == pytest.approx(3.0, abs=0.05)
    assert float(drawn.std()) == pytest.approx(2.5, rel=0.02)
    assert torch.equal(noised(sums, 0.0, rng())["w"], sums["w"])


@pytest.mark.parametrize("total", [0.0, 1.0, 3.7])
def test_last_bits_do_not_tell_what_was_noised(total: float) -> None:
    """Noised sums near zero are multiples of the same grid, whatever the sum; as plain floats they are not."""
    drawn = noised({"w": torch.full((20_000,), total, dtype=torch.float64)}, 2.5, rng())["w"]
    near = drawn[drawn.abs() < 0.01]
    grid = 2.0 ** (1 - 34)  # 2.5 is between 2 and 4
    assert len(near) > 20 and torch.equal((near / grid).round() * grid, near)
    plain = total + 2.5 * torch.from_numpy(rng().normals(20_000))
    assert not torch.equal((plain / grid).round() * grid, plain)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_noise_comes_in_the_sums_own_kind_and_shape(kind: torch.dtype) -> None:
    sums = {"a": torch.zeros((), dtype=kind), "b": torch.zeros(0, 3, dtype=kind), "c": torch.zeros(2, 3, dtype=kind)}
    drawn = noised(sums, 1.0, rng())
    assert {name: (x.shape, x.dtype) for name, x in drawn.items()} == {n: (x.shape, kind) for n, x in sums.items()}
    assert len(torch.cat([drawn["a"][None], drawn["c"].flatten()]).unique()) == 7


def test_squares_of_block_clips_sum_to_the_square_of_the_clip() -> None:
    assert block_clips(1.0, 4) == [0.5] * 4
    assert math.hypot(*block_clips(3.0, [1.0, 2.0, 5.0])) == pytest.approx(3.0)
    for blocks in (0, [], [1.0, 0.0]):
        with pytest.raises(ConfigError, match="block"):
            block_clips(1.0, blocks)
