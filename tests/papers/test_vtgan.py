"""Who holds what in the papers' experiments, and with which options."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silosynth import catalog
from silosynth.core.errors import ConfigError, DataError
from silosynth.papers import settings, vtgan_figure7, vtgan_figures9_10, vtgan_figures11_12, vtgan_figures13_14
from silosynth.papers.settings import Setting
from silosynth.papers.tables import TableSplit


def table(features: int) -> TableSplit:
    """A target among features of which the last ones decide it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, features)), columns=[f"x{i}" for i in range(features)])
    frame.insert(1, "y", np.where(frame.to_numpy() @ 3.0 ** np.arange(features) > 0, "yes", "no"))
    return TableSplit(frame, frame, "y", {})


@pytest.mark.parametrize("module", [vtgan_figure7, vtgan_figures9_10, vtgan_figures11_12, vtgan_figures13_14])
def test_settings_are_distinct_and_their_options_exist(module: Any) -> None:
    found: list[Setting] = list(module.SETTINGS)
    labels = [tuple(s.labels.items()) for s in found]
    assert len(set(labels)) == len(labels)
    assert len({tuple(s.labels) for s in found}) == 1
    for setting in found:
        catalog.algorithm(setting.algorithm).configure("paper", {**setting.options, "epochs": 1, "batch": 100})


def test_there_are_nine_partitions_and_the_central_gan() -> None:
    found = [s.labels["partition"] for s in vtgan_figure7.SETTINGS]
    assert len(found) == 10
    assert found[0] == "D^2_0 G^0_2" and found[-1] == "central GAN"
    first = vtgan_figure7.SETTINGS[0]
    assert first.options == {"critic_blocks": [2, 0], "generator_blocks": [0, 2]}
    assert first.divide(table(4), 0) == {"silo1": ["x0", "y"], "silo2": ["x1", "x2", "x3"]}


def test_partitions_can_be_named() -> None:
    jobs = vtgan_figure7.EXPERIMENT.jobs
    chosen = jobs(partition=["central GAN", "D^1_1 G^2_0"], repeats=2)
    assert [(job.setting.labels["partition"], job.seed) for job in chosen] == [
        ("D^1_1 G^2_0", 0), ("central GAN", 0), ("D^1_1 G^2_0", 1), ("central GAN", 1)
    ]  # fmt: skip
    assert len(jobs()) == 10
    with pytest.raises(ConfigError, match=r"no such partition.*D\^3_0 G\^0_2"):
        jobs(partition=["D^3_0 G^0_2"])


@pytest.mark.parametrize(("share", "count"), [(0.1, 1), (0.5, 5), (0.9, 9)])
def test_the_target_is_with_the_silo_without_the_important_columns(share: float, count: int) -> None:
    data = table(10)
    held = vtgan_figures9_10.by_importance(share, data, 0)
    assert len(held["important"]) == count
    assert "y" in held["target"] and "x9" in held["important"]
    assert sorted([*held["important"], *held["target"]]) == sorted(data.columns)
    assert held["target"] == [c for c in data.columns if c in held["target"]]


def test_each_silo_keeps_a_feature() -> None:
    data = table(2)
    for share in vtgan_figures9_10.SHARES.values():
        held = vtgan_figures9_10.by_importance(share, data, 0)
        assert len(held["important"]) == 1 and len(held["target"]) == 2
    with pytest.raises(DataError, match="beside the target"):
        vtgan_figures9_10.by_importance(0.5, table(1), 0)


@pytest.mark.parametrize("count", vtgan_figures11_12.COUNTS)
def test_columns_are_dealt_out_at_random_and_evenly(count: int) -> None:
    data = table(13)
    held = vtgan_figures11_12.at_random(count, data, 0)
    sizes = [len(columns) for columns in held.values()]
    assert len(held) == count and max(sizes) - min(sizes) <= 1
    assert sorted(name for columns in held.values() for name in columns) == sorted(data.columns)
    assert held == vtgan_figures11_12.at_random(count, data, 0) != vtgan_figures11_12.at_random(count, data, 1)


def test_more_silos_than_columns_are_refused() -> None:
    with pytest.raises(DataError, match="Every silo needs a column"):
        vtgan_figures11_12.at_random(5, table(3), 0)


def test_the_enlarged_generator_is_three_times_as_wide() -> None:
    def widths(name: str) -> set[int]:
        return {s.options["generator_width"] for s in vtgan_figures11_12.SETTINGS if s.labels["generator"] == name}

    assert widths("default") == {256} and widths("enlarged") == {768}
    assert len(vtgan_figures11_12.SETTINGS) == 16
    assert all(isinstance(s, Setting) for s in vtgan_figures11_12.SETTINGS)


@pytest.mark.parametrize("module", [vtgan_figure7, vtgan_figures9_10, vtgan_figures11_12, vtgan_figures13_14])
def test_rows_say_how_they_are_trained_and_quickly_is_with_options_of_ours(module: Any) -> None:
    published, quickly = ([*module.EXPERIMENT.jobs(trained=how)] for how in ("published", "quickly"))
    assert {job.identity["trained"] for job in published} == {"published"}
    assert {job.identity["trained"] for job in quickly} == {"quickly"}
    for job, ours in zip(published, quickly, strict=True):
        assert ours.setting.options == {**settings.QUICKLY, **job.setting.options}
        assert [one.setting.sized(3, 4000)["batch"] for one in (job, ours)] == [500, 100]
        catalog.algorithm(ours.setting.algorithm).configure("paper", {**ours.setting.options, "batch": 100})


@pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")
def test_bounds_and_levels_are_those_of_the_table() -> None:
    data = vtgan_figures13_14.with_bounds("loan", 300, 0)
    every = pd.concat([data.train, data.holdout])
    assert data.kinds["family"] == {"levels": [1, 2, 3, 4]}
    assert data.kinds["zip_code"]["levels"] == sorted(every["zip_code"].unique())
    assert data.kinds["income"] == {"kind": "integer", "low": every["income"].min(), "high": every["income"].max()}
    job = vtgan_figures13_14.jobs(("loan",), 300, 1, "quickly")[3]
    assert job.identity["epsilon"] == "1" and settings.measure(job)["JSD"] > 0


def test_numbers_of_silos_can_be_chosen() -> None:
    found = vtgan_figures11_12.jobs(silos=[5, 2], repeats=2)
    assert len(found) == 2 * 8 and {job.identity["silos"] for job in found} == {2, 5}
    with pytest.raises(ConfigError, match="number of silos"):
        vtgan_figures11_12.jobs(silos=[6])
