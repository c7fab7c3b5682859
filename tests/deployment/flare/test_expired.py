"""Why a silo is not connected: certificates that have expired are called so, and not those of another provisioning."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from silosynth.deployment.flare import daemon
from silosynth.deployment.flare.site import Site
from silosynth.runtime import tls
from silosynth.runtime.tls import Authority, Certificates

pytestmark = pytest.mark.live


@contextmanager
def listening(folder: Path, own: Certificates) -> Iterator[int]:
    """A coordinator that asks for certificates; yields its port."""
    own.write(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                    secure.settimeout(5.0)
                    secure.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("expired", "stranger", "told"),
    [
        ("coordinator", False, "the certificate of the coordinator at 127.0.0.1:{}, or of the authority, has expired"),
        ("party", False, "this kit's certificate has expired: the coordinator at 127.0.0.1:{} does not accept it"),
        ("", True, "the coordinator at 127.0.0.1:{} has a certificate from another provisioning"),
        ("", False, "the coordinator at 127.0.0.1:{} is there and has not let us in yet"),
    ],
)
def test_the_reason_is_said(
    expired: str, stranger: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, made = Authority(), dict[str, Certificates]()
    for who in ("coordinator", "party"):
        with monkeypatch.context() as patch:
            if who == expired:
                patch.setattr(tls, "_LIFE", -datetime.timedelta(minutes=1))
            made[who] = authority.coordinator() if who == "coordinator" else authority.party("bank")
    startup = tmp_path / "kit" / "engine" / "startup"
    startup.mkdir(parents=True)
    trusted = Authority().party("bank").authority if stranger else made["party"].authority
    for name, content in (
        ("rootCA.pem", trusted), ("client.crt", made["party"].certificate), ("client.key", made["party"].key)
    ):  # fmt: skip
        (startup / name).write_bytes(content)
    (tmp_path / "server").mkdir()
    with listening(tmp_path / "server", made["coordinator"]) as port:
        monkeypatch.setattr(daemon, "target", lambda startup: f"127.0.0.1:{port}")
        assert daemon.connection_problem(Site(tmp_path / "kit", tmp_path / "work")).startswith(told.format(port))
