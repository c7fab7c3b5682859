"""Trainings are kept as they come, taken up again, carried out side by side, and end when whoever started them does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from tests.attacks.makers import Copier, lengths, table

from silosynth.attacks import canaries, membership, shadows
from silosynth.attacks.generators import Catalogued, Command, described
from silosynth.attacks.membership import Trainings
from silosynth.attacks.shadows import Game, Kept, Shadow, Train
from silosynth.core.errors import ConfigError, StorageError, UnavailableError
from silosynth.core.streams import Streams

TABLE = table(20, 1)
JOBS = [Shadow(f"job-{i}", np.arange(20 - i), i) for i in range(6)]


def game(frame: pd.DataFrame = TABLE, about: str = "lengths") -> Game:
    return Game(frame, lengths, about)


@pytest.mark.parametrize("together", [1, 4])
def test_every_training_gets_its_rows_and_its_seed(together: int) -> None:
    told: list[float] = []
    found = shadows.train(game(), JOBS, together=together, tell=lambda stage, share: told.append(share))
    assert {name: kept["rows"] for name, kept in found.items()} == {f"job-{i}": [20.0 - i] for i in range(6)}
    assert [kept["seed"] for kept in found.values()] == [[float(i)] for i in range(6)]
    assert told == sorted(told) and told[-1] == 1


@pytest.mark.live
def test_processes_give_the_same(tmp_path: Path) -> None:
    said: list[tuple[int, float]] = []
    found = shadows.train(
        game(), JOBS, tmp_path, processes=2, announce=lambda left, seconds: said.append((left, seconds))
    )
    assert found == shadows.train(game(), JOBS)
    assert [left for left, _ in said] == [5] and said[0][1] > 0


@pytest.mark.parametrize("together", [1, 4])
def test_what_can_be_foreseen_is_told_before_anything_is_trained_and_told_anew_if_it_was_wrong(together: int) -> None:
    told: list[Any] = []

    def measure(trains: Sequence[Train], whole: pd.DataFrame) -> list[Kept]:
        told.append("trained")
        return lengths(trains, whole)

    shadows.train(
        Game(TABLE, measure, "lengths"), JOBS, processes=1, together=together,
        announce=lambda left, seconds: told.append((left, seconds)), foresee=lambda trains: 1500.0 * len(trains),
    )  # fmt: skip
    assert told[:2] == [(6, 9000.0), "trained"]
    left, seconds = told[2]
    assert left == 6 - together and 0 < seconds < 1000
    assert set(told[3:]) == {"trained"}


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_trial_tells_how_long_a_training_takes_and_ends_early(lockstep: bool) -> None:
    options = {"epochs": 10_000, "select": "last" if lockstep else "frechet", "numbers": "standard"}
    fit = Catalogued("vflgan", "fast", options, {"a": ["age", "x1"], "b": ["x2", "x3", "region"]})
    table = TABLE[["age", "x1", "x2", "x3", "region"]]
    trains = [(table, 1), (table, 2), (table[:15], 3)][: 3 if lockstep else 1]
    assert fit.in_lockstep == lockstep
    assert fit.seconds(trains, limit=0.2) > 2  # no step takes less than 0.2 milliseconds


def test_what_was_kept_is_not_done_again(tmp_path: Path) -> None:
    first = shadows.train(game(), JOBS[:4], tmp_path / "kept")
    changed = json.loads((tmp_path / "kept/job-2.json").read_text()) | {"seed": [99.0]}
    (tmp_path / "kept/job-2.json").write_text(json.dumps(changed))
    again = shadows.train(game(), JOBS, tmp_path / "kept")
    assert again["job-2"]["seed"] == [99.0] and again["job-1"] == first["job-1"] and len(again) == 6


@pytest.mark.parametrize("other", [game(TABLE.assign(age=0.0)), game(about="another")])
def test_a_folder_keeps_one_audit(tmp_path: Path, other: Game) -> None:
    shadows.train(game(), JOBS[:1], tmp_path)
    with pytest.raises(StorageError, match="one audit"):
        shadows.train(other, JOBS[:1], tmp_path)


@pytest.mark.slow
def test_an_audit_goes_on_with_more_trainings_to_the_same_figures(tmp_path: Path) -> None:
    few, many = (Trainings(count, folder=tmp_path / "audit") for count in (10, 11))
    membership.play(TABLE, Copier(50), {"record": 3}, few)
    taken_up = membership.play(TABLE, Copier(50), {"record": 3}, many)
    anew = membership.play(TABLE, Copier(50), {"record": 3}, Trainings(11))
    assert [found.score for found in taken_up] == [found.score for found in anew]


@pytest.mark.slow
def test_canaries_go_on_with_more_trainings_to_the_same_bound(tmp_path: Path) -> None:
    few, more = (Trainings(count, folder=tmp_path) for count in (20, 22))
    canaries.many(TABLE, Copier(50), few)
    taken_up = canaries.many(TABLE, Copier(50), more)
    assert len(list(tmp_path.glob("canaries-1/canary-*.json"))) == 2 * 22
    assert taken_up == canaries.many(TABLE, Copier(50), Trainings(22))


@pytest.mark.slow
def test_the_canary_is_in_the_trainings_whose_names_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    train = shadows.train
    monkeypatch.setattr(
        shadows,
        "train",
        lambda game, jobs, *rest: asked.update((j.name, len(j.rows)) for j in jobs) or train(game, jobs),
    )
    canaries.many(TABLE, Copier(50), Trainings(20))
    assert asked == {f"canary-{side}-{i:04d}": 20 + (side == "in") for i in range(20) for side in ("in", "out")}


FUNCTION = """
import sys
from pathlib import Path
from silosynth.attacks import canaries
from silosynth.attacks import membership
from silosynth.attacks.membership import Trainings
from silosynth.attacks.study import Subject, audit
from tests.attacks.makers import Copier, table

