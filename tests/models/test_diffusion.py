"""Diffusion over latents against the papers' equations, step by step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.oracles import ddpm

from silosynth.core.streams import Streams
from silosynth.models.gaussian import GaussianPath, gaussian_path
from silosynth.models.latent import LatentConfig, LatentGenerator

T = 12


def betas_of(path: GaussianPath) -> list[float]:
    kept = [1.0, *path.alpha_bar.double().tolist()]
    return [1 - after / before for before, after in itertools.pairwise(kept)]


def guess(x, t, _=None):
    """Any network will do, if it is one of the latents and of the step."""
    return torch.sin(2 * x + t[:, None]) - 0.3 * x


def slow_guess(x, t):
    return np.sin(2 * x + (t + 1) / T) - 0.3 * x


@pytest.mark.parametrize("target", ["noise", "latent"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_loss_is_that_of_the_papers_equations(schedule, target):
    path, draw = gaussian_path(T, schedule, target), Streams(0).child("loss").torch()
    z, noise = torch.randn(2, 30, 3, generator=draw)
    t = torch.randint(T, (30,), generator=draw)
    slow = ddpm.loss(betas_of(path), slow_guess, z.double().numpy(), t.tolist(), noise.double().numpy(), target)
    assert float(path.loss(guess, z, t, noise, None)) == pytest.approx(slow, rel=1e-4)


@pytest.mark.parametrize("target", ["noise", "latent"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_all_steps_with_the_posteriors_noise_are_ancestral_sampling(schedule, target):
    path, x = gaussian_path(T, schedule, target), torch.randn(8, 3, generator=Streams(0).child("start").torch())
    betas = betas_of(path)
    kept = ddpm.kept_shares(betas)

    def clean(x, t):
        said = slow_guess(x, t)
        return said if target == "latent" else (x - np.sqrt(1 - kept[t]) * said) / np.sqrt(kept[t])

    draw = Streams(0).child("noise").torch()
    slow = ddpm.ancestral(betas, clean, x.double().numpy(), lambda: torch.randn(8, 3, generator=draw).double().numpy())
    made = path.sample(guess, x, T, 1.0, Streams(0).child("noise").torch())
    np.testing.assert_allclose(made.numpy(), slow, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "options", [{}, {"target": "latent"}, {"eta": 0.0}, {"sample_steps": 3}, {"variances": "cosine"}]
)
def test_a_generator_trains_and_samples_as_its_options_say(options):
    plain = {"path": "gaussian", "width": 8, "depth": 1, "diffusion_steps": T, "sample_steps": T}
    config = LatentConfig(**{**plain, "precision": "float32", **options})
    made = LatentGenerator(40, 2, config, Streams(3), torch.device("cpu"))
    path = gaussian_path(T, config.variances, config.target)
    draw, again = (Streams(0).child("draw").torch() for _ in range(2))
    x = torch.randn(30, 2, generator=Streams(0).child("rows").torch())
    noise = torch.randn(x.shape, generator=draw)
    steps = torch.randint(T, (30,), generator=draw)
    torch.testing.assert_close(made._loss(x, again, None), path.loss(made.network, x, steps, noise, None))
    draw = Streams(1).torch()
    z = path.sample(made.network, torch.randn(5, 2, generator=draw), config.sample_steps, config.eta, draw)
    torch.testing.assert_close(made.sample(5, Streams(1)), z.detach(), rtol=1e-5, atol=1e-6)
