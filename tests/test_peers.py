"""`benchmarks/peers.py` without its peers: who trains how long, what the judge says, which rows are kept."""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import silosynth as ss

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    stamp = {"machine": "this one", "commit": "abc"}
    monkeypatch.setattr(peers.results, "stamp", lambda: stamp)
    return peers


@pytest.fixture
def real() -> tuple[pd.DataFrame, pd.DataFrame, str]:
    demo = ss.datasets.demo()
    rows = demo.frame.sample(600, random_state=0)
    train, holdout = (part.reset_index(drop=True) for part in (rows[:400], rows[400:]))
    return train, holdout, demo.target


def row(generator: str, table: str = "churn", time: str = "equal", error: float = 1.0, **more: Any) -> dict[str, Any]:
    figures = ("two-sample AUC", "AUC or R²", "nearer to train %", "copies %", "train s", "sample s", "peak GB")
    named = {"table": table, "rows": 5000, "generator": generator, "time": time, "seed": 0}
    return {**named, "shape %": error, "trend %": error, **dict.fromkeys(figures, 1.0), "failed": "", **more}


def test_help_names_licences_and_nothing_of_a_peer_is_imported(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        peers.main()
    assert "Business Source License" in capsys.readouterr().out
    assert not {"mostlyai", "synthcity", "sdv"} & set(sys.modules)


def test_a_generator_that_copies_half_of_its_rows_is_caught(peers: ModuleType, real: Any) -> None:
    train, holdout, target = real
    others = ss.datasets.demo().frame.sample(200, random_state=1)
    copied = pd.concat([train[:200], others]).reset_index(drop=True)
    figures, floors = peers.judge(train, holdout, copied, target)
    assert figures["copies %"] == pytest.approx(50, abs=10)  # the others have some of them, too
    assert figures["nearer to train %"] > 57
    assert floors["nearer to train %"] == 50
    assert figures.keys() == floors.keys() == set(peers.TITLES) - set(peers.COSTS)


def test_whole_numbers_that_are_drawn_as_others_are_rounded(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, real: Any
) -> None:
    train, holdout, target = real
    whole = [name for name in train if pd.api.types.is_integer_dtype(train[name])]
    assert whole
    judged = []
    monkeypatch.setattr(ss, "evaluate", lambda *tables, target: judged.append(tables) or argparse.Namespace(scores=()))
    peers.judge(train, holdout, train.assign(**(train[whole] + 0.3)), target)
    pd.testing.assert_frame_equal(judged[0][2], train, check_dtype=False)


def test_epochs_are_what_ends_within_the_seconds(peers: ModuleType) -> None:
    takes = lambda epochs: 3 + 2.0 * epochs  # noqa: E731
    within = peers.one_peer.within
    assert [within(seconds, 100, 5, takes) for seconds in (23, 22.9, 1, 1000)] == [10, 9, 1, 100]
    assert within(23, 100, 1, lambda epochs: 3.0) == 100  # too short to be told apart
    slow_start = iter([40.0, 5.0, 9.0])
    assert within(23, 100, 1, lambda epochs: next(slow_start)) == 10


def test_peers_get_the_seconds_of_fast_and_what_fails_is_said(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: Any
) -> None:
    trained = []

    def measure(python: str, name: str, given: Any, seconds: float | None, limit: int, seed: int) -> Any:
        trained.append((name, seconds))
        if name == "TVAE (sdv)":
            raise subprocess.CalledProcessError(1, "python", stderr="Traceback\nValueError: too few rows\n\n")
        return {"epochs": 300 if seconds is None else 40, "train s": 21.0}, {"shape %": 0.5}

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(peers, "parts", lambda *_: real)
    monkeypatch.setattr(peers, "interpreter", lambda *_: sys.executable)
    options = argparse.Namespace(
        peers=["sdv"], tables=["churn"], times=["equal", "own"], rows=600, limit=90, seed=0, folder=tmp_path,
        environments=tmp_path,
    )  # fmt: skip
    rows = list(peers.run(options, []))
    expected = [("silosynth fast", None), ("CTGAN (sdv)", 21.0), ("CTGAN (sdv)", 45.0), ("TVAE (sdv)", 21.0)]
    assert trained == [*expected, ("TVAE (sdv)", 45.0)]
    assert [row["failed"] for row in rows if row["generator"] == "TVAE (sdv)"] == ["ValueError: too few rows"] * 2
    assert [row["shape %"] for row in rows if row["generator"] == "floor"] == [0.5] * 3
    assert list(peers.run(options, [])) == rows and len(trained) == 5  # found in the folder
    assert list(peers.run(options, rows)) == rows[2:]  # silosynth is measured again only where it is asked for


@pytest.mark.parametrize("code", [-signal.SIGXCPU, -signal.SIGKILL])
def test_a_process_that_the_limit_ends_is_said_to_be_that(peers: ModuleType, code: int) -> None:
    assert peers.why(subprocess.CalledProcessError(code, "python")) == "no rows within the limit"
    assert peers.why(subprocess.CalledProcessError(3, "python", stderr="")) == "ended with 3"


def test_rows_measured_again_replace_those_of_the_same_machine(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers.common, "RESULTS", tmp_path)
    assert peers.known() == []
    old = [row("CTGAN (sdv)"), row("silosynth fast"), row("silosynth fast", "adult")]
    (tmp_path / "peers.json").write_text(json.dumps({"stamp": peers.results.stamp(), "rows": old}))
    rows = peers.renewed(peers.known(), [row("silosynth fast", error=0.5)])
    assert [(one["table"], one["generator"], one["shape %"]) for one in rows] == [
        ("adult", "silosynth fast", 1.0), ("churn", "silosynth fast", 0.5), ("churn", "CTGAN (sdv)", 1.0),
    ]  # fmt: skip
    (tmp_path / "peers.json").write_text(json.dumps({"stamp": {"machine": "another"}, "rows": old}))
    assert peers.known() == []


def test_tables_on_which_fast_is_ahead_are_counted_where_both_have_rows(peers: ModuleType) -> None:
    errors = {"adult": 2.0, "churn": 0.5, "heloc": 1.5}
    rows = [row("silosynth fast", table) for table in errors]
    rows += [row("CTGAN (sdv)", table, error=error) for table, error in errors.items()]
    rows += [row("CTGAN (sdv)", "abalone", failed="no rows within the limit"), row("silosynth fast", rows=300)]
    fast, peer, small = peers.beside(rows)
    assert (small["rows"], small["tables"]) == (300, 1)
    assert (fast["tables"], fast["`fast` ahead in trend"]) == (3, "")
    assert (peer["tables"], peer["`fast` ahead in trend"], peer["trend %"]) == (3, 2, pytest.approx(4 / 3))


def test_silosynth_needs_no_environment(peers: ModuleType, tmp_path: Path) -> None:
    assert peers.interpreter("silosynth", tmp_path) == sys.executable
    assert list(tmp_path.iterdir()) == []
