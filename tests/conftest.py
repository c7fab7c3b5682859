"""Fixtures that several folders use."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from tests.entropy import entropy

# Small tests are slower with several threads, by far so on a busy machine: threads that wait for each other spin.
# Before torch is first imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts tests in the background has them ignore Ctrl-C; some tests send it, to themselves or to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No test is timed, since the machine may be busy; and examples are the same in every run.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

LONG = 1.0  # seconds of a processor
USED = "processor seconds"

OUTSIDE = {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect"}
_outside: list[str] = []


def _note_outside(event: str, arguments: tuple[Any, ...]) -> None:
    # matplotlib asks for the machine's fonts once on each machine, whichever test draws first
    if event in OUTSIDE and not (event == "subprocess.Popen" and arguments[0] == "fc-list"):
        _outside.append(event)


sys.addaudithook(_note_outside)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--entropy", default="0", help="other secret draws, which must not change what tests find")


def named(config: pytest.Config, name: str) -> AbstractContextManager[None]:
    return entropy.of(f"{config.getoption('entropy')} {name}")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    with named(request.config, f"{request.node.nodeid} {fixturedef.argname} {request.param_index}"):
        return (yield)


def pytest_collection_finish() -> None:
    """What is imported by now stays until the end: collecting garbage need not look at it."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _outside.clear()


@pytest.fixture(scope="session", autouse=True)
def mixtures_are_fitted_once() -> Iterator[None]:
    """Tests train on the same few tables again and again: a column's mixture is fitted once for each stream."""
    module = sys.modules.get("silosynth.encoders.normalised")
    if module is None:  # imported by none of these tests
        yield
        return
    fit, fitted = module._variational, dict[tuple[bytes, Any, str], Any]()

    def once(z: np.ndarray, config: Any, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        key = z.tobytes(), config, str(rng.bit_generator.state)
        if key not in fitted:
            fitted[key] = fit(z, config, rng), rng.bit_generator.state
        parts, rng.bit_generator.state = fitted[key]
        return tuple(part.copy() for part in parts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_variational", once)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    start = time.process_time()
    with named(item.config, item.nodeid):
        result = yield
    if quick(item):
        item.user_properties.append((USED, time.process_time() - start))
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names the quick tests that took longer than allowed; none fails, as a busy machine takes thrice as long."""
    used = {
        report.nodeid: dict(report.user_properties).get(USED, 0) for report in terminalreporter.getreports("passed")
    }
    for name, seconds in sorted(used.items(), key=lambda pair: -pair[1]):
        if seconds > LONG:
            terminalreporter.write_line(f"more than one second of a processor: {seconds:.1f} {name}")


def quick(item: pytest.Item) -> bool:
    """Neither live nor slow."""
    return not any(map(item.get_closest_marker, ("live", "slow")))


@pytest.fixture(autouse=True)
def only_live_tests_reach_outside(request: pytest.FixtureRequest) -> Iterator[None]:
    """A quick test that starts a process or opens a socket fails: it is to be marked."""
    yield
    if _outside and quick(request.node):
        pytest.fail(f"mark this test live: it causes {sorted(set(_outside))}", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def shared_state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for fixtures that several tests share."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs without a folder of their own keep checkpoints: not among the user's."""
    place = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    return place


@pytest.fixture
def people(everyone: pd.DataFrame) -> pd.DataFrame:
    """A small table with columns of several kinds that depend on each other."""
    return everyone.copy()


@pytest.fixture(scope="session")
def everyone() -> pd.DataFrame:
    """That table, for fixtures that several tests share; nobody changes it."""
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
