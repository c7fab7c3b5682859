"""Throw-away certificates for one run: an authority, the coordinator's certificate, and one per party.

A party's identity is the common name of its certificate. The authority's key is never written; it dies with the run.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from silosynth.core.files import read
from silosynth.core.roster import COORDINATOR

_LIFE = datetime.timedelta(days=30)
_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """What one side needs to prove who it is and to check the other: three PEM texts."""

    authority: bytes
    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> None:
        """Write the three files; the key can be read by its owner only."""
        (folder / "ca.pem").write_bytes(self.authority)
        (folder / "cert.pem").write_bytes(self.certificate)
        with os.fdopen(os.open(folder / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.key)

    @classmethod
    def read(cls, folder: Path) -> Certificates:
        """What `write` wrote.

        Raises:
            StorageError: a file is missing.
        """
        return cls(read(folder / "ca.pem"), read(folder / "cert.pem"), read(folder / "key.pem"))


class Authority:
    """Signs certificates for one run. Keys come from the operating system's randomness."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("silosynth run")
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def coordinator(self) -> Certificates:
        """For the side that listens, on this machine only."""
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        )
        return self._issue(COORDINATOR, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def party(self, name: str) -> Certificates:
        """For the party called ``name``, which dials out."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, hosts: x509.SubjectAlternativeName | None
    ) -> Certificates:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(name), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        )
        if hosts is not None:
            builder = builder.add_extension(hosts, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificates(_pem(self._certificate), _pem(signed), _private(key))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
