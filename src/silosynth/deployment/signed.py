"""Facts that a silo signs, as JSON: receipts of what it has forgotten, and labels of published tables.

The key is that of the silo's ledger (`silosynth.deployment.silo_ledger.signing_key`): it follows from the sealing key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from silosynth.core.errors import ProtocolError
from silosynth.deployment.silo_ledger import public_key, signing_key
from silosynth.privacy.sealed import Seat, framed


def canonical(facts: Mapping[str, Any]) -> str:
    """One text for the same facts, whatever the order of their keys."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sign(seat: Seat, what: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """The silo's key and signature on facts; ``what`` they are, so that nothing else passes for them."""
    signature = signing_key(seat).sign(framed(f"silosynth {what} 1", canonical(facts)))
    return {"key": public_key(seat).hex(), "signature": base64.b64encode(signature).decode()}


def check(what: str, silo: str, facts: Mapping[str, Any], key: str, signature: str) -> None:
    """Check a signature that `sign` has made.

    Raises:
        ProtocolError: it is not of this key, or of other facts.
    """
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(base64.b64decode(signature, validate=True), framed(f"silosynth {what} 1", canonical(facts)))
    except (InvalidSignature, ValueError, TypeError, binascii.Error):
        raise ProtocolError(
            f"Silo {silo!r} has signed its {what}", "another signature, or something else was signed",
            "It was changed, or is of somebody else.",
        ) from None  # fmt: skip
