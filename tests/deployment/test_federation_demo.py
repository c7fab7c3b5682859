"""`make private-demo` to its end: a federation of processes on this machine, under `largest_epsilon = 1`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("nvflare")

from tests.deployment.flare.deployment import ROOT, free_port
from tests.deployment.network import Host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LIMIT = re.compile(r"All jobs together: epsilon ([\d.]+) at delta 1e-05; the policy: 1 at most\.")


def test_the_private_demonstration_spends_what_policies_allow(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, str(ROOT / "examples" / "federation_demo.py"), "--private"]
    done = Host().run([*command, "--out", str(out), "--port", str(free_port())], seconds=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "Guarantee: epsilon at most 1 at delta 1e-05 for the released model and its synthetic tables" in said
    assert (limit := LIMIT.search(said)) is not None
    assert 0.5 < float(limit[1]) <= 1  # of the clinic's own releases
    assert "exact row counts" in said  # of linking, which policies allow, and `dp` does not cover
    assert (pd.read_csv(out / "ill.csv")["visits"] >= 10).all() and len(pd.read_csv(out / "ill.csv")) == 500
    assert (out / "pooled.html").exists() and "Done in" in said.rpartition("pooled.html")[0]
