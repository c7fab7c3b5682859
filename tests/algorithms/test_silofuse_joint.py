"""SiloFuse on joint latents: split gradients, kept weights, refusals, and that it learns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.silofuse_play import (
    CPU,
    LEARN,
    SILOS,
    encoded_at_once,
    fit,
    loss_at_once,
    people,
    play,
    seated_silos,
    weights_of,
)

import silosynth as ss
from silosynth.algorithms.silofuse.networks import JointCoder
from silosynth.algorithms.silofuse.options import CoderConfig
from silosynth.algorithms.silofuse.protocol import (
    AskLoss,
    DecodeBatch,
    EncodeBatch,
    JoinLatents,
    KeepWeights,
    SettleWeights,
    UpdateCoder,
    _iterate_joint,
)
from silosynth.algorithms.silofuse.silo import JointSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats

CONFIG = CoderConfig(form="plain", hidden=(16, 8))


def test_joint_latents_have_the_gradients_of_one_network():
    """Encoders, the coordinator's part and decoders over two silos, against the same modules in one graph."""
    roster, parties = seated_silos(JointSilo)
    for party in parties.values():
        party.answer(JoinLatents(8))
    joint, rows = JointCoder(64, 8, CONFIG, Streams(0), CPU), torch.arange(32)
    joint.network.train()

    z = joint.network(encoded_at_once(parties, rows))
    read = z + joint.config.sigma * torch.randn(z.shape, generator=Streams(0).child("draw").torch())
    loss = sum(loss_at_once(party, read, rows) for party in parties.values())
    weights = weights_of(parties, joint.network)
    wanted = torch.autograd.grad(loss, weights)

    for learner in (joint.learner, *(party.coder.learner for party in parties.values())):
        learner.step = lambda: None  # weights stay, so that their gradients can be compared
    asks = play(parties, _iterate_joint(roster, joint, rows, [4, 4], Streams(0).child("draw").torch()))
    assert asks == [dict.fromkeys(parties, kind) for kind in (EncodeBatch, DecodeBatch, UpdateCoder)]
    for weight, gradient in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-6, rtol=1e-4)


def test_a_silo_s_loss_teaches_the_other_s_encoder():
    _, parties = seated_silos(JointSilo)
    joint, rows = JointCoder(64, 8, CONFIG, Streams(0), CPU), torch.arange(32)
    for party in parties.values():
        party.answer(JoinLatents(8))
    z = joint.network(encoded_at_once(parties, rows))
    loss = loss_at_once(parties["registry"], z, rows)
    weights = list(parties["tax"].coder.network.encoder.parameters())
    assert all(gradient.abs().max() > 1e-6 for gradient in torch.autograd.grad(loss, weights))


@pytest.mark.slow
def test_joint_latents_learn_dependence_across_silos_and_go_to_all():
    model = fit("silofuse-joint", **LEARN | {"coder.latents_per_column": 1})
    real, table = people(), model.sample(3000)
    for job in ("nurse", "smith", "judge"):
        wanted = real.loc[real.job == job, "pay"].mean()
        assert table.loc[table.job == job, "pay"].mean() == pytest.approx(wanted, abs=5)
    assert (table.rich == (table.pay > 60)).mean() > 0.9
    sent = [record["bytes"] for record in model.ledger if record["type"].endswith("SynthesiseFromLatents")]
    assert len(sent) == 2 and min(sent) > 4096 * 4 * 4  # bytes of four latents, two of each silo


