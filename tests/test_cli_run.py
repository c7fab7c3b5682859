"""The commands that train, draw and evaluate, on a small table and the smallest preset."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests import toy_rows
from typer.testing import CliRunner, Result

import silosynth
from silosynth import catalog
from silosynth.cli import app
from silosynth.commands import tables
from silosynth.core.conversation import Progress
from silosynth.data.infer import infer
from silosynth.experiment import grammar as experiment

pytestmark = pytest.mark.filterwarnings("always:Column 'visits'.*beyond:silosynth.data.infer.ColumnWarning")

PLAN = """
[data]
path = "people.csv"
[silos.clinic]
columns = ["age", "visits", "ill"]
[silos.bank]
columns = ["income", "region"]
[schema.visits]
kind = "integer"
high = 4
[algorithm]
preset = "fast"
device = "cpu"
[algorithm.options]
"coder.steps" = 20
"latent.width" = 16
"latent.steps" = 20
"latent.sample_steps" = 5
[sample]
rows = 250
[evaluate]
target = "ill"
[output]
folder = "out"
"""

SMALL = {"coder.steps": 20, "latent.width": 16, "latent.steps": 20, "latent.sample_steps": 5}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture
def plan(table: Path) -> Path:
    path = table.parent / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def model(everyone: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained model in a file."""
    silos = {"clinic": ["age", "visits", "ill"], "bank": ["income", "region"]}
    path = tmp_path_factory.mktemp("model") / "people.silosynth"
    silosynth.fit("silofuse", silosynth.simulate(everyone, silos), "fast", options=SMALL, progress=False).save(path)
    return path


@pytest.fixture(scope="module")
def run(everyone: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """What a run printed, and the folder that it left, which nobody changes."""
    folder = tmp_path_factory.mktemp("run")
    everyone.to_csv(folder / "people.csv", index=False)
    (folder / "plan.toml").write_text(PLAN)
    result = call("run", folder / "plan.toml", "--json")
    assert result.exit_code == 0, result.stderr
    return result, folder / "out"


def test_a_run_leaves_a_model_a_table_a_report_and_a_ledger(run: tuple[Result, Path], people: pd.DataFrame) -> None:
    result, out = run
    facts = said(result)
    names = {"model.silosynth", "synthetic.csv", "report.html", "ledger.jsonl", "schema.toml", "split.json"}
    assert {path.name for path in out.iterdir()} == names
    synthetic = pd.read_csv(out / "synthetic.csv")
    assert len(synthetic) == facts["rows"] == 250
    assert sorted(synthetic.columns) == sorted(people.columns)
    assert synthetic["visits"].max() <= 4
    assert {c["name"]: c["reason"] for c in facts["columns"]}["visits"] == "declared"
    assert facts["scores"]
    assert facts["model"] == str(out / "model.silosynth")
    left = {(line["from"], line["type"].rpartition(".")[2]) for line in facts["ledger_totals"]}
    assert {("clinic", "Latents"), ("bank", "Latents")} <= left
    assert "Fitting silofuse (fast) on 320 rows in 2 silos" in result.stderr
    beyond = next(column["beyond"] for column in facts["columns"] if column["name"] == "visits")
    assert beyond > 0
    assert result.stderr.count(f"Column 'visits': {beyond} of 320 values lie beyond its declared bounds") == 1


@pytest.mark.parametrize(
    ("written", "asked", "taken"),
    [("", "auto", "auto"), ("threads = 4", "2", 2), ("threads = 4", None, 4), ("", None, "auto")],
)
def test_threads_are_those_of_the_file_or_of_the_command_line(
    plan: Path, monkeypatch: pytest.MonkeyPatch, written: str, asked: str | None, taken: object
) -> None:
    seen = []

    def fitted(*_: object, threads: object, **__: object) -> None:
        seen.append(threads)
        raise KeyboardInterrupt

    monkeypatch.setattr(silosynth, "fit", fitted)
    plan.write_text(PLAN.replace('device = "cpu"', f'device = "cpu"\n{written}'))
    call("run", plan, *([] if asked is None else ["--threads", asked]))
    assert seen == [taken]


def test_threads_that_are_no_number_are_refused(plan: Path) -> None:
    result = call("run", plan, "--threads", "some")
    assert result.exit_code != 0
    assert "1 to 64 threads" in result.stderr


def test_a_finished_run_can_be_inspected(run: tuple[Result, Path], tmp_path: Path) -> None:
    _, out = run
    assert call("sample", out / "model.silosynth", "-n", 250, "-o", tmp_path / "again.csv").exit_code == 0
    # without a seed both are the first rows that the model draws
    assert (tmp_path / "again.csv").read_bytes() == (out / "synthetic.csv").read_bytes()
    facts = said(call("inspect", out, "--json"))
    assert facts["state"] == "finished"
    assert facts["ledger_totals"]
    assert facts["privacy"]["summary"] == said(call("inspect", out / "model.silosynth", "--json"))["guarantee"]
    shown = call("inspect", out / "model.silosynth").stdout
    assert "silofuse, preset fast, seed 0, 320 rows" in shown
    assert "one un-noised value per training row" in shown
    assert "Guarantee: none" in shown


@pytest.mark.filterwarnings("always::silosynth.data.infer.ColumnWarning")
def test_how_a_csv_file_is_written_is_declared_and_what_it_holds_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "prix": [f"{value:.2f}".replace(".", ",") for value in rng.normal(80, 20, 150)],
            "entrée": pd.to_datetime(rng.integers(0, 900, 150), unit="D").strftime("%d.%m.%y"),
            "visites": [-9, *rng.integers(0, 9, 149)],
            "nom": rng.choice(["Zoé Müller", "Anaïs Roux"], 150),
            "note": [f"note {'x' * i}" for i in range(150)],
        }
    )
    frame.to_csv(tmp_path / "fr.csv", sep=";", index=False, encoding="latin-1")
    csv = 'encoding = "latin-1"\nseparator = ";"\ndecimal = ","'
    columns = '[schema."entrée"]\nformat = "%d.%m.%y"\n[schema.visites]\nmissing = [-9]\n'
    text = PLAN.replace('[schema.visits]\nkind = "integer"\nhigh = 4\n', columns).replace(
        'path = "people.csv"', f'path = "fr.csv"\n{csv}'
    )
    text = text.replace('"age", "visits", "ill"', '"prix", "entrée"').replace(
        '"income", "region"', '"visites", "nom", "note"'
    )
    (tmp_path / "plan.toml").write_text(text.replace('target = "ill"', 'target = "visites"'), encoding="utf-8")
    result = call("run", tmp_path / "plan.toml", "--json")
    assert result.exit_code == 0, result.stderr
    made = pd.read_csv(tmp_path / "out" / "synthetic.csv")
    assert made["entrée"].str.fullmatch(r"\d\d\.\d\d\.\d\d").all()
    assert made["visites"].dropna().between(0, 8).all()
    assert not set(made["nom"]) & set(frame["nom"])
    for said_of in ("'nom' is not published", "'note': 100% of its rows"):
        assert said_of in result.stderr
    kept = (tmp_path / "out" / "schema.toml").read_text(encoding="utf-8")
    assert 'format = "%d.%m.%y"' in kept
    assert 'missing = ["-9"]' in kept
    (tmp_path / "plan.toml").write_text(text.replace('target = "ill"', 'target = "visits"'), encoding="utf-8")
    refused = call("run", tmp_path / "plan.toml", "--force")
    assert refused.exit_code == 2
    assert "evaluate.target must be a column" in refused.stderr
    assert "Did you mean 'visites'" in refused.stderr


