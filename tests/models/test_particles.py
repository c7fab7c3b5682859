"""Particles that are led to a condition have the law of latents that were drawn without it, and fulfil it."""

from __future__ import annotations

import math

import pytest
import torch

from silosynth.core.streams import Streams
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.models.particles import Particles


@pytest.mark.parametrize("above", [0.5, 2.5])
def test_normal_latents_above_a_bound(above: float) -> None:
    """A network that has learnt nothing yet is exact for independent normal latents."""
    config = LatentConfig(width=8, depth=1, sample_steps=12, left=0.0, precision="float32")
    generator = LatentGenerator(1000, 3, config, Streams(1), torch.device("cpu"))
    particles = Particles(generator, 4000, Streams(2))
    while not particles.finished:
        particles.move()
        if particles.noise:
            spread = particles.noise / math.sqrt(1 + particles.noise**2)
            gap_G = (particles.guess[:, 0] - above) / spread
            chance_G = torch.special.ndtr(gap_G)
            slope_GL = torch.zeros_like(particles.guess)
            slope_GL[:, 0] = (-gap_G.square() / 2).exp() / (math.sqrt(2 * math.pi) * spread * chance_G.clamp_min(1e-9))
            particles.weigh(chance_G, slope_GL)
        else:
            particles.weigh((particles.latents[:, 0] > above).float(), torch.zeros_like(particles.guess))
    z_GL = particles.take(2000)
    assert bool((z_GL[:, 0] > above).all())
    density = math.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    share = 0.5 * math.erfc(above / math.sqrt(2))
    assert float(z_GL[:, 0].mean()) == pytest.approx(density / share, abs=0.08)
    assert float(z_GL[:, 1].mean()) == pytest.approx(0, abs=0.2)
    assert float(z_GL[:, 2].std()) == pytest.approx(1, abs=0.15)


def test_where_nothing_fulfils_it_there_still_are_latents() -> None:
    config = LatentConfig(width=8, depth=1, sample_steps=2, precision="float32")
    particles = Particles(LatentGenerator(100, 2, config, Streams(1), torch.device("cpu")), 50, Streams(2))
    while not particles.finished:
        particles.move()
        particles.weigh(torch.zeros(50), torch.zeros(50, 2))
    assert particles.take(20).shape == (20, 2)
