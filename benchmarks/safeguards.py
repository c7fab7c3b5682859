"""What a silo's safeguards against a coordinator that deviates cost an honest job, as a share of its processor time.

    python benchmarks/safeguards.py                    # SiloFuse, VT-GAN, VFLGAN and GDTS on the demonstration table
    python benchmarks/safeguards.py --only silofuse

A job trains and publishes its table in this process, each silo behind its endpoint, policy and signed ledger. Timed, of
all silos together: the policy's rules and the record of releases ("policy"); the hash chain of all asks and the
agreement on the job ("terms"); the signed ledger and the comparison of heads ("ledger"); how near latents that come
back are to those of rows, and what that is judged by ("nearness"). Trainings are shorter than presets have it where a
share does not hang on their length. Bar: all together below 2 % of a job's time. Here no message crosses a network:
per exchange, see how long that takes (exchanges.py: 1.7 ms over a local stream, 24 ms over 20 ms of network).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import pandas as pd
import torch

import silosynth as ss
from silosynth import catalog
from silosynth.core.streams import Chain, Streams
from silosynth.deployment import silo as deployed
from silosynth.deployment.coordinator import Order, run_order
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.models.nearness import Nearness
from silosynth.privacy.sealed import seats
from silosynth.simulation.silos import InProcess

RUNS: dict[str, dict[str, Any]] = {
    "silofuse": {},
    "vtgan": {"least_rounds": 300},
    "vflgan": {"epochs": 30, "least_rounds": 0},
    "gdts": {"rounds": 20},
}
TIMED: dict[str, list[tuple[Any, str]]] = {
    "policy": [
        *((deployed.DeploymentSilo, name) for name in ("_check_ask", "_check_type", "_release")),
    ],
    "terms": [(Chain, "add"), (deployed, "encode"), (deployed.DeploymentSilo, "_agree")],
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
        self._here = threading.local()
        for name, places in TIMED.items():
            for owner, method in places:
                setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "inside", False):
                return work(*args, **kwargs)
            self._here.inside, start = True, time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - start
                self._here.inside = False

        return timed


def train(algorithm: str, folder: Path) -> tuple[int, int]:
    """One job; the number of silos, and of lines in the first one's ledger."""
    table, entry = ss.datasets.demo(), catalog.algorithm(algorithm)
    if entry.horizontal:
        held = {f"silo{k}": Rows(table.frame.iloc[k::3].reset_index(drop=True)) for k in range(3)}
    else:
        held = {silo: Rows(table.frame[list(names)]) for silo, names in table.silos.items()}
    chairs, cpu = seats(held, Streams(0)), torch.device("cpu")
    policy = SiloPolicy(algorithms=[algorithm], require_alignment=False)
    sides, books = {}, {}
    for silo, rows in held.items():
        books[silo] = SiloLedger(folder / silo, "job", chairs[silo])
        releases = Releases(folder / silo)
        sides[silo] = deployed.DeploymentSilo(
            chairs[silo], rows, policy, folder / silo, releases, cpu, book=books[silo]
        )
    config = entry.configure("fast", RUNS[algorithm])
    job = Job("job", algorithm, "fast", config, tuple(held), None, None, None, "bench")
    with InProcess(sides, folder / "checkpoints") as link:
        for silo, endpoint in link._desks.items():
            endpoint._book = books[silo]
        run_order(Order(job), link, folder / "coordinator")
    return len(held), len((folder / next(iter(held)) / "ledger.jsonl").read_text().splitlines())


def main() -> None:
    """Run all, or one."""
    options = common.parser(__doc__)
    options.add_argument("--only", choices=RUNS)
    args = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    for algorithm in [args.only] if args.only else RUNS:
        clocks.seconds.clear()
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            held, lines = train(algorithm, Path(folder))
            whole = time.process_time() - start
        shares = {f"{name}, %": round(100 * clocks.seconds[name] / whole, 2) for name in TIMED}
        together = round(100 * sum(clocks.seconds.values()) / whole, 2)
        each = 2e6 * sum(clocks.seconds.values()) / lines / held  # an exchange is two lines
        row = {"algorithm": algorithm, "lines of a ledger": lines, "job, s": round(whole, 1), **shares}
        rows.append(row | {"all, %": together, "a silo's exchange, µs": round(each)})
        print(rows[-1], flush=True)
    if not args.only:
        common.keep("safeguards", rows)


clocks = Clocks()
if __name__ == "__main__":
    main()
