"""What it takes to count tables across two silos: seconds of dealer and silos, bytes, memory.

    python benchmarks/counting.py                       # 50 000 and a million rows, 8 + 7 columns of 20 levels
    python benchmarks/counting.py --rows 50000 --columns 4 3 --bits 64
    python benchmarks/counting.py --deployed            # over the stream of deployments, by the same in this process

All tables of a column of one silo and one of the other are counted. The conversation is driven by hand, and messages
cross borders as bytes, so that each party's seconds are its own, with one thread: encoding and decoding of messages are
counted apart. "between silos" is what the silos seal for each other; "all messages" adds the relay's second copy of it,
and all else. Memory is the growth of this process, which holds the tables and all parties: each size is measured in a
process of its own. Bars: 50 000 rows in 5 s and 65 MB; a million rows in less than 2 GB.

``--deployed`` takes the stream by which silos of a deployment answer: each silo is a process, and messages cross
loopback over mutual TLS. It is timed in turns with the same conversation and the same links but all parties in this
process. Bar: at most three times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.messages import Message
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn, CountRequest, TableCounter, bits_for, count, padded
from silosynth.privacy.sealed import seats
from silosynth.runtime import driver
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import decode, encode
from silosynth.simulation.silos import InProcess, Processes, open_process_kit

NAMES = ("bank", "clinic")
LEVELS = 20


def held(rows: int, columns: list[int]) -> dict[str, Table]:
    """Uniform levels."""
    rng, tables = np.random.default_rng(0), {}
    for silo, many in zip(NAMES, columns, strict=True):
        values = [torch.from_numpy(rng.integers(0, LEVELS, rows)) for _ in range(many)]
        none, levels = torch.zeros(rows, dtype=torch.bool), tuple(map(str, range(LEVELS)))
        tables[silo] = Table(tuple(Column(f"{silo}{i}", "str", one, none, levels) for i, one in enumerate(values)))
    return tables


def drive(request: CountRequest, silos: dict[str, TableCounter]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds by party, and bytes."""
    seconds, sent = defaultdict[str, float](float), defaultdict[str, int](int)

    def across(message: Message) -> Message:
        start = time.perf_counter()
        blob = encode(message)
        decoded = decode(blob)
        seconds["messages"] += time.perf_counter() - start
        sent["all messages"] += len(blob)
        if type(message).__name__ == "HiddenBlock":
            sent["between silos"] += sum(len(one.ciphertext) for one in message.envelopes)  # type: ignore[attr-defined]
        return decoded  # type: ignore[return-value]

    conversation, replies = count(Roster(NAMES), request), None
    while True:
        start = time.perf_counter()
        try:
            step = conversation.send(replies)  # type: ignore[arg-type]
        except StopIteration:
            return seconds, sent
        finally:
            seconds["dealer"] += time.perf_counter() - start
        replies = {}
        for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
            heard, start = across(ask), time.perf_counter()
            answer = silos[silo].answer(heard)
            seconds[silo] += time.perf_counter() - start
            replies[silo] = across(answer)


def prepared(rows: int, columns: list[int], bits: int = 0) -> tuple[CountRequest, dict[str, Table]]:
    """What is counted, and of what."""
    tables = held(rows, columns)
    counted = tuple(
        CountedColumn(silo, name, tuple(map(str, range(LEVELS)))) for silo, t in tables.items() for name in t.names
    )
    sets = tuple((a, columns[0] + b) for a in range(columns[0]) for b in range(columns[1]))
    return CountRequest(NAMES, counted, sets, padded(rows), bits or bits_for(padded(rows))), tables  # type: ignore[arg-type]


def silo_of(name: str, table: Table) -> TableCounter:
    """A silo's side."""
    schema = Schema(tuple(ColumnSchema(one, "categorical", "str") for one in table.names))
    return TableCounter(table, schema, seats(NAMES, Streams(0).child("seats"))[name])


