"""Copies and neighbours against plain loops, and for tables that copy or do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from silosynth.evaluation import disclosure
from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.scores import Score, Skipped

People = Callable[..., pd.DataFrame]


def coded(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame) -> tuple[Coded, Coded, Coded]:
    tables = code_tables({"training": train, "hold-out": holdout, "synthetic": synthetic})
    return tables["training"], tables["hold-out"], tables["synthetic"]


def figures(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, Score]:
    tables = coded(train, holdout, synthetic)
    rng = np.random.default_rng(0)
    scores = [*disclosure.exact_copies(*tables, rng), *disclosure.neighbours(*tables, rng)]
    return {s.name: s for s in scores if isinstance(s, Score)}


def slow_distance(a: pd.Series, b: pd.Series, lines: dict[str, tuple[float, float]]) -> float:
    """Squared distance of two rows, column by column."""
    total = 0.0
    for name in a.index:
        x, y = a[name], b[name]
        if name not in lines:
            total += not (x == y or (pd.isna(x) and pd.isna(y)))
            continue
        mean, deviation = lines[name]
        u, v = (0.0 if pd.isna(w) else (w - mean) / deviation for w in (x, y))
        total += (u - v) ** 2 + (pd.isna(x) != pd.isna(y))
    return total


@pytest.mark.parametrize("dummy_levels", [64, 0])
@pytest.mark.parametrize("cells", [8_000_000, 100])
def test_nearest_neighbours_against_loops(
    dummy_levels: int, cells: int, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disclosure, "DUMMY_LEVELS", dummy_levels)
    monkeypatch.setattr(disclosure, "CELLS", cells)
    frames = [people(n, seed).drop(columns="born") for n, seed in ((30, 1), (25, 2), (20, 3))]
    train, holdout, synthetic = coded(*frames)
    real = pd.concat(frames[:2])
    lines = {c: (float(real[c].mean()), float(real[c].std(ddof=0))) for c in ("age", "wage", "gain")}
    slow = [min(slow_distance(a, b, lines) for _, b in frames[0].iterrows()) for _, a in frames[2].iterrows()]
    fast, place = disclosure.nearest(synthetic, train, disclosure._lines(train, holdout))
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)
    found = [slow_distance(a, frames[0].iloc[i], lines) for (_, a), i in zip(frames[2].iterrows(), place, strict=True)]
    np.testing.assert_allclose(found, slow, rtol=1e-9, atol=1e-12)


def test_copies_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            {"a": rng.choice([0.5, 1.5, np.nan], n), "b": rng.choice(["x", "y", None], n), "c": rng.integers(0, 9, n)}
        )
        for n in (20, 20, 30)
    ]
    rows = [[tuple(row) for row in f.astype(object).where(f.notna(), None).to_numpy()] for f in frames]
    scores = figures(*frames)
    shares = [100 * np.mean([row in set(among) for row in rows[2]]) for among in rows[:2]]
    assert 0 < shares[0] < 100
    assert scores["exact_copy_rate"].value == pytest.approx(shares[0])
    assert scores["exact_copy_rate"].floor == pytest.approx(shares[1])


def test_a_copied_table_is_caught(people: People) -> None:
    train, holdout = people(400, 1, gaps=False), people(400, 2, gaps=False)
    scores = figures(train, holdout, train.sample(frac=1, random_state=0))
    assert scores["exact_copy_rate"].value == 100
    assert scores["exact_copy_rate"].floor == 0
    assert scores["exact_copy_rate_equal_size"].value == 100
    assert scores["nearest_neighbour_share"].value > 99
    assert scores["distance_to_closest_record"].value == 0


def test_fresh_rows_pass(people: People) -> None:
    scores = figures(*(people(600, seed, gaps=False) for seed in (1, 2, 3)))
    share, distance = scores["nearest_neighbour_share"], scores["distance_to_closest_record"]
    for score in (share, distance):
        assert score.low is not None
        assert score.high is not None
        assert score.floor is not None
        assert score.low <= score.floor <= score.high
    assert scores["exact_copy_rate"].value == 0


def test_ties_count_one_half() -> None:
    same = pd.DataFrame({"a": ["x", "y"] * 10, "b": [0.5, 1.5] * 10})
    scores = figures(same, same, same)
    assert scores["nearest_neighbour_share"].value == 50
    assert scores["exact_copy_rate"].floor == 100


def test_sizes_are_made_equal(people: People) -> None:
    train, holdout = people(800, 1, gaps=False), people(200, 2, gaps=False)
    scores = figures(train, holdout, train)
    assert scores["exact_copy_rate"].value == 100
    assert scores["exact_copy_rate_equal_size"].value == pytest.approx(25)
    fresh = figures(train, holdout, people(800, 3))["nearest_neighbour_share"]
    assert 44 < fresh.value < 56  # four times as many training rows give no advantage


def test_unseen_copies_are_scaled_to_the_training_size() -> None:
    train = pd.DataFrame({"a": np.arange(100) + 0.5})
    holdout = pd.DataFrame({"a": np.arange(1000, 1050) + 0.5})
    synthetic = pd.concat([train[:10], holdout[:5], pd.DataFrame({"a": np.arange(85) - 500.0})])
    score = figures(train, holdout, synthetic)["exact_copy_rate"]
    assert (score.value, score.floor) == (10, 10)


def test_without_holdout_copies_have_the_training_rows_floor_and_neighbours_are_skipped() -> None:
    train = pd.DataFrame({"a": ["x"] * 50, "b": [1.5] * 50})
    tables = code_tables({"training": train, "synthetic": train})
    rng = np.random.default_rng(0)
    copies = disclosure.exact_copies(tables["training"], None, tables["synthetic"], rng)
    assert isinstance(copies[0], Score)
    assert (copies[0].value, copies[0].floor) == (100, 100)
    skipped = [*copies[1:], *disclosure.neighbours(tables["training"], None, tables["synthetic"], rng)]
    assert all(isinstance(s, Skipped) and "hold-out" in s.why for s in skipped)
    assert len(skipped) == 3


def test_the_medians_interval_is_that_of_order_statistics() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = disclosure._median_interval(np.sort(rng.random(51)))
        covered += low <= 0.5 <= high
    assert 0.92 < covered / 400 < 0.995


def test_many_levels_stay_within_memory() -> None:
    frames = [pd.DataFrame({"c": np.random.default_rng(s).integers(0, 5000, 1000).astype(str)}) for s in range(3)]
    scores = figures(*frames)
    assert set(scores) == {
        "exact_copy_rate",
        "exact_copy_rate_equal_size",
        "nearest_neighbour_share",
        "distance_to_closest_record",
    }
