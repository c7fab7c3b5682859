"""`ss.judge` finds across silos what pooled rows say, to the last digit; with noise, what it says it cost."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import ConfigError, DataError
from silosynth.evaluation import joint, judged
from silosynth.privacy.statement import statement
from silosynth.runtime.ledger import Ledger
from silosynth.simulation import judging

SCHEMA = {"person": "identifier", "fixed": "integer", "wage": "continuous"}
DATA = os.environ.get("SILOSYNTH_DATA", "")


def rows(n: int, seed: int) -> pd.DataFrame:
    """Missing values, dates, rare levels, truth values, a constant; person is an identifier."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, n)
    job = np.where(rng.random(n) < age / 100, "clerk", rng.choice(["smith", "baker"], n)).astype(object)
    job[::17] = [f"rare {seed} {k}" for k in range(len(job[::17]))]
    job[rng.random(n) < 0.05] = None
    return pd.DataFrame(
        {
            "person": [f"p{seed}-{k:05d}" for k in range(n)],
            "wage": np.where(rng.random(n) < 0.1, np.nan, np.round(rng.normal(40, 9, n) * (age > 25), 2)),
            "born": pd.Timestamp("2024-01-01") - pd.to_timedelta(age * 365, unit="D"),
            "job": pd.Series(job, dtype=object),
            "ill": rng.random(n) < age / 120,
            "fixed": 7,
        }
    )


TRAIN, HELD, SYNTHETIC = rows(400, 1), rows(200, 2), rows(300, 3)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "DRAWS", 5)
    monkeypatch.setattr(judged, "SIMULATED", 3)


def dealt(names: list[str], silos: int) -> dict[str, list[str]]:
    return {f"silo{k}": names[k::silos] for k in range(silos)}


def pooled(
    federation: ss.Federation, train: pd.DataFrame, held: pd.DataFrame | None, synthetic: pd.DataFrame, target: str
) -> ss.Report:
    made = joint.plan(synthetic, federation.schema, target, silos=federation.silos)
    return judged.judge_tables(joint.count_pooled(made, train, held, federation.silos), synthetic)


def same(across: ss.Report, one: ss.Report) -> None:
    """All figures, columns and pairs, to the last digit; only the ledger is another."""
    a, b = across.to_dict(), one.to_dict()
    for report in (a, b):
        del report["ledger"]
    assert a == b


@pytest.mark.parametrize("silos", [1, 2, 3, 5])
def test_figures_across_silos_are_those_of_pooled_rows(silos: int) -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), silos), schema=SCHEMA)
    across = ss.judge(federation, SYNTHETIC, holdout=HELD, target="ill")
    same(across, pooled(federation, TRAIN, HELD, SYNTHETIC, "ill"))
    assert across.rows == (400, 200, 300) and len(across.columns) == 5
    with pytest.raises(KeyError) if silos == 1 else pytest.MonkeyPatch.context():
        assert across.score("pair_trend_error_across").value > 0


def test_without_hold_out_rows_floors_are_simulated() -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), 2), schema=SCHEMA)
    across = ss.judge(federation, SYNTHETIC, target="ill")
    same(across, pooled(federation, TRAIN, None, SYNTHETIC, "ill"))
    assert "perfect generator" in across.score("pair_trend_error").floor_note


def test_sums_over_silos_with_different_rows_are_those_of_pooled_rows() -> None:
    held = {"a": slice(100), "b": range(100, 180), "c": slice(180, 400)}
    federation = ss.simulate(TRAIN, rows=held, schema=SCHEMA)
    whole = joint.plan(SYNTHETIC, federation.schema, "ill")
    pooled_rows = judged.judge_tables(joint.count_pooled(whole, TRAIN, HELD), SYNTHETIC)
    for holdout in (HELD, {"a": HELD[:20], "b": HELD[20:90], "c": HELD[90:]}):
        sums = ss.judge(federation, SYNTHETIC, holdout=holdout, target="ill")
        assert sums.to_frame().equals(pooled_rows.to_frame()) and set(sums.about.silos or ()) == {"a", "b", "c"}
        with pytest.raises(KeyError, match="only one"):
            sums.score("pair_trend_error_across")


