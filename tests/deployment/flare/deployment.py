"""A federation of operating-system processes on loopback: start sites, read what they say, end them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from silosynth.core.conversation import COORDINATOR
from silosynth.deployment.flare.provisioning import Project, provision
from silosynth.deployment.flare.site import ENTRY
from silosynth.runtime.tls import fingerprint

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class SiteProcess:
    """One site's daemon."""

    def __init__(self, name: str, kit: Path, workspace: Path | None = None) -> None:
        self.name, self.kit, self.workspace = name, kit, workspace or kit / "work"
        self.log = kit.parent / f"{self.workspace.parent.name}-{self.workspace.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> SiteProcess:
        entry = "coordinator" if self.name == COORDINATOR else "answerer"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        surroundings = {**os.environ, "PYTHONPATH": path, ENTRY: f"tests.deployment.flare.toy_flare:{entry}"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("serve_site.py")),
                    self.name,
                    str(self.kit),
                    str(self.workspace),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=surroundings,
                start_new_session=True,
            )
        return self

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def says(self, words: str, times: int = 1, seconds: float = PATIENCE) -> None:
        until(
            lambda: self.said.count(words) >= times, f"{self.name} never said {words!r}: {self.said[-2000:]}", seconds
        )

    def family(self) -> list[psutil.Process]:
        """The daemon, its engine, and the processes of its jobs."""
        assert self.process is not None
        try:
            me = psutil.Process(self.process.pid)
            return [me, *me.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def engine(self) -> psutil.Process:
        return next(one for one in self.family() if "silosynth.deployment.flare.engine" in one.cmdline())

    def end(self, number: int = signal.SIGTERM) -> list[psutil.Process]:
        """Send a signal to the daemon alone, wait for it, and return whom it leaves behind for long."""
        family = self.family()
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
        return psutil.wait_procs(family, timeout=20)[1]


def certificate_of(kit: Path) -> str:
    """The fingerprint of the certificate in the coordinator's kit."""
    pem = (kit / "engine" / "startup" / "server.crt").read_bytes()
    return fingerprint(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))


class Deployment:
    """A coordinator and two parties, provisioned in ``folder``, all running; the bank has pinned the coordinator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        provision(Project("toys", "127.0.0.1", free_port(), ["bank", "clinic"], ["alice"]), folder)
        self.coordinator = SiteProcess(COORDINATOR, folder / COORDINATOR)
        pinned = certificate_of(folder / COORDINATOR)
        (folder / "bank" / "policy.toml").write_text(f'allow_coordinators = ["{pinned}"]\n')
        self.parties = {name: SiteProcess(name, folder / name) for name in ("bank", "clinic")}

    def start(self) -> Deployment:
        for site in self.sites():
            site.start()
        for party in self.parties.values():
            party.says("connected")
        return self

    def sites(self) -> list[SiteProcess]:
        return [self.coordinator, *self.parties.values()]

    def end(self) -> None:
        for site in self.sites():
            if site.process is not None and site.process.poll() is None:
                site.process.terminate()
        for site in self.sites():
            site.end()
