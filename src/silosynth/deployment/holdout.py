"""The hold-out of a job: rows that all silos set aside before training, the same persons in all of them, job by job.

A row is held out if a keyed hash of its identifier, as a fraction of all that it may be, is below the job's share. So
a larger share holds out the same rows, and more. Silos that hold the same rows in the same order and do not link them
hash the row's place.

Silos with different columns need one key, which the coordinator must not know: it could tell who is held out. Each
keeps it in a file of its own (`HoldoutKey`), and in each job all tell all, sealed for the group that has just agreed on
the job, which key they keep. Silos that keep none take the others'; if none keeps one, it follows from the group's
secret. That the same rows are held out everywhere they prove to each other by tags, as in `privacy.agreement`.

Silos with different rows need no common key: each one's follows from its sealing key.

A job may take up a random sample of all rows, and hold out rows of that. It is drawn in the same way, by a key that
follows from the one above (`sample_key`), and before rows are linked: nobody asks about the others.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from silosynth.core import files
from silosynth.core.errors import ProtocolError, StorageError
from silosynth.privacy.agreement import Group
from silosynth.privacy.sealed import Seat, derive, framed

BYTES = 32  # of a key, and of a tag
_LABEL = "silosynth hold-out 1"
_KEY, _NEW = "key of the hold-out", "a new key of the hold-out"


class HoldoutKey:
    """The key that a silo keeps, for jobs with silos that have other columns of the same rows.

    Args:
        folder: the silo's, of all jobs.
    """

    FILE, LOCK = "holdout.key", "holdout.lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE

    def read(self) -> bytes:
        """The key; empty if there is none yet.

        Raises:
            StorageError: the file cannot be read, or holds something else.
        """
        if not self._path.exists():
            return b""
        key = files.read(self._path)
        if len(key) != BYTES:
            raise StorageError(
                f"The key of the hold-out is {BYTES} bytes", str(self._path),
                "Restore it from a copy; or delete it: the other silos of the next job seal theirs for this one.",
            )  # fmt: skip
        return key

    def keep(self, key: bytes) -> None:
        """Keep the key that silos have agreed on; it is on disk when this returns.

        Raises:
            ProtocolError: another one has come to be kept meanwhile.
            StorageError: the file cannot be written.
        """
        files.make_folder(self._path.parent)
        with files.locked(self._path.parent / self.LOCK):
            if (kept := self.read()) not in (b"", key):
                raise _different("this one and others")
            if not kept:
                files.write_atomic(self._path, key, files.PRIVATE)


def own_key(seat: Seat) -> bytes:
    """The key of a silo that holds rows of its own."""
    return derive(seat.private, framed(_LABEL, "own rows"))


def seal_key(group: Group, silo: str, key: bytes) -> bytes:
    """The key that a silo keeps, or that it keeps none, for all silos of the job; of the same length."""
    return group.seal(f"{_KEY} of {silo}", bytes([bool(key)]) + key.ljust(BYTES, b"\0"))


def agreed_key(group: Group, silos: Sequence[str], sealed: Sequence[bytes]) -> bytes:
    """The key that follows from what all silos keep.

    Raises:
        ProtocolError: one's is missing or altered, or two keep different ones.
    """
    if len(sealed) != len(silos):
        raise ProtocolError("Each silo is told what every silo keeps of the hold-out", len(sealed), "Start a new run.")
    told = {silo: group.open(f"{_KEY} of {silo}", blob) for silo, blob in zip(silos, sealed, strict=True)}
    kept = {silo: blob[1:] for silo, blob in told.items() if blob[0]}
    if len(set(kept.values())) > 1:
        raise _different(", ".join(kept))
    return next(iter(kept.values()), b"") or group.key(_NEW)


def _different(silos: str) -> ProtocolError:
    rule = f"Silos hold out rows by one key, and {silos} keep different ones"
    remedy = f"Delete work/{HoldoutKey.FILE} in the kit of a silo that is to take the others', and submit the job anew"
    return ProtocolError(rule, "different keys", f"{remedy}.", public=f"{rule}. {remedy}")


def held_out(key: bytes, share: float, rows: Sequence[bytes | None] | int) -> Tensor:
    """Which rows a share holds out, (N,) bool.

    Args:
        key: a secret.
        share: of all rows, from 0 to below 1.
        rows: the rows' identifiers, as `alignment.canonical` writes them; rows with an empty one go by their place. Or
            how many rows there are, and all go by their place.
    """
    names = [None] * rows if isinstance(rows, int) else rows
    below = round(share * 2**64).to_bytes(9, "big")  # of nine bytes, as it may be 2^64
    parts = (str(row).encode() if name is None else b"\0" + name for row, name in enumerate(names))
    return torch.tensor([b"\0" + hmac.digest(key, part, "sha256")[:8] < below for part in parts], dtype=torch.bool)


def sample_key(key: bytes) -> bytes:
    """The key by which samples are drawn, where rows are held out by ``key``; neither says anything of the other."""
    return hmac.digest(key, b"silosynth sample 1", "sha256")


def tag(group: Group, silo: str, held: Tensor, of: int = 0) -> bytes:
    """A silo's proof that it holds out these rows, for silos of the job; nothing to anybody else.

    Args:
        group: of these silos.
        silo: who proves it.
        held: which of the job's rows (N,) bool are held out.
        of: how many rows the table has, where a sample of them goes by their place.
    """
    places = held.nonzero().flatten().numpy().astype("<i8").tobytes()
    return hmac.digest(group.key("rows held out"), framed(_LABEL, silo, f"{len(held)} {of}", places), "sha256")


def check_tags(group: Group, silos: Sequence[str], held: Tensor, tags: Sequence[bytes], of: int = 0) -> None:
    """Check that all silos take up as many rows of as many as this one, and hold out the same of them.

    Raises:
        ProtocolError: names those that do not.
    """
    told = dict(zip(silos, tags, strict=False))
    wrong = [silo for silo in silos if not hmac.compare_digest(told.get(silo, b""), tag(group, silo, held, of))]
    if wrong or len(tags) != len(silos):
        raise ProtocolError(
            "All silos take up the same rows, and hold out the same ones",
            f"not {', '.join(wrong) or 'as many silos'}",
            "Rows must be linked by identifiers, or be the same in the same order.",
        )  # fmt: skip
