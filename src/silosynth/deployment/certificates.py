"""How long a kit's certificates are valid, and what to say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography import x509

from silosynth.deployment.kits import StartKit

WARN = 30  # days before the end
_DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Validity:
    """How long a site can still take part.

    Attributes:
        ends: when the first of its own certificate and the authority's ends, in seconds since 1970.
        whose: "this site" or "the authority".
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
        renew = "Whoever provisions renews certificates: see the guide, Later."
        if left <= 0:
            return f"{what} has expired, on {day}: no connection is possible. {renew}"
        return f"{what} expires in {math.ceil(left)} days, on {day}. {renew}"


def validity(kit: StartKit) -> Validity:
    """Of the certificates in a coordinator's or silo's kit.

    Raises:
        StorageError: they cannot be read.
    """
    own = kit.certificates()
    ends = [
        (x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp(), whose)
        for pem, whose in ((own.certificate, "this site"), (own.authority, "the authority"))
    ]
    return Validity(*min(ends))
