"""The public face: bad input is refused by rule, value and remedy; runs can be stopped, resumed and moved."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.catalog import ALGORITHMS
from silosynth.core.errors import CheckpointError, ConfigError, DataError, SchemaError, StorageError
from silosynth.core.schema import below
from silosynth.data.infer import ColumnWarning
from silosynth.models.latent import fast_bfloat16
from silosynth.runtime.wire import pack
from silosynth.simulation.model import BATCH

TINY = {"coder.steps": 20, "coder.hidden": [16, 8], "latent.width": 16, "latent.steps": 20, "latent.checks": 4,
        "latent.sample_steps": 3, "least_rows": 50}  # fmt: skip


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=rows), "b": rng.choice(["x", "y"], rows), "c": rng.integers(0, 99, rows)})


def fit(data: pd.DataFrame | None = None, silos=None, schema=None, **more) -> ss.Model:
    federation = ss.simulate(
        frame() if data is None else data, {"one": ["a"], "two": ["b", "c"]} if silos is None else silos, schema
    )
    how = {"preset": "fast", "options": TINY, "progress": False, "checkpoint_every": 0, **more}
    return ss.fit("silofuse", federation, **how)


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


def test_a_table_is_no_federation_and_is_told_how_to_become_one():
    with pytest.raises(ConfigError, match=r"takes a federation.*DataFrame.*simulate\(frame"):
        ss.fit("silofuse", frame())
    with pytest.raises(ConfigError, match=r"takes a federation"):
        ss.represent("tabvfl", frame(), label="b")


def test_what_prints_itself_tells_no_values():
    federation = ss.simulate(frame(), {"one": ["a"], "two": ["b", "c"]})
    assert repr(federation) == "Federation of one (60 rows, 1 columns), two (60 rows, 2 columns)"
    assert repr(fit()) == "Model of 'silofuse' (fast): 3 columns, 60 training rows"
    many = ss.simulate(frame(), rows={f"silo{i}": range(i, 60) for i in range(7)})
    assert repr(many) == "Federation of 7 silos (399 rows, 3 columns)"


def test_notebooks_show_silos_and_columns():
    shown = ss.simulate(frame().rename(columns={"a": "<b>"}), {"one": ["<b>"], "two": ["b", "c"]})._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;" in shown
    assert re.findall(r"<th scope=.row[^>]*>(\w+)</th>", shown) == ["one", "two"]
    shown = fit()._repr_html_()
    assert "Model of &#x27;silofuse&#x27; (fast): 3 columns, 60 training rows" in shown
    assert "privacy guarantee: none" in shown and "seed " in shown


def test_unknown_names_name_the_nearest():
    federation = ss.simulate(frame())
    with pytest.raises(ConfigError, match="Did you mean 'silofuse'"):
        ss.fit("silofues", federation)
    with pytest.raises(ConfigError, match="Did you mean 'processes'"):
        ss.fit("silofuse", federation, runtime="process")
    with pytest.raises(ConfigError, match="runtime='processes'"):
        ss.fit("silofuse", federation, limit=9)
    with pytest.raises(ConfigError, match=r"above zero seconds \(got: 0\)"):
        ss.fit("silofuse", federation, runtime="processes", limit=0)
    with pytest.raises(ConfigError, match=r'got: omit\)\. Choose "fail" or "wait"'):
        ss.fit("silofuse", federation, missing="omit")
    with pytest.raises(ConfigError, match="device"):
        ss.fit("silofuse", federation, device="gpu7")
    with pytest.raises(DataError, match="Did you mean"):
        ss.evaluate(frame(), None, frame(), target="bb")


def configured(options):
    return ALGORITHMS["silofuse"].configure("fast", options)


@pytest.mark.parametrize(
    "options",
    [
        {"coder.encoders.min_count": 20, "coder.encoders.pool_rare": False, "coder.steps": 7},
        {"coder": {"encoders": {"min_count": 20}, "steps": 7}, "coder.encoders": {"pool_rare": False}},
        {"coder": {"encoders.min_count": 20}, "coder.encoders.pool_rare": False, "coder.steps": 7},
    ],
)
def test_options_of_one_group_are_all_kept(options):
    coder = configured(options).coder
    assert (coder.encoders.min_count, coder.encoders.pool_rare, coder.steps) == (20, False, 7)


@pytest.mark.parametrize(
    "options",
    [
        {"coder": 3, "coder.steps": 4},
        {"coder.steps": 4, "coder": 3},
        {"coder.steps": 4, "coder": {"steps": {"x": 1}}},
        {"coder.steps": 4, "coder": {"steps": 5}},
    ],
)
def test_an_option_given_twice_is_refused(options):
    with pytest.raises(ConfigError, match="one value or a group"):
        configured(options)


def with_identifiers(**columns) -> tuple[pd.DataFrame, dict[str, list[str]], dict[str, str]]:
    """Arguments of `fit`: the frame with these columns added to silo one, declared identifiers."""
    data = frame().assign(**columns)
    return data, {"one": ["a", *columns], "two": ["b", "c"]}, dict.fromkeys(columns, "identifier")


@pytest.mark.slow
def test_running_numbers_go_on_across_batches_and_pieces_are_the_sample():
    names = pd.Series([f"K{i:05d}x" for i in range(60)])
    model = fit(*with_identifiers(customer_id=names, kind=names.astype("category"), nr=range(60)))
    n = BATCH + 5
    whole, pieces = model.sample(n, seed=3), list(model.sample_batches(n, batch=BATCH, seed=3))
    assert [len(piece) for piece in pieces] == [BATCH, 5]
    for name in ("customer_id", "kind"):
        assert whole[name].tolist() == [f"synthetic-{i}" for i in range(1, n + 1)]
    assert whole["nr"].tolist() == list(range(1, n + 1))
    together = pd.concat(pieces, ignore_index=True).astype({"kind": whole["kind"].dtype})
    pd.testing.assert_frame_equal(together, whole)
    few = list(model.sample_batches(12, batch=5, seed=3))
    assert pd.concat(few)["nr"].tolist() == list(range(1, 13))


def test_columns_of_other_levels_are_not_set_below_each_other():
    first, second = (ss.simulate(pd.DataFrame({"b": texts})).tables["silo1"] for texts in (["x", "y"], ["y", "z"]))
    with pytest.raises(DataError, match=r"levels are the same.*'b'"):
        below([first, second])


def test_running_numbers_have_the_identifiers_dtype():
    dtypes = ("int8", "UInt8", "uint64", "Int64", "int64[pyarrow]", "float16", "Float32", "double[pyarrow]")
    columns = {dtype: pd.Series(range(60), dtype=dtype) for dtype in dtypes}
    texts = pd.Series([f"K{i:05d}x" for i in range(60)], dtype=object)
    columns |= {dtype: texts.astype(dtype) for dtype in ("object", "string", "string[pyarrow]", "category")}
    data, silos, schema = with_identifiers(**columns)
    model = fit(data, silos, schema)
    table = model.sample(127)
    plain = [name for name in columns if name != "category"]
    assert table.dtypes[plain].to_dict() == data.dtypes[plain].to_dict()
    assert isinstance(table["category"].dtype, pd.CategoricalDtype)
    for name in columns:
        numbers = table[name].astype(str).str.removeprefix("synthetic-").astype(float)
        assert numbers.tolist() == list(range(1, 128)), name
    with pytest.raises(ConfigError, match=r"'int8' of dtype int8 can number at most 127 rows \(got: 128\).*int64"):
        model.sample(128)
    parts = model.sample_parts(9)
    assert list(parts["one"].columns) == silos["one"]
    assert parts["one"]["Int64"].tolist() == list(range(1, 10))


def test_identifiers_of_several_silos_hold_the_same_numbers():
    data = frame().assign(left=range(60), right=range(60))
    silos = {"one": ["left", "a"], "two": ["b", "right", "c"]}
    parts = fit(data, silos, dict.fromkeys(("left", "right"), "identifier")).sample_parts(8)
    assert {name: list(part.columns) for name, part in parts.items()} == silos
    assert parts["one"]["left"].tolist() == parts["two"]["right"].tolist() == list(range(1, 9))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pd.date_range("2020", periods=60), "datetime64"),
        (pd.to_timedelta(range(60), unit="h"), "timedelta64"),
        (np.arange(60) % 2 == 0, "bool"),
        (pd.Series(range(60), dtype=object), r"object\|int"),
        (pd.Categorical(range(60)), "category"),
    ],
    ids=["instants", "durations", "booleans", "boxed", "categories of numbers"],
)
def test_identifiers_that_cannot_be_numbered_are_refused_before_training(values, dtype):
    data, silos, schema = with_identifiers(odd=values)
    with pytest.raises(SchemaError, match=rf"Identifier column 'odd'.*got: {dtype}.*Convert"):
        ss.simulate(data, silos, schema)


def test_whole_numbers_of_numpy_are_whole_numbers():
    model = fit(seed=np.int64(3))
    assert type(model.seed) is int
    assert pack(dict(model.parts)) == pack(dict(fit(seed=3).parts))
    pd.testing.assert_frame_equal(model.sample(np.int64(5), seed=np.uint8(2)), model.sample(5, seed=2))
    assert len(list(model.sample_batches(5, batch=np.int32(2)))) == 3
    for wrong in (True, np.True_, 2.0, np.float64(2), "2", 0, np.int64(-1)):
        with pytest.raises(ConfigError, match="positive whole number"):
            model.sample(wrong)
        with pytest.raises(ConfigError, match="positive whole number"):
            next(model.sample_batches(3, batch=wrong))
    for wrong in (True, False, 1.0, "1"):
        with pytest.raises(ConfigError, match="A seed is a whole number"):
            fit(seed=wrong)
    with pytest.raises(ConfigError, match="A seed is at least 0"):
        fit(seed=-1)  # which would pass for a secret one


def test_one_run_at_a_time_works_in_a_folder(tmp_path):
    refused = []

    def intrude(progress):
        if not refused:
            with pytest.raises(StorageError, match="One run at a time") as caught:
                fit(folder=tmp_path, overwrite=True)
            refused.append(caught.value)

    model = fit(folder=tmp_path, progress=intrude)
    assert refused and refused[0].remedy and refused[0].value == str(tmp_path)
    again = fit(folder=tmp_path, overwrite=True)  # the lock has gone with the run
    assert pack(dict(again.parts)) == pack(dict(model.parts))
    assert not (tmp_path / "lock").exists()


def test_a_run_that_may_not_begin_leaves_the_secret_seed_of_the_one_that_goes_on(tmp_path):
    bounds = {name: {"low": -1e6, "high": 1e6} for name in "ac"}

    def intrude(progress):
        with pytest.raises(StorageError, match="One run at a time"):
            fit(schema=bounds, seed=None, folder=tmp_path, options=TINY | {"dp": {"epsilon": 9, "delta": 1e-5}})

    fit(folder=tmp_path, progress=intrude, checkpoint_every=math.inf)
    assert not (tmp_path / "seed").exists()


def test_the_default_folder_is_the_users_alone_and_stays_only_to_be_resumed_from(state_home):
    runs, modes = state_home / "silosynth/runs", []

    def stop(progress):
        modes.extend(folder.stat().st_mode & 0o777 for folder in runs.iterdir())
        if progress.stage == "diffusion":
            raise StopError

    with pytest.raises(StopError):
        fit(progress=stop, checkpoint_every=1000)
    assert not list(runs.iterdir())
    with pytest.raises(StopError):
        fit(progress=stop)
    assert len(list(runs.iterdir())) == 1
    fit(resume=True)
    assert not list(runs.iterdir())
    assert set(modes) == {0o700}


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
    warned = pytest.warns(ColumnWarning, match="'c': 100% of its rows hold values of fewer than 5 rows")
    with warned, pytest.raises(DataError, match="'c' is categorical, and no level"):
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


def test_checkpoints_are_overwritten_only_if_that_is_asked_for(tmp_path):
    _halted(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.ckpt")}
    for data in (None, frame(61)):
        with pytest.raises(StorageError, match=r"earlier run.*resume=True.*overwrite=True"):
            fit(data, folder=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.ckpt")} == kept
    assert fit(frame(61), folder=tmp_path, overwrite=True).rows == 61


@pytest.mark.parametrize("name", ["silofuse", "vtgan", "vflgan", "vertigan", "dplt"])
def test_missing_bounds_of_all_silos_are_listed_before_anything_is_sent(name):
    federation = ss.simulate(frame(), {"one": ["a"], "two": ["b", "c"]}, {"c": {"low": 0}})
    with pytest.raises(DataError, match="2 without: a, c") as caught:
        ss.fit(name, federation, preset="fast", options={"dp": {"epsilon": 9, "delta": 1e-5}}, progress=pytest.fail)
    assert "[schema]\na = { low = …, high = … }\nc = { low = 0, high = … }" in caught.value.remedy


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("torch.backends.cpu.get_cpu_capability", "ABACUS"),
        ("silosynth.simulation.training.fast_bfloat16", not fast_bfloat16(torch.device("cpu"))),
    ],
)
def test_a_checkpoint_of_another_arithmetic_is_refused(asked, answer, tmp_path, monkeypatch):
    _halted(tmp_path)
    monkeypatch.setattr(asked, lambda *_: answer)
    with pytest.raises(CheckpointError, match="experiment"):
        fit(folder=tmp_path, resume=True)


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


SLOW = {**TINY, "latent.steps": 80, "latent.checks": 40}  # 50 checkpoints

LONG_RUNS = (("processes", 1), ("inprocess", 3))  # and kills

KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
from test_training import SLOW, fit
fit(folder={folder!r}, resume={resume}, runtime={runtime!r}, options=SLOW, progress=lambda _: time.sleep(0.02))
"""


