"""Downloading a publisher's file, with a checksum that is known, or kept from the first download."""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path

from silosynth.core.errors import StorageError, UnavailableError
from silosynth.core.files import replacing

TIMEOUT = 60.0
"""Seconds without an answer after which a download is given up."""


def download(url: str, remedy: str, timeout: float = TIMEOUT) -> bytes:
    """The bytes at ``url``.

    Raises:
        UnavailableError: no connection, or the publisher answers with an error; names the address and ``remedy``.
        StorageError: fewer bytes came than were announced.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "silosynth"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            announced = reply.headers.get("Content-Length")
            raw: bytes = reply.read()
    except http.client.IncompleteRead as error:
        raise StorageError(
            "The download must be whole", f"{url}: {len(error.partial)} bytes came", "Try again."
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP {error.code} {error.reason}"
            error.close()
        raise UnavailableError("The data set must be fetched, and that failed", f"{url}: {reason}", remedy) from error
    if announced is not None and len(raw) != int(announced):
        raise StorageError("The download must be whole", f"{url}: {len(raw)} of {announced} bytes came", "Try again.")
    return raw


def sha256(raw: bytes) -> str:
    """Checksum in hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def check_sum(what: str, raw: bytes, expected: str, remedy: str) -> None:
    """Check the checksum of ``raw``.

    Raises:
        StorageError: it differs from ``expected``.
    """
    found = sha256(raw)
    if found != expected:
        raise StorageError(f"{what} must have the checksum {expected}", found, remedy)


def recall(path: Path) -> dict[str, str]:
    """Checksums that an earlier use left in the file ``path``; empty if there was none.

    Raises:
        StorageError: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in known.items()}
    except (ValueError, AttributeError) as error:
        raise StorageError("The kept checksums must be readable", str(path), "Delete the file.") from error


def remember(path: Path, sums: dict[str, str]) -> None:
    """Keep checksums for later uses."""
    with replacing(path) as part:
        part.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
