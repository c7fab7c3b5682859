"""What a silo's safeguards against a coordinator that deviates cost an honest job, as a share of its processor time.

    python benchmarks/safeguards.py                    # SiloFuse, VT-GAN, VFLGAN and GDTS on the demonstration table
    python benchmarks/safeguards.py --only silofuse

A job trains and publishes its table, each silo behind its endpoint, policy and signed ledger: in a process of its own,
over a local stream, as deployed silos are; and all in this process, where messages do not travel. Timed, of all silos
together: the policy's rules and the record of releases ("policy"); the hash chain of all asks, their turns and the
agreement on the job ("terms"); the signed ledger and the comparison of heads ("ledger"); how near latents that come
back are to those of rows, and what that is judged by ("nearness"). Trainings are shorter than presets have it where a
share does not hang on their length. Two look-ups in a set for each exchange, 0.2 µs, are not timed; what reading the
clock takes is taken off. Bar: all together below 2 % of a job's processor time.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import pandas as pd
import torch

import silosynth as ss
from silosynth import catalog
from silosynth.core.conversation import Roster, Turns
from silosynth.core.streams import Chain, Streams
from silosynth.deployment import silo as deployed
from silosynth.deployment.coordinator import Order, run_order
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.models.nearness import Nearness
from silosynth.privacy.sealed import seats
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.link import Link, Remote
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority
from silosynth.simulation.silos import InProcess

RUNS: dict[str, dict[str, Any]] = {
    "silofuse": {},
    "vtgan": {"least_rounds": 300},
    "vflgan": {"epochs": 30, "least_rounds": 0},
    "gdts": {"rounds": 20},
}
TIMED: dict[str, list[tuple[Any, str]]] = {
    "policy": [
        *((deployed.DeploymentSilo, name) for name in ("_check_ask", "_check_reply", "_charge")),
    ],
    "terms": [(Chain, "add"), (Turns, "_place"), (deployed.DeploymentSilo, "_agree")],
    "ledger": [
        *((SiloLedger, name) for name in ("__init__", "asked", "replied", "saved", "head", "compare")),
        (deployed.DeploymentSilo, "_seal_head"), (deployed.DeploymentSilo, "_compare"),
    ],
    "nearness": [(Nearness, "__init__"), (Nearness, "check"), (deployed.DeploymentSilo, "_keep_reference")],
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """A silo's rows, as a deployed silo reads them."""

    frame: pd.DataFrame
    identifiers: list[str] = field(default_factory=list)
    declared: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> pd.DataFrame:
        """All rows."""
        return self.frame


class Clocks:
    """Seconds of processor by name; a timed call within another counts for the outer one."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._here, self._own = threading.local(), reading()
        for name, places in TIMED.items():
            for owner, method in places:
                setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "inside", False):
                return work(*args, **kwargs)
            self._here.inside = True
            time.thread_time()  # brings the clock into the processor's cache
            start = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - start - self._own
                self._here.inside = False

        return timed


def reading() -> float:
    """Seconds that a clock shows between two readings, one right after the other: the median."""
    return statistics.median(-time.thread_time() + time.thread_time() for _ in range(10_000))


def work(algorithm: str, folder: Path, far: bool) -> tuple[int, int]:
    """One job; the number of silos, and of lines in the first one's ledger."""
    table, entry = ss.datasets.demo(), catalog.algorithm(algorithm)
    if entry.horizontal:
        held = {f"silo{k}": Rows(table.frame.iloc[k::3].reset_index(drop=True)) for k in range(3)}
    else:
        held = {silo: Rows(table.frame[list(names)]) for silo, names in table.silos.items()}
    chairs = seats(held, Streams(0))
    policy = SiloPolicy(algorithms=[algorithm], require_alignment=False)

    def endpoint(silo: str) -> PartyEndpoint:
        place, cpu = folder / silo, torch.device("cpu")
        book = SiloLedger(place, "job", chairs[silo])
        side = deployed.DeploymentSilo(chairs[silo], held[silo], policy, place, Releases(place), cpu, book=book)
        return PartyEndpoint(silo, side, place / "checkpoints", book)

    config = entry.configure("fast", RUNS[algorithm])
    job = Job("job", algorithm, "fast", config, tuple(held), None, None, None, "bench")
    with (over_a_stream if far else in_process)(held, endpoint) as link:
        run_order(Order(job), link, folder / "coordinator")
    return len(held), len((folder / next(iter(held)) / "ledger.jsonl").read_text().splitlines())


@contextmanager
def in_process(silos: Iterable[str], endpoint: Callable[[str], PartyEndpoint]) -> Iterator[Link]:
    """All silos in this process."""
    endpoints = {silo: endpoint(silo) for silo in silos}
    with InProcess({silo: one.party for silo, one in endpoints.items()}) as link:
        link._desks = endpoints
        yield link


@contextmanager
def over_a_stream(silos: Iterable[str], endpoint: Callable[[str], PartyEndpoint]) -> Iterator[Link]:
    """Each silo in a process of its own, which says at the end what its clocks have counted."""
    authority, fork = Authority(), multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said: multiprocessing.SimpleQueue[dict[str, float]] = fork.SimpleQueue()

    def serve(silo: str) -> None:
        serve_endpoint(endpoint(silo), address=address, certs=authority.party(silo), patience=60.0)
        said.put({**clocks.seconds, "process": time.process_time()})

    processes = [fork.Process(target=serve, args=(silo,)) for silo in silos]
    for process in processes:
        process.start()
    hub = StreamHub(silos, authority.coordinator(), address, 60.0)
    hub.wait_for_all(60.0, lambda silo: None)
    yield Remote(Roster(tuple(silos)), hub, hub.dead)
    hub.stop()
    for process in processes:
        for name, seconds in said.get().items():
            clocks.seconds[name] += seconds
        process.join()


def measured(algorithm: str, far: bool) -> dict[str, Any]:
    """Shares of one job's processor time."""
    clocks.seconds.clear()
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        silos, lines = work(algorithm, Path(folder), far)
        whole = time.process_time() - start + clocks.seconds.pop("process", 0.0)
    shares = {f"{name}, %": round(100 * clocks.seconds[name] / whole, 2) for name in TIMED}
    together = sum(clocks.seconds.values())
    return {
        "algorithm": algorithm, "silos": "over a stream" if far else "in one process", "job, s": round(whole, 1),
        **shares, "all, %": round(100 * together / whole, 2),
        "a silo's exchange, µs": round(2e6 * together / lines / silos),  # an exchange is two lines
    }  # fmt: skip


def main() -> None:
    """Run all, or one."""
    options = common.parser(__doc__)
    options.add_argument("--only", choices=RUNS)
    args = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    for algorithm in [args.only] if args.only else RUNS:
        for far in (True, False):
            rows.append(measured(algorithm, far))
            print(rows[-1], flush=True)
    if not args.only:
        common.keep("safeguards", rows)


clocks = Clocks()
if __name__ == "__main__":
    main()
