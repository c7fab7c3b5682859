"""Targets of the flow: means over rows against plain loops, and times that several rows share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.streams import Streams
from silosynth.models import flow
from silosynth.models.denoisers import GatedMLP, PlainMLP
from silosynth.models.flow import draw_times, mean_velocity, velocity
from silosynth.models.latent import LatentConfig, LatentGenerator, fast_bfloat16

CPU = torch.device("cpu")


def drawn(*path):
    return Streams(0).child(*path).torch()


def slow_mean_velocity(x_L, t, rows_RL):
    """Of each row's velocity (x_t - x_0) / t, weighted by the density at x_t of the path that begins at the row."""
    weights = [float(torch.exp(-((x_L - (1 - t) * row) ** 2).sum() / (2 * t**2))) for row in rows_RL]
    velocities = [(x_L - row) / t for row in rows_RL]
    return sum(w * v for w, v in zip(weights, velocities, strict=True)) / sum(weights)


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_the_mean_velocity_is_that_of_all_rows_by_how_likely_they_led_there(latents, rows, times, together, seed):
    draw = drawn("mean", seed)
    rows_RL = torch.randn(rows, latents, generator=draw, dtype=torch.float64)
    t_T = 0.2 + 0.7 * torch.rand(times, generator=draw, dtype=torch.float64)
    x_BL = torch.randn(times * together, latents, generator=draw, dtype=torch.float64)
    slow = [slow_mean_velocity(x, t_T[place // together], rows_RL) for place, x in enumerate(x_BL)]
    torch.testing.assert_close(mean_velocity(x_BL, t_T, rows_RL), torch.stack(slow))


def test_mean_velocities_lead_where_rows_own_velocities_lead_with_less_variance():
    """Both have the same mean product with whatever is computed from the point, such as a network's gradient."""
    draw = drawn("products")
    rows_RL = torch.randn(6, 2, generator=draw)
    batch = torch.randint(6, (200_000,), generator=draw)
    noise = torch.randn(len(batch), 2, generator=draw)
    t_T = draw_times(len(batch), 0.0, 1.0, 0.2, draw)
    there = (1 - t_T[:, None]) * rows_RL[batch] + t_T[:, None] * noise
    own, mean = noise - rows_RL[batch], mean_velocity(there, t_T, rows_RL)
    for seen in (torch.ones_like(there), there, there**3, torch.sin(3 * there.flip(1)), t_T[:, None] * there):
        product = (own - mean) * seen
        assert (product.mean(dim=0).abs() < 5 * product.std(dim=0) / len(batch) ** 0.5).all()
    assert mean.var() < 0.8 * own.var()


@pytest.mark.parametrize("network", [GatedMLP(3, 16, 2), PlainMLP(3, 16, 3, 0.0)])
def test_rows_that_share_a_time_get_what_each_would_get(network):
    x_BL, t_T = torch.randn(12, 3, generator=drawn("x")), torch.tensor([0.2, 0.5, 0.9])
    together = velocity(network, x_BL, t_T)
    torch.testing.assert_close(together, velocity(network, x_BL, t_T.repeat_interleave(4)))
    torch.testing.assert_close(together[4:8], velocity(network, x_BL[4:8], t_T[1:2]))


def trained(rows, latents, **options):
    config = LatentConfig(**{"width": 64, "steps": 300, "checks": 3, "fit_to_rows": False, "batch": 64, **options})
    generator = LatentGenerator(rows, latents, config, Streams(3), CPU)
    draw = drawn("rows")
    level = torch.randint(2, (rows, 1), generator=draw) * 2.0 - 1
    x_NL = generator.standardise(level + 0.1 * torch.randn(rows, latents, generator=draw))
    while not generator.finished:
        loss = generator.train(x_NL)
    return generator, loss


@pytest.mark.parametrize("among", [1, 100, 4096])
def test_a_flow_learns_two_groups_whatever_its_targets(among):
    generator, _ = trained(600, 2, among=among)
    generator.finish()
    drawn_GL = generator.sample(500, Streams(4))
    assert (drawn_GL.abs() - 1).abs().median() < 0.3
    assert (drawn_GL.sign().prod(dim=1) > 0).float().mean() > 0.97  # both latents of a row are of one group


def test_means_over_many_rows_are_learnt_faster():
    losses = [trained(600, 8, among=among, batch=16, steps=150)[1] for among in (1, 4096)]
    assert losses[1] < losses[0]


def test_rows_with_many_latents_are_compared_with_fewer_others(monkeypatch):
    compared = []

    def noted(x_BL, t_T, rows_RL):
        compared.append(len(rows_RL))
        return mean_velocity(x_BL, t_T, rows_RL)

    monkeypatch.setattr(flow, "mean_velocity", noted)
    for latents in (2, 4096):
        trained(300, latents, among=128, batch=32, steps=3)
    assert compared == [128] * 3 + [64] * 3


@pytest.mark.parametrize("instructions", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_bfloat16_is_taken_where_pytorch_knows_of_instructions_for_it(
    instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)  # as in versions that have neither
    assert not fast_bfloat16(torch.device("cpu"))
    monkeypatch.setattr(torch.cpu, instructions, lambda: True, raising=False)
    assert fast_bfloat16(torch.device("cpu"))
