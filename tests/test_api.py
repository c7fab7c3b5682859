"""The public face: bad input is refused by rule, value and remedy; runs can be stopped, resumed and moved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import CheckpointError, ConfigError, DataError, StorageError
from silosynth.runtime.wire import pack

TINY = {"coder.steps": 20, "coder.hidden": [16, 8], "latent.width": 16, "latent.steps": 20, "latent.checks": 4,
        "latent.sample_steps": 3, "least_rows": 50}  # fmt: skip


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=rows), "b": rng.choice(["x", "y"], rows), "c": rng.integers(0, 99, rows)})


def fit(data: pd.DataFrame | None = None, silos=None, **more) -> ss.Model:
    federation = ss.simulate(
        frame() if data is None else data, silos={"one": ["a"], "two": ["b", "c"]} if silos is None else silos
    )
    return ss.fit("silofuse", federation, preset="fast", options=TINY, progress=False, checkpoint_every=0, **more)


@pytest.mark.parametrize(
    ("data", "silos", "match"),
    [
        (frame(0), {"one": ["a"]}, "at least one row"),
        (pd.DataFrame(), {"one": ["a"]}, "at least one column"),
        (frame(), {"one": ["a"], "two": ["a", "b"]}, "'a' is in 'one' and in 'two'"),
        (frame(), {"one": ["aa"]}, "unknown column"),
        (frame(), {"one": []}, "holds no column"),
        (frame(), {}, "at least one silo"),
        (frame().assign(a=np.inf), {"one": ["a"]}, "infinities"),
        (frame().rename(columns={"b": "a"}), {"one": ["a"]}, "name of its own"),
        (frame(), {"no good!": ["a"]}, "silo's name"),
        ([1, 2], {"one": ["a"]}, "pandas.DataFrame"),
    ],
)
def test_bad_tables_are_refused_before_anything_starts(data, silos, match):
    with pytest.raises(ss.SilosynthError, match=match):
        fit(data, silos)


def test_unknown_names_name_the_nearest():
    federation = ss.simulate(frame())
    with pytest.raises(ConfigError, match="Did you mean 'silofuse'"):
        ss.fit("silofues", federation)
    with pytest.raises(ConfigError, match="Did you mean 'processes'"):
        ss.fit("silofuse", federation, runtime="process")
    with pytest.raises(ConfigError, match="device"):
        ss.fit("silofuse", federation, device="gpu7")
    with pytest.raises(DataError, match="Did you mean"):
        ss.evaluate(frame(), None, frame(), target="bb")


def test_one_column_per_silo():
    table = fit(silos={"one": ["a"], "two": ["b"], "three": ["c"]}).sample(12)
    assert list(table.columns) == ["a", "b", "c"]


@pytest.mark.parametrize("flavour", ["polars", "arrow"])
def test_a_frame_comes_back_as_what_it_was(flavour):
    from silosynth.data.frames import as_flavour

    if flavour == "polars":
        pytest.importorskip("polars")
    data = as_flavour(frame(), flavour)
    federation = ss.simulate(data, silos={"one": ["a"], "two": ["b", "c"]})
    table = ss.fit("silofuse", federation, preset="fast", options=TINY, progress=False).sample(7)
    assert type(table) is type(data)
    assert table.shape == (7, 3)


def test_declared_kinds_are_used():
    data = frame().assign(c=frame()["c"] % 3)
    federation = ss.simulate(data, schema={"c": "categorical"})
    assert federation.schema["c"].kind == "categorical"
    table = ss.fit("silofuse", federation, preset="fast", options=TINY, progress=False).sample(20)
    assert table["c"].dtype == frame()["c"].dtype


def test_numbers_declared_categorical_without_a_common_level_are_refused():
    federation = ss.simulate(frame(), schema={"c": "categorical"})
    with pytest.raises(DataError, match="'c' is categorical, and no level"):
        ss.fit("silofuse", federation, preset="fast", options=TINY, progress=False)


class StopError(Exception):
    """Raised from a progress callback, as Ctrl-C would be."""


def test_an_interrupted_fit_resumes_to_the_same_bytes(tmp_path):
    whole = fit(folder=tmp_path / "whole")
    seen = []

    def stop(progress):
        seen.append(progress)
        if progress.stage == "diffusion":
            raise StopError

    with pytest.raises(StopError):
        fit_with(tmp_path / "halted", stop)
    again = fit(folder=tmp_path / "halted", resume=True)
    assert pack(dict(again.parts)) == pack(dict(whole.parts))
    assert pack(again.coordinator) == pack(whole.coordinator)
    assert again.ledger == whole.ledger
    assert (tmp_path / "halted/ledger.jsonl").read_bytes() == (tmp_path / "whole/ledger.jsonl").read_bytes()


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    _halted(tmp_path)
    with pytest.raises(CheckpointError, match="experiment"):
        fit(frame(61), folder=tmp_path, resume=True)


def test_unreadable_checkpoints_are_named(tmp_path):
    _halted(tmp_path)
    for part in tmp_path.rglob("*.ckpt"):
        part.write_bytes(part.read_bytes()[:100])
    with pytest.warns(UserWarning, match="ckpt"), pytest.raises(CheckpointError, match="ckpt"):
        fit(folder=tmp_path, resume=True)


def test_a_damaged_model_file_is_refused(tmp_path):
    path = tmp_path / "m.silosynth"
    fit().save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError):
        ss.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(StorageError):
        ss.load(path)
    with pytest.raises(StorageError, match=r"nowhere\.silosynth"):
        ss.load(tmp_path / "nowhere.silosynth")


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from test_api import fit
fit(folder={folder!r}, resume={resume}, runtime={runtime!r})
"""


