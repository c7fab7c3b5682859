"""``silosynth papers run``: rows appear, are kept, and are not computed twice; with stand-ins and real algorithms."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.commands import papers
from silosynth.core.errors import ConfigError, StorageError
from silosynth.papers import EXPERIMENTS, experiment, registry, settings, silofuse_table2 as widths
from silosynth.papers.published import ENTRIES, Published
from silosynth.papers.settings import FIGURES, Setting
from silosynth.simulation import training as api

NAMES = {"partitions": "vtgan/figure-7", "importance": "vtgan/figure-9", "silos": "vtgan/figure-11"}
SMALL = ("--table", "demo", "--rows", 200, "--epochs", 1)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "run", *map(str, arguments)])


def of(name: str) -> list[Setting]:
    return list(importlib.import_module(f"silosynth.papers.{EXPERIMENTS[name]}").SETTINGS)


def ends(name: str) -> list[Setting]:
    return of(name)[:: len(of(name)) - 1]


def own(name: str, among: Sequence[Setting]) -> list[Setting]:
    """Those of the figure."""
    partitions = registry.find(NAMES[name]).given.get("partition")
    return [setting for setting in among if not partitions or setting.labels["partition"] in partitions]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each experiment's first and last setting only."""
    for name in NAMES:
        module = f"silosynth.papers.{EXPERIMENTS[name]}"
        cut = replace(experiment.load(name), jobs=partial(settings.jobs, ends(name)))
        monkeypatch.setattr(f"{module}.EXPERIMENT", cut)