def test_a_schema_in_toml_declares_what_was_declared(tmp_path: Path) -> None:
    days = pd.to_datetime(["2024-01-05", "2024-02-03", None, "2024-05-01"])
    frame = pd.DataFrame(
        {
            "n": [-9, 3, 4, 7], "x": [0.5, -99.0, 2.25, 7.5], "c": ["?", "a", 'say "b"', "a"], "day": days,
            "zoned": days.tz_localize("Europe/Zurich"), "text": ["05.01.2024", "?", "03.02.2024", "17.05.2024"],
            "wait": pd.to_timedelta([1, 2, 3, 4], unit="h"), "ward": ["é"] * 4, "code": [1.0, 2.5, 1.0, 4.0],
        }
    )  # fmt: skip
    declared = {
        "n": {"missing": [-9], "low": 0, "high": 90},
        "x": {"missing": [-99.0], "low": 0.1},
        "c": {"missing": ["?", 'say "b"']},
        "day": {"low": "2024-01-01", "high": "2024-06-01 12:30"},
        "zoned": {"low": "2024-01-01"},
        "text": {"missing": ["?"], "format": "%d.%m.%Y", "high": "2025-01-01"},
        "wait": {"high": "5 h"},
        "ward": {"levels": ["é", 'the "north"', "south\x7f"]},
        "code": {"levels": [1, 2.5, 4]},
    }
    schema = infer(frame, declared)
    (tmp_path / "schema.toml").write_text(tables.schema_toml(schema), encoding="utf-8")
    again = infer(frame, experiment.read(tmp_path / "schema.toml").overrides())
    assert [replace(column, reason="") for column in again.columns] == [
        replace(column, reason="") for column in schema.columns
    ]
    assert [column.missing for column in again.columns[:3]] == [("-9",), ("-99",), ("?", 'say "b"')]


def test_inspect_counts_what_it_read_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("country,x\n" + "NA,1.5\nCH,2.5\n,3.5\n" * 9)
    assert said(call("inspect", path, "--json"))["missing"] == {"country": {"NA": 9, "": 9}}
    shown = call("inspect", path).stdout
    assert re.search(r"country\s+NA\s+9\n", shown)
    assert said(call("inspect", path, "--missing", "?", "--json"))["missing"] == {"country": {"": 9}}


def test_a_folder_of_parquet_files_is_inspected_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pd.DataFrame({"a": [1.5, 2.5]}).to_parquet(tmp_path / "t" / "part.parquet")
    assert said(call("inspect", tmp_path / "t", "--json"))["rows"] == 2


@pytest.mark.slow
def test_a_finished_run_is_overwritten_only_by_force(run: tuple[Result, Path], plan: Path) -> None:
    _, out = run
    shutil.copytree(out, plan.parent / "out")
    (plan.parent / "out" / "synthetic.csv").write_text("of the run before")
    rules = {(): "must not hold the results of another run", ("--resume",): "Only a run that has not finished"}
    for option, rule in rules.items():
        refused = call("run", plan, *option)
        assert refused.exit_code == 4
        assert rule in refused.stderr
        assert "--force" in refused.stderr
    assert (plan.parent / "out" / "synthetic.csv").read_text() == "of the run before"
    assert call("run", plan, "--quiet", "--force").exit_code == 0
    assert (plan.parent / "out" / "synthetic.csv").read_bytes() == (out / "synthetic.csv").read_bytes()


