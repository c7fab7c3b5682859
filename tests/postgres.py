"""A throw-away PostgreSQL server for tests, on loopback or at a host of a network that tests have made.

It asks for passwords, and is gone when the tests are.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from silosynth.runtime.tls import Authority

if TYPE_CHECKING:
    from tests.deployment.network import Host

LOOPBACK = "127.0.0.1"
ADMIN, ADMIN_PASSWORD = "keeper", "Kp-4471-open"
READER, READER_PASSWORD = "silo_reader_7", "s3cr3t' \\ p@ss:w/ord"


@dataclass(frozen=True)
class Postgres:
    """A running server with one database, an owner of everything, and a user without any rights but to connect."""

    port: int
    authority: Path
    """Who signed its certificate."""
    address: str = LOOPBACK
    inside: str = LOOPBACK
    """Where the owner connects: an address, or the folder of a socket."""

    @property
    def url(self) -> str:
        return f"postgresql://{self.address}:{self.port}/crm"

    def run(self, *statements: str) -> None:
        """Execute statements as the owner."""
        driver = pytest.importorskip("adbc_driver_postgresql.dbapi")
        with closing(_connect(driver, self.inside, self.port, "crm")) as connection:
            with closing(connection.cursor()) as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them off the path."""
    found = shutil.which("postgres")
    folders = [Path(found).parent] if found else []
    folders += [Path(name) for name in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def running(at: Host | None = None) -> Iterator[Postgres]:
    """A server, from nothing, in a folder of its own, on loopback or at a host. Skips where there is no PostgreSQL."""
    programs, driver = binaries(), pytest.importorskip("adbc_driver_postgresql.dbapi")
    account = _account()
    if programs is None or account is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        _make_cluster(programs, folder, account)
        address, inside = (LOOPBACK, LOOPBACK) if at is None else (at.address, str(folder))
        if at is not None:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("hostssl all all samenet scram-sha-256\n")
        server, port = _serve(programs, folder, account, driver, at)
        try:
            yield Postgres(port, folder / "ca.pem", address, inside)
        finally:
            server.terminate()  # "smart" would wait for clients; the tests have closed theirs
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(
    programs: Path, folder: Path, account: dict[str, Any], driver: Any, at: Host | None
) -> tuple[subprocess.Popen[bytes], int]:  # fmt: skip
    """A server that answers, and its port: another one where another program took the first in the meantime."""
    prefix: list[str] = []
    if at is not None:  # another network is entered by root alone
        who = ["--reuid", str(account["user"]), "--regid", str(account["group"]), "--clear-groups"] if account else []
        prefix, account = [*at.prefix, "setpriv", *who], {}
    for _ in range(5):
        port = _free_port()
        settings = {
            "listen_addresses": LOOPBACK if at is None else at.address,
            "unix_socket_directories": "" if at is None else str(folder), "fsync": "off", "max_connections": "20",
            "shared_buffers": "8MB", "port": str(port), "ssl": "on", "ssl_cert_file": str(folder / "cert.pem"),
            "ssl_key_file": str(folder / "key.pem"),
        }  # fmt: skip
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with open(folder / "log", "wb") as log:
            command = [*prefix, str(programs / "postgres"), "-D", str(folder / "data"), *options]
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **account)
        try:
            _wait(driver, LOOPBACK if at is None else str(folder), port, server, folder / "log")
            return server, port
        except AssertionError:
            server.kill()
            server.wait()
            if "Address already in use" not in (folder / "log").read_text():
                raise
    raise AssertionError("no port was free five times")


def _account() -> dict[str, Any] | None:
    """As whom to start the server, which refuses root: the package's own user then. None if there is none."""
    if os.geteuid() != 0:
        return {}
    import pwd

    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        return None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _make_cluster(programs: Path, folder: Path, account: dict[str, Any]) -> None:
    (folder / "password").write_text(ADMIN_PASSWORD)
    Authority().coordinator().write(folder)
    if account:
        for path in (folder, *folder.iterdir()):
            os.chown(path, account["user"], account["group"])
    words = ["-U", ADMIN, "-A", "scram-sha-256", "--pwfile", str(folder / "password")]
    command = [str(programs / "initdb"), "-D", str(folder / "data"), *words, "--no-sync", "-E", "UTF8", "--locale=C"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, **account)
    assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(driver: Any, place: str, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers; then make the database and the user."""
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            connection = _connect(driver, place, port, "postgres", autocommit=True)
            break
        except driver.OperationalError:
            time.sleep(0.05)
    else:
        raise AssertionError(log.read_text())
    password = READER_PASSWORD.replace("'", "''")
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute("CREATE DATABASE crm")
        cursor.execute(f"CREATE ROLE {READER} LOGIN PASSWORD '{password}'")


def _connect(driver: Any, place: str, port: int, database: str, autocommit: bool = False) -> Any:
    words = f"host={place} port={port} dbname={database} user={ADMIN} password={ADMIN_PASSWORD}"
    return driver.connect(words, autocommit=autocommit)