def measure(rows: int, columns: list[int], bits: int) -> dict[str, Any]:
    """One counting."""
    torch.set_num_threads(1)
    request, tables = prepared(rows, columns, bits)
    silos = {silo: silo_of(silo, table) for silo, table in tables.items()}
    before, start = common.peak_gigabytes(), time.perf_counter()
    seconds, sent = drive(request, silos)
    whole, memory = time.perf_counter() - start, common.peak_gigabytes() - before
    _check(tables, request.sets, silos, columns)
    return {
        "rows": rows, "tables": len(request.sets), "k": request.bits,
        **{f"{party}, s": round(seconds[party], 2) for party in ("dealer", *NAMES, "messages")},
        "all, s": round(whole, 2),
        **{f"{what}, MB": round(sent[what] / 1e6, 1) for what in ("between silos", "all messages")},
        "memory, MB": round(memory * 1024),
    }  # fmt: skip


def _check(tables: dict[str, Table], sets: Any, silos: dict[str, TableCounter], columns: list[int]) -> None:
    """Every table is exact."""
    bank, clinic = (silo.shares for silo in silos.values())
    for number, (a, b) in enumerate(sets):
        left, right = (tables[s].columns[i].values.numpy() for s, i in (("bank", a), ("clinic", b - columns[0])))
        cells = np.bincount(left * (LEVELS + 1) + right, minlength=(LEVELS + 1) ** 2)
        assert np.array_equal(bank[number] + clinic[number], cells.reshape(LEVELS + 1, -1).astype(bank[number].dtype))


def serve(place: str, rows: int, columns: list[int]) -> None:
    """Answer as a silo, in a process of its own."""
    kit = open_process_kit(place)
    kit.serve(silo_of(kit.name, held(rows, columns)[kit.name]))


def compare(rows: int, columns: list[int], times: int) -> list[dict[str, Any]]:
    """Over the stream and in this process, in turns."""
    request, tables = prepared(rows, columns)
    arguments = ["--rows", str(rows), "--columns", *map(str, columns)]

    def command(_: str, place: Path) -> list[str]:
        return [sys.executable, __file__, "--serve", str(place), *arguments]

    taken = defaultdict[str, list[float]](list)
    with Processes(Roster(NAMES), command) as stream:
        for _ in range(times + 1):
            here = InProcess({name: silo_of(name, table) for name, table in tables.items()})
            for way, link in (("in process", here), ("stream", stream)):
                work = partial(driver.drive, lambda _: count(Roster(NAMES), request), link, Ledger())
                taken[way].append(common.seconds(work))
    base = statistics.median(taken["in process"][1:])
    return [
        {"way": way, "tables": len(request.sets), "rows": rows, "median, s": round(statistics.median(own[1:]), 2),
         "multiple": round(statistics.median(own[1:]) / base, 2), "first, s": round(own[0], 2)}
        for way, own in taken.items()
    ]  # fmt: skip


def main() -> None:
    """Each number of rows, each in a process of its own."""
    parser = common.parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 1_000_000])
    parser.add_argument("--columns", type=int, nargs=2, default=[8, 7])
    parser.add_argument("--bits", type=int, nargs="+", default=[0], help="k; 0 for the fewest")
    parser.add_argument("--one", action="store_true", help="measure here, and print it")
    parser.add_argument("--deployed", action="store_true", help="over the stream of deployments")
    parser.add_argument("--times", type=int, default=5, help="how often, with --deployed")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        serve(options.serve, options.rows[0], options.columns)
        return
    if options.deployed:
        found = compare(options.rows[0], options.columns, options.times)
        load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; read ratios."
        common.keep("counting_deployed", found, above=load)
        return
    if options.one:
        print(json.dumps(measure(options.rows[0], options.columns, options.bits[0])))
        return
    rows = []
    for many in options.rows:
        for bits in options.bits:
            settings = ["--rows", str(many), "--columns", *map(str, options.columns), "--bits", str(bits), "--one"]
            done = subprocess.run([sys.executable, __file__, *settings], stdout=subprocess.PIPE, check=True)
            rows.append(json.loads(done.stdout))
    common.keep("counting", rows)


if __name__ == "__main__":
    main()