def test_an_interrupted_run_is_continued_to_the_same_bytes(
    run: tuple[Result, Path], plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = run
    names = ("model.silosynth", "synthetic.csv", "report.html", "ledger.jsonl")
    whole = {name: (out / name).read_bytes() for name in names}
    plan.write_text(PLAN.replace('folder = "out"', 'folder = "again"'))
    fit = silosynth.fit

    def stop(progress: Progress) -> None:
        if progress.stage == "diffusion":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(
            silosynth, "fit", lambda *args, **how: fit(*args, **{**how, "progress": stop, "checkpoint_every": 0})
        )
        result = call("run", plan, "--quiet")
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    again = plan.parent / "again"
    assert said(call("inspect", again, "--json"))["state"].startswith("interrupted")
    assert call("run", plan, "--resume", "--quiet").exit_code == 0
    assert {name: (again / name).read_bytes() for name in names} == whole
    assert said(call("inspect", again, "--json"))["state"] == "finished"


def test_checkpoints_of_another_experiment_are_refused(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = silosynth.fit

    def stop(progress: Progress) -> None:
        if progress.stage == "diffusion":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(
            silosynth, "fit", lambda *args, **how: fit(*args, **{**how, "progress": stop, "checkpoint_every": 0})
        )
        assert call("run", plan, "--quiet").exit_code == 130
    plan.write_text(PLAN.replace("[algorithm]", "[algorithm]\nseed = 9"))
    result = call("run", plan, "--resume", "--quiet")
    assert result.exit_code == 4
    assert "belong to" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_private_run_publishes_no_exact_number_of_rows_and_keeps_no_seed(plan: Path, people: pd.DataFrame) -> None:
    small = "generator = [16]\ncritic = [16, 8]\nnoise = 8\nbatch = 60\nepochs = 2\nleast_rounds = 1\n"
    head, _, rest = PLAN.partition('"coder.steps"')
    text = head + small + "dp = { epsilon = 10, delta = 1e-5 }\n[evaluate]" + rest.partition("[evaluate]")[2]
    numbers = people.select_dtypes("number").drop(columns=["visits", "ill"])
    ranges = [f"[schema.{name}]\nlow = {of.min()}\nhigh = {of.max()}\n" for name, of in numbers.items()]
    text = text.replace("high = 4\n", "low = 0\nhigh = 4\n" + "".join(ranges))
    plan.write_text(text.replace("[algorithm]\n", '[algorithm]\nname = "vflgan"\n'))
    result = call("run", plan, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    out = plan.parent / "out"
    model = silosynth.load(out / "model.silosynth")
    assert len(pd.read_csv(out / "synthetic.csv")) == said(result)["rows"] == model.rows == model.coordinator["rows"]
    assert not {path.name for path in out.iterdir()} & {"seed", "coordinator", "parties"}
    assert "The guarantee does not cover this report" in (out / "report.html").read_text()


@pytest.mark.slow
def test_silos_with_files_of_their_own_and_columns_that_stay(plan: Path, people: pd.DataFrame) -> None:
    people[["age", "visits", "ill"]].to_parquet(plan.parent / "clinic.parquet")
    people[["income", "region"]].to_csv(plan.parent / "bank.csv", index=False)
    text = PLAN.replace('[data]\npath = "people.csv"\n', "")
    text = text.replace('columns = ["age", "visits", "ill"]', 'path = "clinic.parquet"')
    text = text.replace('columns = ["income", "region"]', 'path = "bank.csv"')
    plan.write_text(text.replace("[sample]", 'synthesis = "partitioned"\n[sample]'))
    result = call("run", plan, "--json")
    assert result.exit_code == 0, result.stderr
    out = plan.parent / "out"
    assert list(pd.read_csv(out / "synthetic-clinic.csv").columns) == ["age", "visits", "ill"]
    assert list(pd.read_csv(out / "synthetic-bank.csv").columns) == ["income", "region"]
    assert not any(line["type"].endswith("SyntheticColumns") for line in said(result)["ledger_totals"])
    for name in ("x.csv", "x.csv.gz"):
        assert call("sample", out / "model.silosynth", "-n", 5, "-o", plan.parent / name).exit_code == 0
    assert len(pd.read_csv(plan.parent / "x-bank.csv")) == len(pd.read_csv(plan.parent / "x-bank.csv.gz")) == 5
    again = call("sample", out / "model.silosynth", "-n", 5, "-o", plan.parent / "x.csv")
    assert again.exit_code == 4
    assert "x-clinic.csv" in again.stderr


def test_a_central_baseline_pools_the_columns(plan: Path) -> None:
    plan.write_text(PLAN.replace("[algorithm]", '[algorithm]\nname = "latentdiff"') + "[split]\nholdout = 0\n")
    result = call("run", plan)
    assert result.exit_code == 0, result.stderr
    assert "pools all columns in one place" in result.stderr


ROWS = """
[algorithm]
name = "toyrows"
preset = "fast"
[split]
seed = 5
[evaluate]
target = "ill"
[output]
folder = "out"
"""
OWN = """
[silos.north]
path = "north.csv"
[silos.south]
path = "south.csv"
columns = ["ill", "region", "income", "visits", "age"]
"""
SHARED = """
[data]
path = "people.csv"
[silos.north]
share = 0.5
[silos.south]
share = 0.25
"""


@pytest.fixture
def rows_plan(plan: Path, people: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two silos with tables of their own: some visits of the north are unknown, and the south's incomes are whole."""
    toy_rows.register(monkeypatch)
    north, south = people.head(150), people.tail(250).assign(income=range(250), more="left out")
    north.assign(visits=north["visits"].astype("Int64").mask(north.index < 9)).to_csv(
        plan.parent / "north.csv", index=False
    )
    south.to_csv(plan.parent / "south.csv", index=False)
    plan.write_text(OWN + ROWS + "[schema.income]\nkind = 'continuous'\n")
    return plan


def test_silos_with_rows_of_their_own(rows_plan: Path, people: pd.DataFrame) -> None:
    result = call("run", rows_plan, "--json")
    assert result.exit_code == 0, result.stderr
    assert "on 320 rows in 2 silos" in result.stderr
    facts, synthetic = said(result), pd.read_csv(rows_plan.parent / "out" / "synthetic.csv")
    assert len(synthetic) == facts["rows"] == 320
    assert list(synthetic.columns) == list(people.columns)
    visits = {column["name"]: column for column in facts["columns"]}["visits"]
    assert (visits["kind"], visits["dtype"], visits["reason"]) == ("integer", "float64", "agreed")
    assert facts["scores"]
    shown = said(call("inspect", rows_plan.parent / "out" / "model.silosynth", "--json"))
    assert shown["partition"] == "horizontal"
    assert shown["rows"] == 320


GROUPS = """
[data]
path = "people.csv"
[silos.clinic]
group = "north"
columns = ["age", "visits"]
[silos.bank]
group = "north"
columns = ["ill", "region", "income"]
[silos.hospital]
group = "south"
columns = ["ill", "age", "visits", "income", "region"]
[silos.home]
group = "west"
columns = ["income", "age", "ill"]
[silos.fund]
group = "west"
columns = ["region", "visits"]
[groups.north]
share = 0.5
[groups.south]
share = 0.25
[groups.west]
share = 0.25
[algorithm]
name = "mst"
preset = "fast"
options = { bins = 4, groups = 3 }
[split]
seed = 5
[output]
folder = "out"
"""


def test_groups_of_silos_divide_columns_and_rows(plan: Path, people: pd.DataFrame) -> None:
    plan.write_text(GROUPS)
    result = call("run", plan, "--json")
    assert result.exit_code == 0, result.stderr
    assert "on 320 rows in 5 silos" in result.stderr
    facts, synthetic = said(result), pd.read_csv(plan.parent / "out" / "synthetic.csv")
    assert len(synthetic) == facts["rows"] == 320 and list(synthetic.columns) == list(people.columns)
    assert facts["about"]["partition"] == "mixed" and facts["scores"]
    again = call("evaluate", plan.parent / "out", "--json")
    assert again.exit_code == 0, again.stderr
    assert said(again)["scores"][0]["value"] == facts["scores"][0]["value"]
    assert "these silos hold different rows" in call("audit", plan, "--attack", "canaries").stderr
    plan.write_text(GROUPS.replace('"mst"', '"silofuse"').replace("options = { bins = 4, groups = 3 }", ""))
    assert "For these there are: mst, aim" in call("run", plan, "--force").stderr


def test_groups_of_silos_with_tables_of_their_own(plan: Path, people: pd.DataFrame) -> None:
    tables = {
        "clinic": people[["age", "visits"]].head(150), "bank": people[["ill", "region", "income"]].head(150),
        "hospital": people.iloc[150:250], "home": people[["income", "age"]].tail(150),
        "fund": people[["region", "visits", "ill"]].tail(150),
    }  # fmt: skip
    groups = {"clinic": "north", "bank": "north", "hospital": "south", "home": "west", "fund": "west"}
    sections = ""
    for silo, table in tables.items():
        table.to_csv(plan.parent / f"{silo}.csv", index=False)
        sections += f'[silos.{silo}]\ngroup = "{groups[silo]}"\npath = "{silo}.csv"\n'
    plan.write_text(sections + GROUPS[GROUPS.index("[algorithm]") :])
    result = call("run", plan, "--json")
    assert result.exit_code == 0, result.stderr
    assert "on 320 rows in 5 silos" in result.stderr
    plan.write_text(plan.read_text().replace('[silos.fund]\ngroup = "west"', '[silos.fund]\ngroup = "south"'))
    assert call("run", plan, "--force").exit_code == 2


def test_a_file_for_jobs_of_groups_has_no_tables(plan: Path) -> None:
    plan.write_text('[silos.a]\ngroup = "north"\n[silos.b]\ngroup = "south"\n[algorithm]\nname = "mst"\n')
    result = call("run", plan)
    assert result.exit_code == 2 and "each silo has a 'path', or columns of the [data] table" in result.stderr


def test_silos_with_rows_of_their_own_and_a_hold_out_table(rows_plan: Path) -> None:
    rows_plan.write_text(rows_plan.read_text().replace("seed = 5", 'path = "people.csv"'))
    result = call("run", rows_plan, "--json")
    assert result.exit_code == 0, result.stderr
    assert "on 400 rows in 2 silos" in result.stderr


def test_silos_whose_tables_disagree_are_refused(rows_plan: Path, people: pd.DataFrame) -> None:
    people.drop(columns="age").to_csv(rows_plan.parent / "north.csv", index=False)
    result = call("run", rows_plan)
    assert result.exit_code == 2
    assert "Column 'age' must be in every silo (got: absent in north; there in south)" in result.stderr
    assert not (rows_plan.parent / "out").exists()


def test_silos_with_shares_of_the_rows(rows_plan: Path) -> None:
    rows_plan.write_text(SHARED + ROWS)
    result = call("run", rows_plan, "--json")
    assert result.exit_code == 0, result.stderr
    assert "on 240 rows in 2 silos" in result.stderr  # three quarters of 320
    assert said(result)["rows"] == 240


def test_shares_are_disjoint_rows_drawn_by_the_splits_seed(rows_plan: Path) -> None:
    rows_plan.write_text(SHARED + ROWS)
    first, again = (tables.gather(experiment.read(rows_plan), True) for _ in range(2))
    rows_plan.write_text(SHARED + ROWS.replace("seed = 5", "seed = 6"))
    other = tables.gather(experiment.read(rows_plan), True)
    assert first.rows == again.rows != other.rows
    assert first.rows is not None
    assert {silo: len(rows) for silo, rows in first.rows.items()} == {"north": 160, "south": 80}
    assert sorted(first.rows["north"] + first.rows["south"]) == list(range(240)) == list(first.train.index)


def test_a_sample_is_taken_up_and_rows_are_held_out_of_it(plan: Path, people: pd.DataFrame) -> None:
    plan.write_text(PLAN + "[split]\nsample = 0.5\nholdout = 0.25\n")
    first, again = (tables.gather(experiment.read(plan)) for _ in range(2))
    pd.testing.assert_frame_equal(first.train, again.train)
    assert first.holdout is not None and (len(first.train), len(first.holdout)) == (150, 50)  # of 400
    places = pd.concat([first.train, first.holdout]).merge(people.reset_index(), how="left")["index"]
    assert places.max() > 300 and places.min() < 100  # not the first rows
    plan.write_text(PLAN + "[split]\nsample = 0.001\n")
    result = call("run", plan)
    assert result.exit_code == 2 and "A sample has at least one row (got: 0.001 of 400 rows)" in result.stderr


def test_a_share_of_less_than_a_row_is_refused(rows_plan: Path) -> None:
    rows_plan.write_text(SHARED.replace("0.25", "0.001") + ROWS)
    result = call("run", rows_plan)
    assert result.exit_code == 2
    assert "The share of silo 'south' is less than one row (got: 0.001)" in result.stderr


def test_a_central_baseline_pools_the_rows(rows_plan: Path) -> None:
    tiny = "options = {encoder = [8], decoder = [8], embedding = 4, epochs = 1, least_steps = 1, batch = 30}"
    rows_plan.write_text(SHARED + ROWS.replace('name = "toyrows"', f'name = "tvae"\n{tiny}'))
    result = call("run", rows_plan)
    assert result.exit_code == 0, result.stderr
    assert "tvae is a baseline that pools all rows in one place" in result.stderr
    assert "on 240 rows in 1 silos" in result.stderr


@pytest.mark.parametrize(
    ("silos", "name", "says", "remedy"),
    [
        (SHARED, "silofuse", "plan.toml: silos.north.share deals out rows", "Give each silo columns instead"),
        (PLAN.partition("[schema")[0], "toyrows", "plan.toml: silos.clinic.columns deals out columns", "silofuse"),
    ],
)
def test_silos_that_an_algorithm_is_not_for_are_refused(
    rows_plan: Path, silos: str, name: str, says: str, remedy: str
) -> None:
    rows_plan.write_text(silos + ROWS.replace("toyrows", name))
    result = call("run", rows_plan)
    assert result.exit_code == 2
    assert says in result.stderr
    assert remedy in result.stderr
    assert not (rows_plan.parent / "out").exists()


def test_silos_of_rows_are_not_told_apart_in_an_evaluation(rows_plan: Path, people: pd.DataFrame) -> None:
    for text in (OWN + ROWS, SHARED + ROWS):
        rows_plan.write_text(text)
        table = rows_plan.parent / "people.csv"
        result = call("evaluate", "--train", table, "--synthetic", table, "--silos", rows_plan, "--json")
        assert result.exit_code == 0, result.stderr
        assert set(said(result)["pairs"]["silos"]) == {None}


def test_samples_are_those_of_the_model(model: Path, tmp_path: Path) -> None:
    result = call("sample", model, "-n", 30, "-o", tmp_path / "a.csv", "--seed", 5, "--json")
    assert result.exit_code == 0, result.stderr
    assert said(result) == {"rows": 30, "columns": 5, "synthetic": [str(tmp_path / "a.csv")]}
    assert call("sample", model, "-n", 30, "-o", tmp_path / "b.csv", "--seed", 5).exit_code == 0
    refused = call("sample", model, "-n", 9, "-o", tmp_path / "b.csv")
    assert refused.exit_code == 4
    assert "--force" in refused.stderr
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert call("sample", model, "-n", 30, "-o", tmp_path / "b.csv", "--seed", 6, "--force").exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() != (tmp_path / "b.csv").read_bytes()
    expected = silosynth.load(model).sample(30, seed=5)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), expected, check_dtype=False)


def test_a_sample_takes_conditions_and_shares(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    given = ("--given", "age=30..60", "--given", '{"region": "north"}')
    result = call("sample", model, "-n", 20, "-o", out, *given)
    assert result.exit_code == 0, result.stderr
    made = pd.read_csv(out)
    assert made["age"].between(30, 60).all()
    assert (made["region"] == "north").all()
    assert call("sample", model, "-n", 20, "-o", out, "--force", "--shift", "region=north:0.75").exit_code == 0
    assert (pd.read_csv(out)["region"] == "north").sum() == 15
    for wrong in (("--given", "ag=3"), ("--given", "region=norht"), ("--shift", "region=much"), ("--balance", "regio")):
        refused = call("sample", model, "-n", 20, "-o", out, "--force", *wrong)
        assert refused.exit_code == 2
        assert "internal" not in refused.stderr


WANTED = "age,region\n30..60,north\n,south\n30..60,north\n"
NORTH = '{"age": {"low": 30, "high": 60}, "region": "north"}'
LISTED = f'[{NORTH}, {{"region": "south"}}, {NORTH}]'


@pytest.mark.parametrize(("name", "text"), [("rows.csv", WANTED), ("rows.json", LISTED)])
def test_a_file_has_conditions_of_each_row(name: str, text: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    out, words = tmp_path / "a.csv", ("--given-rows", tmp_path / name, "--force")
    result = call("sample", model, "-o", out, *words)
    assert result.exit_code == 0, result.stderr
    made = pd.read_csv(out)
    assert made["region"].tolist() == ["north", "south", "north"] and made["age"][[0, 2]].between(30, 60).all()
    for wrong, says in (
        (("-n", 9), "3 rows for 9"),
        (("--given", "age=30"), "--given and --given-rows"),
        (("--balance", "region"), "grouped in one way"),
    ):
        refused = call("sample", model, "-o", out, *words, *wrong)
        assert refused.exit_code == 2 and says in refused.stderr
    assert "Give --rows, or --given-rows" in call("sample", model, "-o", out, "--force").stderr


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("given = { ag = 3 }", "Did you mean 'age'"),
        ('given = "none.csv"', "none.csv"),
        ("rows = 3\n[[sample.given]]\nage = 30", "1 rows for 3"),
        ('balance = "region"\n[[sample.given]]\nage = 30', "given and balance"),
        ('balance = "regio"', "Did you mean 'region'"),
        ("given = 3", "sample.given"),
        ('given = { age = "abc" }', "a bound must be a number"),
        ("given = { age = { low = 60, high = 20 } }", "Swap them"),
        ('given = { region = "norht" }', "Did you mean 'north'"),
        ('given = { region = "north" }\nbalance = "region"', "named once"),
        ('balance = "age"', "at least two levels"),
        ("shift = { region = { north = 1.4 } }", "from 0 to 1"),
        ("shift = { region = { norht = 0.4 } }", "Did you mean 'north'"),
    ],
)
def test_what_rows_cannot_be_asked_for_is_said_before_training(asked: str, says: str, plan: Path) -> None:
    plan.write_text(PLAN.replace("rows = 250", asked))
    result = call("run", plan)
    assert result.exit_code in (2, 4) and says in result.stderr
    assert not (plan.parent / "out" / "model.silosynth").exists()


def test_a_level_that_is_pooled_cannot_be_asked_for_and_that_is_said_before_training(plan: Path) -> None:
    people = pd.read_csv(plan.parent / "people.csv")
    people.loc[:3, "region"] = "island"
    people.to_csv(plan.parent / "people.csv", index=False)
    for asked in ('given = { region = "island" }', "shift = { region = { island = 0.4 } }"):
        plan.write_text(PLAN.replace("rows = 250", asked))
        refused = call("run", plan)
        assert refused.exit_code == 2 and "fewer than 5 training rows" in refused.stderr and "(rare)" in refused.stderr
    assert not (plan.parent / "out" / "model.silosynth").exists()


@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("silofuse", {}, 5),
        ("silofuse", {"coder.encoders.pool_rare": False}, 0),
        ("vflgan", {"encoders.min_count": 7}, 7),
        ("vflgan", {"dp.epsilon": 1.0, "dp.delta": 1e-5}, 0),
    ],
)
def test_which_levels_are_pooled_for_certain(name: str, options: dict[str, object], least: int) -> None:
    entry = catalog.algorithm(name)
    assert entry.pools_below(entry.configure("fast", options)) == least


