"""Hosts: this machine, or namespaces that are machines of their own as far as the network goes (Linux, as root)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from tests.deployment import wire as wires


def available() -> bool:
    """Whether namespaces can be made here."""
    if os.name != "posix" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("ss")):
        return False
    name = f"probe-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


class Host:
    """This machine, on loopback."""

    address = "127.0.0.1"
    prefix: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """A command of this host in the background."""
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, command: Sequence[str], seconds: float = 200) -> subprocess.CompletedProcess[str]:
        """A command of this host, to its end."""
        return subprocess.run([*self.prefix, *command], capture_output=True, text=True, timeout=seconds)

    def processes(self) -> list[psutil.Process]:
        """All that was started here and still runs."""
        found = []
        for child in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.poll() is None:
                    parent = psutil.Process(child.pid)
                    found += [parent, *parent.children(recursive=True)]
        return found

    def clear(self) -> None:
        """End whatever still runs here."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=20)
        for child in self._started:
            child.wait(20)


class Namespace(Host):
    """One namespace, with an address on the bridge."""

    def __init__(self, namespace: str, wire: str, name: str, address: str) -> None:
        super().__init__()
        self.namespace, self._wire, self.name, self.address = namespace, wire, name, address
        self.prefix = ("ip", "netns", "exec", namespace)

    def listening(self) -> list[str]:
        """Where somebody waits for connections from elsewhere."""
        lines = self.run(["ss", "-Hltn"]).stdout.splitlines()
        return [place for line in lines if not (place := line.split()[3]).startswith(("127.", "[::1]"))]

    def link(self, state: str) -> None:
        """Pull the plug ("down"), or put it in again ("up")."""
        _ip("-n", self._wire, "link", "set", self.name, state)

    def processes(self) -> list[psutil.Process]:
        """All that run here."""
        found = []
        for pid in _ip("netns", "pids", self.namespace).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Nothing here gets on."""
        halted = self.processes()
        try:
            for process in halted:
                process.suspend()
            yield
        finally:
            for process in halted:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()


@contextlib.contextmanager
def network(names: Sequence[str], delay: float = 0.0, loss: float = 0.0) -> Iterator[dict[str, Namespace]]:
    """Hosts that reach each other, and nobody else; all is taken down at the end.

    Args:
        names: of the hosts.
        delay: seconds that a frame takes from one to another.
        loss: share of the frames that never arrive.
    """
    tag = f"silo{secrets.token_hex(3)}"
    wire = f"{tag}-wire"
    hosts = {name: Namespace(f"{tag}-{name}", wire, name, f"10.77.0.{k}") for k, name in enumerate(names, start=1)}
    far, line = bool(delay or loss), Host()
    line.prefix = ("ip", "netns", "exec", wire)
    try:
        _ip("netns", "add", wire)
        if not far:
            _ip("-n", wire, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", wire, "link", "set", "bridge0", "up")
        for host in hosts.values():
            _ip("netns", "add", host.namespace)
            _ip("-n", wire, "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", wire, "link", "set", host.name, *(() if far else ("master", "bridge0")), "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            if far:
                host.run([sys.executable, wires.__file__, "plain", "eth0"])
        if far:
            line.start([sys.executable, wires.__file__, "carry", str(delay), str(loss), *names], Path(os.devnull))
        yield hosts
    finally:
        line.clear()
        for host in hosts.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                host.clear()
        for namespace in (*(host.namespace for host in hosts.values()), wire):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
