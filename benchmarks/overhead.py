"""What conversation, messages and ledger cost in process, against the same computation called directly.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --algorithms vflgan     # of many small exchanges; keeps nothing

10 000 rows of Adult in four silos, preset fast, half of SiloFuse's flow and a few epochs of the others. "direct" hands
Python objects from call to call, silos one after the other: nothing is encoded, noted or stored. "driven" is the
runtime without checkpoints before the end, "stored" the same with one every five seconds. All are run in turn, several
times; figures are medians of ratios within a turn, in processor time, which other processes on a shared machine disturb
less than wall-clock time.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import common
import torch

import silosynth as ss
from silosynth.catalog import algorithm
from silosynth.core.streams import Streams
from silosynth.papers import tables
from silosynth.simulation.silos import make_parties

REPEATS = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "silofuse": {"latent.steps": 800},
    "vtgan": {"epochs": 4, "least_rounds": 0},
    "vflgan": {"epochs": 3, "least_rounds": 0},
}


def direct(name: str, federation: ss.Federation) -> None:
    """The algorithm without a runtime."""
    entry, cpu = algorithm(name), torch.device("cpu")
    config = entry.configure("fast", OPTIONS[name])
    parties = make_parties(entry, config, federation, Streams(0), cpu)
    talk = entry.coordinate(federation.roster, config, Streams(0).child("coordinator"), cpu)
    common.converse(talk, parties)


def driven(name: str, federation: ss.Federation, checkpoint_every: float) -> None:
    """The same through the runtime, with ledger and checkpoints."""
    how = {"options": OPTIONS[name], "progress": False, "threads": 1, "checkpoint_every": checkpoint_every}
    ss.fit(name, federation, "fast", **how)


def timed(name: str, federation: ss.Federation) -> list[dict[str, Any]]:
    """Each way's seconds, and by how much it takes longer than without a runtime."""
    ways = {
        "direct": lambda: direct(name, federation),
        "driven": lambda: driven(name, federation, math.inf),
        "stored": lambda: driven(name, federation, 5.0),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    direct(name, federation)  # warm-up
    for _ in range(REPEATS):
        for way, do in ways.items():
            start = time.process_time()
            do()
            taken[way].append(time.process_time() - start)
    rows = []
    for way, seconds in taken.items():
        extra = [100 * (b / a - 1) for a, b in zip(taken["direct"], seconds, strict=True)]
        row = {"algorithm": name, "way": way, "processor s": statistics.median(seconds)}
        row |= {"over direct %": statistics.median(extra), "least %": min(extra), "most %": max(extra)}
        rows.append(row | {"repeats": REPEATS})
    return rows


def main() -> None:
    """Time all in turn."""
    parser = common.parser(__doc__)
    parser.add_argument("--algorithms", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    options = parser.parse_args()
    federation = tables.in_silos(tables.modelled("adult").head(10_000), 4)
    rows = [row for name in options.algorithms for row in timed(name, federation)]
    if options.algorithms == list(OPTIONS):
        common.keep("overhead", rows)
    else:
        print(common.markdown(rows))


if __name__ == "__main__":
    main()
