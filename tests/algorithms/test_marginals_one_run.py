"""Audits with many canaries find no more than is accounted, a good part of it, and noise that is too small."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from tests.algorithms import one_run

from silosynth.attacks.canaries import epsilon_of_one_run
from silosynth.counting import joint
from silosynth.counting.opening import CellNoise

ROOT = Path(__file__).parents[2]


def test_no_two_canaries_share_a_cell() -> None:
    canary_KA = one_run.orthogonal()
    for a in range(one_run.COLUMNS):
        for b in range(a):
            assert len(np.unique(canary_KA[:, [a, b]], axis=0)) == len(canary_KA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "way"), [("mst", "vertical"), ("aim", "vertical"), ("aim", "horizontal"), ("aim", "groups")]
)
def test_no_more_is_found_than_is_accounted_and_at_epsilon_10_a_good_part_of_it(kind: str, way: str) -> None:
    assert one_run.audit(kind, 1.0, 4, way).epsilon <= 1
    found = one_run.audit(kind, 10.0, 4, way)
    assert 0.3 * found.attainable < found.epsilon <= 10


@pytest.mark.slow
@pytest.mark.parametrize("way", one_run.WAYS)
def test_a_fiftieth_of_the_variance_is_found_out(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, many = CellNoise.part, joint.weights
    monkeypatch.setattr(CellNoise, "part", lambda noise, parts, *more: real(noise, 50 * parts, *more))
    monkeypatch.setattr(joint, "weights", lambda variance: many(variance // 50))  # of what two silos draw together
    found = one_run.audit("aim", 1.0, 4, way)
    assert found.epsilon > 1.5 * found.attainable  # with that epsilon few tables of pairs open in full


def test_the_page_shows_the_kept_audits() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "marginals_one_run.json").read_text("utf-8"))["rows"]
    page = (ROOT / "docs" / "algorithms" / "marginals.md").read_text("utf-8")
    lines = page.partition("| | silos | target epsilon |")[2].splitlines()[2:]
    shown = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in takewhile("|".__lt__, lines)]
    assert shown == [
        [row["algorithm"], row["silos"], f"{row['epsilon']:g}", f"{row['right']} of {row['guesses']}",
         f"{row['no epsilon below']:.2f}", f"{row['attainable']:.2f}"] for row in kept
    ]  # fmt: skip
    assert all(row["no epsilon below"] <= row["epsilon"] for row in kept) and kept


def test_guesses_are_counted_on_both_sides() -> None:
    coin_K = np.arange(12) % 2 == 0
    assert one_run.guess(coin_K, coin_K.astype(float)) == (4, 4)
    assert one_run.guess(coin_K, -coin_K.astype(float)) == (0, 4)
    assert epsilon_of_one_run(0, 4, 12, one_run.DELTA) == 0
