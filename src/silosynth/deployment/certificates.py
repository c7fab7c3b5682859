"""A site's certificates: how long they are valid, and how it gets first ones, newer ones, and a list of revoked ones.

Each site draws its own keys, and asks for certificates of them. What it sends to whoever provisions holds no secret.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import PRIVATE, read, write_atomic
from silosynth.deployment.flare.authority import BITS, PADDING, as_rsa, key_fingerprint
from silosynth.deployment.kits import StartKit
from silosynth.deployment.revoked import RevocationList, keep_list

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


# The first key, of a site that has no kit yet.


def first_request(name: str, key_file: Path) -> tuple[bytes, str]:
    """Draw a site's own key, and ask for its first certificate.

    Args:
        name: of the silo or operator, "coordinator", or "dispatcher" for the coordinator's second certificate.
        key_file: where the key is written.

    Returns what goes to whoever provisions, and the SHA-256 of the public key, to be compared by another way.

    Raises:
        StorageError: the file exists, or cannot be written.
    """
    if key_file.exists():
        raise StorageError("A key is drawn only once", str(key_file), "Move the old one away first.")
    key = _drawn(key_file)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return json.dumps({"request": _asked(subject, key)}, indent=1).encode(), key_fingerprint(key.public_key())


def put_key(kit: StartKit, pem: bytes) -> str:
    """Put the key that a site has drawn into the kit whose certificate was made for it; returns its fingerprint.

    Raises:
        ConfigError: the certificate is of another key.
        StorageError: the kit cannot be written.
    """
    certificate = x509.load_pem_x509_certificate(read(kit.key_file.with_suffix(".crt"))).public_key()
    try:
        own = as_rsa(serialization.load_pem_private_key(pem, None)).public_key()
    except (ValueError, TypeError) as error:
        raise ConfigError("The file holds the key that this site has drawn", "something else") from error
    if own != certificate:
        raise ConfigError(
            "A key belongs to the certificate in the kit", f"one with SHA-256 {key_fingerprint(own)}",
            "Name the file that `silosynth certificate request` has written; or have the kit made for this key.",
        )  # fmt: skip
    write_atomic(kit.key_file, pem, PRIVATE)
    return key_fingerprint(own)


def put_list(kit: StartKit, pem: bytes) -> RevocationList | None:
    """Keep a list of revoked certificates at a site; None if it has one as new. It counts at once.

    Raises:
        ConfigError: the authority has not signed it.
        StorageError: it cannot be written.
    """
    return keep_list(kit.folder / "work", pem, kit.authority())


# Renewal, asked for with the old key while its certificate is valid.


def request(kit: StartKit) -> bytes:
    """Draw a new key beside the one in use, and ask for a certificate of it; returns what goes to whoever provisions.

    Raises:
        StorageError: the kit cannot be read or written.
    """
    old, key = kit.certificates(), _drawn(_new_key(kit))
    asked = _asked(x509.load_pem_x509_certificate(old.certificate).subject, key)
    signature = as_rsa(serialization.load_pem_private_key(old.key, None)).sign(asked.encode(), PADDING, hashes.SHA256())
    proof = {"request": asked, "certificate": old.certificate.decode(), "signature": signature.hex()}
    return json.dumps(proof, indent=1).encode()


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
    write_atomic(kit.key_file, read(key_file), PRIVATE)
    write_atomic(kit.key_file.with_suffix(".crt"), pem)
    key_file.unlink()
    return validity(kit)


def _new_key(kit: StartKit) -> Path:
    return kit.key_file.with_suffix(".key.new")


def _drawn(path: Path) -> rsa.RSAPrivateKey:
    """A new key, in a file that its owner alone can read."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_atomic(path, pem, PRIVATE)
    return key


def _asked(subject: x509.Name, key: rsa.RSAPrivateKey) -> str:
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return asked.public_bytes(serialization.Encoding.PEM).decode()
