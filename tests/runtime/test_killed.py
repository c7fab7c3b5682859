from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runtime.toy import LEDGER, run

from silosynth.runtime.checkpoint import CheckpointStore

ROUNDS, KILLS = 60, 10


@pytest.mark.live
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_at_random_moments_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    script = str(Path(__file__).with_name("toy_killed.py"))
    argv = [sys.executable, "-W", "error", script, str(killed), str(ROUNDS), "1", str(KILLS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    result = run(whole, ROUNDS)
    assert (killed / LEDGER).read_bytes() == (whole / LEDGER).read_bytes()
    assert torch.equal(run(killed, ROUNDS, resume=True), result)
    ours, theirs = (CheckpointStore(folder, "toy").latest() for folder in (killed, whole))
    assert ours is not None
    assert theirs is not None
    assert ours.number == theirs.number
    assert torch.equal(ours.state["sum"], theirs.state["sum"])
