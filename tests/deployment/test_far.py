"""A federation on bad lines: frames take long and get lost, the coordinator is behind a proxy, and plugs are pulled."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests import postgres
from tests.deployment import wire
from tests.deployment.abroad import SILOFUSE, VTGAN, Abroad
from tests.deployment.common import two_silos
from tests.deployment.network import Namespace, available, network
from tests.postgres import READER, READER_PASSWORD

from silosynth.core.conversation import COORDINATOR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="network namespaces need Linux, root, ip and ss"),
    pytest.mark.timeout(2400),
]
DELAY, LOSS = 0.04, 0.01
"""Seconds for one way, and the share of frames that are lost: a bad line across an ocean."""
GATE, VAULT = "gate", "vault"


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Namespace]]:
    with network([COORDINATOR, GATE, VAULT, "bank", "shop"], DELAY, LOSS) as hosts:
        made = Abroad(tmp_path_factory.mktemp("far"), hosts, gate=GATE)
        ports = (str(made.port), str(made.port + 1))
        passes = [sys.executable, wire.__file__, "gate", hosts[COORDINATOR].address, *ports]
        hosts[GATE].start(passes, Path(os.devnull))
        made.provision()
        made.everybody()
        yield made


@pytest.fixture(scope="module")
def table(far: Abroad[Namespace]) -> str:
    """That of a job by the relay."""
    far.submit("relayed", SILOFUSE)
    assert far.done("relayed").attempts == 1
    return far.table("shop", "relayed")


CONNECT = """import socket, time
begun = time.monotonic()
socket.create_connection(("{}", {}), 60)
print(time.monotonic() - begun)"""


def test_the_line_is_bad(far: Abroad[Namespace]) -> None:
    asked = CONNECT.format(far.hosts[COORDINATOR].address, far.port)
    done = [far.hosts["bank"].run([sys.executable, "-c", asked]) for _ in range(3)]
    assert all(float(one.stdout or "0") >= 2 * DELAY for one in done), done


def test_relay_and_stream_give_the_same_table(far: Abroad[Namespace], table: str) -> None:
    far.submit("streamed", SILOFUSE, transport="stream")
    assert far.done("streamed").attempts == 1
    assert {far.table(name, "streamed") for name in (COORDINATOR, "bank", "shop")} == {table}


def test_a_silo_that_is_cut_off_on_the_way_goes_on(far: Abroad[Namespace]) -> None:
    options = VTGAN.format(epochs=20)
    far.submit("whole", options, transport="stream")
    far.done("whole")
    far.submit("cut", options, transport="stream")
    far.wait("cut", lambda now: "training" in now.stage and now.done > 3)
    far.hosts["shop"].link("down")
    time.sleep(20)
    far.hosts["shop"].link("up")
    far.done("cut", 900)
    assert far.table("bank", "cut") == far.table("shop", "cut") == far.table("bank", "whole")


def test_a_proxy_that_ends_connections_is_dialled_again(far: Abroad[Namespace], table: str) -> None:
    far.submit("gated", SILOFUSE, transport="stream")
    far.wait("gated", lambda now: now.stage == "autoencoders")
    (process,) = [one for one in far.hosts[GATE].processes() if "gate" in one.cmdline()]
    words = process.cmdline()
    process.kill()
    process.wait(20)
    far.hosts[GATE].start(words, Path(os.devnull))
    far.done("gated", 900)
    assert far.table("bank", "gated") == table


def test_a_silo_reads_from_a_database_at_another_host(far: Abroad[Namespace], table: str) -> None:
    """By TLS, as a user who may read its columns alone; the same rows, and the same table."""
    frame, kit = two_silos()["bank"].frame, far.kits / "bank"
    values = ", ".join(str(row) for row in frame.itertuples(index=False, name=None))
    with postgres.running(far.hosts[VAULT]) as server:
        server.run(
            "CREATE TABLE customers (customer text, age bigint, income float8, iban text)",
            f"INSERT INTO customers (customer, age, income) VALUES {values}",
            f"GRANT SELECT (customer, age, income) ON customers TO {READER}",
        )
        (kit / "secret").touch(0o600)
        (kit / "secret").write_text(READER_PASSWORD)
        authority = kit / "crm.pem"
        authority.write_bytes(server.authority.read_bytes())
        before = (kit / "silo.toml").read_text()
        (kit / "silo.toml").write_text(
            f'[data]\ndatabase = "{server.url}?sslmode=verify-ca&sslrootcert={authority}&connect_timeout=10"\n'
            f'table = "customers"\ncolumns = {list(frame.columns)!r}\nidentifiers = ["customer"]\n'
            f'user = "{READER}"\npassword_file = "secret"\n'
        )
        try:
            checked = far.command("bank", "check", "--kit", str(kit))
            assert checked.returncode == 0, checked.stdout + checked.stderr
            far.submit("asked", SILOFUSE)
            far.done("asked")
            assert {far.table(name, "asked") for name in ("bank", "shop")} == {table}
            far.hosts[VAULT].link("down")
            far.submit("unplugged", SILOFUSE)
            ended = far.wait("unplugged", lambda now: now.state in ("failed", "suspended"))
        finally:
            far.hosts[VAULT].link("up")
            (kit / "silo.toml").write_text(before)
    assert server.address not in ended.error and str(server.port) not in ended.error and READER not in ended.error
    own = (kit / "work" / "jobs" / "unplugged" / "log.txt").read_text()
    assert f"The server must answer in time (got: {server.address}:{server.port}/crm)" in own
