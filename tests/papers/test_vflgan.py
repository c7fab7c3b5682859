"""``silosynth papers run vflgan/…``: rows appear, are kept, and are not computed twice."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import ConfigError
from silosynth.papers import curves, vflgan_figures5_6 as digits, vflgan_table1 as comparison
from silosynth.papers.vflgan_table1 import TotalDifferenceJob, algorithm_options
from silosynth.simulation import training as api

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", "run", *map(str, arguments)])


@pytest.fixture
def stand_in(fits: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(api, "fit", fits)
    return fits


def test_jobs_are_all_that_is_asked_for():
    jobs = comparison.jobs(["adult", "adult"], ["dplt", "wgan-gp"], dp="both", repeats=2, seed=3)
    found = [(job.algorithm, job.epsilon, job.seed) for job in jobs]
    assert [one for one in found if one[0] == "dplt"] == [("dplt", e, s) for s in (3, 4) for e in (0.0, 10.0)]
    assert len({json.dumps(job.identity) for job in jobs}) == len(jobs)
    assert algorithm_options(jobs[1])["dp"] == {"epsilon": 10.0, "delta": 1e-5}
    unknown: tuple[dict[str, Any], ...] = (
        {"tables": ["adlut"]}, {"tables": ["adult"], "algorithms": ["tvae"]}, {"tables": []},
        {"tables": ["adult"], "algorithms": ["vflgan", "dplt"], "preset": "private"}, {"tables": ["adult"], "draws": 0},
    )  # fmt: skip
    for bad in unknown:
        with pytest.raises(ConfigError):
            comparison.jobs(**bad)


def test_rows_of_a_preset_s_other_settings_are_others() -> None:
    one = TotalDifferenceJob("adult", "vflgan", preset="fast")
    batch = TotalDifferenceJob("adult", "vflgan", preset="fast", options=(("batch", 33),))
    assert json.loads(one.settings) == {**json.loads(batch.settings), "batch": 32}
    assert json.loads(TotalDifferenceJob("adult", "vflgan", 10.0, preset="private").settings)["dp"]["epsilon"] == 10


def test_options_are_those_that_an_algorithm_has():
    job = TotalDifferenceJob("adult", "dplt", epochs=5, options=(("bins", 4), ("batch", 16)))
    assert algorithm_options(job) == {"bins": 4}
    job = TotalDifferenceJob("adult", "wgan-gp", epochs=5, options=(("batch", 16),))
    assert algorithm_options(job) == {"epochs": 5, "least_rounds": 0, "batch": 16}


@needs_data
def test_tables_are_divided_as_in_the_public_code():
    adult, wine = comparison.load("adult", 500), comparison.load("wine_quality_red", 200, target="number")
    assert len(adult.frame) == 500 and not adult.frame.isna().any().any()
    assert adult.silos["first"][-1] == "relationship" and adult.silos["second"][0] == "race"
    assert len(adult.categories) == 9
    assert wine.categories == frozenset() and wine.kinds["quality"] == "integer"
    credit = comparison.load("south_german_credit", bounds=True)
    assert credit.frame["purpose"].str.len().unique().tolist() == [2]  # "00" to "10": text in the order of numbers
    assert credit.kinds["age"] == {"kind": "integer", "low": 19, "high": 75}


@needs_data
@pytest.mark.slow
def test_rows_are_kept_and_the_same_command_continues(stand_in: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.md"
    sizes = ("--rows", 60, "--epochs", 2, "--dp", "off", "-a", "wgan-gp", "-a", "dplt")
    command = ("vflgan/table-1", *sizes, "--out", out)
    result = call(*command, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["algorithm"] for row in rows] == ["wgan-gp", "dplt"]
    assert rows[0]["bytes"] is None and rows[1]["bytes"] == 42
    assert rows[0]["paper"] == 0.09 and rows[0]["FD"] < 3  # rows of the table, drawn with replacement
    assert [call["options"] for call in stand_in.calls] == [{"epochs": 2, "least_rounds": 0}, {}]
    assert out.read_text().count("| wine_quality_red |") == 2
    again = call(*command)
    assert again.exit_code == 0 and "2 of 2 rows are in" in again.stderr and len(stand_in.calls) == 2
    (tmp_path / "rows.json").write_text("{}")
    assert call(*command).exit_code == 4
    assert call("vflgan/table-1", "--dp", "maybe").exit_code == 2


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", comparison.ALGORITHMS)
def test_the_algorithms_run_with_a_curve(algorithm: str):
    job = TotalDifferenceJob("wine_quality_red", algorithm, preset="fast", rows=200, epochs=4, curve=True)
    row = comparison.measure(job)
    assert row["curve"] or algorithm == "dplt"
    for last in row["curve"][-1:]:
        assert last["FD"] == pytest.approx(row["FD"], rel=0.5)
    assert row["total difference"] > 0


@needs_data
@pytest.mark.slow
def test_a_private_row_says_what_it_cost():
    row = comparison.measure(TotalDifferenceJob("wine_quality_red", "dplt", 10.0))
    assert "epsilon at most" in row["privacy"] and row["total difference"] < 1.0


# Digits.


@needs_data
def test_judges_know_digits_and_are_kept(tmp_path: Path):
    judges = digits.Judges(tmp_path, epochs=1)
    truth = digits.images()[1]
    said = judges.probabilities(judges.pixels_NP)
    assert (said.argmax(axis=1) == truth).mean() > 0.85
    again = digits.Judges(tmp_path, epochs=1)
    np.testing.assert_array_equal(again.latents(judges.pixels_NP[:50]), judges.latents(judges.pixels_NP[:50]))
    assert (tmp_path / "judges-1.bin").exists()


@needs_data
def test_digits_are_pictured_and_judged(stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "JUDGE_EPOCHS", 1)
    sizes = ("-a", "wgan-gp", "--rows", 200, "--epochs", 1)
    command = ("vflgan/figure-6", *sizes, "--out", tmp_path / "out" / "page.md", "--json")
    result = call(*command)
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert row["FD"] < row["real FD"] and 5 < row["IS"] < 10  # real images, some of them twice
    assert decoded((tmp_path / "out" / "wgan-gp-0.png").read_bytes()).shape == (280, 280)
    assert stand_in.calls[0]["silos"] == {"central": [f"pixel_{i}" for i in range(784)]}
    assert call(*command).exit_code == 0 and len(stand_in.calls) == 1
    assert call("vflgan/figure-6", "-a", "dplt").exit_code == 2


def test_a_picture_is_a_png():
    grey = np.linspace(-0.1, 1.1, 12).reshape(3, 4)
    np.testing.assert_allclose(decoded(curves.png(grey)), grey.clip(0, 1), atol=1 / 255)


def test_a_grid_has_images_in_reading_order():
    whole = digits.grid(np.repeat(np.arange(9.0)[:, None], 784, axis=1), side=3)
    assert whole[0, 0] == 0 and whole[0, 83] == 2 and whole[83, 0] == 6


def decoded(png: bytes) -> np.ndarray:
    """Of a grey PNG, numbers from 0 to 1."""
    from matplotlib.image import imread  # half a second, for these tests alone

    return np.asarray(imread(io.BytesIO(png)))[:, :, 0]
