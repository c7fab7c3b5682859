"""The central baselines: their protocol driven by hand, degenerate tables, options, and that they learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.algorithms.central.options import PRESETS, CTGANOptions
from silosynth.algorithms.central.protocol import (
    PARTS,
    ModelPrepared,
    PrepareModel,
    SynthesiseRows,
    TrainModel,
    coordinate,
    synthesise,
)
from silosynth.algorithms.central.silo import MODELS
from silosynth.catalog import ALGORITHMS
from silosynth.core.conditions import parse
from silosynth.core.conversation import Checkpoint, Exchange, Progress, SyntheticColumns
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Release, Struct
from silosynth.core.streams import Streams
from silosynth.models.gan import ConditionLaw
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode, pack, unpack

CPU = torch.device("cpu")
GAN = {"generator": [16], "critic": [16], "noise": 4, "batch": 30, "epochs": 3}
TINY = {
    "ctgan": {**GAN, "least_rounds": 0, "critic_steps": 2},
    "ctabgan": {"channels": 4, "noise": 4, "batch": 30, "epochs": 3, "least_rounds": 0, "classifier": [16]},
    "tvae": {"encoder": [16], "decoder": [16], "embedding": 4, "batch": 30, "epochs": 3, "least_steps": 0},
    "tabddpm": {"layers": [16], "time": 8, "steps": 25, "batch": 30, "diffusion_steps": 10, "sample_steps": 5},
}
every = pytest.mark.parametrize("name", sorted(TINY))


def people(rows=90):
    draw = np.random.default_rng(0)
    job = draw.choice(["nurse", "smith", "judge"], rows, p=[0.5, 0.3, 0.2])
    pay = np.select([job == "nurse", job == "smith"], [30, 50], 90) + draw.normal(0, 4, rows)
    data = pd.DataFrame({"job": job, "pay": pay.round(1), "rich": pay > 60, "age": draw.integers(20, 65, rows)})
    data.loc[draw.random(rows) < 0.1, "age"] = None
    return data


def silo(name, data=None, **options):
    """A single party, with its options and roster."""
    federation = ss.simulate(people() if data is None else data)
    config = ALGORITHMS[name].configure("fast", {**TINY[name], **options})
    (only,) = federation.roster
    seat = seats(federation.roster, Streams(0))[only]
    party = ALGORITHMS[name].party(federation.tables[only], federation.schemas[only], seat, Streams(0), CPU, config)
    return party, config, federation.roster


def drive(party, talk):
    """Run a conversation with one party, in wire format; returns its messages, progress, checkpoints and result."""
    steps, points, got = [], [], None
    while True:
        try:
            step = talk.send(got)
        except StopIteration as end:
            return steps, points, end.value
        got = {}
        if isinstance(step, Exchange):
            for name, ask in step.asks.items():
                got[name] = decode(encode(party.answer(decode(encode(ask)))))
                steps += [ask, got[name]]
        elif isinstance(step, Checkpoint):
            points.append((pack(step.state), pack(party.state())))
        else:
            steps.append(step)


def fit(name, data, preset="fast", **options):
    return ss.fit(name, ss.simulate(data), preset=preset, options=options, progress=False)


@every
def test_row_counts_and_synthetic_columns_are_all_that_leaves(name):
    party, config, roster = silo(name)
    steps, points, model = drive(party, coordinate(roster, config, Streams(0), CPU))
    messages = [step for step in steps if not isinstance(step, Progress)]
    assert [type(message) for message in messages] == [PrepareModel, ModelPrepared, *[TrainModel, Done] * PARTS]
    assert [message.part for message in messages if isinstance(message, TrainModel)] == list(range(PARTS))
    assert {message.release for message in messages} == {Release.NOTHING, Release.COUNTS}
    assert model == {"rows": 90} and len(points) == PARTS + 1
    last = [step for step in steps if isinstance(step, Progress)][-1]
    assert last.done == last.total == PARTS and not last.figures
    party.restore(party.trained())
    steps, _, tables = drive(party, synthesise(roster, config, model, 7, Streams(1).child("draw"), CPU))
    assert [type(message) for message in steps] == [SynthesiseRows, SyntheticColumns]
    assert [len(table) for table in tables.values()] == [7]


@every
def test_training_resumes_from_any_checkpoint_to_the_same_bytes(name):
    party, config, roster = silo(name)
    _, points, _ = drive(party, coordinate(roster, config, Streams(0), CPU))
    for state, held in points[:: PARTS // 4]:
        again, _, _ = silo(name)
        again.restore(unpack(held))
        drive(again, coordinate(roster, config, Streams(0), CPU, unpack(state)))
        assert pack(again.trained()) == pack(party.trained())


@every
def test_a_trained_model_samples_without_the_table(name):
    party, config, roster = silo(name)
    drive(party, coordinate(roster, config, Streams(0), CPU))
    empty, _, _ = silo(name)
    empty.columns.table = empty.columns.table.take(slice(0, 0))
    empty.restore(unpack(pack(party.trained())))
    assert len(pack(empty.trained())) == len(pack(party.trained())) < len(pack(party.state()))
    party.restore(party.trained())
    drawn = [encode(one.answer(SynthesiseRows(50, "a"))) for one in (party, empty)]
    assert drawn[0] == drawn[1] != encode(party.answer(SynthesiseRows(50, "b")))


@pytest.mark.parametrize("name", ["ctgan", "ctabgan"])
def test_a_gan_makes_rows_for_the_rarest_condition_on_a_category(name):
    federation = ss.simulate(people(400))
    model = ss.fit(name, federation, "fast", seed=1, options=TINY[name] | {"epochs": 8}, progress=False)
    (only,) = federation.roster
    given = parse({"job": ["smith", "judge"], "rich": True, "age": (20, None)}, model.makes())
    party = model._parties(Streams(3))[only]
    party.restrict(given)
    law = party.model.law
    drawn = law.draw(500, torch.Generator().manual_seed(1), "frequency")
    (column,) = {int(torch.bucketize(one, torch.tensor(law.widths).cumsum(0), right=True)) for one in drawn}
    named = [encoder.name for encoder in party.columns.encoders if encoder.width > 1]
    assert named[party.model.conditional[column]] in ("job", "rich") and len(drawn.unique()) <= 2
    made = model.sample(60, given={"job": ["smith", "judge"], "rich": True, "age": (20, None)})
    assert made["job"].isin(["smith", "judge"]).all() and made["rich"].all() and made["age"].min() >= 20


def test_the_law_of_conditions_on_one_column():
    law = ConditionLaw(torch.tensor([5, 3, 2, 9, 10, 0]), (3, 1, 2))
    draw = torch.Generator().manual_seed(1)
    rarest = law.restricted({0: torch.tensor([False, True, True]), 2: torch.tensor([True, True])})
    share = torch.bincount(rarest.draw(4000, draw, "frequency"), minlength=6) / 4000
    torch.testing.assert_close(share, torch.tensor([0, 0.6, 0.4, 0, 0, 0]), atol=0.03, rtol=0)
    assert law.restricted({2: torch.tensor([False, True])}) is law and law.restricted({}) is law


@every
def test_a_silo_without_options_saves_and_restores_nothing(name):
    party, _, _ = silo(name)
    again, _, _ = silo(name)
    again.restore(unpack(pack(party.state())))
    assert again.model is None and again.columns.encoders == ()


@every
def test_partitioned_columns_stay(name):
    party, config, roster = silo(name, synthesis="partitioned")
    _, _, model = drive(party, coordinate(roster, config, Streams(0), CPU))
    party.restore(party.trained())
    steps, _, tables = drive(party, synthesise(roster, config, model, 7, Streams(1), CPU))
    assert tables == {} and isinstance(steps[-1], Done) and len(party.take_kept()) == 7


NUMBERS = np.random.default_rng(0).normal(size=40)
POOR = {
    "one column of numbers": {"x": NUMBERS},
    "one column of categories": {"x": ["a", "b"] * 20},
    "no categories": {"x": NUMBERS, "y": NUMBERS**2},
    "only categories": {"x": ["a", "b"] * 20, "y": ["c"] * 30 + ["d"] * 10},
    "nothing to learn": {"x": [1] * 40, "y": ["a"] * 40, "z": [None] * 40},
    "two rows": {"x": [1.5, 2.5], "y": ["a", "b"]},
    "missing or constant": {"x": [3.0, None] * 20},
    "a category for each row": {"x": [f"n{i}" for i in range(40)], "y": [i // 20 for i in range(40)]},
}


@every
@pytest.mark.filterwarnings("ignore::silosynth.data.infer.ColumnWarning")
@pytest.mark.parametrize("columns", POOR.values(), ids=POOR)
def test_degenerate_tables_train_and_decode(name, columns):
    data = pd.DataFrame(columns)
    table = fit(name, data, **TINY[name]).sample(9)
    assert table.dtypes.to_dict() == data.dtypes.to_dict() and len(table) == 9
    for column in data:
        if data[column].nunique() == 1 and not data[column].isna().any():
            assert (table[column] == data[column].iloc[0]).all()


def test_packed_rows_are_scored_together():
    model = fit("ctgan", people(), **{**TINY["ctgan"], "pac": 10})
    assert len(model.sample(11)) == 11
    with pytest.raises(ConfigError, match="multiple of 'pac'"):
        fit("ctgan", people(), **{**TINY["ctgan"], "pac": 7})


@pytest.mark.parametrize("target", ["rich", "job", "pay"])
def test_a_classifier_of_any_column_with_levels(target):
    assert len(fit("ctabgan", people(), **{**TINY["ctabgan"], "target": target}).sample(5)) == 5


def test_a_target_that_is_no_column_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'rich'"):
        fit("ctabgan", people(), **{**TINY["ctabgan"], "target": "riche"})


def test_a_target_without_a_choice_is_refused():
    data = people().assign(rich=True)
    with pytest.raises(ConfigError, match="at least two levels"):
        fit("ctabgan", data, **{**TINY["ctabgan"], "target": "rich"})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ctgan", {"epochs": 0}),
        ("ctgan", {"critic": []}),
        ("ctgan", {"tau": -1.0}),
        ("ctabgan", {"channels": 0}),
        ("tvae", {"embedding": 0}),
        ("tabddpm", {"sample_steps": 0}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(ConfigError, match="above zero"):
        ALGORITHMS[name].configure("fast", options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ctgan", {"dropout": 1.0}),
        ("ctgan", {"batch": 1}),
        ("ctgan", {"penalty": -1.0}),
        ("ctgan", {"least_rounds": -1}),
        ("ctabgan", {"dropout": 1.0}),
        ("ctabgan", {"information": -0.1}),
        ("ctabgan", {"betas": [0.5, 1.0]}),
        ("tvae", {"decay": -1e-5}),
        ("tvae", {"betas": [-0.1, 0.9]}),
        ("tabddpm", {"dropout": 1.0}),
        ("tabddpm", {"average": -0.1}),
    ],
)
def test_options_that_break_training_are_refused(name, options):
    with pytest.raises(ConfigError, match="at least"):
        ALGORITHMS[name].configure("fast", options)


@pytest.mark.parametrize("name", ["ctgan", "ctabgan"])
def test_no_memory_of_gradients_as_gulrajani_has_it(name):
    config = ALGORITHMS[name].configure("fast", {"betas": [0.0, 0.9]})
    assert config.betas == (0.0, 0.9)


def test_options_of_something_else_are_refused():
    data = ss.simulate(people())
    (only,) = data.roster
    with pytest.raises(ProtocolError, match="options of its own"):
        ALGORITHMS["ctgan"].party(
            data.tables[only], data.schemas[only], seats([only], Streams(0))[only], Streams(0), CPU, Struct()
        )


@pytest.mark.parametrize("ask", [TrainModel(0), SynthesiseRows(5, "a")])
def test_asks_that_come_too_early_are_refused(ask):
    party, _, _ = silo("ctgan")
    with pytest.raises(ProtocolError, match="It awaits PrepareModel"):
        party.answer(ask)


def test_every_baseline_has_its_presets_and_its_model():
    for name, presets in PRESETS.items():
        assert ALGORITHMS[name].central and set(presets) == {"paper", "fast", "balanced", "best"}
        assert {type(preset) for preset in presets.values()} <= set(MODELS)


def test_the_papers_figures_are_the_papers():
    paper = PRESETS["ctgan"]["paper"]
    assert isinstance(paper, CTGANOptions)
    assert (paper.generator, paper.critic, paper.dropout, paper.noise) == ((256, 256), (256, 256), 0.5, 128)
    assert (paper.epochs, paper.batch, paper.critic_steps, paper.pac) == (300, 500, 5, 1)
    assert (paper.rate, paper.betas, paper.decay) == (2e-4, (0.5, 0.9), 1e-6)
    assert (paper.penalty, paper.tau, paper.least_rounds) == (10.0, 0.2, 0)
    tvae = PRESETS["tvae"]["paper"]
    assert (tvae.encoder, tvae.decoder, tvae.embedding) == ((128, 128), (128, 128), 128)
    assert (tvae.epochs, tvae.batch, tvae.factor, tvae.rate, tvae.decay) == (300, 500, 2.0, 1e-3, 1e-5)
    assert PRESETS["tabddpm"]["paper"].diffusion_steps == 1000


LEARN = {
    "ctgan": {"least_rounds": 400, "batch": 200, "generator": [64, 64], "critic": [64, 64], "rate": 2e-3},
    "ctabgan": {"least_rounds": 350, "batch": 128, "channels": 8, "rate": 1e-3},
    "tvae": {"least_steps": 600, "batch": 200},
    "tabddpm": {"steps": 600, "batch": 256, "layers": [128, 128]},
}


@pytest.mark.slow
@every
def test_dependence_and_shares_are_learnt(name):
    real = people(2000)
    table = fit(name, real, **LEARN[name]).sample(2000)
    shares = table.job.value_counts(normalize=True)
    for job, share in real.job.value_counts(normalize=True).items():
        assert shares[job] == pytest.approx(share, abs=0.15)
    middle = {job: table.loc[table.job == job, "pay"].median() for job in ("nurse", "judge")}
    assert middle["nurse"] + 25 < middle["judge"]
    assert (table.rich == (table.pay > 60)).mean() > 0.8
