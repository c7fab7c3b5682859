"""Fixtures that several folders use."""

from __future__ import annotations

import os
import signal
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
# No test is timed: the machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


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