def _newest(folder: Path) -> int:
    """Number of the last committed checkpoint; 0 when there is none."""
    return max((int(path.stem) for path in (folder / "coordinator").glob("[0-9]*.ckpt")), default=0)


def _killed(folder: Path, runtime: str) -> int:
    """Run until a checkpoint more is committed, then kill -9 at once; the newest checkpoint."""
    before = _newest(folder)
    values = {"tests": str(Path(__file__).parent), "folder": str(folder), "resume": before > 0, "runtime": runtime}
    with subprocess.Popen([sys.executable, "-c", KILLED.format(**values)], stderr=subprocess.DEVNULL) as child:
        until = time.monotonic() + 60
        while _newest(folder) <= before and child.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL  # it was alive: it had neither finished nor failed
    assert _newest(folder) > before
    return _newest(folder)


@pytest.mark.live
@pytest.mark.parametrize(
    ("runtime", "kills"), [("inprocess", 1), *(pytest.param(*run, marks=pytest.mark.slow) for run in LONG_RUNS)]
)
def test_a_fit_killed_at_any_moment_resumes_to_the_same_bytes(tmp_path, runtime, kills):
    """kill -9 between later and later checkpoints of one run, then let it finish: bytes of an uninterrupted run."""
    whole = fit(folder=tmp_path / "whole", options=SLOW)
    folder = tmp_path / "killed"
    reached = [_killed(folder, runtime) for _ in range(kills)]
    assert reached == sorted(set(reached)) and reached[-1] < 50
    again = fit(folder=folder, resume=True, runtime=runtime, options=SLOW)
    assert pack(dict(again.parts)) == pack(dict(whole.parts))
    assert pack(again.coordinator) == pack(whole.coordinator)
    pd.testing.assert_frame_equal(again.sample(30), whole.sample(30))


def test_however_many_threads_share_a_training_the_bytes_are_those_of_one(tmp_path):
    sizes = {"coder.steps": 20, "latent.steps": 60, "latent.checks": 6}
    one, two, any_number = (fit(threads=threads, options=sizes) for threads in (1, 2, "auto"))
    assert pack(one.coordinator) == pack(two.coordinator) == pack(any_number.coordinator)
    assert (one.threads, two.threads, any_number.threads) == (1, 2, 1)
    assert any_number.describe()["threads"] == 1
    two.save(tmp_path / "model.silosynth")
    assert ss.load(tmp_path / "model.silosynth").threads == 2


def test_a_training_goes_on_with_any_number_that_gives_the_same_bytes(tmp_path):
    def stop(progress):
        if progress.stage == "diffusion":
            raise StopError

    whole = fit()
    with pytest.raises(StopError):
        fit(folder=tmp_path, progress=stop, threads=1)
    with pytest.raises(CheckpointError, match="belong to experiment"):
        fit(folder=tmp_path, resume=True, threads=2)
    assert pack(fit(folder=tmp_path, resume=True).coordinator) == pack(whole.coordinator)


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
