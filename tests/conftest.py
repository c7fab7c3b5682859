"""Fixtures that several folders use."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

# Small tests are slower with several threads, by far so on a busy machine: threads that wait for each other spin.
# Before torch is first imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts tests in the background has them ignore Ctrl-C; some tests send it, to themselves or to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No test is timed, since the machine may be busy; and examples are the same in every run.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

OUTSIDE = {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect"}
_outside: list[str] = []
sys.addaudithook(lambda event, _: _outside.append(event) if event in OUTSIDE else None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _outside.clear()


@pytest.fixture(autouse=True)
def only_live_tests_reach_outside(request: pytest.FixtureRequest) -> Iterator[None]:
    """A quick test that starts a process or opens a socket fails: it is to be marked."""
    yield
    if _outside and not any(map(request.node.get_closest_marker, ("live", "slow"))):
        pytest.fail(f"mark this test live: it causes {sorted(set(_outside))}", pytrace=False)


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs without a folder of their own keep checkpoints: not among the user's."""
    place = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    return place


@pytest.fixture
def people() -> pd.DataFrame:
    """A small table with columns of several kinds that depend on each other."""
    draw = np.random.default_rng(3)
    n = 400
    age = draw.integers(18, 90, n)
    income = np.where(draw.random(n) < 0.2, 0.0, np.round(draw.lognormal(7, 0.6, n) * (1 + age / 100), 2))
    visits = draw.poisson(age / 20)
    region = draw.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    ill = (draw.random(n) < age / 150).astype(int)
    return pd.DataFrame({"age": age, "visits": visits, "ill": ill, "income": income, "region": region})


@pytest.fixture
def table(people: pd.DataFrame, tmp_path: Path) -> Path:
    """That table as a CSV file."""
    path = tmp_path / "people.csv"
    people.to_csv(path, index=False)
    return path