@pytest.fixture
def stand_in(fits: Any, short: None, figures_once: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(api, "fit", fits)
    return fits


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_algorithms_run_through_each_command(name: str, short: None, tmp_path: Path) -> None:
    result = call(NAMES[name], *SMALL, "--out", tmp_path / "rows.md", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    expected = own(name, ends(name))
    assert [row["partition"] for row in rows] == [s.labels["partition"] for s in expected]
    for row, setting in zip(rows, expected, strict=True):
        assert all(row[figure] is not None for figure in FIGURES)
        assert row["seconds"] > 0
        assert (row["bytes"] or 0) > 10_000 if setting.algorithm == "vtgan" else row["bytes"] is None
    assert (tmp_path / "rows.md").read_text().count("| demo |") == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_settings_run_through_each_command(name: str) -> None:
    result = call(NAMES[name], *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["rows"]) == len(own(name, of(name)))


def test_rows_appear_and_a_table_ends_it(stand_in: Any) -> None:
    result = call("vtgan/figure-7", *SMALL)
    assert result.exit_code == 0 and "Rows to compute: 2." in result.stderr
    assert "demo · D^2_0 G^0_2 · published · seed 0: accuracy " in result.stderr
    assert "Neural network partitions (VT-GAN, figure 7): 200 rows, 1 epochs, one repeat" in result.stdout
    assert "central GAN" in result.stdout and "Across-cl." in result.stdout


def test_numbers_of_a_row_s_line_have_their_heads() -> None:
    row = {"table": "loan", **dict.fromkeys(widths.FIGURES, 3)}
    assert widths.EXPERIMENT.brief(row).startswith("loan · rows 3 · published 5000 · categorical 3 · ")


def test_ctrl_c_loses_nothing_and_the_same_command_continues(stand_in: Any, tmp_path: Path) -> None:
    stand_in.interrupt_at = 1
    command = ("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.json")
    result = call(*command)
    assert result.exit_code == 130
    assert f"The rows so far are in {tmp_path / 'rows.json'}; the same command continues." in result.stderr
    assert "one repeat" in result.stdout  # what there is, is shown
    stand_in.interrupt_at = None
    result = call(*command)
    assert result.exit_code == 0
    assert "1 of 2 rows are in" in result.stderr
    assert [c["name"] for c in stand_in.calls] == ["vtgan", "ctgan"]
    assert call(*command, "--quiet").exit_code == 0
    assert len(stand_in.calls) == 2
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 2


def test_rows_are_kept_where_nobody_says_where(stand_in: Any) -> None:
    stand_in.interrupt_at = 1
    result = call("vtgan/figure-7", *SMALL)
    assert result.exit_code == 130
    assert f"The rows so far are in {Path('silosynth-papers/partitions-small.json')}" in result.stderr
    stand_in.interrupt_at = None
    assert "1 of 2 rows are in" in call("vtgan/figure-7", *SMALL).stderr


def test_figures_of_one_experiment_have_their_own_rows_in_one_file(stand_in: Any) -> None:
    for figure, partition in ((11, "D^2_0 G^2_0"), (12, "D^2_0 G^0_2")):
        result = call(f"vtgan/figure-{figure}", *SMALL, "--json")
        assert [row["partition"] for row in json.loads(result.stdout)["rows"]] == [partition]
    assert len(json.loads(Path("silosynth-papers/silos-small.json").read_text())["rows"]) == 2


def test_of_size_kept_options_name_rows() -> None:
    importance = experiment.load("importance")
    every, one = (importance.sized("kept", given) for given in ({}, {"repeats": 1, "partition": ("D^2_0 G^0_2",)}))
    assert len(every) == 18 and {(job.seed, job.setting.labels["partition"]) for job in one} == {(0, "D^2_0 G^0_2")}
    refused = call("vtgan/figure-9", "--size", "kept", "--table", "adult")
    assert refused.exit_code == 2 and "nothing is kept of that" in refused.stderr
    assert "partition D^2_0 G^0_2; tables adult" in refused.stderr
    with pytest.raises(ConfigError, match="no such table"):
        experiment.load("nine-tables").sized("kept", {"tables": ("lone",)})
    private = experiment.load("total-difference").sized(
        "kept", {"algorithms": ("dplt",)}
    )  # which has no preset private
    assert {job.algorithm for job in private} == {"dplt"} and len(private) == 15


def test_the_papers_sizes_are_forecast_first(stand_in: Any) -> None:
    result = call("vtgan/figure-7", "--size", "published", *SMALL, "--repeats", 2, "--json")
    assert result.exit_code == 0, result.stderr
    assert "4 trainings will take about " in result.stderr
    facts = json.loads(result.stdout)
    assert facts["expected_seconds"] > 0
    assert {row["seed"] for row in facts["rows"]} == {0, 1} and facts["means"][0]["repeats"] == 2
    assert facts["stamp"]["silosynth"]


def test_the_hours_of_the_published_size_are_told_where_nothing_is_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "_compute", lambda *arguments: None)
    whole, part = (call("silofuse/figure-11", "--size", "published", *more) for more in ((), ("--table", "loan")))
    assert "All of it takes 60 trainings, about 2 280 hours" in whole.stderr and "Rows to compute: 60." in whole.stderr
    assert part.exit_code == 0 and "All of it takes" not in part.stderr and "Rows to compute: 20." in part.stderr


def test_unknown_tables_and_files_are_clean_errors(stand_in: Any, tmp_path: Path) -> None:
    result = call("vtgan/figure-7", "--table", "adlut")
    assert result.exit_code == 2 and "Did you mean 'adult'?" in result.stderr
    assert call("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.csv").exit_code == 2
    (tmp_path / "rows.json").write_text("{}")
    assert call("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.json").exit_code == 4
    refused = call("silofuse/table-3", "--option", "latent.stepz=5", "--option", "laten.steps=5")
    assert refused.exit_code == 2 and "Did you mean 'latent'?" in refused.stderr
    assert stand_in.calls == []


def test_nobody_s_notes_are_written_over_and_a_place_that_cannot_be_written_is_refused_first(
    stand_in: Any, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("Important.")
    refused = call("vtgan/figure-7", *SMALL, "--out", notes)
    assert refused.exit_code == 4 and notes.read_text() == "Important."
    assert call("vtgan/figure-7", *SMALL, "--out", notes / "rows.md").exit_code == 4
    assert stand_in.calls == []
    shown = call("vtgan/figure-7", "--show", "--out", tmp_path / "rows.md")
    assert shown.exit_code == 0 and "no rows in" in shown.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.md"]


def test_rows_that_may_only_be_read_are_shown(stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.md").exit_code == 0

    def refuse(path: Path, content: bytes) -> None:
        raise StorageError("The file can be written", str(path))

    monkeypatch.setattr("silosynth.core.files.write_atomic", refuse)
    shown = call("vtgan/figure-7", "--show", "--out", tmp_path / "rows.md")
    assert shown.exit_code == 0 and "central GAN" in shown.stdout and "was not written" in shown.stderr
    again = call("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.md")
    assert again.exit_code == 4 and "central GAN" in again.stdout


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.experiment], ids=lambda entry: entry.name)
def test_each_entry_has_a_command_with_its_options(entry: Published) -> None:
    result = call(entry.name, "--help")
    assert result.exit_code == 0, result.stderr
    loaded = experiment.load(str(entry.experiment))
    assert loaded.name == entry.experiment
    for option in re.findall(r"--[a-z-]+", loaded.example):
        assert option in result.stdout


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.experiment], ids=lambda entry: entry.name)
def test_each_entry_has_its_sizes(entry: Published) -> None:
    loaded = experiment.load(str(entry.experiment))
    sizes: list[experiment.Size] = ["small", "kept", "published"] if entry.paper != "beside" else ["small", "kept"]
    for size in sizes:
        if entry.experiment != "inversion":  # whose rows are the columns of a data set
            assert loaded.sized(size, entry.given), size
    if entry.paper == "beside":
        with pytest.raises(ConfigError, match="no size of that name") as refused:
            loaded.sized("published", {})
        assert refused.value.remedy == "Take --size small or kept."