@pytest.mark.parametrize("runtime", ["inprocess", "processes"])
def test_a_fit_killed_at_any_moment_resumes_to_the_same_bytes(tmp_path, runtime):
    """kill -9 at several moments of one run, then let it finish: bytes of an uninterrupted run."""
    whole = fit(folder=tmp_path / "whole")
    folder = tmp_path / "killed"
    for moment, delay in enumerate((2.5, 4.0) if runtime == "inprocess" else (6.0,)):
        code = textwrap.dedent(KILLED).format(
            tests=str(Path(__file__).parent), folder=str(folder), resume=moment > 0, runtime=runtime
        )
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=os.environ) as child:
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
    again = fit(folder=folder, resume=True, runtime=runtime)
    assert pack(dict(again.parts)) == pack(dict(whole.parts))
    assert pack(again.coordinator) == pack(whole.coordinator)
    pd.testing.assert_frame_equal(again.sample(30), whole.sample(30))


@pytest.mark.slow
def test_wide_and_many_levelled_tables_train_in_bounded_memory():
    """500 columns, one of them with 10 000 levels, in a process of its own whose peak memory is read."""
    code = """
    import resource, numpy as np, pandas as pd, silosynth as ss
    rng = np.random.default_rng(0)
    rows = 20_000
    data = pd.DataFrame({f"n{i}": rng.normal(size=rows) for i in range(250)} | {
        f"c{i}": rng.choice(["a", "b", "c"], rows) for i in range(249)})
    data["many"] = [f"level {i % 10_000}" for i in range(rows)]
    names = list(data.columns)
    federation = ss.simulate(data, silos={"one": names[:250], "two": names[250:]})
    options = {"coder.steps": 50, "latent.steps": 50, "coder.encoders.min_count": 1, "latent.sample_steps": 4}
    model = ss.fit("silofuse", federation, preset="fast", options=options, progress=False)
    assert model.sample(2000).shape == (2000, 500)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4.0


def _halted(folder: Path) -> None:
    def stop(progress):
        if progress.stage == "diffusion" and progress.done == progress.total:
            raise StopError

    with pytest.raises(StopError):
        fit_with(folder, stop)


def fit_with(folder: Path, progress) -> ss.Model:
    federation = ss.simulate(frame(), silos={"one": ["a"], "two": ["b", "c"]})
    return ss.fit(
        "silofuse", federation, preset="fast", options=TINY, folder=folder, progress=progress, checkpoint_every=0
    )