@pytest.mark.parametrize(
    "asked", ['balance = "region"', "shift = { region = { north = 0.5 } }", "[[sample.given]]\nage = 30"]
)
def test_columns_that_stay_are_not_grouped_and_it_is_said_before_training(asked: str, plan: Path) -> None:
    plan.write_text(PLAN.replace("[sample]\nrows = 250", f'synthesis = "partitioned"\n[sample]\n{asked}'))
    result = call("run", plan)
    assert result.exit_code == 2 and "Columns that stay in their silos" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "north"),
    [
        ('balance = "region"\ngiven = { age = { low = 30, high = 60 } }', 7),
        ("shift = { region = { north = 0.75 } }", 16),
        ('given = { region = "north", age = { low = 30 } }', 21),
        (
            13 * '[[sample.given]]\nregion = "north"\nage = { low = 30 }\n'
            + 8 * '[[sample.given]]\nage = 40\nregion = "south"\n',
            13,
        ),
    ],
)
def test_an_experiment_asks_for_rows_by_conditions_and_shares(plan: Path, asked: str, north: int) -> None:
    plan.write_text(PLAN.replace("rows = 250", f"rows = 21\n{asked}"))
    result = call("run", plan, "--json")
    assert result.exit_code == 0, result.stderr
    made = pd.read_csv(plan.parent / "out" / "synthetic.csv")
    assert (made["region"] == "north").sum() == north
    assert ("age" not in asked) or (made["age"] >= 30).all()