@pytest.mark.parametrize(("name", "flag"), [("vflgan/figure-5", "curve"), ("gdts/table-1", "f1_along")])
def test_a_flag_that_is_not_given_leaves_it_to_the_entry_and_its_size(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(papers, "_perform", lambda ui, experiment, options, hours, **more: asked.append(options))
    assert call(name, "--seed", 0).exit_code == 0 and call(name, f"--{flag.replace('_', '-')}").exit_code == 0
    entry = next(entry for entry in ENTRIES if entry.name == name)
    assert asked == [{**entry.given, "seed": 0}, {**entry.given, flag: True}]
    job = experiment.load(str(entry.experiment)).sized("small", asked[0])[0]
    assert getattr(job, flag) is True


def test_an_unknown_experiment_is_refused() -> None:
    assert call("vtgan/figure-77").exit_code == 2


def test_what_the_file_holds_is_shown_and_computed_again_on_demand(stand_in: Any, tmp_path: Path) -> None:
    command = ("vtgan/figure-7", *SMALL, "--out", tmp_path / "rows.md")
    assert call(*command).exit_code == 0
    (tmp_path / "rows.md").unlink()
    shown = call("vtgan/figure-7", "--show", "--out", tmp_path / "rows.md")
    assert shown.exit_code == 0 and "central GAN" in shown.stdout and (tmp_path / "rows.md").exists()
    assert len(stand_in.calls) == 2
    assert call(*command, "--again").exit_code == 0
    assert len(stand_in.calls) == 4
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 2


@pytest.mark.live
def test_rows_are_computed_in_processes_and_one_that_fails_leaves_the_others(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    jobs = ("--setting", "fl", "--silos", 2, "--table", "demo", "--table", "adlut", "--rows", 100, "--epochs", 1)
    result = call("gdts/table-1", *jobs, "--jobs", 2, "--out", out)
    assert result.exit_code == 5 and "1 of 2 rows could not be computed" in result.stderr, result.stderr
    assert [row["table"] for row in json.loads(out.read_text())["rows"]] == ["demo"]
