"""A coordinator with a second certificate of the federation's own authority, which whoever provisioned can issue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.attacked.desk import OPENED, Desk
from tests.runtime.toy import STREAMS, Adder

from silosynth.core.errors import PolicyError, ProtocolError
from silosynth.deployment.entry import StartKit, check_coordinator
from silosynth.deployment.policy import SiloPolicy
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority, Certificates, dialled_fingerprint, fingerprint

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
        dialled_fingerprint(host, int(port), Authority().party("bank"))