def test_missing_cells_are_filled_in(
    model: Path, people: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silosynth.simulation.model.POOL", 100)
    monkeypatch.setattr("silosynth.simulation.imputing._TREES", 3)
    partial = people.head(20).assign(age=people["age"].where(people.index % 2 == 0))
    partial.to_csv(tmp_path / "gaps.csv", index=False)
    files = [tmp_path / name for name in ("out.csv", "out-1.csv", "out-2.csv", "intervals.csv")]
    more = ("--draws", 2, "--each", "--intervals", files[-1], "--seed", 1, "--json")
    result = call("impute", model, tmp_path / "gaps.csv", "-o", files[0], *more)
    assert result.exit_code == 0, result.stderr
    assert said(result) == {"rows": 20, "cells": 10, "draws": 2, "filled": [str(file) for file in files]}
    for file in files[:3]:
        made = pd.read_csv(file)
        assert made["age"].notna().all()
        assert made.loc[::2, "age"].tolist() == people["age"].iloc[:20:2].tolist()
    assert list(pd.read_csv(files[-1])["row"]) == list(range(1, 20, 2))
    assert call("impute", model, tmp_path / "gaps.csv", "-o", files[0]).exit_code == 4
    people.tail(200).to_csv(tmp_path / "synthetic.csv", index=False)
    result = call("impute", tmp_path / "synthetic.csv", tmp_path / "gaps.csv", "-o", files[0], "--force", "--json")
    assert (result.exit_code, said(result)["cells"]) == (0, 10), result.stderr
    assert pd.read_csv(files[0])["age"].isin(people["age"]).all()
    pd.DataFrame({"agee": [None], "age": [3]}).to_csv(tmp_path / "gaps.csv", index=False)
    refused = call("impute", model, tmp_path / "gaps.csv", "-o", tmp_path / "new.csv")
    assert (refused.exit_code, "Did you mean 'age'" in refused.stderr) == (2, True)


def test_a_sample_needs_a_model_and_a_place(model: Path, tmp_path: Path) -> None:
    assert call("sample", tmp_path / "absent.silosynth", "-n", 3, "-o", tmp_path / "a.csv").exit_code == 4
    assert call("sample", model, "-n", 3, "-o", tmp_path / "no folder" / "a.csv").exit_code == 4
    assert call("sample", model, "-n", 3, "-o", tmp_path / "a.doc").exit_code == 2
    assert call("sample", model, "-n", 0, "-o", tmp_path / "a.csv").exit_code == 2


def test_any_synthetic_table_can_be_evaluated(plan: Path, people: pd.DataFrame) -> None:
    people.head(200).to_csv(plan.parent / "train.csv", index=False)
    people.tail(200).to_csv(plan.parent / "fresh.csv", index=False)
    tables = ("--train", plan.parent / "train.csv", "--synthetic", plan.parent / "fresh.csv")
    report = plan.parent / "report.html"
    result = call("evaluate", *tables, "--target", "ill", "--silos", plan, "--report", report, "--json")
    assert result.exit_code == 0, result.stderr
    facts = said(result)
    assert facts["about"]["silos"] == {"clinic": ["age", "visits", "ill"], "bank": ["income", "region"]}
    assert facts["path"] == str(report)
    assert report.read_text().startswith("<!")
    assert call("evaluate", *tables, "--target", "sick").exit_code == 2


@pytest.mark.slow
def test_the_table_of_a_finished_run_can_be_judged_afterwards(plan: Path, people: pd.DataFrame) -> None:
    numbered = people.assign(person_id=range(1000, 1000 + len(people)))
    numbered.to_csv(plan.parent / "people.csv", index=False)
    plan.write_text(PLAN.replace('columns = ["income"', 'columns = ["person_id", "income"') + "[split]\nseed = 3\n")
    ran = said(call("run", plan, "--json"))
    out = plan.parent / "out"
    assert ran["premises"][0]["name"] == "enough_rows"
    assert list(ran["about"]["left_out"]) == ["person_id"]
    kept = json.loads((out / "split.json").read_text())
    held = silosynth.split(people, 0.2, seed=3)[1]
    assert kept["holdout"] == {"table": held.index.tolist()}
    plan.write_text("")  # the folder says all that is needed
    result = call("evaluate", out, "--json")
    assert result.exit_code == 0, result.stderr
    assert said(result)["scores"] == ran["scores"]
    assert said(result)["about"] == ran["about"]
    again = plan.parent / "again.csv"
    assert call("sample", out / "model.silosynth", "-n", 90, "-o", again, "--seed", 3).exit_code == 0
    other = call("evaluate", out, "--synthetic", again, "--json")
    assert said(other)["rows"] == {"n_train": 320, "n_holdout": 80, "n_synthetic": 90}
    assert call("evaluate", out, "--train", again).exit_code == 2
    numbered[::-1].to_csv(plan.parent / "people.csv", index=False)
    changed = call("evaluate", out)
    assert changed.exit_code == 2
    assert "they have changed" in changed.stderr
    (out / "split.json").unlink()
    assert call("evaluate", out).exit_code == 4
    assert "--train" in call("evaluate", out).stderr
    assert call("evaluate").exit_code == 2


@pytest.mark.slow
def test_rows_of_silos_can_be_judged_afterwards(rows_plan: Path) -> None:
    for text in (OWN + ROWS + "[schema.income]\nkind = 'continuous'\n", SHARED + ROWS):
        rows_plan.write_text(text)
        ran = said(call("run", rows_plan, "--force", "--json"))
        assert said(call("evaluate", rows_plan.parent / "out", "--json"))["scores"] == ran["scores"]


@pytest.mark.slow
def test_columns_that_stay_in_silos_can_be_judged_afterwards(plan: Path) -> None:
    plan.write_text(PLAN.replace("[sample]", 'synthesis = "partitioned"\n[sample]'))
    ran = said(call("run", plan, "--json"))
    assert said(call("evaluate", plan.parent / "out", "--json"))["scores"] == ran["scores"]


def test_columns_are_declared_by_a_model_a_schema_or_an_experiment(plan: Path, model: Path) -> None:
    table = plan.parent / "people.csv"
    tables = ("--train", table, "--synthetic", table)
    plan.write_text(PLAN + "[schema.ill]\nkind = 'categorical'\n[schema.region]\nkind = 'identifier'\n")
    (plan.parent / "schema.toml").write_text("[schema.region]\nkind = 'identifier'\n[schema.gone]\nkind = 'integer'\n")
    assert list(said(call("evaluate", *tables, "--silos", plan, "--json"))["about"]["left_out"]) == ["region"]
    shown = call("evaluate", *tables, "--schema", plan.parent / "schema.toml", "--json")
    assert list(said(shown)["about"]["left_out"]) == ["region"]
    assert "declares columns that the table lacks: gone" in shown.stderr
    assert said(call("evaluate", *tables, "--schema", model, "--json"))["about"]["left_out"] == {}


@pytest.mark.slow
def test_one_process_per_silo_gives_the_same_bytes(plan: Path) -> None:
    assert call("run", plan, "--quiet").exit_code == 0
    plan.write_text(PLAN.replace("[algorithm]", '[algorithm]\nruntime = "processes"').replace('"out"', '"apart"'))
    result = call("run", plan, "--quiet")
    assert result.exit_code == 0, result.stderr
    for name in ("synthetic.csv", "ledger.jsonl"):
        assert (plan.parent / "apart" / name).read_bytes() == (plan.parent / "out" / name).read_bytes()


@pytest.mark.slow
def test_the_demonstration_writes_what_it_promises(tmp_path: Path) -> None:
    result = call("demo", "--out", tmp_path / "demo", "--json")
    assert result.exit_code == 0, result.stderr
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"insurer.csv", "clinic.csv", "experiment.toml", "synthetic.csv", "report.html"} <= written
    assert said(call("inspect", tmp_path / "demo" / "experiment.toml", "--json"))["kind"] == "experiment"


