"""What GDTS's silos release about their columns, and what happens to silos that differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.test_gdts import ROWS, SIZES, Play, column_of, fit, table

import silosynth as ss
from silosynth.algorithms.gdts import protocol as gdts, silo as gdts_silo
from silosynth.algorithms.gdts.networks import silo_weights
from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.core.errors import ConfigError, DataError, ProtocolError, SchemaError
from silosynth.core.messages import Release
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.privacy.statement import statement


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_summaries_of_numbers_do_not_reveal_the_row_count(generator):
    play = Play(epsilon=1.0, generator=generator)
    play.begin()
    exact = [reply for _, _, reply in play.asked(gdts.Summarise) if isinstance(reply, gdts.ExactSummaries)]
    assert len(exact) == 3
    for reply in exact:
        for summary in reply.columns:
            assert abs(int(summary.counts.sum()) - 1000) <= len(summary.counts)  # each is rounded
            assert reply.rows == 0


@pytest.mark.parametrize("kind", ["sharp", "paper"])
def test_weights_do_not_depend_on_units_where_a_silo_has_no_value(kind):
    """Nor are they NaN: a distance of 1, of a silo without values, is not divided by the column's range."""
    found = []
    for unit in (1e-6, 1.0, 1e6):
        drawn = [unit * np.array([0.0, 1.0, 2.0]), unit * np.array([0.5, 1.0, 2.0]), np.array([])]
        found.append(silo_weights(kind, [column_of(drawn=drawn)], [30, 30, 30]))
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx(found[2])
    assert np.isfinite(found).all() and found[0][2] < found[0][0]


def test_columns_are_summarised_once():
    """A coordinator cannot have the same noise again, or columns coded as only some silos hold them."""
    play = Play(secure=True)
    merged = play.begin()
    silo, schema = play.silos["a"], play.asked(gdts.Summarise)[0][1].schema
    with pytest.raises(ProtocolError, match=r"once \(got: Summarise"):
        silo.answer(gdts.Summarise(schema))
    assert silo.config.secure and merged.rows


@pytest.mark.parametrize(
    "change", [{"kind": "integer"}, {"dtype": "float32"}, {"low": 1.0, "high": 2.0}, {"low": 0.0}, {"high": 90.0}]
)
def test_what_silos_agree_on_covers_their_own_columns(change):
    """A coordinator cannot have numbers cut where it likes, or coded as another kind."""
    play = Play()
    silo = play.silos["a"]
    schema = silo.answer(gdts.Describe()).schema
    other = Schema(tuple(replace(one, **change) if one.name == "income" else one for one in schema.columns))
    with pytest.raises(ProtocolError, match=r"covers each silo's own columns.*income"):
        silo.answer(gdts.Summarise(other))
    with pytest.raises(ProtocolError, match=r"covers each silo's own columns.*city"):
        silo.answer(gdts.Summarise(schema.select([name for name in schema.names if name != "city"])))


def small(silos: int, rows: int, **columns) -> Play:
    data = pd.DataFrame(columns)
    assert len(data) == silos * rows
    parts = {f"s{i}": range(i * rows, (i + 1) * rows) for i in range(silos)}
    return Play(data, parts, epsilon=1.0)


