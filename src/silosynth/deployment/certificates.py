"""How long a kit's certificates are valid, and how a site gets new ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import PRIVATE, read, write_atomic
from silosynth.deployment.kits import StartKit

WARN = 30  # days before the end
_DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Validity:
    """How long a site can still take part.

    Attributes:
        ends: when the first of the certificates that it needs ends, in seconds since 1970.
        whose: "this site", "the authority" or "the dispatcher".
    """

    ends: float
    whose: str

    def days_left(self, now: float) -> float:
        """Days, negative once it has ended."""
        return (self.ends - now) / _DAY

    def warning(self, now: float) -> str:
        """What to tell whoever runs the site; empty while there is time."""
        left = self.days_left(now)
        if left > WARN:
            return ""
        day = datetime.fromtimestamp(self.ends, timezone.utc).strftime("%Y-%m-%d")
        what = f"the certificate of {self.whose}"
        renew = "Ask for a new one: silosynth certificate request."
        if left <= 0 or self.whose == "the authority":
            renew = "Whoever provisions makes new kits: see the guide, Later."
        if left <= 0:
            return f"{what} has expired, on {day}: no connection is possible. {renew}"
        return f"{what} expires in {math.ceil(left)} days, on {day}. {renew}"


def validity(kit: StartKit) -> Validity:
    """Of the certificates in a kit, at the coordinator of its dispatcher's as well.

    Raises:
        StorageError: they cannot be read.
    """
    own = kit.certificates()
    known = [(own.certificate, "this site"), (own.authority, "the authority")]
    if kit.name == COORDINATOR and kit.dispatcher.exists():
        known.append((kit.as_dispatcher().certificates().certificate, "the dispatcher"))
    ends = [(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp(), whose) for pem, whose in known]
    return Validity(*min(ends))


# Renewal. A site draws its own new key, and asks with the old one while that is valid: no private key leaves a site.


def request(kit: StartKit) -> bytes:
    """Draw a new key beside the one in use, and ask for a certificate of it; returns what goes to whoever provisions.

    Raises:
        StorageError: the kit cannot be read or written.
    """
    old, place = kit.certificates(), _new_key(kit)
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_atomic(place, pem, PRIVATE)
    name = x509.load_pem_x509_certificate(old.certificate).subject
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    text = asked.public_bytes(serialization.Encoding.PEM)
    signature = _rsa(serialization.load_pem_private_key(old.key, None)).sign(text, _PADDING, hashes.SHA256())
    proof = {"request": text.decode(), "certificate": old.certificate.decode(), "signature": signature.hex()}
    return json.dumps(proof, indent=1).encode()


def issue(asked: bytes, authority: Path, now: float) -> tuple[str, bytes]:
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
    name = str(old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        old.verify_directly_issued_by(root)
        _rsa(old.public_key()).verify(signature, text, _PADDING, hashes.SHA256())
    except (InvalidSignature, ValueError, TypeError) as error:
        raise _refused(f"one for {name}, with another key") from error
    if not new.is_signature_valid or new.subject != old.subject:
        raise _refused(f"one of {name} for another name, or whose new key is not the asker's")
    if not old.not_valid_before_utc.timestamp() <= now < old.not_valid_after_utc.timestamp():
        raise _refused(f"one with a certificate of {name} that has expired")
    return name, _issued(new, old, root, key, now).public_bytes(serialization.Encoding.PEM)


def install(kit: StartKit, pem: bytes) -> Validity:
    """Put a certificate that was issued, and its key, in place of those in use; the site is to be started anew.

    Raises:
        ConfigError: it is not of the key that was drawn last, of another site, or of another authority.
        StorageError: no certificate was asked for; or the kit cannot be written.
    """
    key_file, own = _new_key(kit), kit.certificates()
    pair = serialization.load_pem_private_key(read(key_file), None)
    try:
        new, root = x509.load_pem_x509_certificate(pem), x509.load_pem_x509_certificate(own.authority)
        new.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError("A certificate is of this federation's authority", "another", "Ask for it again.") from error
    if new.public_key() != pair.public_key() or new.subject != x509.load_pem_x509_certificate(own.certificate).subject:
        raise ConfigError(
            "A certificate is of the key that this site drew last", "another key", "Ask for it again, and sign that."
        )
    in_use = key_file.with_suffix("")
    write_atomic(in_use, read(key_file), PRIVATE)
    write_atomic(in_use.with_suffix(".crt"), pem)
    key_file.unlink()
    return validity(kit)


_BITS, _DAYS = 2048, 360  # as of the first certificates
_PADDING = padding.PKCS1v15()


def _new_key(kit: StartKit) -> Path:
    return kit.folder / "engine" / "startup" / ("server.key.new" if kit.name == COORDINATOR else "client.key.new")


def _refused(what: str) -> ConfigError:
    rule = "A certificate is renewed for who holds the key of a valid one of this federation"
    return ConfigError(rule, what, "If it has expired, provision this site anew: see the guide, Later.")


def _authority(folder: Path) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    found = sorted(folder.glob("*/state/cert.json"))
    if len(found) != 1:
        raise StorageError("The folder holds an authority's key", str(folder), "Name the folder `authority` of kits.")
    kept = json.loads(read(found[0]))
    key = serialization.load_pem_private_key(kept["root_pri_key"].encode(), None)
    return x509.load_pem_x509_certificate(kept["root_cert"].encode()), _rsa(key)


def _rsa(key: Any) -> Any:
    """A key of the kind that provisioning draws."""
    if not isinstance(key, (rsa.RSAPrivateKey, rsa.RSAPublicKey)):
        raise ValueError("keys of certificates are RSA")
    return key


def _issued(
    asked: x509.CertificateSigningRequest, old: x509.Certificate, root: x509.Certificate, key: Any, now: float
) -> x509.Certificate:
    """As the old one, but for key, number and days."""
    start = datetime.fromtimestamp(now, timezone.utc)
    end = min(start + timedelta(days=_DAYS), root.not_valid_after_utc)
    made = (
        x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(asked.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(asked.public_key()), False)
    )  # fmt: skip
    for extension in old.extensions:
        if not isinstance(extension.value, x509.SubjectKeyIdentifier):
            made = made.add_extension(extension.value, extension.critical)
    return made.sign(key, hashes.SHA256())
