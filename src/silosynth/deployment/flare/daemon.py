"""Run a site in the foreground: FLARE's main process is a child that is watched, told to leave, and started again.

While a party is not connected, `connection_problem` dials the coordinator with the kit's certificate to find out why.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from silosynth.core.errors import ProtocolError, StorageError
from silosynth.core.files import locked, storage_error
from silosynth.deployment.flare import require_flare
from silosynth.deployment.flare.site import (
    CONNECTED,
    ENGINE,
    KIT,
    NOTICES,
    REFUSED,
    WORKSPACE,
    Site,
    revoked_at,
    site_of,
    target,
)  # fmt: skip
from silosynth.deployment.revoked import Revoked
from silosynth.runtime.link import PARTY_THREADS, exit_name

_SECONDS = 5.0  # for dialling
_EXPIRED = 10  # OpenSSL's number for it


def connection_problem(place: Site) -> str:
    """A phrase on why the coordinator cannot be reached, as far as can be seen from here."""
    startup = place.kit / ENGINE / "startup"
    host, _, port = target(startup).rpartition(":")
    try:
        return _dial(host, int(port), startup, revoked_at(place))
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return f"the certificate of the coordinator at {host}:{port}, or of the authority, has expired"
        return f"the coordinator at {host}:{port} has a certificate from another provisioning ({error.verify_message})"
    except ssl.SSLError as error:
        if "EXPIRED" in (error.reason or ""):
            return f"this kit's certificate has expired: the coordinator at {host}:{port} does not accept it"
        return f"the coordinator at {host}:{port} does not accept this kit's certificate ({error.reason or error})"
    except ConnectionRefusedError:
        return f"nobody listens at {host}:{port}"
    except socket.gaierror:
        return f"the name {host!r} is not known here"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error.strerror or error})"


def _dial(host: str, port: int, startup: Path, revoked: Revoked) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # FLARE checks the name in the certificate, not the host name
    context.load_verify_locations(startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), _SECONDS) as plain, context.wrap_socket(plain) as secure:
        if revoked(secure.getpeercert(binary_form=True) or b""):
            return f"the certificate of the coordinator at {host}:{port} is revoked"
        secure.settimeout(1.0)
        try:
            if not secure.recv(1):  # whether our certificate is accepted shows only on the first read
                return f"the coordinator at {host}:{port} hangs up"
        except TimeoutError:
            pass
        return f"the coordinator at {host}:{port} is there and has not let us in yet"


Say = Callable[[str], None]
_POLL = 0.5  # seconds between checks of the child
_GOODBYE = 10.0  # seconds for the child to end after it was told to
_EARLY = 20.0  # seconds; a child that ends sooner counts as failed
_TRIES = 5  # failed children in a row before giving up
_REFUSALS, _AGAIN = 2, 15.0  # a party's previous process may hold its place for some seconds
_PATIENCE = 10.0  # seconds without a connection after which the reason is reported
_REPEAT = 60.0  # seconds after which the same reason is reported again


def serve_coordinator(
    kit: Path | str, *, workspace: Path | str | None = None, say: Say, stop: threading.Event | None = None
) -> None:
    """Run the coordinator until Ctrl-C, SIGTERM or ``stop``; leaves no process behind.

    Args:
        kit: the coordinator's kit; never written to.
        workspace: folder for work files and logs; ``kit/work`` if not given.
        say: called with one line per event.
        stop: ends it as well.

    Raises:
        UnavailableError: FLARE is not installed.
        StorageError: there is no kit, or the workspace is unusable or in use.
        ProtocolError: the engine keeps failing.
    """
    _serve(site_of(kit, workspace), "server", "", say, stop or threading.Event())


def serve_party(
    kit: Path | str, *, workspace: Path | str | None = None, say: Say, stop: threading.Event | None = None
) -> None:
    """Run a party until Ctrl-C, SIGTERM or ``stop``; leaves no process behind. See `serve_coordinator`."""
    place = site_of(kit, workspace)
    _serve(place, "client", party_name(place), say, stop or threading.Event())


def party_name(place: Site) -> str:
    """The name of the party whose kit this is.

    Raises:
        StorageError: it is not a party's kit.
    """
    try:
        config = json.loads((place.kit / "engine" / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        return str(config["client"]["fqsn"])
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(
            "The folder holds a party's start kit", str(place.kit), "Name the party's folder."
        ) from error


def _serve(place: Site, role: str, name: str, say: Say, stop: threading.Event) -> None:
    require_flare()
    place.check()
    rule, remedy = "A workspace belongs to one running site", "The site is running already: stop it first."
    with locked(place.root / "lock", StorageError(rule, str(place.workspace), remedy)), _signals(stop):
        place.prepare()
        early = refused = 0
        while not stop.is_set():
            begun, child = time.monotonic(), _Child(place, role, name, say)
            code = child.run(stop)
            if stop.is_set():
                return
            refused = refused + 1 if child.refused else 0
            early = early + 1 if time.monotonic() - begun < _EARLY else 0
            if refused >= _REFUSALS:
                raise ProtocolError(
                    f"The coordinator accepts {name!r}", "it refuses", "Is this party running elsewhere as well?"
                )
            if early >= _TRIES:
                raise ProtocolError(
                    "The engine keeps running", _last_error(place) or f"exit code {code}", _log_hint(place)
                )
            say(f"the engine ended ({exit_name(code)}); starting it again. {_log_hint(place)}")
            stop.wait(_AGAIN if refused else min(2.0**early, 30.0))


class _Child:
    """FLARE's main process, and its notices."""

    def __init__(self, place: Site, role: str, name: str, say: Say) -> None:
        self._place, self._role, self._say = place, role, say
        self._argv = [sys.executable, "-m", "silosynth.deployment.flare.engine", role, *([name] if name else [])]
        self.refused, self._connected = False, role == "server"
        self._asked = self._told = time.monotonic()
        self._why = ""

    def run(self, stop: threading.Event) -> int:
        """Start it, pass on its notices, and end it on ``stop``; returns its exit code."""
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as notices:
            process = self._start(writing)
            try:
                self._listen(process, notices, stop)
            finally:
                _end(process)
        return process.returncode

    def _start(self, writing: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            KIT: str(self._place.kit),
            WORKSPACE: str(self._place.workspace),
            NOTICES: str(writing),
            "OMP_NUM_THREADS": str(PARTY_THREADS),
            "MKL_NUM_THREADS": str(PARTY_THREADS),
            "PYTHONWARNINGS": "ignore",  # FLARE's own
            "PYTHONSAFEPATH": "1",  # nothing is imported from the folder in which jobs are unpacked
        }
        try:
            with open(self._place.root / "console.txt", "wb") as console:
                return subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    cwd=self._place.root,
                    env=environment,
                    pass_fds=(writing,),
                    start_new_session=True,  # Ctrl-C goes to this process, which then ends the child properly
                )
        except OSError as error:
            raise storage_error(error, "written", self._place.root) from error
        finally:
            os.close(writing)

    def _listen(self, process: subprocess.Popen[bytes], notices: BinaryIO, stop: threading.Event) -> None:
        rest = b""
        while process.poll() is None and not stop.is_set():
            if select.select([notices], [], [], _POLL)[0]:
                *lines, rest = (rest + os.read(notices.fileno(), 65536)).split(b"\n")
                for line in lines:
                    self._tell(line.decode("utf-8", "replace"))
            elif not self._connected and time.monotonic() - self._asked > _PATIENCE:
                self._explain()

    def _explain(self) -> None:
        """Report why there is no connection; the same reason once a minute."""
        self._asked, why = time.monotonic(), connection_problem(self._place)
        if why != self._why or self._asked - self._told > _REPEAT:
            self._say(f"not connected yet: {why}")
            self._why, self._told = why, self._asked

    def _tell(self, line: str) -> None:
        self._connected = self._connected or line == CONNECTED
        self.refused = self.refused or line == REFUSED
        self._say(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it; its jobs' processes end with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set ``stop``; possible in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_error(place: Site) -> str:
    """The engine's last error line, which says why it ended."""
    for path in (place.log, place.root / "console.txt"):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        for line in reversed(lines[-50:]):
            if "ERROR" in line or "Error" in line:
                return line.strip()[-200:]
    return ""


def _log_hint(place: Site) -> str:
    return f"Its log is {place.log}."
