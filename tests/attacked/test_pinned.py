"""A coordinator with a second certificate of the federation's own authority, which whoever provisioned can issue; and
certificates that are revoked, at either end.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from tests.attacked.desk import OPENED, Desk
from tests.runtime.toy import STREAMS, Adder

from silosynth.core.errors import PolicyError, ProtocolError, SilosynthError
from silosynth.deployment.entry import StartKit, check_coordinator
from silosynth.deployment.flare.pinning import allowed_coordinators, pin
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.revoked import Revoked, keep_list
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority, Certificates, dialled_certificate, fingerprint

pytestmark = pytest.mark.live
AUTHORITY = Authority()
RIGHT, SECOND = AUTHORITY.coordinator(), AUTHORITY.coordinator()


def of(certificates: Certificates) -> str:
    return fingerprint(x509.load_pem_x509_certificate(certificates.certificate).public_bytes(Encoding.DER))


@pytest.fixture
def impostor() -> Iterator[StreamHub]:
    hub = StreamHub(["bank"], SECOND, patience=3.0)
    yield hub
    hub.stop()


def test_a_stream_to_another_certificate_is_cut(impostor: StreamHub) -> None:
    endpoint = PartyEndpoint("bank", Adder("bank", STREAMS), None)
    with pytest.raises(ProtocolError, match="which this silo's policy does not allow"):
        serve_endpoint(
            endpoint, address=impostor.address, certs=AUTHORITY.party("bank"), patience=2.0, allowed=[of(RIGHT)]
        )


def test_no_job_opens_at_another_certificate(
    impostor: StreamHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StartKit, "certificates", lambda kit: AUTHORITY.party("bank"))
    host, _, port = impostor.address.rpartition(":")
    desk = Desk(tmp_path, OPENED + f'allow_coordinators = ["{of(RIGHT)}"]\n')
    desk.answer._kit = kit = replace(desk.kit, host=host, port=int(port))
    with pytest.raises(PolicyError, match="Policy rule 'allow_coordinators' forbids it"):
        desk.open()
    assert of(SECOND) in desk.log
    colons = ":".join(of(SECOND)[at : at + 2].upper() for at in range(0, 64, 2))  # as openssl writes it
    check_coordinator(kit, SiloPolicy(allow_coordinators=[colons]))


def test_a_certificate_of_another_authority_has_no_fingerprint_that_counts(impostor: StreamHub) -> None:
    host, _, port = impostor.address.rpartition(":")
    with pytest.raises(ProtocolError, match="shows a certificate of this federation"):
        dialled_certificate(host, int(port), Authority().party("bank"))


def a_list(number: int, *revoked: Certificates) -> bytes:
    """Signed by the authority."""
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateRevocationListBuilder().issuer_name(AUTHORITY._name).last_update(now)
    made = made.next_update(now + datetime.timedelta(days=9)).add_extension(x509.CRLNumber(number), critical=False)
    for one in revoked:
        serial = x509.load_pem_x509_certificate(one.certificate).serial_number
        named = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        made = made.add_revoked_certificate(named)
    return made.sign(AUTHORITY._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def at_site(folder: Path, *revoked: Certificates) -> Revoked:
    """What a site knows that keeps a list."""
    keep_list(folder, a_list(1, *revoked), RIGHT.authority)
    return Revoked(folder, lambda: RIGHT.authority)


def test_a_silo_streams_to_no_revoked_coordinator(impostor: StreamHub, tmp_path: Path) -> None:
    endpoint, known = PartyEndpoint("bank", Adder("bank", STREAMS), None), at_site(tmp_path, SECOND)
    with pytest.raises(ProtocolError, match="which is revoked"):
        serve_endpoint(endpoint, address=impostor.address, certs=AUTHORITY.party("bank"), patience=2.0, revoked=known)


def test_a_coordinator_streams_to_no_revoked_silo_and_cuts_one_that_becomes_so(tmp_path: Path) -> None:
    endpoint, own, known = (
        PartyEndpoint("bank", Adder("bank", STREAMS), None),
        AUTHORITY.party("bank"),
        at_site(tmp_path),
    )
    hub = StreamHub(["bank"], RIGHT, patience=3.0, revoked=known)
    serving = ThreadPoolExecutor(1)
    try:
        served = serving.submit(serve_endpoint, endpoint, address=hub.address, certs=own, patience=5.0)
        hub.wait_for_all(10.0, lambda name: None)
        keep_list(tmp_path, a_list(2, own), RIGHT.authority)
        with pytest.raises(ProtocolError, match="the certificate of 'bank' is revoked"):
            served.result(timeout=10)
    finally:
        hub.stop()
        serving.shutdown()


def test_no_job_opens_at_a_revoked_coordinator_and_the_list_comes_with_a_job(
    impostor: StreamHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StartKit, "certificates", lambda kit: AUTHORITY.party("bank"))
    monkeypatch.setattr(StartKit, "authority", lambda kit: RIGHT.authority)
    host, _, port = impostor.address.rpartition(":")
    desk = Desk(tmp_path, OPENED)
    desk.answer._kit = replace(desk.kit, host=host, port=int(port))
    desk.open(revoked=a_list(1).decode())
    assert "passed on revoked certificates: list 1" in desk.log
    with pytest.raises(ProtocolError, match="The certificate of the coordinator counts no more"):
        desk.open(revoked=a_list(2, SECOND).decode())
    with pytest.raises(ProtocolError, match="The certificate of the coordinator counts no more"):
        desk.open(revoked=a_list(1).decode())  # an older list takes nothing back
    with pytest.raises(SilosynthError):
        desk.open(revoked=a_list(3).decode()[:-80])
    assert "A list of revoked certificates is signed by this federation's authority" in desk.log


@contextlib.contextmanager
def engine(certificates: Certificates) -> Iterator[int]:
    """A server as the engine has one; its port."""
    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    pair = [(certificates.key, certificates.certificate)]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair, certificates.authority, True))
    server.start()
    try:
        yield port
    finally:
        server.stop(0)


@contextlib.contextmanager
def passing_on(ports: list[int]) -> Iterator[int]:
    """A port whose connections are passed on to these, one after the other, and to the last from then on."""
    opened = [listener := socket.create_server(("127.0.0.1", 0))]

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                opened.append(near := listener.accept()[0])
                opened.append(far := socket.create_connection(("127.0.0.1", ports[0])))
                del ports[: len(ports) > 1]
                for pair in ((near, far), (far, near)):
                    threads.append(threading.Thread(target=copy, args=pair))
                    threads[-1].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        for open_socket in opened:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for open_socket in opened:
            open_socket.close()


class TestEngine:
    """FLARE's own connection, by which jobs, and the relay's messages, arrive."""

    @pytest.fixture(autouse=True)
    def pinned(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.grpc = pytest.importorskip("grpc")
        pytest.importorskip("nvflare")
        from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver

        self.driver, self.said = grpc_driver, list[str]()
        self.trusting = grpc_driver.get_grpc_client_credentials
        for driver in (grpc_driver, aio_grpc_driver):
            monkeypatch.setattr(driver, "get_grpc_client_credentials", self.trusting)
        AUTHORITY.party("bank").write(tmp_path)
        self.paths = {"ca_cert": "ca.pem", "client_cert": "cert.pem", "client_key": "key.pem"}
        self.paths = {key: str(tmp_path / name) for key, name in self.paths.items()}
        (tmp_path / "policy.toml").write_text(f'allow_coordinators = ["{of(RIGHT)}"]\n')
        self.work = tmp_path / "work"
        pin(tmp_path, Revoked(self.work, lambda: RIGHT.authority), self.said.append)

    def connects(self, port: int, credentials: Callable[[dict[str, object]], object]) -> bool:
        found = credentials({"host": "127.0.0.1", "port": port, **self.paths})
        channel = self.grpc.secure_channel(f"127.0.0.1:{port}", found)
        try:
            self.grpc.channel_ready_future(channel).result(timeout=5)
        except self.grpc.FutureTimeoutError:
            return False
        finally:
            channel.close()
        return True

    def test_it_goes_to_the_named_certificate_and_to_no_other(self) -> None:
        with engine(RIGHT) as right, engine(SECOND) as second:
            assert self.connects(second, self.trusting)  # FLARE trusts the authority
            assert self.connects(right, self.driver.get_grpc_client_credentials)
            for _ in range(2):
                with pytest.raises(ProtocolError, match="lists under allow_coordinators"):
                    self.connects(second, self.driver.get_grpc_client_credentials)
        assert len(self.said) == 1 and of(SECOND) in self.said[0]

    def test_a_revoked_certificate_is_left_even_if_the_policy_names_it(self) -> None:
        with engine(RIGHT) as right:
            assert self.connects(right, self.driver.get_grpc_client_credentials)
            at_site(self.work, RIGHT)
            with pytest.raises(ProtocolError, match="The certificate of the coordinator counts"):
                self.connects(right, self.driver.get_grpc_client_credentials)

    def test_whoever_passes_the_check_on_fails_the_handshake(self) -> None:
        with engine(RIGHT) as right, engine(SECOND) as second:
            with passing_on([right, second]) as port:
                assert not self.connects(port, self.driver.get_grpc_client_credentials)
            with passing_on([right, second]) as port:
                checked = dialled_certificate("127.0.0.1", port, AUTHORITY.party("bank"))
                assert fingerprint(checked) == of(RIGHT)
                assert self.connects(port, self.trusting)  # without the pin: this was the gap


def test_a_kit_without_a_policy_names_no_coordinator(tmp_path: Path) -> None:
    assert allowed_coordinators(tmp_path) == []
    (tmp_path / "policy.toml").write_text("least_rows = 10\n")
    assert allowed_coordinators(tmp_path) == []
