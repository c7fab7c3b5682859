"""What every benchmark here shares: data, splits, a stamp, and where results go.

Data sets come from the folder that the environment variable SILOSYNTH_DATA names. Results are JSON files in
``benchmarks/results``, stamped with commit and machine, with a Markdown table beside them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import silosynth as ss

RESULTS = Path(__file__).parent / "results"


NAMES_OF_PEOPLE = ["surname"]


def table(name: str) -> pd.DataFrame:
    """A data set by name, without its identifiers and without names of people."""
    frame, info = ss.datasets.load(name, return_info=True)
    identifiers = [column for column, kind in info.kinds.items() if kind == "identifier"]
    return frame.drop(columns=[*identifiers, *NAMES_OF_PEOPLE], errors="ignore")


def split(frame: pd.DataFrame, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A random two thirds for training, the rest held out."""
    order = np.random.default_rng(seed).permutation(len(frame))
    cut = len(frame) * 2 // 3
    return frame.iloc[order[:cut]].reset_index(drop=True), frame.iloc[order[cut:]].reset_index(drop=True)


@contextmanager
def clock() -> Iterator[dict[str, float]]:
    """Seconds that the block took, in ``["seconds"]``."""
    taken: dict[str, float] = {}
    start = time.perf_counter()
    yield taken
    taken["seconds"] = time.perf_counter() - start


def peak_gigabytes() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def stamp() -> dict[str, Any]:
    """Commit and machine."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    dirty = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True).stdout
    return {
        "commit": commit.stdout.strip() + ("+changes" if dirty else ""),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def keep(name: str, rows: Sequence[dict[str, Any]], hidden: Sequence[str] = (), above: str = "") -> None:
    """Write ``results/<name>.json`` and ``.md``, and print the table.

    What is ``hidden`` is in the JSON file only; ``above`` stands over the table.
    """
    RESULTS.mkdir(exist_ok=True)
    content = {"stamp": stamp(), "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    shown = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
    text = (
        (above and above + "\n\n")
        + markdown(shown)
        + "\n\n"
        + ", ".join(f"{key} {value}" for key, value in content["stamp"].items())
        + "\n"
    )
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text, flush=True)


def kept(name: str) -> list[dict[str, Any]]:
    """The rows of an earlier `keep`; none if there was none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_shown(row[key]) for key in head) + " |" for row in rows]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
