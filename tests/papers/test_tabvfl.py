"""``silosynth papers run tabvfl/…``: who holds what, what is judged, and what is kept."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import ConfigError
from silosynth.papers import (
    tabvfl_figure5 as latents,
    tabvfl_figure6 as failures,
    tabvfl_figures6_1_to_6_3 as tuning,
    tabvfl_table2 as classes,
    tabvfl_table4 as latent_cost,
)  # fmt: skip
from silosynth.papers.tabvfl_figure5 import LatentsJob, mean_scores, prediction_scores

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")
SMALL = LatentsJob("bank_marketing", rows=300, epochs=1, options=(("batch", 64),))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "run", *map(str, arguments)])


# Rows and columns.


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 2**32))
def test_classes_keep_their_shares(counts: list[int], count: int, seed: int):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    count = min(count, len(codes))
    chosen = latents.stratified(codes, count, rng)
    assert len(set(chosen.tolist())) == count == len(chosen)
    expected = np.array(counts) * count / len(codes)
    assert (np.abs(np.bincount(codes[chosen], minlength=len(counts)) - expected) < 1.001).all()


@needs_data
def test_columns_are_dealt_out_evenly_and_rows_divided():
    task = latents.load("airline_satisfaction", guests=5, rows=500)
    assert [len(own) for own in task.silos.values()] == [5, 5, 4, 4, 4]
    assert [name for own in task.silos.values() for name in own] == list(task.frame.columns)
    assert "id" not in task.frame and "satisfaction" not in task.frame and len(task.frame) == 500
    assert len(task.test) == 75 and sorted([*task.train, *task.test]) == list(range(500))
    satisfied = [(task.label(rows) == "satisfied").mean() for rows in (task.train, task.test)]
    assert satisfied == pytest.approx([0.433, 0.433], abs=0.01)
    assert not task.frame.equals(latents.load("airline_satisfaction", guests=5, rows=500, seed=1).frame)


def test_jobs_are_all_that_is_asked_for():
    found = latents.jobs(["bank_marketing"] * 2, ["ct", "tabvfl"], [5, 2], rows=100, repeats=2, seed=3)
    assert [(job.seed, job.guests, job.method) for job in found] == [
        (seed, guests, method)
        for seed in (3, 4)
        for guests, method in ((5, "ct"), (5, "tabvfl"), (2, "tabvfl"))  # one place has no guests
    ]
    assert len({json.dumps(job.identity) for job in found}) == len(found)
    for bad in ({"tables": ["bank"]}, {"methods": ["gan"]}, {"guests": [1]}, {"repeats": 0}, {"tables": []}):
        with pytest.raises(ConfigError):
            latents.jobs(**{"tables": ["bank_marketing"], **bad})


def test_a_job_says_all_options():
    job = LatentsJob("bank_marketing", "without-finetuning", epochs=3, options=(("finetuning_epochs", 7),))
    assert job.configured == {"design": "tabvfl", "finetune": False, "pretraining_epochs": 3, "finetuning_epochs": 7}
    assert latents.published(job) == 0.826 and latents.published(replace(job, guests=2)) is None


# Learners.


def test_learners_find_what_latents_tell():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    told = np.eye(3)[y] + 0.01 * rng.normal(size=(300, 3))
    found = latents.scores(told[:200], y[:200], told[200:], y[200:], 3, 0)
    assert list(found) == ["logistic regression", "decision tree", "random forest", "MLP", "XGBoost", "linear SVM"]
    assert mean_scores(found) == dict.fromkeys(latents.SCORES, 1.0)
    nothing = mean_scores(latents.scores(rng.normal(size=(200, 3)), y[:200], told[200:, ::-1], y[200:], 3, 0))
    assert nothing["accuracy"] < 0.6


def test_f1_is_weighted_by_shares_and_macro():
    truth, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])  # F1 of the classes: 4/5 and 2/3
    found = prediction_scores(truth, predicted, np.eye(3)[predicted])
    assert found["F1"] == pytest.approx(0.75 * 0.8 + 0.25 * 2 / 3)
    assert found["macro F1"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert found["accuracy"] == 0.75 and found["AUC"] == pytest.approx(5 / 6)


def test_classes_that_only_tests_have_are_never_right():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.repeat([0, 1, 2], 20)
    found = latents.scores(x[:40], y[:40], x, y, 3, 0)
    assert found["decision tree"]["accuracy"] == pytest.approx(2 / 3)


# Failures.


def _row(f1: float, **options: object) -> dict[str, object]:
    job = replace(SMALL, options=(("validation", 0.0), *options.items()))
    return {**job.identity, "clean F1": f1, "paper F1": 0.9, "seconds": 1.0}


def test_losses_are_of_the_same_training_without_failures():
    rows = [_row(0.8), _row(0.6, absence=0.2, missing="zeros"), {**_row(0.7, absence=0.2, missing="cache"), "seed": 1}]
    found = failures.losses(rows)
    assert [row["clean loss"] for row in found[:2]] == [0, pytest.approx(100 / 3)]  # 0.2 of 0.6
    assert found[2]["clean loss"] is None  # another seed
    (_, _, lines), (title, _, gains) = failures.sections(failures.means(rows))
    assert [line[:5] for line in lines] == [
        ["bank_marketing", "0", "", "1", "0.800"],
        ["bank_marketing", "0.2", "cache", "1", "0.700"],
        ["bank_marketing", "0.2", "zeros", "1", "0.600"],
    ]
    assert lines[2][5:9] == ["33.33", "0.900", "0.00", "2.71"] and lines[1][5] == ""
    assert "table III" in title and gains == [["bank_marketing", "0.2", "0.00", "1.51", "0.00", "2.04"]]
    assert failures.line(rows[1]).startswith("bank_marketing · p 0.2 zeros · seed 0: clean F1 0.600")


def test_gains_are_of_the_cache_s_f1_over_all_p_that_have_both():
    lost = {("cache", 0.2): 0.8, ("zeros", 0.2): 0.6, ("cache", 0.5): 0.5, ("zeros", 0.5): 0.45, ("cache", 0.35): 0.1}
    rows = [{**_row(0.9, absence=p, missing=kind), "paper F1": f1} for (kind, p), f1 in lost.items()]
    _, (_, _, gains) = failures.sections(failures.means(rows))
    assert gains == [["bank_marketing", "0.2, 0.5", "17.50", "1.51", "25.00", "2.04"]]


def test_the_published_losses_and_gains_agree():
    for table, (cache, zeros) in failures.PUBLISHED.items():
        assert 100 * (1 - (1 + cache / 100) / (1 + zeros / 100)) == pytest.approx(failures.GAINS[table][1], abs=0.04)


def test_failures_come_after_the_training_without():
    found = failures.jobs(["bank_marketing"], [0.5], rows=100, batch=16)
    assert [dict(job.options) for job in found] == [
        {"validation": 0.0, "batch": 16},
        {"validation": 0.0, "batch": 16, "absence": 0.5, "missing": "cache"},
        {"validation": 0.0, "batch": 16, "absence": 0.5, "missing": "zeros"},
    ]
    assert {job.guests for job in found} == {2}
    for bad in ({"probabilities": [1.0]}, {"probabilities": []}, {"in_place": ["wait"]}):
        with pytest.raises(ConfigError):
            failures.jobs(["bank_marketing"], **bad)


# Trainings.


@needs_data
def test_a_row_has_both_evaluations():
    row = latents.measure(SMALL)
    assert row["epochs run"] == {"pretraining": 1, "finetuning": 1} and row["bytes"] > 10_000
    for how in latents.EVALUATIONS:
        assert set(row["learners"][how]) == {learner.name for learner in latents.LEARNERS}
        assert row[f"{how} F1"] == pytest.approx(np.mean([own["F1"] for own in row["learners"][how].values()]))
    assert set(row["predicted"]) == {"accuracy", "macro_f1", "roc_auc"} and row["published"] == 0.885
    assert row == {**latents.measure(SMALL), "seconds": row["seconds"]}


@needs_data
def test_rows_are_kept_and_not_computed_twice(tmp_path: Path):
    out = tmp_path / "rows.md"
    command = ("tabvfl/figure-5", "-m", "ct", "-m", "without-finetuning", "--rows", 300, "--epochs", 1, "--out", out)
    result = call(*command, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["method"] for row in rows] == ["ct", "without-finetuning"]
    assert rows[0]["bytes"] is None and rows[1]["predicted"] is None
    assert out.read_text().count("| bank_marketing |") == 3  # the ablation has a line in table 6.1 as well
    again = call(*command)
    assert again.exit_code == 0 and "2 of 2 rows are in" in again.stderr
    assert call("tabvfl/figure-5", "-m", "gan").exit_code == 2


@needs_data
def test_failures_are_shown_with_their_losses(tmp_path: Path):
    out = tmp_path / "rows.md"
    result = call("tabvfl/figure-6", "-p", 0.5, "--rows", 300, "--epochs", 2, "--out", out)
    assert result.exit_code == 0, result.stderr
    *lines, gain = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| bank")]
    assert [line[1:3] for line in lines] == [["0", ""], ["0.5", "cache"], ["0.5", "zeros"]]
    assert lines[0][5] == "" and all(
        float(line[5]) > -100 for line in lines[1:]
    )  # of what is left, it may be above 100
    assert gain[1] == "0.5" and float(gain[2]) == float(gain[4])


@needs_data
def test_a_phase_costs_seconds_bytes_and_memory():
    jobs = latent_cost.jobs(["bank_marketing"], rows=300, epochs=1, batch=64)
    assert len(jobs) == 8
    rows = [latent_cost.measure(job) for job in jobs[-2:]]
    assert [latent_cost.cells(row)[2:5] for row in rows] == [["tabvfl", p, "1"] for p in latent_cost.PHASES]
    assert [latent_cost.cells(row)[6::2] for row in rows] == [["194", "30.4", "14,730"], ["138", "14.8", "14,730"]]
    assert rows[0]["bytes"] > rows[1]["bytes"] > 10_000 and rows[0]["memory"] > 1e8


@needs_data
@pytest.mark.slow
def test_costs_come_from_processes_of_their_own(tmp_path: Path):
    out = tmp_path / "rows.md"
    result = call("tabvfl/table-4", "--rows", 300, "--epochs", 1, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert out.read_text().count("| bank_marketing |") == 8


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("method", latents.METHODS)
def test_latents_tell_of_the_label(method: str):
    job = LatentsJob("airline_satisfaction", method, rows=1500, epochs=30, options=(("rate", 0.02),))
    row = latents.measure(job)
    least = {"without-finetuning": 0.55, "lt-fixed": 0.75}.get(method, 0.85)  # both learn less of the label
    assert row["clean AUC"] > least
    assert row["paper AUC"] > row["clean AUC"] - 0.1


@needs_data
def test_a_curve_ends_where_the_same_training_without_looks_ends():
    options = {"rows": 200, "epochs": 2, "batch": 64, "methods": ("lt",)}
    (job,) = tuning.jobs(**options)
    row = tuning.measure(job)
    task = latents.load(job.table, job.guests, job.rows, job.seed)
    made, _ = latents.train(job, task, lambda stage, share: None)
    assert [point["epoch"] for point in row["curve"]] == [1, 2]
    assert row["F1"] == row["curve"][-1]["F1"] == tuning.weighted_f1(made, task)
    assert row["curve"][0]["loss"] != row["curve"][1]["loss"]
    with pytest.raises(ConfigError):
        tuning.jobs(methods=("without-finetuning",))


def test_curves_are_means_over_seeds_and_tables_show_their_ends():
    job = LatentsJob("bank_marketing", "ct", seed=0)
    curve = [{"epoch": i, "loss": 1 / i, "F1": i / 20} for i in range(1, 14)]
    rows = [{**job.identity, "curve": curve}, {**job.identity, "seed": 1, "curve": [{**p, "F1": 0.0} for p in curve]}]
    mean = tuning.mean_curves(rows)["bank_marketing"]["ct"]
    spread = {"loss": 0.0, "F1": pytest.approx(0.1 / 2**0.5)}
    assert mean[1] == {"epoch": 2, "loss": 0.5, "F1": 0.05, "spread": spread, "seeds": 2}
    ((_, _, lines),) = tuning.sections(rows)
    assert [cells[4] for cells in lines] == ["1", "4", "7", "10", "13"] and lines[-1][-1] == "0.325 ± 0.460"


@needs_data
def test_tables_are_counted():
    rows = {job.table: classes.measure(job) for job in classes.jobs()}
    for name in ("airline_satisfaction", "bank_marketing"):
        assert [rows[name][key] for key in classes.FIGURES][1:] == list(classes.PAPER[name])[1:]
    assert rows["covertype_50k"]["binary"] == 44 and rows["covertype_50k"]["classes"] == 7


def test_two_guests_are_compared_with_five_of_the_same_training():
    figures = dict.fromkeys(latents.FIGURES, 0.8)
    five = {
        **LatentsJob("bank_marketing", "lt").identity,
        **figures,
        "published": None,
        "epochs run": {"finetuning": 1},
    }
    five |= {"seconds": 1.0, "bytes": 1}
    two = {**five, "guests": 2, "paper accuracy": 0.84, "paper F1": 0.76}
    *_, (heading, heads, lines) = latents.sections(latents.means([five, two, {**two, "method": "tabvfl"}]))
    assert "6.2 to 6.4" in heading and heads[3] == "accuracy"
    assert lines == [["bank_marketing", "all", "lt", "5.00", "-0.75", "-5.00", "-1.47", "0.00", "-3.30"]]


def test_tabvfl_and_ablations_stand_beside_table_6_1():
    row = {**SMALL.identity, **dict.fromkeys(latents.FIGURES, 0.8), "published": None, "epochs run": {"finetuning": 1}}
    row |= {"seconds": 1.0, "bytes": 1}
    ablation = {**row, "method": "without-pretraining", "paper F1": 0.7}
    others = [{**row, "guests": 2}, {**row, "method": "lt"}]
    *_, (heading, _, lines), _ = latents.sections(latents.means([row, ablation, *others]))
    assert "table 6.1" in heading and [line[1:3] for line in lines] == [
        ["300", name] for name in ("tabvfl", "without-pretraining")
    ]
    assert [line[3:] for line in lines] == [
        ["0.800", "0.891", "0.800", "0.881", "0.800", "0.863"],
        ["0.800", "0.885", "0.700", "0.869", "0.800", "0.817"],
    ]
