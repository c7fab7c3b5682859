"""silosynth beside other generators of tables: on the same tables and machine, by one judge, at equal time.

    python benchmarks/peers.py                                          # silosynth alone: nothing is installed
    python benchmarks/peers.py --peers mostlyai-engine synthcity sdv    # installs these, each in its own environment
    python benchmarks/peers.py --peers sdv --tables churn --folder kept # goes on where a run with it was stopped

Peers are MOSTLY AI's engine (Apache-2.0), TabDDPM, CTGAN and TVAE of synthcity (Apache-2.0), and CTGAN and TVAE of
SDV. SDV is under the Business Source License, which is no open-source licence: it is installed only where ``--peers``
names it, to be measured, and silosynth has nothing of it. On a machine without a GPU, UV_TORCH_BACKEND=cpu spares the
download of CUDA. All run on the version of PyTorch that silosynth runs on, synthcity against its own requirements.

Each generator trains on ``--rows`` rows in a process of its own, on one thread, and draws as many rows; half as many
others are held out. At *equal* time it trains for as many epochs as end within the seconds of the processor that
silosynth's `fast` trains for; with its *own*, for its default number, or as many as end within half of ``--limit``.
All other settings are its defaults. silosynth's columns are dealt to four silos; peers have the pooled table.

The judge is `silosynth.evaluate`, and *floor* its figure between real samples. Rows that other runs have kept on this
machine stay, unless they are measured again: ``--peers silosynth`` renews silosynth's alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import one_peer
import pandas as pd
import torch

import silosynth as ss
from silosynth.core.files import make_folder
from silosynth.data import datasets
from silosynth.papers import results, tables

TABLES = ("adult", "bank_marketing", "heloc", "churn", "abalone")
NEVER = "; python_version < '3'"  # a requirement with this marker is not installed
OVERRIDES = {  # of peers' own requirements, apart from PyTorch
    "mostlyai-engine": [f"torchvision {NEVER}", f"torchaudio {NEVER}"],  # for text and pictures
    "synthcity": ["torchvision==0.15.2"],  # loads beside a PyTorch that it was not built for
    "sdv": [],
}
FIGURES = {
    "column_shape_error": "shape %",
    "pair_trend_error": "trend %",
    "two_sample_auc_xgboost": "two-sample AUC",
    "downstream_auc": "AUC or R²",
    "downstream_r2": "AUC or R²",
    "nearest_neighbour_share": "nearer to train %",
    "exact_copy_rate": "copies %",
}
COSTS = ("train s", "sample s", "peak GB")
TITLES = [*dict.fromkeys(FIGURES.values()), *COSTS]
IDENTITY = ("table", "rows", "generator", "time", "seed")
FAST, FLOOR = "silosynth fast", "floor"
ORDER = [*one_peer.GENERATORS, FLOOR]
ABOUT = """Generators of tables side by side (`benchmarks/peers.py`), on one thread. silosynth's columns are dealt to
four silos, peers have the pooled table. *equal*: as many epochs as end within the seconds of the processor that `fast`
trains for. *own*: the default number of epochs, or as many as end within the limit. *floor*: between real samples.
*ahead in*: on how many tables the error of `fast` is smaller. Means over tables first, all rows below."""
Row = dict[str, Any]


def interpreter(package: str, folder: Path) -> str:
    """The Python that has the package, which is installed into a new environment where there is none yet.

    Raises:
        subprocess.CalledProcessError: it cannot be installed.
    """
    if package not in OVERRIDES:
        return sys.executable
    place = folder / package
    python, done = str(place / "bin" / "python"), place / "installed"
    if not done.exists():
        pytorch = f"torch=={torch.__version__.partition('+')[0]}"
        overrides = folder / f"{package}.txt"
        overrides.write_text("\n".join([pytorch, *OVERRIDES[package]]), encoding="utf-8")
        uv = [python, "-m", "uv", "pip", "install", "--python", python, "--override", str(overrides)]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [python, "-m", "pip", "install", "--quiet", "uv"],
            [*uv, pytorch, package],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        done.touch()
    return python


def parts(name: str, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """At most so many training rows, half as many that are held out, and the column to predict."""
    frame, target = tables.modelled(name), datasets.load(name, return_info=True)[1].target
    if len(frame) > rows * 3 // 2:
        frame = frame.sample(rows * 3 // 2, random_state=0)
    return *tables.thirds(frame), target


def judge(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, target: str) -> tuple[Row, Row]:
    """The figures of synthetic rows, and their floors."""
    whole = [name for name in train if pd.api.types.is_integer_dtype(train[name])]
    report = ss.evaluate(train, holdout, synthetic.assign(**synthetic[whole].round()), target=target)
    scores = [score for score in report.scores if score.name in FIGURES]
    return {FIGURES[s.name]: s.value for s in scores}, {FIGURES[s.name]: s.floor for s in scores}


def why(error: subprocess.CalledProcessError) -> str:
    """What went wrong, in a line."""
    if -error.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return "no rows within the limit"
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:200] if lines else f"ended with {error.returncode}"


def measure(
    python: str, name: str, given: tuple[Any, ...], seconds: float | None, limit: int, seed: int
) -> tuple[Row, Row]:
    """Train a generator in that Python, on what `parts` gives: what it took, figures of what it draws, and floors."""
    train, holdout, target = given
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "train.csv", Path(folder) / "synthetic.csv"
        train.to_csv(source, index=False)
        command = [python, one_peer.__file__, name, str(source), target, str(made)]
        command += ["--limit", str(limit), "--seed", str(seed)]
        if seconds is not None:
            command += ["--seconds", str(seconds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        took = json.loads(done.stdout.splitlines()[-1])
        figures, floors = judge(pd.read_csv(source), holdout, pd.read_csv(made), target)
    return {**took, **figures}, floors


def known() -> list[Row]:
    """Rows that a run on this machine has kept."""
    file = common.RESULTS / "peers.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"stamp": {}, "rows": []}
    return content["rows"] if content["stamp"].get("machine") == results.stamp()["machine"] else []


def identity(row: Row) -> tuple[Any, ...]:
    """What no two kept rows share."""
    return tuple(row[key] for key in IDENTITY)


def renewed(old: list[Row], new: list[Row]) -> list[Row]:
    """Old and new rows, without the old ones that have been measured again; by table, generator and time."""
    rows = {identity(row): row for row in [*old, *new]}.values()
    return results.in_order([*rows], "table", "rows", "generator", "time", table=TABLES, generator=ORDER)


def run(options: argparse.Namespace, old: list[Row]) -> Iterator[Row]:
    """Rows for each table, of the chosen peers and times; ``old`` may have the training that equal time is of."""

    def rows_of(table: str, generator: str, time: str, seconds: float | None) -> list[Row]:
        named = dict(zip(IDENTITY, (table, options.rows, generator, time, options.seed), strict=True))
        lacking = {"version": "", "epochs": "", **dict.fromkeys(TITLES), "failed": ""}

        def work(*_: Any) -> list[Row]:
            end, given = {"commit": results.stamp()["commit"]}, parts(table, options.rows)
            try:
                python = interpreter(one_peer.GENERATORS[generator].package, options.environments)
                found, floors = measure(python, generator, given, seconds, options.limit, options.seed)
            except subprocess.CalledProcessError as error:
                return [{**named, **lacking, "failed": why(error), **end}]
            floor = {**named, "generator": FLOOR, "time": "", **lacking, **floors, **end}
            return [floor, {**named, **lacking, **found, **end}]

        return common.once(options.folder, work, *named.values())

    for table in options.tables:
        fast = [row for row in old if identity(row) == (table, options.rows, FAST, "equal", options.seed)]
        if "silosynth" in options.peers or not fast:
            fast = rows_of(table, FAST, "equal", None)
            yield from fast
        for name, generator in one_peer.GENERATORS.items():
            if generator.package not in options.peers or name == FAST:
                continue
            if generator.package == "silosynth":
                yield from rows_of(table, name, "own", None)
                continue
            equal = rows_of(table, name, "equal", fast[-1]["train s"])
            yield from equal
            if "own" in options.times and equal[-1]["epochs"] != generator.epochs:
                yield from rows_of(table, name, "own", options.limit / 2)


def beside(kept: list[Row]) -> list[Row]:
    """For each generator and time the means over tables, and on how many of them `fast` is closer to the real table."""
    fast = {(row["table"], row["rows"]): row for row in kept if row["generator"] == FAST}
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in kept:
        if not row["failed"]:
            groups.setdefault((row["rows"], row["generator"], row["time"]), []).append(row)
    return [
        {
            "generator": name,
            "time": time,
            "rows": rows,
            "tables": len(own),
            **{title: results.average([row[title] for row in own]) for title in TITLES},
            **{
                f"`fast` ahead in {title.removesuffix(' %')}": ""
                if name.startswith(("silosynth", FLOOR))
                else sum(fast[row["table"], rows][title] < row[title] for row in own)
                for title in ("shape %", "trend %")
            },
        }
        for (rows, name, time), own in groups.items()
    ]


def main() -> None:
    """Measure what is chosen, and keep it with what other runs have kept."""
    parser = common.parser(__doc__)
    packages = list(dict.fromkeys(one.package for one in one_peer.GENERATORS.values()))
    parser.add_argument("--peers", nargs="+", choices=packages, default=["silosynth"], help="packages to measure")
    parser.add_argument("--tables", nargs="+", default=TABLES, help="names of data sets")
    parser.add_argument("--times", nargs="+", choices=["equal", "own"], default=["equal", "own"], help="of peers")
    parser.add_argument("--rows", type=int, default=5000, help="to train on, where a table has so many")
    parser.add_argument("--limit", type=int, default=900, help="seconds of the processor for a training and its rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=make_folder, help="where rows are kept for another run")
    parser.add_argument("--environments", type=Path, default=Path(".cache/peers"), help="where peers are installed")
    options = parser.parse_args()
    options.environments = options.environments.absolute()
    old, new = known(), list[Row]()
    for row in run(options, old):
        print(row, flush=True)
        new.append(row)
    rows = renewed(old, new)
    versions = {one_peer.GENERATORS[row["generator"]].package: row["version"] for row in rows if row["version"]}
    said = ", ".join(f"{package} {version}" for package, version in versions.items())
    common.keep("peers", rows, f"{ABOUT} {said}.\n\n{common.markdown(beside(rows))}")


if __name__ == "__main__":
    main()
