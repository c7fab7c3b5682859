"""SiloFuse itself: what it learns, what it sends, and what its options do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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
    seated_silos,
    weights_of,
)

import silosynth as ss
from silosynth import catalog
from silosynth.algorithms.silofuse import protocol
from silosynth.algorithms.silofuse.options import PRESETS, CoderConfig, SiloFuseConfig
from silosynth.algorithms.silofuse.protocol import BatchLatents, DecodeBatch, EncodeBatch, LatentGradients
from silosynth.algorithms.silofuse.silo import EndToEndSilo
from silosynth.core.conversation import Exchange, Progress, Roster
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Done
from silosynth.core.streams import Streams
from silosynth.models.latent import LatentConfig, LatentGenerator


@pytest.fixture(scope="module")
def learnt():
    """A sample of a trained model."""
    return fit(**LEARN).sample(3000)


@pytest.mark.slow
def test_dependence_across_silos_is_learnt(learnt):
    real, table = people(), learnt
    for job in ("nurse", "smith", "judge"):
        wanted = real.loc[real.job == job, "pay"].mean()
        assert table.loc[table.job == job, "pay"].mean() == pytest.approx(wanted, abs=5)
    assert (table.rich == (table.pay > 60)).mean() > 0.9


@pytest.mark.slow
def test_marginals_are_those_of_training(learnt):
    real, table = people(), learnt
    shares = table.job.value_counts(normalize=True)
    for job, share in real.job.value_counts(normalize=True).items():
        assert shares[job] == pytest.approx(share, abs=0.03)
    assert table.pay.quantile(0.5) == pytest.approx(real.pay.quantile(0.5), abs=3)


@pytest.mark.slow
def test_missing_values_follow_the_column_they_depend_on():
    data = people()
    data.loc[data.job == "smith", "pay"] = np.nan
    table = fit(data=data, **LEARN).sample(3000)
    assert table.loc[table.job == "smith", "pay"].isna().mean() > 0.85
    assert table.loc[table.job == "nurse", "pay"].isna().mean() < 0.1


def bytes_sent(name, steps):
    options = {"coder.steps": steps, "latent.steps": steps, "latent.checks": 2, "least_rows": 50}
    ledger = fit(name, people(200), **options).ledger
    return sum(record["bytes"] for record in ledger), len(ledger)


@pytest.mark.slow
def test_traffic_does_not_depend_on_iterations_but_that_of_joint_training_does():
    assert bytes_sent("silofuse", 10) == bytes_sent("silofuse", 30)
    few, many = bytes_sent("e2edistr", 10), bytes_sent("e2edistr", 30)
    assert many[0] > 2 * few[0]


def test_partitioned_columns_never_leave_their_silo():
    model = fit(data=people(300), synthesis="partitioned")
    before = len(model.ledger)
    parts = model.sample_parts(50)
    assert list(parts["registry"].columns) == SILOS["registry"] and len(parts["tax"]) == 50
    sent = {record["privacy"] for record in model.ledger[before:] if record["from"] != "coordinator"}
    assert sent == {"nothing about single rows"}
    with pytest.raises(ConfigError, match="sample_parts"):
        model.sample(5)


def test_identifiers_are_numbered_not_modelled():
    data = people(200)
    data.insert(0, "customer_id", [f"C{i:05d}" for i in range(200)])
    model = fit(data=data, silos={"a": ["customer_id", "job", "age"], "b": ["pay", "rich"]})
    table = model.sample(20)
    assert list(table.columns) == list(data.columns)
    assert not set(table.customer_id) & set(data.customer_id) and table.customer_id.is_unique


def test_columns_with_pooled_levels_are_named():
    data = people(200)
    data.loc[0, "job"] = "astronaut"
    model = fit(data=data)
    assert model.describe()["pooled"] == ["job"]
    assert "astronaut" not in set(model.sample(500).job)


def test_a_silo_of_identifiers_alone_is_refused():
    data = people(50).assign(customer_id=[f"C{i:05d}" for i in range(50)])
    with pytest.raises(ss.SilosynthError, match="neither an identifier nor a pseudonym"):
        fit(data=data, silos={"a": ["customer_id"], "b": ["pay"]})


def test_batches_are_the_sample_in_pieces():
    model = fit(data=people(300))
    pieces = list(model.sample_batches(25, batch=10, seed=1))
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    assert list(pieces[0].columns) == list(people(3).columns)


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_the_number_of_rows_must_be_positive(n):
    with pytest.raises(ConfigError, match="positive whole number"):
        fit(data=people(100)).sample(n)


def test_the_papers_figures_are_the_papers():
    paper = PRESETS["paper"]
    assert (paper.latent.steps, paper.latent.batch, paper.latent.rate) == (500_000, 512, 1e-3)
    assert (paper.latent.diffusion_steps, paper.latent.sample_steps) == (200, 25)
    assert (paper.latent.depth, paper.latent.dropout, paper.latent.network) == (8, 0.01, "plain")
    assert (paper.coder.hidden, paper.coder.latents_per_column, paper.divide) == ((1024, 32), 1, True)
    assert (paper.coder.steps, paper.coder.batch, paper.coder.rate, paper.coder.spread) == (500_000, 512, 1e-3, True)
    for part in (paper.coder, paper.latent):
        assert (part.schedule, part.clip, part.decay, part.held_out) == ("constant", 0.0, 0.0, 0.0)
    assert (paper.coder.numbers, paper.coder.encoders.pool_rare, paper.coder.calibrate) == ("standard", False, False)
    assert paper.latent.precision == "float32"


@pytest.mark.parametrize("target", ["noise", "latent"])
@pytest.mark.parametrize("form", ["plain", "vae"])
def test_the_papers_ambiguities_are_options(target, form):
    model = fit(preset="paper", data=people(300), **{"coder.form": form, "latent.target": target})
    assert model.sample(10).notna().all().all()


@pytest.mark.parametrize(
    "options",
    [{"latent.steps": 0}, {"latent.checks": 0}, {"latent.sample_steps": 0}, {"coder.hidden": []}, {"coder.batch": -1}],
)
def test_options_out_of_range_are_refused_before_training(options):
    with pytest.raises(ConfigError, match=r"above zero|from 1 to"):
        fit(data=people(50), **options)


@pytest.mark.parametrize(("fit_to_rows", "told"), [(True, "of 9,000 steps: few rows get fewer"), (False, "")])
def test_steps_that_few_rows_do_not_get_are_told(fit_to_rows, told):
    """Of both trainings, before they begin or have done their first part; the examples of the guide are such."""
    coder, latent = CoderConfig(steps=9000, fit_to_rows=fit_to_rows), LatentConfig(steps=9000, fit_to_rows=fit_to_rows)
    config, roster = SiloFuseConfig(coder=coder, latent=replace(latent, width=8, depth=1)), Roster(("a", "b"))
    state = {"part": 0, "rows": 40, "generator": None, "latents": torch.zeros(40, 2)}
    first = next(protocol._train_autoencoders(roster, config, state))
    then = next(protocol._train_diffusion(config, Streams(0), CPU, state))
    assert (told in first.note and told in then.note) if told else (first.note, then.note) == ("", "")
    assert ("400 " in first.note and "coder.fit_to_rows" in first.note) == bool(told)
    assert ("1,000 " in then.note and "latent.fit_to_rows" in then.note) == bool(told)
    assert then.total == (1000 if told else 9000)


@pytest.mark.parametrize(("name", "silos"), [("silofuse", 2), ("latentdiff", 1)])
def test_every_coordinator_of_these_trainings_tells_it(name, silos):
    """Also where all columns are in one place."""
    options = {"latent.steps": 4000, "latent.checks": 200, "latent.width": 8, "latent.depth": 1, "coder.steps": 2000}
    entry, roster = catalog.algorithm(name), Roster(tuple("ab"[:silos]))
    talk = entry.coordinate(roster, entry.configure("fast", options), Streams(0), CPU)
    told, step = dict[str, str](), next(talk)
    while "diffusion" not in told:
        if isinstance(step, Progress):
            told.setdefault(step.stage, step.note)
        replies = None if not isinstance(step, Exchange) else {silo: _reply(ask) for silo, ask in step.asks.items()}
        step = talk.send(replies)
    talk.close()
    assert told["autoencoders"].startswith("400 of 2,000 steps: few rows get fewer, unless coder.fit_to_rows = false")
    assert told["diffusion"].startswith("1,000 of 4,000 steps: few rows get fewer, unless latent.fit_to_rows = false")


def _reply(ask):
    """A silo's, of 40 rows."""
    known = {protocol.FitCoder: protocol.CoderFitted(40, 2), protocol.AskLatents: protocol.Latents(torch.zeros(40, 2))}
    return known.get(type(ask), Done())