def test_both_sides_end_with_the_weights_that_were_kept():
    roster, parties = seated_silos(JointSilo)
    config = CoderConfig(form="plain", hidden=(16, 8), steps=40, fit_to_rows=False)
    joint, draw = JointCoder(64, 8, config, Streams(0), CPU), Streams(0).child("draw").torch()
    for party in parties.values():
        party.answer(JoinLatents(8))
    joint.network.train()
    for step in range(4):
        play(parties, _iterate_joint(roster, joint, torch.arange(32), [4, 4], draw))
        if step == 1:  # the coordinator has seen the lowest loss
            joint.learner.judge(1.0)
            kept = [[weight.clone() for weight in learner.smooth] for learner in learners(joint, parties)]
            buffers = [buffer.clone() for buffer in joint.network.buffers()]
            for party in parties.values():
                party.answer(KeepWeights())
    assert not joint.learner.judge(2.0)
    joint.learner.settle()
    for party in parties.values():
        party.answer(SettleWeights())
    for learner, wanted in zip(learners(joint, parties), kept, strict=True):
        torch.testing.assert_close(learner.weights, wanted, atol=0, rtol=0)
        assert not torch.equal(learner.smooth[0], wanted[0])
    torch.testing.assert_close(list(joint.network.buffers()), buffers, atol=0, rtol=0)


def learners(joint, parties):
    return [joint.learner, *(party.coder.learner for party in parties.values())]


@pytest.mark.parametrize(
    ("before", "ask", "says"),
    [
        ([EncodeBatch(torch.arange(4)), UpdateCoder(torch.zeros(4, 4))], UpdateCoder(torch.zeros(4, 4)), "for 0 rows"),
        ([], AskLoss(torch.zeros(4, 8)), "for 0 rows"),
        ([EncodeBatch(torch.arange(1))], AskLoss(torch.zeros(4, 8)), r"\(4, 8\) for 1 rows"),
        ([EncodeBatch(torch.arange(4))], DecodeBatch(torch.zeros(4, 7)), "one vector of 8"),
        ([], EncodeBatch(torch.tensor([64])), "below 64"),
        ([], EncodeBatch(torch.tensor([-1])), "below 64"),
        ([], EncodeBatch(torch.zeros(2)), "float32"),
    ],
)
def test_messages_of_another_order_or_shape_are_refused(before, ask, says):
    _, parties = seated_silos(JointSilo)
    party = parties["tax"]
    for one in (JoinLatents(8), *before):
        party.answer(one)
    with pytest.raises(ProtocolError, match=says):
        party.answer(ask)


@pytest.mark.parametrize(
    "ask", [JoinLatents(8), KeepWeights(), SettleWeights(), AskLoss(torch.zeros(1, 8)), EncodeBatch(torch.arange(1))]
)
def test_a_silo_is_prepared_first(ask):
    federation = ss.simulate(people(20), silos=SILOS)
    seat, config = seats(federation.roster, Streams(0))["tax"], ALGORITHMS["silofuse-joint"].configure("fast")
    party = JointSilo(federation.tables["tax"], federation.schemas["tax"], seat, Streams(0), CPU, config)
    with pytest.raises(ProtocolError, match=r"in their turn.*It awaits FitCoder"):
        party.answer(ask)
    with pytest.raises(ConfigError, match="above zero"):
        JoinLatents(0)


def test_held_out_rows_may_be_all_of_many():
    data = pd.DataFrame({"a": np.arange(9000) % 7, "b": np.arange(9000) % 5})
    options = {"coder.steps": 2, "coder.hidden": [4, 4], "coder.held_out": 1e-5, "latent.steps": 2}
    model = fit("silofuse-joint", data=data, silos={"one": ["a"], "two": ["b"]}, **options)
    assert len(model.sample(5)) == 5


def test_joint_latents_refuse_what_they_cannot_keep():
    with pytest.raises(ConfigError, match="at the coordinator"):
        fit("silofuse-joint", data=people(50), **{"coder.form": "noisy"})
    with pytest.raises(ConfigError, match="no differential privacy"):
        fit("silofuse-joint", data=people(50)[["job", "rich"]], silos={"one": ["job"], "two": ["rich"]},
            dp={"epsilon": 5.0, "delta": 1e-5})  # fmt: skip


@pytest.mark.parametrize("steps", [1, 7, 15])
def test_joint_training_ends_after_any_number_of_steps(steps):
    model = fit("silofuse-joint", data=people(30), **{"coder.steps": steps, "coder.fit_to_rows": False})
    asked = [record for record in model.ledger if record["type"].endswith("UpdateCoder")]
    assert len(asked) == 2 * steps and len(model.sample(5)) == 5
