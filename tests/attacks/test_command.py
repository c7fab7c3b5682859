"""``silosynth audit``: on an experiment file, on a command, on a table alone; as a table, as JSON and as a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.attacks.makers import table
from typer.testing import CliRunner, Result

from silosynth.attacks.study import ATTACKS, Audit
from silosynth.cli import app
from silosynth.core.errors import StorageError

PLAN = """
[data]
path = "people.csv"
[silos.a]
columns = ["age", "x1", "x2", "region"]
[silos.b]
columns = ["x3", "x4", "x5"]
[algorithm]
name = "vflgan"
preset = "fast"
[algorithm.options]
least_rounds = 0
epochs = 2
batch = 16
generator = [8]
critic = [8]
shared = [4]
[split]
holdout = 0.5
"""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def said(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    table(240, 1).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


@pytest.fixture
def copying(tmp_path: Path) -> str:
    (tmp_path / "tool.py").write_text("import sys, shutil; shutil.copy(sys.argv[1], sys.argv[2])")
    table(30, 1).to_csv(tmp_path / "train.csv", index=False)
    table(30, 2).to_csv(tmp_path / "holdout.csv", index=False)
    return f"'{sys.executable}' '{tmp_path / 'tool.py'}' {{train}} {{out}}"


@pytest.mark.slow
def test_an_experiment_file_s_algorithm_is_audited(plan: Path, tmp_path: Path) -> None:
    common = (plan, "--records", 40, "--shadows", 10, "--rows", 100, "--folder", tmp_path / "kept", "--json", "--quiet")
    asked = ("-a", "asif", "-a", "questions", "-a", "one-run")
    value = said(call(*common, *asked, "--report", tmp_path / "audit.html"))
    names = {finding["score"]["name"] for finding in value["findings"]}
    for scheme in ("assd", "asif"):
        for features in ("naive", "correlation"):
            assert {f"{scheme}_{features}_{which}_record" for which in ("isolated", "outlying")} <= names
    assert {"linkability", "inference_region", "canaries_one_run"} <= names
    assert value["about"]["records"] == 40 and value["skipped"] == []
    page = (tmp_path / "audit.html").read_text()
    curves = (3 + 2) * 2  # by kinds of features of assd and of asif, for two records
    assert page.count("<polyline") == curves and "Linkability" in page and "<script" not in page
    assert said(call(*common, *asked))["findings"] == value["findings"]  # all of it taken up


@pytest.mark.slow
def test_rivals_get_members_others_and_reference_rows_from_an_experiment_file(plan: Path, tmp_path: Path) -> None:
    common = ("--records", 30, "--rows", 100, "--folder", tmp_path / "kept", "--json", "--quiet")
    value = said(call(plan, "-a", "rivals", *common))
    assert len(value["findings"]) == 6 and {finding["score"]["n"] for finding in value["findings"]} == {60}


@pytest.mark.live
def test_a_command_is_audited(copying: str, tmp_path: Path) -> None:
    asked = ("--train", tmp_path / "train.csv", "--fit", copying, "--shadows", 10, "--folder", tmp_path / "kept")
    result = call(*asked)
    assert result.exit_code == 0, result.stderr
    assert "ASSD, naive, outlying record" in result.stdout and "guessing" in result.stdout
    assert "trainings will take about" in result.stderr
    canaries = said(call(*asked, "-a", "canaries", "--shadows", 20, "--epsilon", 0.001, "--json", "--quiet"))
    (found,) = canaries["findings"]
    assert found["claimed"] == 0.001 and found["score"]["value"] > 0 and found["refuted"]


def test_columns_are_taken_as_fit_takes_them_and_unlike_rows_are_doubted(tmp_path: Path) -> None:
    """Identifiers, inferred or declared, are left out; others that differ anyhow are no evidence of training."""
    rows = table(120, 1).assign(person_id=range(1000, 1120), day=pd.date_range("2020", periods=120).astype(str))
    rows["region"] = [k % 60 for k in range(120)]  # once in each of the two
    rows.head(60).to_csv(tmp_path / "train.csv", index=False)
    rows.tail(60).to_csv(tmp_path / "holdout.csv", index=False)
    (tmp_path / "schema.toml").write_text("[schema.region]\nkind = 'identifier'\n")
    train = tmp_path / "train.csv"
    common = ("--train", train, "--synthetic", train, "--holdout", tmp_path / "holdout.csv", "-a", "questions")
    result = call(*common, "--schema", tmp_path / "schema.toml", "--json", "--report", tmp_path / "audit.html")
    value = said(result)
    assert value["about"]["left_out"] == ["region", "person_id"]
    assert not {"inference_region", "inference_person_id"} & {finding["score"]["name"] for finding in value["findings"]}
    assert [premise["holds"] for premise in value["premises"]] == [True, True, False]
    assert "1 of 11 columns differ (day)" in value["premises"][2]["finding"]
    assert "may be no trace of training" in result.stderr
    assert "may be no trace of training" in (tmp_path / "audit.html").read_text()
    assert call(tmp_path / "plan.toml", "--schema", tmp_path / "schema.toml").exit_code == 2


@pytest.mark.slow
def test_a_table_alone_is_attacked_without_training(copying: str, tmp_path: Path) -> None:
    train, holdout = tmp_path / "train.csv", tmp_path / "holdout.csv"
    value = said(call("--train", train, "--synthetic", train, "--holdout", holdout, "--json", "--quiet"))
    scores = {finding["score"]["name"]: finding["score"]["value"] for finding in value["findings"]}
    assert scores["gan_leaks"] == 1 and scores["linkability"] > 80
    assert {absent["name"] for absent in value["skipped"]} == {"LOGAN-D1", "GAN-leaks-cal", "DOMIAS"}


@pytest.mark.parametrize(
    "words", ["", "--train train.csv -a assd", "--train train.csv -a asdd", "plan.toml --train train.csv"]
)
def test_what_is_missing_is_said(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [1, 2, 3, 4]}).to_csv("train.csv", index=False)
    result = call(*words.split())
    assert result.exit_code == 2 and result.stderr.startswith("error: ")


def test_a_report_of_another_ending_is_refused_first(tmp_path: Path) -> None:
    result = call(tmp_path / "absent.toml", "--report", tmp_path / "audit.pdf")
    assert result.exit_code != 0 and "must end in .html, .htm, .json" in result.stderr
    with pytest.raises(StorageError, match=r"must end in \.html, \.htm, \.json"):
        Audit(()).save(tmp_path / "audit.pdf")
    assert not list(tmp_path.iterdir())
    assert "<html" in Audit(()).save(tmp_path / "audit.htm").read_text()


def test_silos_that_share_rows_are_refused(tmp_path: Path) -> None:
    table(40, 1).to_csv(tmp_path / "people.csv", index=False)
    shares = PLAN.replace('columns = ["age", "x1", "x2", "region"]', "share = 0.5")
    shares = shares.replace('columns = ["x3", "x4", "x5"]', "share = 0.5").replace("vflgan", "gdts")
    (tmp_path / "plan.toml").write_text(shares.split("[algorithm.options]")[0])
    result = call(tmp_path / "plan.toml")
    assert result.exit_code == 2 and "different rows" in result.stderr


def test_the_help_names_every_attack() -> None:
    text = call("--help").stdout
    assert all(name in text for name in ATTACKS) and "Example: silosynth audit" in text
