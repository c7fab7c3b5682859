"""A silo's rows as a job began with them, kept while it runs, so that it can go on although the table has changed.

They are written when the job begins, encrypted with a key that follows from the silo's sealing key, and removed with
the job's checkpoints. Whoever has the kit can read them: encryption protects copies of `work` without the kit.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pandas as pd
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from silosynth.core.errors import CheckpointError, DataError
from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.privacy.sealed import Seat, derive, framed

FILE = "rows.ckpt"
_LABEL, _NONCE = "silosynth rows of a job", 12  # bytes


class Snapshot:
    """The rows of one job.

    Args:
        folder: the job's.
        seat: the silo's, whose key encrypts.
    """

    def __init__(self, folder: Path, seat: Seat) -> None:
        self._path = folder / FILE
        self._cipher = AESGCM(derive(seat.private, framed(_LABEL, folder.name)))

    def keep(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Write rows down; returns them as they will be read again.

        Raises:
            DataError: a column mixes values of kinds that no file holds.
            StorageError: the disk is full…
        """
        buffer = io.BytesIO()
        try:
            rows.to_parquet(buffer, index=False)
        except (ValueError, TypeError) as error:  # Arrow's own errors are such; they may quote values
            raise DataError(
                "With a snapshot each column holds values of one kind", remedy="Leave snapshot out of silo.toml."
            ) from error
        nonce = os.urandom(_NONCE)
        make_folder(self._path.parent)
        write_atomic(self._path, nonce + self._cipher.encrypt(nonce, buffer.getvalue(), None), PRIVATE)
        return pd.read_parquet(buffer)

    def rows(self) -> pd.DataFrame | None:
        """The rows; None if none were kept.

        Raises:
            CheckpointError: the file is damaged, or of another silo or job.
        """
        if not self._path.exists():
            return None
        blob = read(self._path)
        try:
            return pd.read_parquet(io.BytesIO(self._cipher.decrypt(blob[:_NONCE], blob[_NONCE:], None)))
        except (InvalidTag, ValueError) as error:
            raise CheckpointError(
                "The rows that a job began with can be read", str(self._path), "Submit the job anew."
            ) from error
