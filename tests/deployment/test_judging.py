"""A report across silos of a federation: the same as from pooled rows, at the coordinator and at every silo."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, Rows, customers, parties
from typer.testing import CliRunner

import silosynth as ss
from silosynth.alignment import AlignConfig
from silosynth.cli import app
from silosynth.commands import jobs, outcomes
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError
from silosynth.data import infer
from silosynth.deployment import coordinator, judging
from silosynth.deployment.audits import ACROSS, read_audits
from silosynth.deployment.judging import JudgeOptions, Terms
from silosynth.deployment.rows import read_silo
from silosynth.evaluation import joint
from silosynth.evaluation.judged import judge_tables
from silosynth.simulation.model import all_columns
from silosynth.simulation.silos import InProcess

DATA = os.environ.get("SILOSYNTH_DATA", "")
POLICY = OPEN.model_copy(update={"algorithms": ["judge"], "open_tables": "exact", "public_seed": False, "min_count": 1})
HELD = {"bank": ["age", "income"], "shop": ["visits", "paid"]}
ROSTER = Roster(("bank", "shop"))
TERMS = Terms(("bank", "shop"), None)


def drawn() -> pd.DataFrame:
    """A synthetic table."""
    return customers(150, seed=9).drop(columns="customer")


def judged(folder: Path, options: JudgeOptions, terms: Terms = TERMS, name: str = "trial-judged") -> tuple[Path, Any]:
    """Judge it in silos in this process; the coordinator's folder, and the silos."""
    whole = customers(160)
    silos = {silo: Rows(whole[["customer", *held]], ["customer"]) for silo, held in HELD.items()}
    return counted(folder, drawn(), silos, options, terms, name)