def test_joint_training_refuses_what_it_cannot_train():
    with pytest.raises(ConfigError, match="Gaussian"):
        fit("e2edistr", data=people(50), **{"latent.path": "flow"})
    with pytest.raises(ConfigError, match=r"each batch is a step.*latent\.accumulate = 4"):
        fit("e2edistr", data=people(50), **{"latent.accumulate": 4})


def test_options_name_the_nearest_and_the_type():
    with pytest.raises(ConfigError, match="Did you mean 'steps'"):
        fit(**{"latent.step": 5})
    with pytest.raises(ConfigError, match=r"Option latent.steps must be int \(got: many\)"):
        fit(**{"latent.steps": "many"})
    with pytest.raises(ConfigError, match=r"Options of latent: Option 'steps' must be above zero \(got: -3\)"):
        fit(**{"latent.steps": -3})
    with pytest.raises(ConfigError, match="Did you mean 'fast'"):
        fit(preset="fats")


def test_joint_gradients_equal_those_of_the_network_in_one_piece():
    """E2EDistr split over two silos against autograd through the same modules in one graph."""
    _, parties = seated_silos(EndToEndSilo)
    config = LatentConfig(path="gaussian", target="latent", width=16, precision="float32")
    generator = LatentGenerator(64, 8, config, Streams(0), CPU)
    rows = torch.arange(32)

    clean, loss = generator.denoise(encoded_at_once(parties, rows), Streams(0).child("draw").torch())
    for party, z in zip(parties.values(), clean.split(4, dim=1), strict=True):
        loss = loss + loss_at_once(party, z, rows)
    weights = weights_of(parties, generator.network)
    wanted = torch.autograd.grad(loss, weights, allow_unused=True)

    asked = {silo: party.answer(EncodeBatch(rows)) for silo, party in parties.items()}
    z = torch.cat([reply.z_BL for reply in asked.values() if isinstance(reply, BatchLatents)], 1).requires_grad_()
    clean, loss = generator.denoise(z, Streams(0).child("draw").torch())
    back = [
        party.answer(DecodeBatch(part.detach().contiguous()))
        for party, part in zip(parties.values(), clean.split(4, dim=1), strict=True)
    ]
    gradient = torch.cat([reply.grad_z_BL for reply in back if isinstance(reply, LatentGradients)], 1)
    torch.autograd.backward([loss, clean], [None, gradient])
    for party, part in zip(parties.values(), z.grad.split(4, dim=1), strict=True):
        party.encoded.backward(part)
    for weight, gradient in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-6, rtol=1e-4)