def test_truth_values_that_can_be_missing_need_no_threshold():
    rng = np.random.default_rng(0)
    well = pd.array(rng.random(60) < 0.4, dtype="boolean")
    encoders = {e.name: e for e in small(3, 20, well=well, x=rng.normal(size=60)).begin().encoders}
    assert encoders["well"].kept == (False, True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_missing_values_that_many_small_silos_hold_stay_missing(share):
    """In no single silo do they exceed its noise or the threshold for names: in all silos together they do."""
    rng = np.random.default_rng(1)
    where = np.where(rng.random(800) < 0.5, "Bern", "Oslo").astype(object)
    where[rng.permutation(800)[: round(800 * share)]] = None
    merged = small(20, 40, where=where, x=rng.normal(size=800)).begin()
    encoder = merged.encoders[0]
    assert encoder.missing == (share > 0)
    counts = merged.counts_PK[:, : encoder.width].sum(dim=0)
    assert float(counts[-1] / counts.sum()) == pytest.approx(share, abs=0.05) or not share


def test_numbers_as_categories_that_noise_hides_are_refused_with_a_remedy():
    codes = np.random.default_rng(2).integers(0, 12, 60)
    data = pd.DataFrame({"code": codes, "x": np.arange(60.0)})
    rows = {name: range(20 * i, 20 * i + 20) for i, name in enumerate("abc")}
    with pytest.raises(DataError, match="Raise epsilon or delta"):
        fit(data, rows, {"code": {"kind": "categorical"}}, epsilon=0.5)


def test_the_ledger_records_the_release_of_every_message():
    for kind, release in {
        gdts.TakeEncoders: Release.MERGED,
        gdts.TrainPart: Release.AVERAGE,
        gdts.TeachCritic: Release.SYNTHETIC,
    }.items():
        assert kind.release is release


def test_tables_without_numbers_are_not_asked_about_them():
    play = Play(table()[["city", "ill"]])
    merged = play.begin()
    assert len(play.asked(gdts.Summarise)) == len(play.silos)
    assert len(merged.encoders) == 2
    assert torch.equal(merged.counts_PK, merged.counts_PK.clamp(min=0))


def test_mode_md_refuses_absence():
    with pytest.raises(ConfigError, match="absence"):
        GDTSConfig(mode="md", absence=0.2)


# What is released before training.


def summary_of(play: Play, silo: str = "a", seed: int = 0, part: str = "categories"):
    tell = gdts_silo.categories if part == "categories" else gdts_silo.numbers
    held = play.silos[silo]
    return tell(held.columns.table, held.columns.schema, play.config, Streams(seed))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_counts_have_discrete_laplace_noise_of_the_stated_scale(epsilon):
    play = Play(table(600), {"a": range(600)}, epsilon=epsilon)
    column, noise = play.silos["a"].columns.table["city"], []
    true = torch.bincount(column.values, minlength=3)
    for seed in range(400):
        told = summary_of(play, seed=seed)
        (city,) = [summary for summary in told.columns if summary.encoder.name == "city"]
        noise += [*(city.counts[:3] - true).tolist(), told.rows - 600]
    q = math.exp(-epsilon)
    assert np.mean(noise) == pytest.approx(0, abs=0.25 / epsilon)
    assert np.var(noise) == pytest.approx(2 * q / (1 - q) ** 2, rel=0.2)
    assert np.mean(np.array(noise) == 0) == pytest.approx((1 - q) / (1 + q), abs=0.05)


def test_the_ledger_lists_and_adds_up_the_cost_of_noise():
    model = fit(epsilon=0.75, delta=1e-5)
    said = statement(model.ledger)
    for silo in "abc":
        budget = said["silos"][silo]
        assert budget["pure_epsilon"] == pytest.approx(3 * 0.75)  # rows, city and ill
        assert budget["own_delta"] == pytest.approx(1e-5)  # of city's names; false and true are no secret
        assert [event["what"] for event in budget["events"]] == [
            "the number of rows", "counts of the levels of column 'city'", "counts of the levels of column 'ill'",
        ]  # fmt: skip
    assert Release.WEIGHTS.value in said["unnoised"] and Release.STATISTICS.value in said["unnoised"]


@pytest.mark.parametrize("options", [{"epsilon": 1.0, "delta": 0.0}, {"epsilon": math.inf}])
def test_without_delta_or_without_noise_no_epsilon_is_claimed(options):
    model = fit(**options)
    said = statement(model.ledger)
    assert said["silos"] == {} and "no epsilon can be stated" in said["summary"]
    assert Release.STATISTICS.value in said["unnoised"]
    assert Release.NOISED.value not in {record["privacy"] for record in model.ledger}
    assert model.sample(5).dtypes.to_dict() == table().dtypes.to_dict()


def test_without_noise_counts_are_exact():
    play = Play(epsilon=math.inf)
    merged = play.begin()
    assert merged.rows == [50, 60, 30] and merged.counts_PK[:, :3].sum(dim=1).tolist() == [50, 60, 30]


def test_a_name_that_few_rows_hold_is_not_released():
    data = table()
    data["city"] = data["city"].cat.add_categories("Nowhere")
    data.loc[3, "city"] = "Nowhere"
    play = Play(data, epsilon=1.0)
    for seed in range(200):
        (city,) = [s for s in summary_of(play, seed=seed).columns if s.encoder.name == "city"]
        assert "Nowhere" not in city.encoder.kept
    paper = Play(data, epsilon=1.0, delta=0.0)
    (city,) = [s for s in summary_of(paper).columns if s.encoder.name == "city"]
    assert "Nowhere" in city.encoder.kept


BOUNDS = {
    "income": {"low": 0, "high": 120},
    "visits": {"low": 0, "high": 100},
    "since": {"low": "2020-01-01", "high": "2023-01-01"},
}


def test_noised_histograms_need_declared_bounds():
    with pytest.raises(DataError, match="need declared bounds") as caught:
        fit(numbers="noised")
    assert "income = { low = …, high = … }" in str(caught.value) and "'visits'" in str(caught.value)


@pytest.mark.parametrize("generator", ["ctgan", "diffusion"])
def test_with_noised_histograms_everything_sent_before_training_is_noised(generator):
    model = fit(numbers="noised", epsilon=1.0, schema=BOUNDS, generator=generator)
    told = []
    for record in model.ledger:
        if record["type"].endswith("LocalWeights"):
            break
        told.append((record["type"].rpartition(".")[2], record["privacy"]))
    exact = {kind for kind, privacy in told if privacy == Release.STATISTICS.value}
    assert exact == {"Described"}
    assert "NoisedSummaries" in {kind for kind, _ in told} and "ExactSummaries" not in {kind for kind, _ in told}
    made = model.sample(200)
    assert made["income"].between(0, 120).all() and made["visits"].between(0, 100).all()
    assert made.drop(columns="city").dtypes.to_dict() == table().drop(columns="city").dtypes.to_dict()
    budget = statement(model.ledger)["silos"]["a"]
    assert budget["pure_epsilon"] == pytest.approx(1.0 * (3 + 3 + 2))  # histograms, and what may be missing: not visits


def test_a_column_that_holds_no_missing_values_gets_none_from_noise():
    play = Play(epsilon=0.2, delta=0.0)
    for seed in range(100):
        (ill,) = [s for s in summary_of(play, seed=seed).columns if s.encoder.name == "ill"]
        assert not ill.encoder.missing
    play = Play(numbers="noised", epsilon=0.2)
    schema = ss.simulate(table(), rows=ROWS, schema=BOUNDS).schema
    for seed in range(100):
        told = gdts_silo.numbers(play.silos["a"].columns.table, schema, play.config, Streams(seed))
        (visits,) = [s for s in told.columns if s.encoder.name == "visits"]
        assert not visits.encoder.missing


def test_false_and_true_need_no_threshold():
    data = table().assign(ill=np.arange(140) % 4 == 0)
    play = Play(data, rows={"a": range(48), "b": range(48, 96)}, epsilon=1.0)
    for seed in range(50):
        (ill,) = [s for s in summary_of(play, seed=seed).columns if s.encoder.name == "ill"]
        assert ill.encoder.kept == (False, True)  # 12 rows are true; a name that is no public one takes 15
    play = Play(table().assign(ill=True), epsilon=1.0)
    told = [
        s.encoder.kept for seed in range(50) for s in summary_of(play, seed=seed).columns if s.encoder.name == "ill"
    ]
    assert set(told) == {(True,), (False, True)} and told.count((True,)) > 25


# Silos that differ.


def test_a_category_that_one_silo_has_appears_in_samples():
    data = table()
    data["city"] = np.where(np.arange(140) >= 110, "Lima", data["city"].astype(str))
    made = fit(data).sample(400)
    assert set(made["city"]) == {"Bern", "Oslo", "Rome", "Lima"}


@pytest.mark.parametrize("options", [{}, {"mode": "md"}, {"generator": "diffusion"}], ids=["fl", "md", "diffusion"])
def test_silos_with_one_constant_column_or_one_row_repeated_join(options):
    data = table()
    data.loc[:49, "city"], data.loc[:49, "income"] = "Oslo", 33.25
    made = fit(data, ROWS | {"c": [120] * 60}, **options).sample(60)
    assert made.dtypes.to_dict() == table().dtypes.to_dict() and len(made) == 60
    assert made["income"].between(data["income"].min(), data["income"].max()).all()


def test_a_table_in_which_nothing_varies_is_drawn_without_training():
    data = pd.DataFrame({"x": [True] * 60, "y": ["a"] * 60})
    model = fit(data, {"a": range(30), "b": range(30, 60)})
    assert model.sample(7).equals(data.head(7))
    assert not any(record["type"].endswith("TrainPart") for record in model.ledger)


def test_an_order_of_categories_and_their_dtype_come_back():
    data = table()
    data["grade"] = pd.Categorical(np.resize(["mid", "low", "high"], 140), ["low", "mid", "high"], ordered=True)
    assert fit(data).sample(30).dtypes.to_dict() == data.dtypes.to_dict()


def test_rare_is_a_category_only_where_rows_are_pooled():
    strong, weak = fit(epsilon=0.3), fit()
    assert weak.describe()["pooled"] == [] and set(weak.sample(9)["city"].cat.categories) == {"Bern", "Oslo", "Rome"}
    names = set(strong.sample(9)["city"].cat.categories)
    assert strong.describe()["pooled"] == ["city"] and "(rare)" in names
    assert names <= {"Bern", "Oslo", "Rome", "(rare)"}


def test_text_of_silos_too_small_to_name_anything_comes_back_as_rare():
    data = table().assign(note="x")[["note", "visits"]]
    data.loc[::2, "note"] = "y"
    for seed in range(3):
        federation = ss.simulate(data, rows={"a": range(6), "b": range(6, 12)})
        model = ss.fit("gdts", federation, preset="fast", seed=seed, options=SIZES | {"epsilon": 1.0}, progress=False)
        assert set(model.sample(5)["note"]) <= {"(rare)", "x", "y"}


def test_an_error_names_where_silos_disagree():
    ours, theirs = table(), table().astype({"visits": "float64"})
    with pytest.raises(SchemaError, match=r"'visits' must have the same dtype.*int32 in a.*float64 in b"):
        ss.simulate({"a": ours, "b": theirs})
    play = Play()
    schema = play.silos["b"].columns.schema
    changed = tuple(replace(c, kind="mixed") if c.name == "income" else c for c in schema.columns)
    play.silos["b"].columns.schema = replace(schema, columns=changed)
    with pytest.raises(SchemaError, match=r"'income' must be of the same kind.*continuous in a, c; mixed in b"):
        play.begin()
