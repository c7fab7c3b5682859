"""VT-GAN under differential privacy: one charge for all critic steps, and noise on every block."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.released import Record, talk
from torch import Tensor

import silosynth as ss
from silosynth.algorithms.vtgan import private
from silosynth.algorithms.vtgan.options import PRESETS, VTGANConfig
from silosynth.algorithms.vtgan.private import bottom_loss, top_loss
from silosynth.algorithms.vtgan.protocol import PushRows, PushSampled, coordinate
from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.encoders import table as private_encoders
from silosynth.models.gan import critic_loss, make_critic, norm_penalty
from silosynth.privacy import dpsgd
from silosynth.privacy.dpsgd import clipped_gradients
from silosynth.privacy.events import Event, Target
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import statement

CPU = torch.device("cpu")
TINY = {"width": 16, "generator_width": 16, "noise": 8, "batch": 40, "epochs": 1, "least_rounds": 6,
        "encoders.modes": 3, "dp": {"epsilon": 2.0, "delta": 1e-5, "encoders": 0.5}}  # fmt: skip
SILOS = {"registry": ["job", "age"], "tax": ["pay", "rich"]}
BOUNDS = {"age": {"low": 18, "high": 70}, "pay": {"low": 0, "high": 150}}


def federation(rows: int = 200) -> ss.Federation:
    rng = np.random.default_rng(3)
    job = rng.choice(["nurse", "smith", "judge"], 200, p=[0.5, 0.3, 0.2])
    pay = np.where(job == "judge", 90, 40) + rng.normal(0, 4, 200).round(1)
    data = pd.DataFrame({"job": job, "age": rng.integers(20, 65, 200), "pay": pay, "rich": pay > 60})
    return ss.simulate(data.head(rows), silos=SILOS, schema=BOUNDS)


@pytest.fixture(scope="module")
def model() -> ss.Model:
    return ss.fit("vtgan", federation(), preset="fast", options=TINY, progress=False, seed=1)


def test_it_costs_the_target_almost_and_holds_against_outsiders_only(model: ss.Model) -> None:
    assert len(model.sample(50)) == 50
    privacy = statement(model.ledger, assume_secret=True)
    assert 0.95 * 2 <= privacy["release"]["epsilon"] <= 2
    assert privacy["rest"].startswith("It does not hold against silos, which read un-noised gradients")
    assert "levels that rows hold" not in privacy["rest"]  # no conditions, neither in training nor to sample
    lines = [line for budget in privacy["silos"].values() for line in budget["events"] if line["joint"]]
    assert [(line["what"], line["count"]) for line in lines] == [("steps of the critics", 30)] * 2


def test_no_level_counts_are_kept(model: ss.Model) -> None:
    assert all(not len(part["counts"]) for part in model.parts.values())
    assert model.rows != 200


def test_the_published_mechanism_is_not_offered() -> None:
    with pytest.raises(ConfigError, match="not offered"):
        ss.fit("vtgan", federation(), options={"dp": "paper-unsound"}, progress=False)


def test_without_noise_and_with_a_huge_clip_a_step_is_an_ordinary_one() -> None:
    """The coordinator's critic and one silo's, against the loss of the whole batch in one piece."""
    draw = Streams(1).torch()
    bottom, top = make_critic(5, (), 4, 0.0, draw), make_critic(4, (6,), 1, 0.0, draw)
    fake, real = torch.randn(7, 5, generator=draw), torch.randn(7, 5, generator=draw)
    mix = torch.rand(7, 1, generator=draw)
    h_fake, h_real = bottom(fake, ()), bottom(real, ())
    h_fake.retain_grad()
    h_real.retain_grad()
    penalty = norm_penalty(top.input_gradient((h_fake + mix * (h_real - h_fake)).detach(), ())).mean()
    (critic_loss(top(h_fake, ()), top(h_real, ())) + 10 * penalty).backward()
    assert h_fake.grad is not None and h_real.grad is not None
    tops = clipped_gradients(
        top_loss(top, 10.0), dict(top.named_parameters()), 1e6, h_fake.detach(), h_real.detach(), mix[:, 0]
    )
    ends = 7 * h_fake.grad, 7 * h_real.grad  # each example's own
    bottoms = clipped_gradients(bottom_loss(bottom), dict(bottom.named_parameters()), 1e6, fake, real, *ends)
    for network, sums in ((top, tops), (bottom, bottoms)):
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(sums[name].float() / 7, parameter.grad, atol=1e-5), name
    found = private.gradients(top, h_real.detach())
    assert torch.allclose(-found, ends[1], atol=1e-5)


def config() -> VTGANConfig:
    return replace(
        PRESETS["fast"], dp=Target(epsilon=2.0, delta=1e-5, encoders=0.5), width=16, generator_width=16, noise=8,
        batch=40, epochs=1, least_rounds=6,
    )  # fmt: skip


def parties(held: ss.Federation) -> dict[str, VTGANSilo]:
    seated = seats(held.roster, Streams(4))
    return {
        silo: VTGANSilo(table, held.schemas[silo], seated[silo], Streams(5).child(silo), CPU, config())
        for silo, table in held.tables.items()
    }


def released(held: ss.Federation) -> bytes:
    return talk(coordinate(held.roster, config(), Streams(6), CPU), parties(held))


@pytest.mark.parametrize("sampled", [False, True])
def test_with_the_same_noised_quantities_a_row_less_gives_the_same_model(
    sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model depends on that row only through these quantities; each changes by at most its sensitivity."""
    record = Record()
    for module, name, at in ((private_encoders, "noised_counts", 0), (private_encoders, "noised_levels", 1)):
        monkeypatch.setattr(module, name, record.wrap(getattr(module, name), at))
    monkeypatch.setattr(dpsgd, "noised", record.wrap(dpsgd.noised, 0))  # one record, in talking order

    def mask(n: int, rate: float, rng: np.random.Generator) -> Tensor:
        return ((torch.arange(200) % 7 == 2) | (sampled & (torch.arange(200) == 199)))[:n]

    monkeypatch.setattr(private, "poisson_mask", mask)
    first = released(federation())
    record.replay = True
    second = released(federation(199))
    assert not record.recorded
    assert first == second
    steps = record.differences[-90:]  # 30 critic steps, of two silos and the coordinator
    clip = 1 / math.sqrt(3)
    assert max(steps) <= clip * (1 + 1e-5)
    assert (max(steps) > 0) == sampled