def in_groups(count: int = 3) -> ss.Federation:
    """Groups of silos that divide the columns in different ways."""
    first, second = ["person", "wage", "fixed"], ["person", "born", "job", "ill"]
    silos = {
        "a": {"a1": first, "a2": second[1:]},
        "b": {"b1": ["person", "wage", "job"], "b2": ["born"], "b3": ["ill", "fixed"]},
        "c": {"c1": [*first, *second[1:]]},
    }
    rows = {"a": slice(150), "b": range(150, 280), "c": slice(280, 400)}
    groups = list(silos)[:count]
    return ss.simulate(TRAIN, {g: silos[g] for g in groups}, SCHEMA, {g: rows[g] for g in groups})


def test_sums_over_groups_of_silos_are_those_of_pooled_rows() -> None:
    federation = in_groups()
    whole = joint.plan(SYNTHETIC, federation.schema, "ill", silos=federation.silos, groups=federation.groups)
    pooled_rows = judged.judge_tables(joint.count_pooled(whole, TRAIN, HELD), SYNTHETIC)
    sums = ss.judge(federation, SYNTHETIC, holdout=HELD, target="ill")
    assert sums.to_frame().equals(pooled_rows.to_frame()) and sums.rows == (400, 200, 300)
    assert sums.about.counted is not None and sums.about.counted["groups"] == "a1 and a2; b1 and b2 and b3; c1"
    with pytest.raises(KeyError, match="only one"):
        sums.score("pair_trend_error_across")
    divided = [{name: silo for silo in group for name in federation.silos[silo]} for group in federation.groups]
    names = [column.name for column in whole.columns]
    assert any(len(places) == 3 for places in whole.sets)
    assert all(len({owner[names[place]] for place in places}) < 3 for places in whole.sets for owner in divided)


def test_noised_sums_over_groups_cost_a_row_of_each_what_is_stated() -> None:
    ledger = Ledger()
    noised = ss.judge(in_groups(2), SYNTHETIC, epsilon=3, ledger=ledger)
    assert noised.about.counted is not None
    stated = "epsilon at most 3 at delta 1e-06, for each row of one group's tables, all its silos together"
    assert noised.about.counted["cost of judging"] == stated
    spent = statement(ledger.entries(), 1e-6)["silos"]
    assert set(spent) == {"a1", "a2", "b1", "b2", "b3"} and len({own["epsilon"] for own in spent.values()}) == 1
    assert 2.5 < spent["a1"]["epsilon"] <= 3  # each lists all tables, also those that it has no part in
    opened = [entry for entry in ledger.entries() if entry["type"].endswith(("SharesRevealed", "SharesOpened"))]
    assert not opened  # no group's table


def test_what_cannot_be_judged_of_groups() -> None:
    with pytest.raises(ConfigError, match="over 3 or more, of which each knows its own"):
        ss.judge(in_groups(2), SYNTHETIC)
    with pytest.raises(ConfigError, match="Figures are of silos with different columns of the same rows"):
        ss.judge(in_groups(), SYNTHETIC, opening="figures")
    with pytest.raises(ConfigError, match="the coordinator deals"):
        ss.judge(in_groups(), SYNTHETIC, dealer="notary")
    with pytest.raises(DataError, match="Hold-out rows are one table"):
        ss.judge(in_groups(), SYNTHETIC, holdout=dict.fromkeys(in_groups().tables, HELD))


def test_another_organisation_deals() -> None:
    federation, ledger = ss.simulate(TRAIN, dealt(list(TRAIN), 2), schema=SCHEMA), Ledger()
    across = ss.judge(federation, SYNTHETIC, target="ill", dealer="notary", ledger=ledger)
    assert across.to_frame().equals(pooled(federation, TRAIN, None, SYNTHETIC, "ill").to_frame())
    assert across.about.counted is not None and across.about.counted["dealer"] == "notary"
    assert "notary" in {entry["from"] for entry in ledger.entries()}


