"""Exchanges over FLARE's relay, as deployed: mutual TLS on loopback, a coordinator and two silos.

    python benchmarks/flare_exchanges.py
    python benchmarks/flare_exchanges.py --exchanges 1000 --schemes grpc tcp

One exchange sends 500 × 128 float32 (256 KB) to both silos and gets one back from each. "ours" is what algorithms use:
messages, frames and the hub. "bare" is Collab's own group call with as many bytes, in the same job. The last column is
50 MB of latents from one silo.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

from silosynth.core.conversation import COORDINATOR, Roster
from silosynth.core.messages import Message
from silosynth.deployment.flare.console import FINISHED, Console
from silosynth.deployment.flare.daemon import serve_coordinator, serve_party
from silosynth.deployment.flare.provisioning import Project, provision
from silosynth.deployment.flare.site import ENTRY
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import ASK, REPLY, Frame, frame_from_bytes
from silosynth.runtime.link import Remote
from silosynth.runtime.wire import encode

PARTIES = ("bank", "clinic")
BATCH, WIDTH = 500, 128
LATENTS = 97_657  # rows of 128 float32: 50 MB
WARM = 10


class Batch(Message):
    rows: int  # how many to answer with
    z_NL: torch.Tensor


class Echo:
    """Answers a batch with one of the size that it asks for."""

    def answer(self, ask: Batch) -> Batch:
        return Batch(0, ask.z_NL if len(ask.z_NL) == ask.rows else torch.zeros(ask.rows, WIDTH))


def answerer(job: str, kit: Path, workspace: Path, submitter: str) -> Callable[[bytes], bytes]:
    """What silos run."""
    desk = PartyEndpoint(kit.name, Echo(), None)  # type: ignore[arg-type]

    def answer(data: bytes) -> bytes:
        frame = frame_from_bytes(data)
        return Frame(REPLY, frame.job, frame.step, kit.name, desk.answer(frame.job, frame.step, frame.body)).to_bytes()

    return answer


def coordinate(payload: bytes, hub: Any, workspace: Path, job: str) -> None:
    """What the coordinator runs."""
    exchanges, runs = json.loads(payload)
    batch = Batch(BATCH, torch.zeros(BATCH, WIDTH))
    rows: dict[str, list[float]] = {"ours": [], "bare": []}
    first = 10**6  # both number their frames; a silo takes those only that are higher than the last one's
    for _ in range(runs):
        ask = _ours(hub, first)
        rows["ours"] += _times(lambda ask=ask: ask(dict.fromkeys(PARTIES, batch)), exchanges)
        rows["bare"] += _times(_bare(batch, 2 * first), exchanges)
        first *= 3
    ask = _ours(hub, first)
    latents = _times(lambda: ask({"bank": Batch(LATENTS, torch.zeros(1, WIDTH))}), 3, warm=1)
    (workspace / "times.json").write_text(json.dumps({**rows, "latents": latents}))


def _ours(hub: Any, first: int) -> Callable[[dict[str, Message]], object]:
    """Exchanges as algorithms have them."""
    link = Remote(Roster(PARTIES), type(hub)(hub.lines, first=first))
    link.begin()
    steps = itertools.count(1)
    return lambda asks: link.exchange(next(steps), asks)


def _bare(batch: Batch, first: int) -> Callable[[], None]:
    """Collab's own way: the group call, with a ready frame."""
    from nvflare.collab import collab

    blob, numbers, clients = encode(batch), itertools.count(first), collab.clients

    def exchange() -> None:
        number = next(numbers)
        frame = Frame(ASK, "bare", number, COORDINATOR, blob)
        assert len(dict(clients(timeout=30.0).answer(number=number, frame=frame.to_bytes()))) == len(PARTIES)

    return exchange


def _times(work: Callable[[], object], times: int, warm: int = WARM) -> list[float]:
    return [common.seconds(work) for _ in range(times + warm)][warm:]


def measure(scheme: str, exchanges: int, runs: int, folder: Path) -> dict[str, list[float]]:
    """Deploy, run one job, and take down."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    provision(Project("benchmark", "127.0.0.1", port, PARTIES, ["operator"], scheme=scheme), folder)
    sites = [_start(name, folder) for name in (COORDINATOR, *PARTIES)]
    try:
        time.sleep(5)
        with Console(folder / "operator", limit=60) as console:
            console.wait_for_parties(PARTIES, 60)
            job = console.submit(json.dumps([exchanges, runs]).encode(), PARTIES, "exchanges")
            state = console.wait(job, 600)
            assert state == FINISHED, console.describe(job)
    finally:
        for site in sites:
            site.terminate()
        for site in sites:
            site.wait()
    times: dict[str, list[float]] = json.loads((folder / COORDINATOR / "work" / "times.json").read_text())
    return times


def _start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    entry = "coordinate" if name == COORDINATOR else "answerer"
    return subprocess.Popen(
        [sys.executable, __file__, "--site", name, str(folder / name)],
        env={**os.environ, "PYTHONPATH": here, ENTRY: f"flare_exchanges:{entry}"},
        start_new_session=True,
    )


def main() -> None:
    """Measure each scheme."""
    parser = common.parser(__doc__)
    parser.add_argument("--exchanges", type=int, default=300, help="in each of the runs, which take turns")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--schemes", nargs="*", default=["grpc", "tcp"])
    parser.add_argument("--site", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site:
        serve = serve_coordinator if options.site[0] == COORDINATOR else serve_party
        serve(options.site[1], say=lambda line: None, stop=threading.Event())
        return
    rows = []
    for scheme in options.schemes:
        with tempfile.TemporaryDirectory() as folder:
            times = measure(scheme, options.exchanges, options.runs, Path(folder))
        for name in ("ours", "bare"):
            taken = np.array(times[name])
            each = [1 / part.mean() for part in np.split(taken, options.runs)]
            rows.append(
                {
                    "scheme": scheme,
                    "path": name,
                    "exchanges/s (median of runs)": float(np.median(each)),
                    "p50 ms": 1e3 * float(np.median(taken)),
                    "p95 ms": 1e3 * float(np.quantile(taken, 0.95)),
                    "50 MB up, s": float(np.median(times["latents"])) if name == "ours" else "",
                }
            )
    load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; read ratios."
    common.keep("flare_exchanges", rows, above=load)


if __name__ == "__main__":
    main()
