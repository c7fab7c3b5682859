"""A federation's authority, which whoever provisions keeps offline: certificates that it issues, renews and revokes.

Its folder lies beside the kits. It holds the authority's own key, copies of all certificates (``issued``) and the
newest list of those that count no more (``revoked.crl``); no key of anybody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from silosynth.core.errors import ConfigError, StorageError, nearest
from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.deployment.flare.site import operator_name
from silosynth.deployment.revoked import FILE, RevocationList, checked_list, current_list

BITS, DAYS = 2048, 360
"""Of sites' keys, and for how long their certificates are valid."""
PADDING = padding.PKCS1v15()
_RENEW = 90  # days after which a list of revoked certificates is to be replaced by a newer one
_ISSUED = "issued"  # the folder of certificates
_STATE = "*/state/cert.json"  # where FLARE keeps the authority's key


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate that the authority has issued, and has a copy of.

    Attributes:
        name: of the silo or operator, or "coordinator".
        serial: its number.
        sha256: its fingerprint, in hexadecimal.
        ends: when it expires, in seconds since 1970.
        revoked: whether it counts no more.
    """

    name: str
    serial: int
    sha256: str
    ends: float
    revoked: bool


def record_issued(authority: Path, pem: bytes) -> None:
    """Keep a copy of a certificate with the authority.

    Raises:
        StorageError: it cannot be written.
    """
    serial = x509.load_pem_x509_certificate(pem).serial_number
    write_atomic(make_folder(authority / _ISSUED) / f"{serial:x}.crt", pem)


def record_known(authority: Path) -> None:
    """Keep copies of the certificates that an earlier version has kept among FLARE's own files.

    Raises:
        StorageError: a file cannot be read or written.
    """
    for path in authority.glob(_STATE):
        for kept in json.loads(read(path)).values():
            if isinstance(kept, dict):
                record_issued(authority, kept["cert"].encode())


def forget_keys(authority: Path) -> None:
    """Remove the private keys that FLARE has drawn for sites from what it keeps of them.

    Raises:
        StorageError: a file cannot be read or written.
    """
    for path in authority.glob(_STATE):
        state = {name: kept for name, kept in json.loads(read(path)).items() if not isinstance(kept, dict)}
        write_atomic(path, json.dumps(state).encode(), PRIVATE)


def issued_by(authority: Path) -> list[IssuedCertificate]:
    """What an authority has issued, by name and age.

    Raises:
        StorageError: a file cannot be read.
    """
    gone = _revoked(authority)
    found = [x509.load_pem_x509_certificate(read(path)) for path in (authority / _ISSUED).glob("*.crt")]
    found.sort(key=lambda one: (common_name(one), one.not_valid_before_utc))
    return [
        IssuedCertificate(
            common_name(one), one.serial_number, one.fingerprint(hashes.SHA256()).hex(),
            one.not_valid_after_utc.timestamp(), one.serial_number in gone,
        )
        for one in found
    ]  # fmt: skip


def first_certificate(asked: bytes, name: str, pattern: bytes, authority: Path, now: float) -> bytes:
    """The certificate that a site gets with its first kit, for the key that it has drawn itself.

    Args:
        asked: what `silosynth.deployment.certificates.first_request` returned.
        name: of the silo or operator.
        pattern: a certificate for another key, whose subject and extensions this one gets.
        authority: the folder of the authority's key.
        now: seconds since 1970.

    Raises:
        ConfigError: it is no request, or of somebody else.
    """
    rule, remedy = "A request is one that `silosynth certificate request --name` has written", "Ask for it again."
    try:
        new = x509.load_pem_x509_csr(str(json.loads(asked)["request"]).encode())
        as_rsa(new.public_key())
        theirs = common_name(new)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(rule, f"something else for {name}", remedy) from error
    if theirs != name or not new.is_signature_valid:
        raise ConfigError(rule, f"one of {theirs!r} in place of {name!r}", remedy)
    root, key = _authority(authority)
    return _signed(new, x509.load_pem_x509_certificate(pattern), root, key, now)


def request_fingerprint(asked: bytes) -> str:
    """SHA-256 of the public key of a request that was checked, as `key_fingerprint` has it."""
    return key_fingerprint(x509.load_pem_x509_csr(json.loads(asked)["request"].encode()).public_key())


def key_fingerprint(key: Any) -> str:
    """SHA-256 of a public key, in hexadecimal, which people can compare."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def renew(asked: bytes, authority: Path, now: float) -> tuple[str, bytes]:
    """Check a request, and issue the certificate; returns for whom, and the certificate.

    Args:
        asked: what `request` returned.
        authority: the folder of the authority's key.
        now: seconds since 1970.

    Raises:
        ConfigError: it was not asked for with a key whose certificate this authority issued, and that is valid.
        StorageError: the authority's key is not there.
    """
    try:
        proof = json.loads(asked)
        text, old = str(proof["request"]).encode(), x509.load_pem_x509_certificate(str(proof["certificate"]).encode())
        new, signature = x509.load_pem_x509_csr(text), bytes.fromhex(str(proof["signature"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _refused("something that is none") from error
    root, key = _authority(authority)
    name = common_name(old)
    try:
        old.verify_directly_issued_by(root)
        as_rsa(old.public_key()).verify(signature, text, PADDING, hashes.SHA256())
    except (InvalidSignature, ValueError, TypeError) as error:
        raise _refused(f"one for {name}, with another key") from error
    if not new.is_signature_valid or new.subject != old.subject:
        raise _refused(f"one of {name} for another name, or whose new key is not the asker's")
    if not old.not_valid_before_utc.timestamp() <= now < old.not_valid_after_utc.timestamp():
        raise _refused(f"one with a certificate of {name} that has expired")
    if old.serial_number in _revoked(authority):
        raise _refused(f"one with a certificate of {name} that is revoked")
    pem = _signed(new, old, root, key, now)
    record_issued(authority, pem)
    return name, pem


def revoke(authority: Path, whose: Sequence[str], now: float) -> RevocationList:
    """Sign a new list of certificates that count no more: those of the last one, and more.

    Args:
        authority: the folder of the authority's key.
        whose: names, all of whose certificates are revoked; or numbers of certificates, in hexadecimal. If it is empty
            the list is only of a later date.
        now: seconds since 1970.

    Raises:
        ConfigError: no certificate of this name or number was issued.
        StorageError: the authority's key is not there, or the list cannot be written.
    """
    root, key = _authority(authority)
    known, old = issued_by(authority), current_list(authority, lambda: _pem(root))
    dates = (
        {} if old is None else {one.serial_number: one.revocation_date_utc for one in x509.load_pem_x509_crl(old.pem)}
    )
    at = datetime.fromtimestamp(now, timezone.utc)
    for who in whose:
        serials = [one.serial for one in known if who in (one.name, f"{one.serial:x}")]
        if not serials:
            names = sorted({one.name for one in known})
            raise ConfigError("Certificates are revoked that this authority has issued", who, nearest(who, names))
        dates = {serial: at for serial in serials} | dates
    number = x509.CRLNumber(1 if old is None else old.number + 1)
    made = x509.CertificateRevocationListBuilder().issuer_name(root.subject).last_update(at)
    made = made.next_update(at + timedelta(days=_RENEW)).add_extension(number, critical=False)
    for serial, date in dates.items():
        made = made.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
        )
    pem = made.sign(key, hashes.SHA256()).public_bytes(_PEM)
    write_atomic(authority / FILE, pem)
    return checked_list(pem, _pem(root))


_PEM = serialization.Encoding.PEM


def _revoked(authority: Path) -> frozenset[int]:
    known = current_list(authority, lambda: _pem(_authority(authority)[0]))
    return frozenset() if known is None else known.serials


def _refused(what: str) -> ConfigError:
    rule = "A certificate is renewed for who holds the key of a valid one of this federation"
    return ConfigError(rule, what, "If it has expired, provision this site anew: see the guide, Later.")


def _authority(folder: Path) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    found = sorted(folder.glob(_STATE))
    if len(found) != 1:
        raise StorageError("The folder holds an authority's key", str(folder), "Name the folder `authority` of kits.")
    kept = json.loads(read(found[0]))
    key = serialization.load_pem_private_key(kept["root_pri_key"].encode(), None)
    return x509.load_pem_x509_certificate(kept["root_cert"].encode()), as_rsa(key)


def as_rsa(key: Any) -> Any:
    """A key of the kind that provisioning draws."""
    if not isinstance(key, (rsa.RSAPrivateKey, rsa.RSAPublicKey)):
        raise ValueError("keys of certificates are RSA")
    return key


def _signed(
    asked: x509.CertificateSigningRequest, old: x509.Certificate, root: x509.Certificate, key: Any, now: float
) -> bytes:
    """A certificate as another one, but for key, number and days."""
    start = datetime.fromtimestamp(now, timezone.utc)
    end = min(start + timedelta(days=DAYS), root.not_valid_after_utc)
    made = (
        x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(asked.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(asked.public_key()), False)
    )  # fmt: skip
    for extension in old.extensions:
        if not isinstance(extension.value, x509.SubjectKeyIdentifier):
            made = made.add_extension(extension.value, extension.critical)
    return made.sign(key, hashes.SHA256()).public_bytes(_PEM)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(_PEM)


def common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Whose it is; an operator's without the domain that the engine needs."""
    return operator_name(str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value))
