"""Whoever is killed, and when: a job comes to the same bytes. See `tests.deployment.kills`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")


def killed(tmp_path: Path, points: int, seed: int, *jobs: str) -> str:
    """The harness needs a process without threads; what it says in the end."""
    argv = ["-m", "tests.deployment.kills", "--points", str(points), "--seed", str(seed), "--folder", str(tmp_path)]
    argv += ["--jobs", *jobs] if jobs else []
    ended = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.live
def test_killed_at_a_few_random_points_jobs_come_to_the_same_bytes(tmp_path: Path) -> None:
    assert killed(tmp_path, 4, 1, "vtgan", "gdts").count(": same, ") == 4


@pytest.mark.live
def test_groups_of_silos_hold_rows_out_keep_rules_and_judge_in_processes_of_their_own(tmp_path: Path) -> None:
    assert killed(tmp_path, 2, 5, "groups", "grouped judge").count(": same, ") == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_while_they_count_silos_come_to_the_same_tables(tmp_path: Path) -> None:
    assert killed(tmp_path, 12, 2, "judge").count(": same, ") == 12


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_while_groups_of_silos_link_and_count_they_come_to_the_same_bytes(tmp_path: Path) -> None:
    assert killed(tmp_path, 16, 4, "groups", "grouped judge").count(": same, ") == 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_while_they_draw_or_wait_for_a_decision_silos_come_to_the_same_rows(tmp_path: Path) -> None:
    assert killed(tmp_path, 24, 3, "draw", "approve").count(": same, ") == 24


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_a_hundred_random_points_jobs_come_to_the_same_bytes(tmp_path: Path) -> None:
    points, seed = int(os.environ.get("SILOSYNTH_KILLS", "100")), int(os.environ.get("SILOSYNTH_KILLS_SEED", "0"))
    assert killed(tmp_path, points, seed).count(": same, ") == points
