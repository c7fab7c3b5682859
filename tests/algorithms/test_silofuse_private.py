"""SiloFuse under differential privacy: everything that depends on rows is noised."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.released import Record, talk
from typer.testing import CliRunner

import silosynth as ss
from silosynth.algorithms.silofuse import private
from silosynth.algorithms.silofuse.networks import Coder
from silosynth.algorithms.silofuse.options import PRESETS, CoderConfig, PrivateTraining, SiloFuseConfig
from silosynth.algorithms.silofuse.private import SiloFusePrivateSide, in_slots, train_coder, train_latent
from silosynth.algorithms.silofuse.protocol import AskLatents, FitCoder, TrainAutoencoder, coordinate
from silosynth.algorithms.silofuse.silo import SiloFuseSilo
from silosynth.cli import app
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.schema import Table
from silosynth.core.streams import Streams, integers, normals, uniforms
from silosynth.encoders import table as private_encoders
from silosynth.models.flow import flow_loss, times
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.privacy import dpsgd
from silosynth.privacy.accounting import Charge
from silosynth.privacy.agreement import Group
from silosynth.privacy.dpsgd import poisson_mask
from silosynth.privacy.events import Event, Target, gaussian_steps
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import statement

CPU = torch.device("cpu")
MODES = ("upload", "release")
TINY = {
    "dp": {"epsilon": 2.0, "delta": 1e-5},  # the noise of so little is found soon
    "dp_training": {"coder_steps": 10, "latent_steps": 4, "hidden": [8], "width": 8, "batch": 40},
    "latent.width": 16, "latent.steps": 6, "latent.checks": 2, "latent.sample_steps": 3, "least_rows": 50,
}  # fmt: skip


def frame(rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    job = rng.choice(["nurse", "smith", "judge"], rows, p=[0.5, 0.3, 0.2])
    pay = np.where(job == "judge", 90, 40) + rng.normal(0, 4, rows).round(1)
    return pd.DataFrame({"job": job, "age": rng.integers(20, 65, rows), "pay": pay, "rich": pay > 60})


SILOS = {"registry": ["job", "age"], "tax": ["pay", "rich"]}
BOUNDS = {"age": {"low": 18, "high": 70}, "pay": {"low": 0, "high": 150}}


def federation(data: pd.DataFrame | None = None) -> ss.Federation:
    return ss.simulate(frame() if data is None else data, silos=SILOS, schema=BOUNDS)


def fit(mode: str, **options: Any) -> ss.Model:
    chosen = {**TINY, "dp_mode": mode, **options}
    return ss.fit("silofuse", federation(), preset="fast", options=chosen, progress=False, seed=1)


@pytest.fixture(scope="module", params=MODES)
def model(request: pytest.FixtureRequest) -> ss.Model:
    return fit(request.param)


def test_it_costs_the_target_almost_and_never_more(model: ss.Model) -> None:
    privacy = statement(model.ledger, assume_secret=True)
    assert 0.95 * 2 <= privacy["release"]["epsilon"] <= 2
    assert privacy["release"]["delta"] <= 1e-5 * (1 + 1e-9)
    assert len(model.sample(40)) == 40


def test_each_mode_states_against_whom_it_protects(model: ss.Model) -> None:
    privacy = statement(model.ledger, assume_secret=True)
    upload = model.config.dp_mode == "upload"  # type: ignore[attr-defined]
    if upload:
        assert "holds against the coordinator and the other silos as well" in privacy["rest"]
        assert all(budget["epsilon"] <= 2 for budget in privacy["silos"].values())
    else:
        wanted = "It does not hold against the coordinator, which read one un-noised value per training row."
        assert privacy["rest"] == wanted
    lines = [line for budget in privacy["silos"].values() for line in budget["events"]]
    assert {line["scope"] for line in lines} == ({"all"} if upload else {"all", "release"})
    last = [line for line in lines if line["joint"]]
    assert [line["count"] for line in last] == [1 if upload else 4] * 2


def test_saved_models_reveal_neither_rows_nor_sizes(model: ss.Model) -> None:
    trained = [record for record in model.ledger if "Synth" not in record["type"]]
    assert model.rows != 300 and {record["bytes"] for record in trained} == {0}
    assert {column.reason for schema in model.schemas.values() for column in schema.columns} == {""}


def test_inspect_shows_the_budget_as_a_table(model: ss.Model, tmp_path: Any) -> None:
    secret = [{key: value for key, value in record.items() if key != "noise"} for record in model.ledger]
    replace(model, ledger=secret).save(tmp_path / "m.silosynth")
    runner = CliRunner(env={"COLUMNS": "240"})
    shown = runner.invoke(app, ["inspect", str(tmp_path / "m.silosynth")]).stdout
    assert "Privacy budget" in shown and "For readers of each silo's messages" in shown
    assert "steps of the silo's autoencoder" in shown and "Poisson-sampled Gaussian, noise" in shown
    assert "What noise protects" in shown and "does not cover" in shown
    assert "for the released model and its synthetic tables" in shown
    facts = json.loads(runner.invoke(app, ["inspect", str(tmp_path / "m.silosynth"), "--json"]).stdout)
    assert facts["privacy"]["release"]["epsilon"] <= 2


def test_joint_training_and_a_mechanism_of_the_paper_are_refused() -> None:
    with pytest.raises(ConfigError, match="no differential privacy"):
        ss.fit("e2edistr", federation(), options={"dp": TINY["dp"]}, progress=False)
    with pytest.raises(ConfigError, match="no mechanism of its own"):
        fit("release", dp="paper-unsound")


# Steps: without noise and with a huge clip they are ordinary ones.


def quiet(times: int = 1) -> Event:
    return gaussian_steps("steps", 1e-14, 1.0, times)


PRIVATE = SiloFuseConfig(
    dp=Target(epsilon=10.0, delta=1e-5, encoders=0.5), dp_training=PrivateTraining(hidden=(8,), coder_steps=1)
)


def coder(table: Table | None = None) -> Coder:
    held = federation()
    table = held.tables["registry"] if table is None else table
    made = Coder(private_encoders.TableCoder(table, held.schemas["registry"], Streams(1)), CPU)
    config = CoderConfig(form="clipped", hidden=(8,), steps=1, held_out=0.0, clip=0.0, decay=0.0, fit_to_rows=False)
    made.learn(config, Target(epsilon=10.0, delta=1e-5, encoders=0.5), 1)
    return made


def test_a_step_of_an_autoencoder_without_noise_is_an_ordinary_one() -> None:
    fast, slow = coder(), coder()
    train_coder(fast, 0, 1, quiet(), 300.0, 1e6, Streams(5))
    draw = Streams(5).noise()
    poisson_mask(300, 1.0, draw)
    noise = normals(draw, 300, slow.latents)
    config = slow.config
    slow.learner.descend(
        slow.network.loss(slow.levels, slow.scores, noise, sigma=config.sigma, kl=0.0, weight=config.weight)
    )
    for a, b in zip(fast.network.parameters(), slow.network.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["flow", "gaussian"])
def test_a_step_of_the_model_of_latents_without_noise_is_an_ordinary_one(path: Any) -> None:
    config = LatentConfig(
        path=path,
        fit_to_rows=False,
        width=8,
        depth=1,
        steps=1,
        clip=0.0,
        held_out=0.0,
        precision="float32",
        wide_rate=0.0,
    )
    fast, slow = (LatentGenerator(50, 3, config, Streams(1), CPU) for _ in range(2))
    x_NL = torch.randn(50, 3, generator=Streams(2).torch())
    train_latent(fast, x_NL, 1, quiet(), 50.0, 1e6, Streams(7))
    draw = Streams(7).noise()
    poisson_mask(50, 1.0, draw)
    noise = normals(draw, 50, 3)
    if path == "flow":
        at = times(uniforms(draw, 50), config.time_mean, config.time_sd, config.left)
        loss = flow_loss(slow.network, x_NL, at, noise, None)
    else:
        steps = integers(draw, slow.gaussian.steps, 50)
        loss = slow.gaussian.loss(slow.network, x_NL, steps, noise, None)
    slow.learner.descend(loss)
    for a, b in zip(fast.network.parameters(), slow.network.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5)  # type: ignore[arg-type]


def test_noise_is_taken_out_of_the_covariance_of_latents() -> None:
    draw = Streams(3).torch()
    clean = torch.randn(20_000, 2, generator=draw) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    shrunk = private.without_noise(clean + 2.0 * torch.randn(clean.shape, generator=draw), 2.0)
    assert torch.allclose(shrunk.T.cov(), clean.T.cov(), atol=0.15)


# Slots.


def test_empty_slots_are_equally_likely_anywhere() -> None:
    made, trials, slots = coder(), 400, 320
    side = SiloFusePrivateSide(made, PRIVATE, seats(federation().roster, Streams(4))["registry"], Streams(1))
    last = gaussian_steps("latents", 1e-9, 1.0, 1, scope="all")
    side.account.paid = Charge(300, (), (quiet(), last))
    agreed, empty_S = {"purpose": private.SLOTS, "fresh": False, "share": None, "ready": True}, torch.zeros(slots)
    for trial in range(trials):
        side.group.restore({**agreed, "secret": trial.to_bytes(32, "big")})
        reply = side.answer(private.AskChargedLatents(slots, made.latents))
        assert isinstance(reply, private.NoisedLatents)
        empty = reply.z_SL.abs().amax(1) < 1e-6
        assert int(empty.sum()) == slots - 300
        empty_S += empty
    share = (slots - 300) / slots
    assert float(empty_S.var()) == pytest.approx(trials * share * (1 - share), rel=0.4)  # of a binomial count
    assert int(empty_S.max()) < trials * share + 5 * math.sqrt(trials * share)
    assert int(empty_S.min()) > 0


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 11])
def test_a_row_more_changes_one_slot(rows: int) -> None:
    """And none if all slots are taken: the row is left out."""
    z_NL, order_S = 1 + torch.rand(rows + 1, 3, generator=Streams(1).torch()), torch.tensor([2, 5, 0, 6, 1, 7, 4, 3])
    fewer, more = in_slots(z_NL[:-1], order_S), in_slots(z_NL, order_S)
    assert more.shape == (8, 3)
    changed = (fewer != more).any(dim=1).nonzero().flatten()
    assert changed.tolist() == order_S[rows : rows + 1].tolist()
    assert not fewer[changed].any()  # it was empty: the change is the row's own norm
    assert sorted(more[more.any(dim=1)].tolist()) == sorted(z_NL[:8].tolist())


# What the model depends on.


def parties(config: SiloFuseConfig, held: ss.Federation) -> dict[str, SiloFuseSilo]:
    seated = seats(held.roster, Streams(4))
    return {
        silo: SiloFuseSilo(table, held.schemas[silo], seated[silo], Streams(5).child(silo), CPU, config)
        for silo, table in held.tables.items()
    }


def released(config: SiloFuseConfig, held: ss.Federation) -> bytes:
    return talk(coordinate(held.roster, config, Streams(6), CPU), parties(config, held))


@pytest.mark.parametrize("mode", MODES)
def test_with_the_same_noised_quantities_a_row_less_gives_the_same_model(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model depends on that row only through these quantities; each changes by at most its sensitivity."""
    config = replace(
        PRESETS["fast"], dp=Target(epsilon=2.0, delta=1e-5), dp_mode=mode, least_rows=50,
        dp_training=PrivateTraining(coder_steps=10, latent_steps=3, hidden=(8,), width=8, batch=40),
        latent=LatentConfig(width=8, steps=4, checks=2), coder=CoderConfig(sigma=0.0),
    )  # fmt: skip
    record = Record()
    for module, name, at in (
        (private_encoders, "noised_counts", 0), (private_encoders, "noised_levels", 1),
        (private, "noised_counts", 0), (dpsgd, "noised", 0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, record.wrap(getattr(module, name), at))
    last = torch.arange(300) == 299  # takes part in no step here: the tests of DP-SGD check sums of steps
    monkeypatch.setattr(dpsgd, "poisson_mask", lambda n, rate, rng: torch.arange(300)[:n] % 7 == 3)
    monkeypatch.setattr(Group, "permutation", lambda self, n, context: torch.arange(n))
    data = frame()
    first = released(config, federation(data))
    record.replay = True
    second = released(config, federation(data[~last.numpy()]))
    assert not record.recorded
    assert first == second
    assert max(record.differences) <= math.sqrt(2)  # of two latents in a silo; 1 of counts
    assert (record.differences[-1] > 0) == (mode == "upload")  # the latents that a silo sends


def test_a_silo_is_not_charged_more_than_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    held = federation()
    seat = seats(held.roster, Streams(4))["tax"]
    config = replace(PRIVATE, dp=Target(epsilon=1.0, delta=1e-5), dp_training=PrivateTraining(coder_steps=10))
    silo = SiloFuseSilo(held.tables["tax"], held.schemas["tax"], seat, Streams(1), CPU, config)
    steps, last = (replace(kind, noise=0.5) for kind in private._kinds(config))
    steps = replace(steps, noise=1.0, rate=0.1, times=10)
    ask = Charge(300, (), (steps, last))
    monkeypatch.setattr(Group, "key", lambda self, context: bytes(32))
    with pytest.raises(ProtocolError, match="It awaits LearnCoder"):  # it has learnt nothing yet
        silo.answer(replace(ask, events=(replace(steps, times=1500), last)))
    learnt = silo.answer(private.LearnCoder())
    assert isinstance(learnt, private.CoderLearnt)
    with pytest.raises(ProtocolError, match="at most the target"):
        silo.private.answer(replace(ask, learnt=learnt.events))
    upload = (
        replace(last, rate=0.01),
        replace(last, times=2),
        replace(last, scope="release"),
        replace(last, joint=False),
    )
    for events in ((replace(steps, times=9), last), (steps,), *((steps, other) for other in upload)):
        with pytest.raises(ProtocolError, match="all steps of its autoencoder"):
            silo.private.answer(replace(ask, learnt=learnt.events, events=events))
    with pytest.raises(ProtocolError, match="after they were charged"):
        silo.private.train(0, 10)
    with pytest.raises(ProtocolError, match="after they were charged"):
        silo.private.answer(private.AskChargedLatents(0, 4))
    for early in (ask, TrainAutoencoder(0), private.AskChargedLatents(0, 4), AskLatents(), FitCoder()):
        with pytest.raises(ProtocolError, match="in their turn"):
            silo.answer(early)


def test_noised_latents_are_sent_once() -> None:
    """A second ask that scales the same noise differently would reveal the latents without it."""
    held = federation()
    silo = parties(PRIVATE, held)["registry"]
    silo.answer(private.LearnCoder())
    silo.private.account.paid = Charge(300, (), (quiet(), gaussian_steps("latents", 1.0, 1.0, 1, scope="all")))
    agreed = {"purpose": private.SLOTS, "fresh": False, "share": None, "ready": True, "secret": bytes(32)}
    silo.private.group.restore(agreed)
    silo._turns.restore({"at": len(silo._script(training=True)) - 1, "last": {}})
    silo.answer(private.AskChargedLatents(320, 8))
    for ask in (private.AskChargedLatents(320, 8), private.AskChargedLatents(321, 9), AskLatents()):
        with pytest.raises(ProtocolError, match="once"):
            silo.answer(ask)