def test_of_figures_there_are_the_distances_of_pooled_rows() -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), 3), schema=SCHEMA)
    report = ss.judge(federation, SYNTHETIC, holdout=HELD, target="ill", opening="figures")
    made = joint.plan(SYNTHETIC, federation.schema)
    counted = joint.count_pooled(made, TRAIN, HELD)
    for (i, j), real, held, public in zip(
        made.sets, counted.training, counted.holdout or (), joint.references(made, SYNTHETIC), strict=True
    ):
        apart = [np.sqrt(((real / 400 - own / own.sum()) ** 2).sum()) for own in (*public, held)]
        assert report.pairs.error[i, j] == pytest.approx(100 * apart[0])
        assert report.pairs.real[i, j] == pytest.approx(apart[1], abs=1e-3)
        assert report.pairs.floor is not None
        scale = np.sqrt((1 / 400 + 1 / 300) / (1 / 400 + 1 / 200))
        assert report.pairs.floor[i, j] == pytest.approx(100 * scale * apart[2])
    assert report.rows == (400, 200, 300) and report.columns == ()


def test_noise_is_charged_once_for_training_and_hold_out_rows(tmp_path: Path) -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), 2), schema=SCHEMA)
    ledger = Ledger()
    report = ss.judge(federation, SYNTHETIC, holdout=HELD, target="ill", epsilon=5.0, delta=1e-5, ledger=ledger)
    assert report.about.counted is not None and "with noise of deviation" in report.about.counted["opened"]
    assert "epsilon at most 5 at delta" in report.about.counted["cost of judging"]
    assert "floor: the same figure of a perfect generator" in str(report)
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Guarantee: epsilon at most 5 at delta" in page and "No epsilon holds for the model" not in page
    assert report.score("tree_bits").ideal == 0 and report.score("pair_trend_error").floor > 0
    assert sum(len(entry.get("events", ())) for entry in ledger.entries() if entry["to"] == "coordinator") > 0


def test_with_a_seed_the_noise_is_known_and_no_epsilon_is_stated() -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), 2), schema=SCHEMA)
    how = {"holdout": HELD, "target": "ill", "epsilon": 5.0, "delta": 1e-5}  # as above: noise is worked out once
    first, second = (ss.judge(federation, SYNTHETIC, **how, seed=4).to_dict() for _ in range(2))
    assert first == second
    assert "seed" in first["about"]["counted"]["cost of judging"]
    other = ss.judge(federation, SYNTHETIC, **how, seed=5).to_dict()
    assert other["scores"] != first["scores"]


def test_options_that_do_not_go_together_are_refused() -> None:
    federation = ss.simulate(TRAIN, dealt(list(TRAIN), 2), schema=SCHEMA)
    with pytest.raises(ConfigError, match="epsilon"):
        ss.judge(federation, SYNTHETIC, opening="noised")
    with pytest.raises(ConfigError, match="epsilon"):
        ss.judge(federation, SYNTHETIC, opening="exact", epsilon=1.0)
    with pytest.raises(ConfigError, match="no silo"):
        ss.judge(federation, SYNTHETIC, dealer="silo1")
    with pytest.raises(DataError, match="one for each silo"):
        ss.judge(federation, SYNTHETIC, holdout={"silo0": HELD, "silo1": HELD})
    halves = ss.simulate(TRAIN, rows={"a": slice(200), "b": slice(200, 400)}, schema=SCHEMA)
    with pytest.raises(ConfigError, match="3 or more"):
        ss.judge(halves, SYNTHETIC)
    with pytest.raises(ConfigError, match="different columns"):
        ss.judge(halves, SYNTHETIC, opening="figures")
    with pytest.raises(DataError, match="hold-out"):
        ss.judge(federation, SYNTHETIC, holdout=HELD.drop(columns="job"))
    with pytest.raises(DataError, match="wage"):
        ss.judge(federation, SYNTHETIC.drop(columns="wage"))


def test_its_example_is_right() -> None:
    assert doctest.testmod(judging).failed == 0


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SILOSYNTH_DATA is not set")
@pytest.mark.parametrize("silos", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["adult", "bank_marketing", "churn", "cardio"])
def test_figures_of_real_tables_are_those_of_pooled_rows(name: str, silos: int) -> None:
    frame = pd.read_parquet(Path(DATA) / f"{name}.parquet")
    train, rest = ss.split(frame, holdout=0.5, seed=silos)
    held, synthetic = ss.split(rest, holdout=0.6, seed=0)
    target = frame.columns[-1]
    federation = ss.simulate(train, dealt(list(frame), silos))
    across = ss.judge(federation, synthetic, holdout=held, target=target)
    same(across, pooled(federation, train, held, synthetic, target))
