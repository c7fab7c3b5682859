"""What conversation, messages and ledger cost in process, against the same computation called directly.

    python benchmarks/overhead.py

SiloFuse on 10 000 rows of Adult. "direct" hands Python objects from call to call: nothing is encoded, noted or stored.
"driven" is the runtime without checkpoints before the end, "stored" the same with one every 15 seconds. All are run in
turn, several times; figures are medians of ratios within a turn, in processor time, which other processes on a shared
machine disturb less than wall-clock time.
"""

from __future__ import annotations

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import common
import torch

import silosynth as ss
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.papers import tables
from silosynth.simulation.silos import make_parties

REPEATS = 5
OPTIONS = {"coder.steps": 500, "latent.steps": 500}


def direct(federation: ss.Federation) -> None:
    """The algorithm without a runtime."""
    entry, cpu = algorithm("silofuse"), torch.device("cpu")
    config = entry.configure("fast", OPTIONS)
    parties = make_parties(entry, config, federation, Streams(0), cpu)
    talk = entry.coordinate(federation.roster, config, Streams(0).child("coordinator"), cpu)
    got: dict = {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        step = next(talk)
        while True:
            got = {}
            if isinstance(step, Exchange):
                answers = {silo: pool.submit(parties[silo].answer, ask) for silo, ask in step.asks.items()}
                got = {silo: answer.result() for silo, answer in answers.items()}
            try:
                step = talk.send(got)
            except StopIteration:
                break
    torch.set_num_threads(before)


def driven(federation: ss.Federation, checkpoint_every: float) -> None:
    """The same through the runtime, with ledger and checkpoints."""
    ss.fit("silofuse", federation, preset="fast", options=OPTIONS, progress=False, checkpoint_every=checkpoint_every)


def main() -> None:
    """Time all in turn."""
    common.parser(__doc__).parse_args()
    federation = tables.in_silos(tables.modelled("adult").head(10_000), 4)
    ways = {
        "direct": lambda: direct(federation),
        "driven": lambda: driven(federation, math.inf),
        "stored": lambda: driven(federation, 15.0),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    direct(federation)  # warm-up
    for _ in range(REPEATS):
        for name, do in ways.items():
            start = time.process_time()
            do()
            taken[name].append(time.process_time() - start)
    rows = []
    for name, seconds in taken.items():
        extra = [100 * (b / a - 1) for a, b in zip(taken["direct"], seconds, strict=True)]
        row = {"way": name, "processor s": statistics.median(seconds), "over direct %": statistics.median(extra)}
        rows.append(row | {"least %": min(extra), "most %": max(extra), "repeats": REPEATS})
    common.keep("overhead", rows)


if __name__ == "__main__":
    main()
