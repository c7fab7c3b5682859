"""Every algorithm on a second device: a forgotten ``.to(device)`` fails here, where there is no GPU."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.contracts.faraway import CPU, Far, FarGenerator, check_generators, device
from tests.contracts.settings import TINY, entry_of, federation, fitted, frame

import silosynth as ss
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.models import latent
from silosynth.simulation import model as models, training
from silosynth.simulation.silos import make_parties

device()  # PyTorch counts devices when it first goes backwards: so before any test does
WITHOUT_NETWORKS = ("aim", "dplt", "mst")
QUICK = (
    "ctabgan",
    "ctgan",
    "e2e",
    "e2edistr",
    "gdts",
    "gdts diffusion",
    "gdts md",
    "latentdiff",
    "silofuse",
    "tabddpm",
    "tvae",
    "vertigan",
    "vtgan",
    "wgan-gp",
)
NETWORKS = [name for name in sorted(TINY) if not name.startswith(WITHOUT_NETWORKS)]
SOME_SLOW = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


@pytest.fixture(autouse=True)
def far(monkeypatch):
    """``device="far"`` is a device like others, with generators of its own."""
    usual = Streams.torch

    def generator(self, where="cpu"):
        if torch.device(where).type != "far":
            return usual(self, where)
        return FarGenerator().manual_seed(self.integer())

    monkeypatch.setattr(Streams, "torch", generator)
    monkeypatch.setattr(latent, "fast_bfloat16", lambda _: False)
    for module in (training, models):
        monkeypatch.setattr(module, "resolve_device", lambda name: device() if name == "far" else torch.device(name))
    monkeypatch.setattr(Far, "computed", 0)
    check_generators(monkeypatch.setattr)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_a_model_that_was_trained_elsewhere_samples_there_and_here(name, tmp_path):
    model = fitted(name, device="far", threads=1)
    there = model.sample(40, seed=1)
    assert Far.computed > 50
    model.save(tmp_path / "model.silosynth")
    for place in ("cpu", "far"):
        assert ss.load(tmp_path / "model.silosynth", device=place).sample(40, seed=1).equals(there)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TINY))
def test_where_it_is_trained_changes_nothing(name):
    there, here = (fitted(name, device=place, threads=1).sample(40, seed=1) for place in ("far", "cpu"))
    assert there.equals(here)


@pytest.mark.parametrize("far_silo", ["bank", "shop"])
def test_one_silo_may_be_elsewhere_and_the_others_here(far_silo):
    """What is sent lies on the CPU, whatever its sender computes on."""
    entry, parts = entry_of("silofuse"), federation("silofuse")
    config = entry.configure("fast", TINY["silofuse"])
    parties = make_parties(entry, config, parts, Streams(0), CPU)
    parties[far_silo] = make_parties(entry, config, parts, Streams(0), device())[far_silo]
    talk = entry.coordinate(parts.roster, config, Streams(0).child("coordinator"), device())
    sent, got = 0, None
    with contextlib.suppress(StopIteration):
        while True:
            step = talk.send(got)
            asks = step.asks if isinstance(step, Exchange) else {}
            got = {silo: parties[silo].answer(ask) for silo, ask in asks.items()}
            values = [value for message in (*asks.values(), *got.values()) for value in vars(message).values()]
            assert not any(isinstance(value, Far) for value in values)
            sent += len(values)
    assert Far.computed > 50 and sent > 20


def test_latents_are_learnt_elsewhere():
    federation = ss.simulate(frame(60), {"bank": ["age", "spent", "city"], "shop": ["member", "since", "note"]})
    sizes = {"net.latent": 6, "net.attention": 3, "batch": 12, "pretraining_epochs": 1, "finetuning_epochs": 1}
    how = {"preset": "fast", "options": sizes, "progress": False, "threads": 1}
    there, here = (ss.represent("tabvfl", federation, "member", device=place, **how) for place in ("far", "cpu"))
    assert Far.computed > 50
    assert there.transform().equals(here.transform())


def test_a_generator_of_another_device_is_refused():
    for draw in (
        lambda: torch.randn(3, generator=FarGenerator()),
        lambda: torch.ones(3).normal_(generator=FarGenerator()),
        lambda: torch.rand(3, generator=torch.Generator(), device=device()),
    ):
        with pytest.raises(RuntimeError, match="generator"):
            draw()


def test_what_cuda_refuses_is_refused():
    x, places = torch.ones(3), torch.tensor([2, 0])
    y = x.to(device())
    assert (y + 1).tolist() == [2, 2, 2] and float((y * torch.tensor(2.0)).sum()) == 6
    assert y[places].device == device() and y.cpu().equal(x) and type(y.cpu()) is torch.Tensor
    for forgotten in (lambda: y + x, lambda: torch.cat([x, y]), lambda: x[places.to(device())], y.numpy):
        with pytest.raises((RuntimeError, TypeError)):
            forgotten()


def test_a_forgotten_move_is_noticed(monkeypatch):
    start = latent.LatentGenerator.__init__

    def forgets(self, *args):
        start(self, *args)
        self.network.to(CPU)

    monkeypatch.setattr(latent.LatentGenerator, "__init__", forgets)
    with pytest.raises(RuntimeError, match="is on the CPU, and another is not"):
        fitted("latentdiff", device="far", threads=1)