padding = [object() for _ in range(int(sys.argv[2]))]


def fit(train, seed):
    return Copier(50)(train, seed)


membership.TREES = 20
how, train = Trainings(20, folder=Path(sys.argv[1])), table(20, 1)
audit(Subject(train, fit, others=table(20, 2)), ["questions"], how)
membership.play(train, fit, {"record": 3}, Trainings(10, folder=how.folder / "shadows"))
canaries.many(train, fit, how)
"""


@pytest.mark.slow
@pytest.mark.live
def test_a_script_s_function_is_the_same_generator_when_the_script_runs_again(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(FUNCTION)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for padding in ("0", "100000"):  # which moves addresses
        command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "kept"), padding]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def copied(train: pd.DataFrame, seed: int, rows: int = 50) -> pd.DataFrame:
    return Copier(rows)(train, seed)


def test_generators_are_called_the_same_in_every_process() -> None:
    assert described(copied) == "tests.attacks.test_shadows.copied"
    assert described(partial(copied, rows=9)) == "tests.attacks.test_shadows.copied () {'rows': 9}"
    assert described(Copier(50)) == repr(Copier(50)) != described(Copier(60))


def test_seeds_differ_from_training_to_training_and_fit_31_bits() -> None:
    seeds = {shadows.seed_of(Streams(1), f"all-{i}") for i in range(100)}
    assert len(seeds) == 100 and max(seeds) < 2**31


SLEEPY = """
import sys, time
from pathlib import Path
from tests.attacks import test_shadows
from silosynth.attacks import shadows
if __name__ == "__main__":
    shadows.train(test_shadows.sleepy(), test_shadows.JOBS, Path(sys.argv[1]), processes=2)
"""


def sleep(trains: list[tuple[pd.DataFrame, int]], whole: pd.DataFrame) -> list[shadows.Kept]:
    """The first two are quick, the others would take an hour."""
    time.sleep(3600 * (trains[0][1] > 1))
    return lengths(trains, whole)


def sleepy() -> Game:
    return Game(TABLE, sleep, "sleep")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "main.py").write_text(SLEEPY)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    running = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", tmp_path / "kept"], env=environment, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "kept/job-1.json").exists():
        assert running.poll() is None
        time.sleep(0.2)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    running.send_signal(how)
    running.wait(60)
    _, alive = psutil.wait_procs(children, 60)
    assert not alive
    assert (tmp_path / "kept/job-0.json").exists()


@pytest.mark.live
def test_a_command_trains_on_one_file_and_writes_another(tmp_path: Path) -> None:
    code = "import sys, shutil; assert sys.argv[3] == '7' and sys.argv[4] == '5'; shutil.copy(sys.argv[1], sys.argv[2])"
    (tmp_path / "tool.py").write_text(code)
    fit = Command(f"'{sys.executable}' '{tmp_path / 'tool.py'}' {{train}} {{out}} {{seed}} {{rows}}", rows=5)
    pd.testing.assert_frame_equal(fit(TABLE, 7), TABLE)


@pytest.mark.live
def test_a_command_s_faults_are_told_without_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys; print('secret', file=sys.stderr); sys.exit(3)")
    with pytest.raises(UnavailableError, match="with 3") as caught:
        Command(f"'{sys.executable}' '{tmp_path / 'tool.py'}' {{train}} {{out}}")(TABLE, 1)
    assert "secret" not in str(caught.value)
    with pytest.raises(UnavailableError, match="must exist"):
        Command("no-such-program {train} {out}")(TABLE, 1)
    with pytest.raises(StorageError, match="must exist"):
        Command(f"'{sys.executable}' -c 0 {{train}} {{out}}")(TABLE, 1)
    with pytest.raises(ConfigError, match="out"):
        Command("tool {train}")
