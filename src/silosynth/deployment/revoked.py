"""Certificates that count no more: a list that the authority signs, and that every site checks at each connection.

It is a certificate revocation list as of RFC 5280. A site keeps the newest that it was given, ``work/revoked.crl``:
by `silosynth certificate install`, or at a silo by the coordinator, who passes its own on with each job. Without one,
nothing is revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from silosynth.core.errors import ConfigError, ProtocolError, StorageError
from silosynth.core.files import make_folder, read, write_atomic

FILE = "revoked.crl"


@dataclass(frozen=True)
class RevocationList:
    """A list whose signature was checked.

    Attributes:
        number: later lists have larger ones.
        made, renew: when it was signed, and by when the next one is due.
        serials: of certificates that count no more.
        pem: the list as a file.
    """

    number: int
    made: datetime
    renew: datetime
    serials: frozenset[int]
    pem: bytes

    def in_words(self, now: float) -> str:
        """What to tell of it."""
        age = (datetime.fromtimestamp(now, timezone.utc) - self.made).days
        said = (
            f"list {self.number} of {self.made:%Y-%m-%d}, {age} days old; {len(self.serials)} certificates are revoked"
        )
        return said if now < self.renew.timestamp() else f"{said}. A newer one is due: ask whoever provisions"

    def is_due(self, now: float) -> bool:
        """Whether a newer list should have come."""
        return now >= self.renew.timestamp()


def checked_list(pem: bytes, authority: bytes) -> RevocationList:
    """A list, if the authority of this certificate has signed it.

    Raises:
        ConfigError: it is something else, or somebody else's.
    """
    rule = "A list of revoked certificates is signed by this federation's authority"
    remedy = "Ask whoever provisions for it again."
    try:
        found, root = x509.load_pem_x509_crl(pem), x509.load_pem_x509_certificate(authority)
        if found.issuer != root.subject or not found.is_signature_valid(root.public_key()):  # type: ignore[arg-type]
            raise ConfigError(rule, "another signature", remedy)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        made, renew = found.last_update_utc, found.next_update_utc
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise ConfigError(rule, "something else", remedy) from error
    return RevocationList(number, made, renew or made, frozenset(one.serial_number for one in found), pem)


def current_list(work: Path, authority: Callable[[], bytes]) -> RevocationList | None:
    """The list that a site keeps.

    Raises:
        StorageError: it cannot be read, or is damaged: then nobody is let in, rather than somebody who is revoked.
    """
    if not (work / FILE).exists():
        return None
    try:
        return checked_list(read(work / FILE), authority())
    except ConfigError as error:
        raise StorageError(
            "The list of revoked certificates can be read", str(work / FILE), "Install it again."
        ) from error


def keep_list(work: Path, pem: bytes, authority: bytes) -> RevocationList | None:
    """Keep a list in place of an older one; None if the one that is kept is as new.

    Raises:
        ConfigError: the authority has not signed it.
        StorageError: it cannot be written.
    """
    new, old = checked_list(pem, authority), current_list(work, lambda: authority)
    if old is not None and old.number >= new.number:
        return None
    write_atomic(make_folder(work) / FILE, pem)
    return new


class Revoked:
    """Tells of certificates whether the site's list names them; the list is read again when its file has changed.

    Attributes:
        number: of the list that was read last; 0 without one.
    """

    def __init__(self, work: Path, authority: Callable[[], bytes]) -> None:
        self._work, self._authority = work, authority
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self.number = 0

    def __call__(self, certificate: bytes) -> bool:
        """Whether a certificate, in DER form, counts no more.

        Raises:
            StorageError: the list is damaged.
        """
        return self.any() and x509.load_der_x509_certificate(certificate).serial_number in self._serials

    def any(self) -> bool:
        """Whether the list names a certificate.

        Raises:
            StorageError: it is damaged.
        """
        self._read()
        return bool(self._serials)

    def refusal(self, whose: str, certificate: bytes) -> ProtocolError:
        """The error where somebody shows such a certificate."""
        serial = x509.load_der_x509_certificate(certificate).serial_number
        return ProtocolError(
            f"The certificate of {whose} counts", f"number {serial:x}, which is revoked",
            "Ask whoever provisions.", public=f"The certificate of {whose} counts no more: it is revoked",
        )  # fmt: skip

    def _read(self) -> None:
        try:
            now = (self._work / FILE).stat()
        except OSError:
            return  # none yet; one that was removed counts as long as this process lives
        if (seen := (now.st_mtime_ns, now.st_ino)) != self._seen:
            known = current_list(self._work, self._authority)
            if known is not None:
                self._serials, self.number, self._seen = known.serials, known.number, seen


def der(pem: bytes) -> bytes:
    """A certificate in DER form."""
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