def counted(
    folder: Path, synthetic: pd.DataFrame, silos: dict[str, Rows], options: JudgeOptions, terms: Terms, name: str
) -> tuple[Path, Any]:
    """The same of any table."""
    order = judging.judging_order(synthetic, options, terms, Roster(tuple(silos)), "coordinator", name)
    sides, place = parties(silos, folder, POLICY), folder / "coordinator"
    order.keep(place)
    with InProcess(sides, folder / "checkpoints") as link:
        coordinator.run_order(order, link, place)
    return place, sides


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Exactly, with a hold-out."""
    folder = tmp_path_factory.mktemp("exact")
    terms = Terms(("bank", "shop"), None, holdout=0.4)
    return judged(folder, JudgeOptions("exact", target="paid", levels=4), terms)


def test_a_table_of_a_sample_is_judged_by_the_sample(tmp_path: Path) -> None:
    terms = Terms(("bank", "shop"), AlignConfig("keyed-hash"), holdout=0.2, sample=0.2)
    place, sides = judged(tmp_path, JudgeOptions(epsilon=1e6), terms)  # of 160 rows, and a bound of 512
    held, report = sides["bank"]._held, str(judging.judged_report(place, drawn()))
    assert 15 < len(held) < 60 and torch.equal(held, sides["shop"]._held)
    assert "synthetic rows" in report and int(report.split(" columns, ")[1].split(" training")[0]) < 90  # not 128
    assert judging.terms_of(place).sample == 0.2
    exact = judging.judging_order(drawn(), JudgeOptions("exact"), terms, ROSTER, "coordinator", "x").job
    assert exact.sample == 1


def test_the_report_is_that_of_pooled_rows_everywhere(exact: tuple[Path, Any]) -> None:
    place, sides = exact
    whole, out = customers(160).drop(columns="customer"), sides["bank"]._held.numpy()
    made = joint.plan(drawn(), None, "paid", levels=4, silos=HELD)
    pooled = judge_tables(joint.count_pooled(made, whole[~out], whole[out], HELD), drawn())
    for folder in (place, *(place.parent / silo for silo in HELD)):
        found = judging.judged_report(folder, drawn())
        assert found.scores == pooled.scores and found.skipped == pooled.skipped
        assert found.target == "paid" and found.rows == pooled.rows
        assert np.array_equal(found.pairs.error, pooled.pairs.error)  # type: ignore[union-attr, arg-type]
    assert found.score("pair_trend_error_across") is not None


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SILOSYNTH_DATA is not set")
@pytest.mark.parametrize("silos", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["adult", "bank_marketing", "churn", "cardio"])
def test_figures_of_real_tables_are_those_of_pooled_rows(
    name: str, silos: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silosynth.evaluation.judged.DRAWS", 5)
    monkeypatch.setattr("silosynth.evaluation.judged.SIMULATED", 3)
    real, synthetic = ss.split(pd.read_parquet(Path(DATA) / f"{name}.parquet"), holdout=0.3, seed=silos)
    real, target = real.reset_index(drop=True), real.columns[-1]
    held = {f"silo{k}": list(real)[k::silos] for k in range(silos)}
    schemas = {silo: infer.infer(real[own], {}) for silo, own in held.items()}
    terms = Terms(tuple(held), None, holdout=0.4, schemas=schemas)
    rows = {silo: Rows(real[own]) for silo, own in held.items()}
    place, sides = counted(tmp_path, synthetic, rows, JudgeOptions("exact", target=target), terms, "judged")
    out = sides["silo0"]._held.numpy()
    made = joint.plan(synthetic, all_columns(schemas), target, silos=held)
    pooled = judge_tables(joint.count_pooled(made, real[~out], real[out], held), synthetic)
    for folder in (place, tmp_path / "silo1"):
        found = judging.judged_report(folder, synthetic)
        assert found.scores == pooled.scores and found.skipped == pooled.skipped
        assert np.array_equal(found.pairs.error, pooled.pairs.error)  # type: ignore[union-attr, arg-type]
        assert np.array_equal(found.pairs.floor, pooled.pairs.floor)  # type: ignore[union-attr, arg-type]


def test_another_table_or_another_job_is_refused(exact: tuple[Path, Any], tmp_path: Path) -> None:
    place, _ = exact
    with pytest.raises(DataError, match="the table that was judged"):
        judging.judged_report(place, drawn().drop(columns="age"))
    with pytest.raises(StorageError, match="has counted"):
        judging.judged_report(tmp_path, drawn())


def test_a_table_of_an_earlier_job_is_judged_by_its_silos_kinds_and_hold_out(exact: tuple[Path, Any]) -> None:
    place, _ = exact
    terms = judging.terms_of(place)
    assert (terms.silos, terms.holdout, terms.align) == (("bank", "shop"), 0.4, None)
    assert set(terms.schemas or ()) == set(HELD)
    again = judging.judging_order(drawn(), JudgeOptions("exact"), terms, ROSTER, "coordinator", "again")
    assert again.job.holdout == 0.4 and again.job.config.holdout  # type: ignore[attr-defined]


def test_figures_are_reported_without_tables(tmp_path: Path) -> None:
    place, _ = judged(tmp_path, JudgeOptions("figures", levels=3))
    found = judging.judged_report(tmp_path / "shop", drawn())
    assert {score.name for score in found.scores} >= {"pair_distance"} and not found.columns
    assert json.loads((place / "result.json").read_text())["opening"] == "figures"
    with pytest.raises(ConfigError, match="takes tables, not figures"):
        judging.judging_order(drawn(), JudgeOptions("figures", target="paid"), TERMS, ROSTER, "coordinator", "x")


def test_figures_of_a_job_open_once_in_all_attempts(tmp_path: Path) -> None:
    judged(tmp_path, JudgeOptions("figures", levels=3))
    shutil.rmtree(tmp_path / "coordinator")
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    with pytest.raises(SilosynthError, match="figures of a job once, all attempts together"):
        judged(tmp_path, JudgeOptions("figures", levels=3))


@pytest.mark.slow
def test_with_noise_the_report_says_what_it_cost(tmp_path: Path) -> None:
    place, _ = judged(tmp_path, JudgeOptions("noised", epsilon=20.0, rows=1024))
    ledger = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    report = judging.judged_report(place, drawn(), ledger=ledger)
    report.save(tmp_path / "report.html")
    assert "epsilon" in report.to_dict()["about"]["counted"]["cost of judging"]
    assert "discrete Gaussian, noise" in (tmp_path / "report.html").read_text()


def test_options_and_terms_are_checked() -> None:
    assert judging.options("exact", 1.0, 1e-6, None, None, None) == JudgeOptions("exact")
    for wrong in (("open", 1.0, 1e-6, None, None, None), ("exact", 1.0, 1e-6, None, 1, None)):
        with pytest.raises(ConfigError):
            judging.options(*wrong)
    with pytest.raises(ConfigError, match="psi or keyed-hash"):
        judging.changed(TERMS, (), "ps", None)
    changed = judging.changed(TERMS, ["shop"], "keyed-hash", 0.2)
    assert changed == Terms(("shop",), AlignConfig("keyed-hash"), 0.2)
    assert judging.terms(("a", "b"), None).transport == "relay" and judging.terms(("a",), 5).transport == "stream"
    with pytest.raises(ConfigError, match="silos of the federation"):
        judging.judging_order(drawn(), JudgeOptions(), Terms(("bnk",), None), ROSTER, "coordinator", "x")
    with pytest.raises(ConfigError, match="twentieths"):
        judging.judging_order(drawn(), JudgeOptions(), Terms(("bank",), None, 0.33), ROSTER, "coordinator", "x")


def test_names_of_jobs_are_made_of_names_of_files() -> None:
    assert judging.judging_name(Path("a/ü synthetic.csv")).startswith("synthetic-judged-")
    assert judging.judging_name(Path("é.csv")).startswith("table-judged-")


# The commands.


@pytest.fixture
def kits(exact: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kits with a job "trial" that has drawn a table, and "trial-judged"."""
    for name, folder in (("coordinator", exact[0]), *((silo, exact[0].parent / silo) for silo in HELD)):
        folders = tmp_path / name / "work" / "jobs"
        shutil.copytree(folder, folders / "trial-judged")
        shutil.copy(exact[0] / "ledger.jsonl", folders / "trial-judged" / "ledger.jsonl")
        (folders / "trial").mkdir()
        drawn().to_parquet(folders / "trial" / "synthetic.parquet")
        shutil.copy(exact[0] / "order", folders / "trial" / "order")

    def kit(folder: Path, coordinator: bool = False) -> Any:
        return SimpleNamespace(
            name=folder.name, folder=folder, jobs=folder / "work" / "jobs", roster=ROSTER, stream_port=None
        )

    for module in (jobs, outcomes):
        monkeypatch.setattr(module, "open_kit", kit)
    drawn().to_csv(tmp_path / "synthetic.csv", index=False)
    return tmp_path


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.mark.parametrize("where", ["coordinator", "bank"])
def test_fetch_reports_across_silos_where_the_table_was_judged(kits: Path, where: str) -> None:
    out, page = kits / f"{where}.csv", kits / f"{where}.html"
    done = call("fetch", "trial", "--kit", kits / where, "--out", out, "--report", page, "--json")
    assert done.exit_code == 0, done.output
    scores = {score["name"] for score in json.loads(done.stdout)["scores"]}
    assert {"pair_trend_error_across", "column_shape_error"} <= scores
    assert "the coordinator, who together with one silo could read the rows" in page.read_text()
    kept = read_audits(kits / where / "work" / "jobs" / "trial")  # for the table's label, which silos sign
    assert [one["of"] for one in kept] == ([] if where == "coordinator" else [ACROSS])