def test_a_silo_takes_no_more_steps_than_were_charged() -> None:
    silos = parties(federation())
    silo = silos["tax"]
    conversation = coordinate(federation().roster, config(), Streams(6), CPU)
    step = next(conversation)
    last: dict[str, Message] = {}
    try:
        while True:
            replies: dict[str, Message] = {}
            if isinstance(step, Exchange):
                replies = {name: silos[name].answer(ask) for name, ask in step.asks.items()}
                last |= {type(ask).__name__: ask for name, ask in step.asks.items() if name == "tax"}
            step = conversation.send(replies)
    except StopIteration:
        pass
    for repeated in (last["PushSampled"], last["Charge"], last["EncodeRows"]):
        with pytest.raises(ProtocolError, match="once"):
            silo.answer(repeated)
    sampled = last["PushSampled"]
    assert isinstance(sampled, PushSampled)
    silo.answer(replace(sampled, step=sampled.step + 1))
    with pytest.raises(ProtocolError, match="no more private steps than were charged"):
        silo.answer(last["DescendPrivately"])
    with pytest.raises(ProtocolError, match="costs at most the target, once"):
        silo._answer(last["Charge"])
    wrong = Event("discrete Laplace", 1e-3, 0.0, "steps of the critics", times=30)  # known to the accountant, no noise
    with pytest.raises(ProtocolError, match="one event for all steps of the critics"):
        silo._answer(replace(last["Charge"], events=(wrong,)))
    with pytest.raises(ProtocolError, match=r"in their turn.*PushRows"):
        silo.answer(PushRows(0, torch.zeros(40, 8), "tax"))


def test_what_makes_batches_depend_on_rows_is_off() -> None:
    kept = config().settled
    assert (kept.dropout, kept.statistics) == (0.0, "all")
    assert VTGANConfig().settled == VTGANConfig()