@pytest.fixture
def french(tmp_path: Path, people: pd.DataFrame) -> dict[str, Path]:
    """Real rows as an office in France writes them, and a table that silosynth made of them."""
    kept = people.head(120).assign(region=lambda rows: rows["region"] + "é", income=lambda rows: rows["income"] + 0.5)
    paths = {name: tmp_path / f"{name}.csv" for name in ("train", "holdout", "synthetic")}
    for name in ("train", "holdout"):
        marked = kept.astype({"visits": object})
        marked.loc[3, "visits"] = "absent"
        marked.to_csv(paths[name], sep=";", decimal=",", encoding="cp1252", index=False)
    kept.to_csv(paths["synthetic"], index=False)
    return paths


@pytest.mark.filterwarnings("always::silosynth.data.csvfiles.EncodingWarning")
@pytest.mark.slow
def test_real_rows_are_read_as_declared_and_a_guess_is_said_once(french: dict[str, Path]) -> None:
    tables = [part for name, path in french.items() for part in (f"--{name}", path)]
    how = ("--separator", ";", "--decimal", ",", "--missing", "absent")
    result = call("evaluate", *tables, *how, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("cp1252") == 1
    assert "train.csv, holdout.csv are not in UTF-8" in result.stderr
    shapes = {column["name"]: column["error"] for column in said(result)["columns"]}
    assert max(shapes[name] for name in ("age", "income", "region")) < 3
    assert "cp1252" not in call("evaluate", *tables, *how, "--encoding", "cp1252", "--json").stderr
    assert call("evaluate", "out", *how).exit_code == 2


@pytest.mark.parametrize("name", ["report.htm", "report.html", "report.json"])
def test_reports_of_experiments_end_as_those_of_commands(plan: Path, name: str) -> None:
    plan.write_text(PLAN.replace("[evaluate]", f'[evaluate]\nreport = "{name}"'))
    assert experiment.read(plan).evaluate.report == name


def test_a_report_that_is_there_is_overwritten_only_by_force(plan: Path) -> None:
    kept = plan.parent / "kept.html"
    kept.write_text("of another evaluation")
    table = plan.parent / "people.csv"
    for command in (("evaluate", "--train", table, "--synthetic", table), ("audit", plan), ("fetch", "job")):
        refused = call(*command, "--report", kept)
        assert refused.exit_code == 4
        assert "is not overwritten" in refused.stderr
        assert "--force" in refused.stderr
    assert kept.read_text() == "of another evaluation"
    assert call("datasets", "fetch", "adult", "-o", kept).exit_code == 4
