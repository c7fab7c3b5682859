"""``silosynth papers check``: which figures are compared, in which intervals, and what the command says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import UnavailableError
from silosynth.papers import check, registry
from silosynth.papers.check import ComputedAgain

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "check", *map(str, arguments)])


def changed(name: str, folder: Path, change: Any) -> None:
    """A copy of a file of results in a folder, its rows changed."""
    content = json.loads((registry.RESULTS / f"{name}.json").read_text("utf-8"))
    for row in content["rows"]:
        change(row)
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_one_more_value_of_the_same_law_lies_in_the_interval_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    trials = rng.normal(5.0, 2.0, size=(20_000, 4))
    found = [check.interval(list(seeds[:3]), 1) for seeds in trials]
    missed = sum(not low <= value <= high for (low, high), value in zip(found, trials[:, 3], strict=True))  # type: ignore[misc]
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], len(trials), check.MISSES)
    assert low <= missed <= high


def test_more_figures_have_wider_intervals_and_one_seed_has_none() -> None:
    one, ten = (check.interval([1.0, 2.0, 3.0], count) for count in (1, 10))
    assert one is not None and ten is not None and ten[0] < one[0] < 2.0 < one[1] < ten[1]
    assert check.interval([1.0], 1) is None


def test_verdicts() -> None:
    span = (0.0, 1.0)
    told = [(0.5, 0.5, None), (0.5, 0.6, None), (0.5, 0.6, span), (0.5, 1.1, span), (2.0, 2.0, span)]
    verdicts = [ComputedAgain("F1", kept, again, found).verdict for kept, again, found in told]
    assert verdicts == ["same", "one seed", "within", "outside", "same"]


def test_costs_and_what_a_row_is_of_are_not_compared() -> None:
    row = {"table": "loan", "rows": 5, "seed": 0, "F1": 0.5, "took": 3.0, "bytes": 7, "curve": [1.0], "flag": True}
    assert check.figures(row, {"table": "loan", "rows": 5, "seed": 0}) == {"F1": 0.5}


def test_where_a_row_has_no_other_figure_those_in_lists_and_mappings_are_compared() -> None:
    row = {"seed": 0, "auc": {"GAN-leaks": 0.5, "low": 0.1}, "totals": [0.25, 0.5], "note": "text", "took": 1.0}
    assert check.figures(row, {"seed": 0}) == {"auc GAN-leaks": 0.5, "totals 0": 0.25, "totals 1": 0.5}


def test_all_kept_rows_have_the_seeds_of_their_setting() -> None:
    rows = check.kept(registry.find("vtgan/figure-9"))
    assert len(rows) == 9 and all(len(one.seeds) == 3 and one.row in one.seeds for one in rows)
    assert {one.row["partition"] for one in rows} == {"D^2_0 G^0_2"}


def test_a_draw_is_of_its_number_and_leaves_long_rows_out() -> None:
    entries = registry.entries("vtgan")
    drawn = [check.draw(entries, 5, seed, 100.0) for seed in (0, 0, 1)]
    titles = [[one.job.title for one in chosen] for chosen, _, _ in drawn]
    assert titles[0] == titles[1] != titles[2] and len(set(titles[0])) == 5
    chosen, among, longer = drawn[0]
    assert all(one.took <= 100.0 for one in chosen) and longer > 0
    files = {name for entry in entries for name in entry.kept}
    assert among + longer == sum(len(registry.kept_rows(name)) for name in files)  # once, if figures share them
    with pytest.raises(UnavailableError, match="no kept rows of at most"):
        check.draw(entries, 1, 0, 0.0)


def test_unknown_names_are_refused_and_so_is_a_machine_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "silofuse/table-3" in call("silofuse/tabel-3").stderr
    monkeypatch.setattr(registry, "RESULTS", tmp_path)
    refused = call()
    assert refused.exit_code == UnavailableError.exit_code and "in a clone of the repository" in refused.stderr


@needs_data
def test_kept_rows_come_out_again_and_changed_ones_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = call("silofuse/table-2", "--count", 2)
    assert same.exit_code == 0 and same.stdout.count("6 of 6 figures are the same") == 2, same.stderr
    changed("silofuse_table2", tmp_path, lambda row: row.update(after=row["after"] + 1))
    monkeypatch.setattr(registry, "RESULTS", tmp_path)
    told = call("silofuse/table-2", "--count", 1)
    assert told.exit_code == 0 and "5 of 6 figures are the same" in told.stdout  # no other seed to judge it by
    assert "one seed after: " in told.stdout


@pytest.mark.slow
@needs_data
def test_a_row_outside_the_interval_of_its_setting_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed("vtgan_figures9_10", tmp_path, lambda row: row.update(JSD=2.0 + row["JSD"] / 100))
    monkeypatch.setattr(registry, "RESULTS", tmp_path)
    told = call("vtgan/figure-9", "--count", 1)
    assert told.exit_code == 2 and "1 figures lie outside" in told.stderr, told.output
    assert "outside  JSD: " in told.stdout
