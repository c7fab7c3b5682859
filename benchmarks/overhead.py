"""What conversation, messages and ledger cost in process, against the same computation called directly.

    python benchmarks/overhead.py

SiloFuse on 10 000 rows of Adult. "direct" hands Python objects from call to call: nothing is encoded, noted or shown.
Both are run in turn, several times; the ratio of medians is the figure.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import common
import torch

import silosynth as ss
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.data.partition import in_order

REPEATS = 5
OPTIONS = {"coder.steps": 500, "latent.steps": 500}


def direct(federation: ss.Federation) -> None:
    """The algorithm without a runtime."""
    entry, cpu = algorithm("silofuse"), torch.device("cpu")
    parties = {
        silo: entry.party(table, federation.schemas[silo], Streams(0).child("party", silo), cpu)
        for silo, table in federation.tables.items()
    }
    config = entry.configure("fast", OPTIONS)
    talk = entry.coordinate(federation.roster, config, Streams(0).child("coordinator"), cpu)
    got: dict = {}
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
                return


def driven(federation: ss.Federation) -> None:
    """The same through the runtime, with ledger and checkpoints."""
    ss.fit("silofuse", federation, preset="fast", options=OPTIONS, progress=False)


def main() -> None:
    """Time both in turn."""
    frame = common.table("adult").head(10_000)
    federation = ss.simulate(frame, silos=in_order(list(frame.columns), 4))
    taken: dict[str, list[float]] = {"direct": [], "driven": []}
    direct(federation)  # warm-up
    for _ in range(REPEATS):
        for name, do in (("direct", direct), ("driven", driven)):
            start = time.perf_counter()
            do(federation)
            taken[name].append(time.perf_counter() - start)
    middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ratios = [b / a for a, b in zip(taken["direct"], taken["driven"], strict=True)]
    row = {f"{name} s": seconds for name, seconds in middle.items()}
    row |= {"overhead %": 100 * (statistics.median(ratios) - 1), "least %": 100 * (min(ratios) - 1)}
    common.keep("overhead", [row | {"most %": 100 * (max(ratios) - 1), "repeats": REPEATS}])


if __name__ == "__main__":
    main()
