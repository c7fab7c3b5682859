"""A federation of hosts, run by the commands that operators use."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
import psutil
from tests.deployment.common import two_silos
from tests.deployment.network import Host

from silosynth.core.conversation import COORDINATOR
from silosynth.deployment.coordinator import STATUS, Status, read_status

PATIENCE = 240.0
VTGAN = """width = 16
generator_width = 16
noise = 8
batch = 30
epochs = {epochs}
least_rounds = 1
encoders.modes = 3
"""
SILOFUSE = """coder.steps = 30
coder.hidden = [16]
coder.batch = 32
latent.steps = 40
latent.width = 16
latent.batch = 32
"""


def until(true: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


H = TypeVar("H", bound=Host)


class Abroad(Generic[H]):
    """A coordinator, a bank and a shop, each at its host.

    Args:
        folder: for kits and logs.
        hosts: by name.
        port: of the coordinator; the next one is the stream's.
        gate: the host at which silos reach the coordinator, if it is another one.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, H], port: int = 8002, gate: str = COORDINATOR) -> None:
        self.folder, self.hosts, self.port, self.gate = folder, hosts, port, gate
        self.kits = folder / "kits"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, host: str, *words: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a silosynth command at a host, to its end."""
        return self.hosts[host].run(self.words(*words), seconds)

    def words(self, *words: str) -> list[str]:
        """A command, as a host runs it."""
        return [sys.executable, "-m", "silosynth", *words]

    def provision(self, *options: str) -> None:
        """Write kits, tables and settings of silos."""
        plan = self.folder / "federation.toml"
        address = self.hosts[self.gate].address
        plan.write_text(
            f'name = "riverbank"\noperators = ["alice"]\n[coordinator]\nhost = "{address}"\nport = {self.port}\n'
            f"stream_port = {self.port + 1}\n[silos.bank]\n[silos.shop]\n"
        )
        done = self.command(COORDINATOR, "provision", str(plan), "--out", str(self.kits), *options)
        assert done.returncode == 0, done.stderr
        for name, rows in two_silos().items():
            kit = self.kits / name
            rows.frame.to_csv(kit / "customers.csv", index=False)
            (kit / "silo.toml").write_text('[data]\npath = "customers.csv"\nidentifiers = ["customer"]\n')
            (kit / "policy.toml").write_text("least_rows = 10\npublic_seed = true\nkeyed_hash = true\n")

    def log(self, name: str) -> Path:
        """What a daemon says."""
        return self.folder / f"{name}.log"

    def start(self, name: str, path: str = "") -> None:
        """Start the daemon of the coordinator or a silo; with ``path``, of the silosynth in that folder."""
        role = "coordinator" if name == COORDINATOR else "party"
        words = ["env", f"PYTHONPATH={path}"] if path else []
        words += self.words(role, "start", "--kit", str(self.kits / name))
        self.running[name] = self.hosts[name].start(words, self.log(name))

    def says(self, name: str, words: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Wait for a line in a daemon's log."""
        said = lambda: self.log(name).read_text() if self.log(name).exists() else ""  # noqa: E731
        until(lambda: said().count(words) >= times, lambda: f"{name} never said {words!r}: {said()[-3000:]}", seconds)

    def everybody(self) -> None:
        """Start all, and wait until they are connected."""
        for name in (COORDINATOR, "bank", "shop"):
            self.start(name)
        for name in ("bank", "shop"):
            self.says(name, " connected\n")

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to a daemon, and wait until it and its processes have left."""
        process = self.running.pop(name)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.wait(60)
        until(lambda: not any(one.is_running() for one in family), lambda: f"{name} leaves processes behind", 60)

    def submit(self, job: str, options: str, *, at: str = COORDINATOR, then: str = "", **run: Any) -> None:
        """Submit an experiment, by the coordinator's kit or from alice's machine; ``then`` is added to its file."""
        algorithm = "vtgan" if "generator_width" in options else "silofuse"
        method = run.pop("method", "keyed-hash")
        extra = "".join(f"{key} = {value!r}\n" for key, value in run.items())
        place = self.folder / f"{job}.toml"
        place.write_text(
            f'[algorithm]\nname = "{algorithm}"\npreset = "fast"\nseed = 7\n[algorithm.options]\n{options}\n'
            f'[align]\nmethod = "{method}"\n[sample]\nrows = 50\n[run]\nname = "{job}"\n{extra}{then}'
        )
        kit = self.kits / ("alice" if at != COORDINATOR else COORDINATOR)
        done = self.command(at, "submit", str(place), "--kit", str(kit), "--no-wait")
        assert done.returncode == 0, done.stderr

    def status(self, job: str) -> Status:
        """How far a job is, at the coordinator."""
        folder = self.kits / COORDINATOR / "work" / "jobs" / job
        return read_status(folder) if (folder / STATUS).exists() else Status()

    def checkpoint(self, job: str) -> None:
        """Wait for a job's first checkpoint."""
        folder = self.kits / COORDINATOR / "work" / "jobs" / job / "coordinator"
        until(lambda: any(folder.glob("*.ckpt")), lambda: self.logs(job))

    def wait(self, job: str, true: Callable[[Status], bool], seconds: float = PATIENCE) -> Status:
        """Wait for a job's status to be so."""
        until(lambda: true(self.status(job)), lambda: f"{self.status(job)}\n{self.logs(job)}", seconds)
        return self.status(job)

    def done(self, job: str, seconds: float = 600) -> Status:
        """Wait for a job's end, which must be a good one."""
        ended = self.wait(job, lambda now: now.state in ("done", "failed", "suspended"), seconds)
        assert ended.state == "done", f"{ended}\n{self.logs(job)}"
        return ended

    def logs(self, job: str) -> str:
        """What everybody said."""
        paths = [*self.folder.glob("*.log"), *self.kits.glob(f"*/work/jobs/{job}/log.txt")]
        return "\n".join(f"--- {path.relative_to(self.folder)}\n{path.read_text()[-2500:]}" for path in paths)

    def table(self, name: str, job: str) -> str:
        """A hash of the synthetic table that somebody has got."""
        made = pd.read_parquet(self.kits / name / "work" / "jobs" / job / "synthetic.parquet")
        return hashlib.sha256(made.to_csv().encode()).hexdigest()
