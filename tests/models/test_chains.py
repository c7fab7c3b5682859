"""Chains that begin with noise under a condition keep its law, and part."""

from __future__ import annotations

import math

import pytest
import torch

from silosynth.core.streams import Streams
from silosynth.models.chains import Chains, Led
from silosynth.models.latent import LatentConfig, LatentGenerator


@pytest.mark.parametrize("above", [0.5, 2.5])
def test_normal_latents_above_a_bound(above: float) -> None:
    """A network that has learnt nothing yet is exact for independent normal latents."""
    config = LatentConfig(width=8, depth=1, sample_steps=8, left=0.0, precision="float32")
    generator = LatentGenerator(1000, 3, config, Streams(1), torch.device("cpu"))

    def led(noise_GL: torch.Tensor) -> Led:
        z_GL = generator.carried(noise_GL)
        return Led(noise_GL, z_GL, (z_GL[:, 0] > above).float())

    found = led(generator.start(20_000 if above > 1 else 4000, Streams(2))).kept(Streams(3))
    chains = Chains(found, 4000)
    assert 50 < len(found) < 2000
    for number in range(10):
        own = Streams(4).child(number)
        chains.step(led(chains.proposed(own)), own)
    z_GL = chains.now.z_GL
    assert len(z_GL) == 4000 and bool((z_GL[:, 0] > above).all())
    density = math.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    share = 0.5 * math.erfc(above / math.sqrt(2))
    assert float(z_GL[:, 0].mean()) == pytest.approx(density / share, abs=0.08)
    assert float(z_GL[:, 1].mean()) == pytest.approx(0, abs=0.2)
    assert float(z_GL[:, 2].std()) == pytest.approx(1, abs=0.1)
    assert len(torch.unique(z_GL, dim=0)) > 3800


def test_places_that_few_chains_pass_by_have_the_law_and_are_each_chains_in_turn() -> None:
    draw = torch.Generator().manual_seed(5)

    def led(noise_GL: torch.Tensor) -> Led:
        return Led(noise_GL, noise_GL, (noise_GL[:, 0] > 1.5).float())

    chains = Chains(led(torch.randn(20_000, 3, generator=draw)).kept(Streams(1)), 900)
    for number in range(20):
        own = Streams(2).child(number)
        chains.step(led(chains.proposed(own)), own)
        before = chains.passed
        chains.pass_by(6000 * max(0, number - 4) // 15)
        torch.testing.assert_close(chains.passed.z_GL[: len(before)], before.z_GL)
        new = chains.passed.z_GL[len(before) :]
        torch.testing.assert_close(new, chains.now.z_GL[torch.arange(len(before), len(before) + len(new)) % 900])
    z_GL = chains.passed.z_GL
    density, share = math.exp(-(1.5**2) / 2) / math.sqrt(2 * math.pi), 0.5 * math.erfc(1.5 / math.sqrt(2))
    assert len(z_GL) == 6000 and bool((z_GL[:, 0] > 1.5).all())
    assert float(z_GL[:, 0].mean()) == pytest.approx(density / share, abs=0.05)
    assert float(z_GL[:, 1].mean()) == pytest.approx(0, abs=0.1)
    assert float(z_GL[:, 2].std()) == pytest.approx(1, abs=0.05)
    assert len(torch.unique(z_GL, dim=0)) > 4500


def test_a_condition_that_is_never_certain_has_its_law_too() -> None:
    """Each vector is kept by a probability: chains from few that were kept have the law of all that would be."""
    draw, bend = torch.Generator().manual_seed(1), 1.5
    noise_GL = torch.randn(3000, 2, generator=draw)

    def led(noise_GL: torch.Tensor) -> Led:
        return Led(noise_GL, noise_GL, torch.sigmoid(bend * noise_GL[:, 0]))

    wanted = led(torch.randn(200_000, 2, generator=draw)).kept(Streams(1)).z_GL
    chains = Chains(led(noise_GL).kept(Streams(2)), 6000)
    for number in range(12):
        own = Streams(3).child(number)
        chains.step(led(chains.proposed(own)), own)
    for moment in (1, 2, 3):
        made, true = (float(z[:, 0].pow(moment).mean()) for z in (chains.now.z_GL, wanted))
        assert made == pytest.approx(true, abs=0.12), moment


def test_rows_with_and_without_conditions_come_of_the_same_flow() -> None:
    """Chains are exact for the law of what noise leads to, so it must lead to what is drawn without conditions."""
    config = LatentConfig(width=16, depth=2, sample_steps=4, precision="float32")
    generator = LatentGenerator(1000, 3, config, Streams(1), torch.device("cpu"))
    torch.nn.init.normal_(generator.network.leave.weight, std=0.1, generator=torch.Generator().manual_seed(2))
    noise_GL = generator.start(5000, Streams(2))
    z_GL = generator.carried(noise_GL)
    assert torch.equal(generator.sample(5000, Streams(2)), z_GL)
    some = torch.tensor([4999, 3, 17])  # wherever it stands, in whichever company
    torch.testing.assert_close(generator.carried(noise_GL[some]), z_GL[some])
