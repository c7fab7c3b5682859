"""Where the processor time of each algorithm goes: training, its file, drawing, report; and what training consists of.

    pip install py-spy                                          # which looks at a process from outside
    python benchmarks/where_time_goes.py                        # every algorithm at its fast preset, on Abalone
    python benchmarks/where_time_goes.py --algorithms silofuse --preset balanced --table adult

Columns in two silos, rows in three, or all in one place, as the algorithm wants them; all in this process. During
training, py-spy looks at every thread that works, a hundred times a second, and each look counts for the part of the
house whose code is innermost: a matrix product of a network counts for "networks". "Messages" are copies, wire format
and the driver's turns; "checkpoints" what is written to continue from; "secrets" sealed messages, masks, noise and
accounting. Threads that wait for each other in `runtime.link` are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import torch

import silosynth as ss
from silosynth import catalog
from silosynth.papers import tables

PARTS = {
    "models": "networks", "algorithms": "networks", "privacy": "secrets", "counting": "counting",
    "encoders": "encoders", "data": "encoders", "core": "messages", "runtime/checkpoint": "checkpoints",
    "runtime/ledger": "ledger", "runtime": "messages", "simulation": "messages",
}  # fmt: skip
TITLES = tuple(dict.fromkeys([*PARTS.values(), "other"]))
OURS = re.compile(r"silosynth/(\w+(?:/\w+)?)[^;]*?\.py")
WAITING = re.compile(r"silosynth/runtime/link\.py:\d+\)$")


def part(stack: str) -> str:
    """Where in the house the innermost frame of ours is: of "outer (file:line);inner (file:line)"."""
    place = next(reversed(OURS.findall(stack)), "")
    return PARTS.get(place, PARTS.get(place.partition("/")[0], "other"))


@contextmanager
def looked_at(looks: Counter[str]) -> Iterator[None]:
    """Counts where the block's threads are, in ``looks``."""
    with tempfile.TemporaryDirectory() as folder:
        stacks = Path(folder) / "stacks"
        command = ["py-spy", "record", "--full-filenames", "--format", "raw", "--output", str(stacks)]
        spy = subprocess.Popen([*command, "--pid", str(os.getpid())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert spy.stdout is not None
        assert b"Sampling" in spy.stdout.readline()
        try:
            yield
        finally:
            spy.send_signal(signal.SIGINT)
            spy.communicate()
        for line in stacks.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            if not WAITING.search(stack):
                looks[part(stack)] += int(count)


@contextmanager
def clock(taken: dict[str, float], stage: str) -> Iterator[None]:
    """Seconds of this process's processor time that the block takes."""
    start = time.process_time()
    yield
    taken[f"{stage}, s"] = round(time.process_time() - start, 1)


def measured(name: str, preset: str, table: str) -> dict[str, Any]:
    """Seconds by stage, and the share of each part in training."""
    entry, (train, holdout) = catalog.algorithm(name), tables.thirds(tables.modelled(table))
    if entry.horizontal:
        federation = ss.simulate(train, rows={f"silo{k}": slice(k, None, 3) for k in range(3)})
    else:
        federation = tables.in_silos(train, 1 if entry.central else 2)
    taken, looks = dict[str, float](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        with looked_at(looks), clock(taken, "train"):
            run = Path(folder) / "run"
            model = ss.fit(name, federation, preset=preset, seed=0, progress=False, threads=1, folder=run)
        with clock(taken, "file"):
            model.save(Path(folder) / "model.silosynth")
            model = ss.load(Path(folder) / "model.silosynth")
    with clock(taken, "draw"):
        drawn = model.sample(len(train))
    with clock(taken, "report"):
        ss.evaluate(train, holdout, drawn, silos=None if entry.horizontal else federation.silos)
    shares = {f"{title}, %": round(100 * looks[title] / looks.total(), 1) for title in TITLES}
    return {"algorithm": name, "preset": preset, **taken, **shares}


def main() -> None:
    """Measure those that were asked for."""
    options = common.parser(__doc__)
    generators = catalog.names("generator")
    options.add_argument("--algorithms", nargs="+", default=generators, choices=generators)
    options.add_argument("--preset", default="fast")
    options.add_argument("--table", default="abalone")
    options.add_argument("--name", help="keep the rows under this name in benchmarks/results")
    args = options.parse_args()
    if shutil.which("py-spy") is None:
        sys.exit("This needs py-spy: pip install py-spy.")
    torch.set_num_threads(1)
    rows = []
    for name in args.algorithms:
        rows.append(measured(name, args.preset, args.table))
        print(rows[-1], flush=True)
    if args.name:
        common.keep(args.name, rows)


if __name__ == "__main__":
    main()