def test_the_coordinator_without_a_judged_table_is_told_how_to_judge_it(kits: Path) -> None:
    shutil.rmtree(kits / "coordinator" / "work" / "jobs" / "trial-judged")
    done = call("fetch", "trial", "--kit", kits / "coordinator", "--out", kits / "a.csv", "--report", kits / "a.html")
    assert done.exit_code == 2 and "silosynth judge TABLE --job trial" in done.stderr


def test_judge_shows_a_job_again_at_a_silo(kits: Path) -> None:
    words = ("judge", kits / "synthetic.csv", "--kit", kits / "shop", "--name", "trial-judged")
    done = call(*words, "--out", kits / "r.html")
    assert done.exit_code == 0 and "Pair-trend error" in done.stdout and (kits / "r.html").exists()
    assert call(*words, "--out", kits / "r.html").exit_code == 4  # it is there
    elsewhere = call("judge", kits / "synthetic.csv", "--kit", kits / "shop", "--out", kits / "s.html")
    assert elsewhere.exit_code == 2 and "start at the coordinator's machine" in elsewhere.stderr


def test_judge_submits_and_reports(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[Any] = []

    def submit(ui: Any, kit: Any, order: Any, wait: bool) -> bool:
        submitted.append(order)
        shutil.copytree(kit.jobs / "trial-judged", kit.jobs / order.job.name)
        return True

    monkeypatch.setattr(outcomes, "submit_here", submit)
    words = ("judge", kits / "synthetic.csv", "--kit", kits / "coordinator", "--opening", "exact", "--levels", "4")
    done = call(*words, "--target", "paid", "--holdout", "0.4", "--align", "none", "--out", kits / "r.html", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["job"].startswith("synthetic-judged-") and (kits / "r.html").exists()
    (order,) = submitted
    assert order.job.holdout == 0.4 and order.job.align is None and order.job.config.opening == "exact"
    wrong = call(*words[:-4], "--opening", "exactly", "--out", kits / "s.html")
    assert wrong.exit_code == 2 and "Tables open noised, exact, or as figures" in wrong.stderr


EXPERIMENT = '[run]\nname = "another"\n[judge]\nopening = "exact"\ntarget = "paid"\nlevels = 4\n'


def test_submit_judges_the_table_after_training(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[Any] = []

    def submit(ui: Any, kit: Any, order: Any, wait: bool) -> bool:
        submitted.append(order)
        if not order.job.name.endswith("-judged"):
            shutil.copytree(kit.jobs / "trial-judged", kit.jobs / order.job.name)
            shutil.copy(kit.jobs / "trial" / "synthetic.parquet", kit.jobs / order.job.name)
        return wait

    monkeypatch.setattr(jobs, "submit_here", submit)
    (kits / "experiment.toml").write_text(EXPERIMENT)
    done = call("submit", kits / "experiment.toml", "--kit", kits / "coordinator", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["judged"] == "another-judged"
    trained, judged = (order.job for order in submitted)
    assert (trained.name, judged.name, judged.algorithm) == ("another", "another-judged", "judge")
    assert judged.config.opening == "exact" and judged.holdout == 0.4  # that of the job which the folder is of
    submitted.clear()
    (kits / "experiment.toml").write_text(EXPERIMENT.replace("another", "later"))
    done = call("submit", kits / "experiment.toml", "--kit", kits / "coordinator", "--no-wait")
    assert len(submitted) == 1 and "silosynth judge --job later" in done.stderr


def test_a_dealer_is_one_of_the_silos_and_holds_no_rows(tmp_path: Path) -> None:
    roster = Roster(("bank", "shop", "notary"))
    terms = judging.changed(judging.terms(roster.parties, None), (), "none", None, "notary")
    made = judging.judging_order(drawn(), JudgeOptions("exact"), terms, roster, "coordinator", "x").job
    assert made.silos == ("bank", "shop", "notary") and made.config.dealer == "notary"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="silos of the federation"):
        judging.judging_order(
            drawn(), JudgeOptions("exact"), replace(terms, dealer="notry"), roster, "coordinator", "x"
        )
    (tmp_path / "silo.toml").touch()
    silo = read_silo(tmp_path)
    assert silo.identifiers == []
    with pytest.raises(DataError, match="says where they are"):
        silo.read()
