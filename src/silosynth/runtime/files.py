"""Files that are either wholly there or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from silosynth.core.errors import StorageError

Data = bytes | Callable[[BinaryIO], None]


def write_atomic(path: Path | str, data: Data) -> None:
    """Write ``data`` (bytes, or a function that writes to an open file) to ``path``, all or nothing.

    The new content lies beside ``path`` until it is complete and on disk; whatever goes wrong, the previous file stays.

    Raises:
        StorageError: the disk is full, the folder is missing or may not be written to…
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        with open(temporary, "xb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(path: Path | str) -> bytes:
    """A file's bytes.

    Raises:
        StorageError: it is missing or may not be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise storage_error(path, error, "read") from error


def make_folder(path: Path | str) -> Path:
    """Make sure that the folder exists.

    Raises:
        StorageError: it cannot be made.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error, "made") from error
    return path


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the system offers it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def storage_error(path: Path | str, error: OSError, verb: str = "written") -> StorageError:
    """What an operating system's refusal means to the reader."""
    remedy = _REMEDIES.get(type(error).__name__) or _remedy_of_number(error)
    return StorageError(f"{str(path)!r} can be {verb}", error.strerror or str(error), remedy)


_REMEDIES = {
    "PermissionError": "Choose another folder, or ask for the right to write there.",
    "FileNotFoundError": "Check the path; its folder must exist.",
    "IsADirectoryError": "Name a file, not a folder.",
    "NotADirectoryError": "Part of the path is a file: choose another one.",
}


def _remedy_of_number(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space or choose another disk; what was there before is untouched."
    if error.errno == errno.EROFS:
        return "Choose a folder that can be written to."
    return "Check the disk and try again."
