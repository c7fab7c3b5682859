"""``silosynth papers check``: which figures are compared, in which intervals, and what the command says."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import ReproductionError, UnavailableError
from silosynth.papers import EXPERIMENTS, check, registry
from silosynth.papers.check import KeptRow
from silosynth.papers.experiment import load, named
from silosynth.papers.settings import ATTACK, FIGURES, SHOWN

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")

NOT_OF_GDTS = set(FIGURES) - set(SHOWN["gdts"])


@dataclass
class Job:
    """One of a setting, with a seed."""

    setting: str

    @property
    def identity(self) -> dict[str, Any]:
        return {"setting": self.setting, "seed": 0}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "check", *map(str, arguments)])


def changed(name: str, folder: Path, change: Any) -> None:
    """A copy of a file of results in a folder, its rows changed."""
    content = json.loads((registry.RESULTS / f"{name}.json").read_text("utf-8"))
    for row in content["rows"]:
        change(row)
    (folder / f"{name}.json").write_text(json.dumps(content))


def found(name: str, **values: Any) -> KeptRow:
    """A kept row of an entry."""
    return next(one for one in check.kept(registry.find(name)) if values.items() <= one.row.items())


def verdicts(one: KeptRow, **again: Any) -> dict[str, str]:
    return {each.figure: each.verdict for each in check.compare(one, {**one.row, **again})}


def test_one_more_value_of_the_same_law_lies_in_the_interval_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(2000):
        settings = {
            check.setting(Job(str(mean))): [{"F1": value} for value in rng.normal(mean, 2.0, 3)] for mean in range(4)
        }
        experiment = replace(load("silos"), figures=named("F1"))
        one = KeptRow(
            registry.find("vtgan/figure-9"), experiment, Job("1"), settings[check.setting(Job("1"))][0], settings
        )
        (again,) = check.compare(one, {"F1": rng.normal(1.0, 2.0)})
        missed += again.verdict == "outside"
    assert missed <= stats.binom.ppf(1 - 1e-6, 2000, check.MISSES)  # fewer, for the larger of two deviations counts


def test_rows_that_are_three_times_as_bad_lie_outside() -> None:
    one = found("vtgan/figure-9", division="1090", seed=0)
    assert set(verdicts(one).values()) == {"same"}
    worse = verdicts(one, **{name: 3 * one.row[name] for name in check.figures(one.experiment, one.row)})
    assert {"JSD", "F1", "WD"} <= {name for name, verdict in worse.items() if verdict == "outside"}
    assert set(verdicts(one, **one.seeds[1]).values()) == {"within"}


def test_what_does_not_come_out_is_missing() -> None:
    one = found("vtgan/figure-9", division="1090", seed=0)
    assert verdicts(one, F1=None)["F1"] == verdicts(one, F1=math.nan)["F1"] == "missing"


def test_settings_of_one_seed_are_judged_by_how_much_seeds_move_others() -> None:
    one = found("vflgan/table-1", algorithm="wgan-gp", table="adult")
    assert len(one.seeds) == 1
    told = verdicts(one, **{"tstr f1": one.row["tstr f1"] + 0.001, "total difference": one.row["total difference"] + 5})
    assert (told["tstr f1"], told["total difference"]) == ("within", "outside")


def test_where_no_setting_has_several_seeds_numbers_cannot_be_judged_but_counts_have_to_be_the_same() -> None:
    one = found("silofuse/figure-10", iterations=50, algorithm="silofuse")
    assert verdicts(one, bytes=one.row["bytes"] + 1) == {"messages": "same", "bytes": "outside"}
    one = found("beside/central")
    assert set(verdicts(one, AUC=one.row["AUC"] + 0.5).values()) == {"same", "one seed"}


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {"ends", "inversion"}))  # times; a table that is not here
def test_figures_are_those_that_are_published(name: str) -> None:
    rows = [one for entry in registry.entries() if entry.experiment == name for one in check.kept(entry)]
    assert rows
    for one in rows:
        numbers = check.figures(one.experiment, one.row)
        assert numbers and not numbers.keys() & {*one.job.identity, *registry.TAKEN, "side by side"}
    has = {figure for one in rows for figure in check.figures(one.experiment, one.row)}
    asked = {figure for one in rows for figure in one.experiment.figures(one.row)}
    absent = (set() if name == "budgets" else {ATTACK}) | (NOT_OF_GDTS if name in ("copies", "odd") else set())
    assert has == asked - absent


def test_a_draw_is_of_its_number_and_leaves_long_rows_out() -> None:
    entries = registry.entries("vtgan")
    drawn = [check.draw(entries, 5, seed, 100.0) for seed in (0, 0, 1)]
    titles = [[one.job.title for one in chosen] for chosen, _, _ in drawn]
    assert titles[0] == titles[1] != titles[2] and len(set(titles[0])) == 5
    chosen, among, longer = drawn[0]
    assert all(one.took <= 100.0 for one in chosen) and longer > 0
    files = {name for entry in entries for name in entry.kept}
    assert among + longer == sum(len(registry.kept_rows(name)) for name in files)  # once, if figures share them
    with pytest.raises(UnavailableError, match=r"The fastest took \d+ s: --longest"):
        check.draw(entries, 1, 0, 0.0)


def test_unknown_names_are_refused_and_so_is_a_machine_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "silofuse/table-3" in call("silofuse/tabel-3").stderr
    monkeypatch.setattr(registry, "RESULTS", tmp_path)
    refused = call()
    assert refused.exit_code == UnavailableError.exit_code and "in a clone of the repository" in refused.stderr
    assert refused.exit_code == 5


@needs_data
def test_kept_rows_come_out_again_and_others_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = call("silofuse/table-2", "--count", 2)
    assert same.exit_code == 0 and same.stdout.count("6 of 6 figures are the same") == 2, same.stderr
    changed("silofuse_table2", tmp_path, lambda row: row.update(after=row["after"] + 1))
    monkeypatch.setattr(registry, "RESULTS", tmp_path)
    told = call("silofuse/table-2", "--count", 1, "--draw", 4, "--json")
    assert told.exit_code == ReproductionError.exit_code == 6
    facts = json.loads(told.stdout)
    assert facts["draw"] == 4 and [one["figure"] for one in facts["rows"][0]["figures"]][4] == "after"
    assert "1 figures do not" in told.stderr and "after" in facts["error"]["message"]
    assert "after" in call("silofuse/table-2", "--count", 1, "--quiet").stderr


def test_rows_whose_data_are_not_here_are_told_and_the_others_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(job: Any, tell: Any) -> Any:
        if job.table == "loan":
            raise UnavailableError("There is no such table", "loan")
        return next(row for row in registry.kept_rows("silofuse_table2") if row["table"] == job.table)

    monkeypatch.setattr("silosynth.papers.silofuse_table2.EXPERIMENT", replace(load("widths"), measure=fails))
    told = call("silofuse/table-2", "--count", 9, "--json")
    rows = json.loads(told.stdout)["rows"]
    assert told.exit_code == 6 and "1 of 9 rows could not be computed" in told.stderr
    assert [row["row"] for row in rows if "failed" in row] == ["loan"] and len(rows) == 9


def test_the_same_number_draws_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silosynth.papers.silofuse_table2.EXPERIMENT", replace(load("widths"), measure=lambda *job: {}))
    drawn = [[row["row"] for row in json.loads(call("silofuse/table-2", "--draw", 7, "--json").stdout)["rows"]]
             for _ in range(2)]  # fmt: skip
    assert drawn[0] == drawn[1] and len(drawn[0]) == 3


def test_ctrl_c_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: Any, tell: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("silosynth.papers.silofuse_table2.EXPERIMENT", replace(load("widths"), measure=interrupted))
    told = call("silofuse/table-2", "--draw", 7, "--json")
    assert told.exit_code == 130 and "with --draw 7" in told.stderr and json.loads(told.stdout)["draw"] == 7
