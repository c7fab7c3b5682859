"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from silosynth.core.errors import SilosynthError, StorageError, nearest

PUBLIC, PRIVATE = 0o666, 0o600  # modes of new files: as the user's umask says, or for the user alone
_PART = re.compile(r"\.[0-9a-f]{8}\..+")  # the names of `replacing`'s temporary files


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int = PUBLIC) -> Iterator[Path]:
    """Write a file through a temporary one beside it, which replaces it only once everything succeeded.

    Yields the path of an empty temporary file in the same folder, with the same suffix. It is flushed to disk and
    renamed to ``path`` when the block ends, and removed when the block raises: ``path`` is never half-written. It has
    ``mode`` from the first byte.

    Raises:
        StorageError: the folder is missing, the disk is full, or any other `OSError` within the block.
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    try:
        _check_target(target)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield part
        flush(part)
        os.replace(part, target)
        flush(target.parent)
    except OSError as error:
        raise storage_error(error, "written", target) from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            part.unlink()


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files that killed processes left in a folder or below it.

    Raises:
        StorageError: a file cannot be removed.
    """
    for path in Path(folder).rglob(".*"):
        if _PART.fullmatch(path.name):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise storage_error(error, "removed", path) from error


def write_atomic(path: str | os.PathLike[str], data: bytes | Callable[[BinaryIO], object], mode: int = PUBLIC) -> None:
    """Write ``data`` (bytes, or a function that writes to an open file) to ``path``, all or nothing.

    Raises:
        StorageError: see `replacing`.
    """
    with replacing(path, mode) as part, open(part, "wb") as file:
        if callable(data):
            data(file)
        else:
            file.write(data)


REPORTS = (".html", ".htm", ".json")  # how names of reports end


def check_suffix(path: str | os.PathLike[str], known: Sequence[str]) -> str:
    """The ending of a file's name, in small letters.

    Raises:
        StorageError: it is none of the known ones.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        endings = ", ".join(one or "none at all" for one in known)
        raise StorageError(
            f"The file's name must end in {endings}", Path(path).name, nearest(suffix, filter(None, known))
        )
    return suffix


def read(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes.

    Raises:
        StorageError: it is missing or may not be read.
    """
    try:
        return existing(path).read_bytes()
    except OSError as error:
        raise storage_error(error, "read", Path(path)) from error


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Make sure that the folder exists, and that its owner alone may enter it.

    Raises:
        StorageError: it cannot be made, or its mode cannot be changed.
    """
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "made", Path(path)) from error
    close_to_others(Path(path))
    return Path(path)


def close_to_others(path: Path) -> bool:
    """Whether others could use a private file or folder until now; from now on they cannot.

    Raises:
        StorageError: its mode cannot be changed.
    """
    try:
        if os.name != "posix" or not path.stat().st_mode & 0o077:
            return False
        path.chmod(0o700 if path.is_dir() else PRIVATE)
    except OSError as error:
        raise storage_error(error, "closed to others", path) from error
    return True


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make sure that the folder exists.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "made", Path(path)) from error
    return Path(path)


def existing(path: str | os.PathLike[str]) -> Path:
    """``path`` if it is a file that exists.

    Raises:
        StorageError: no such file (names the nearest one in the folder), or it is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise StorageError("A file is needed, and this is a folder", str(path), "Name a file inside it.")
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, siblings)
        remedy = hint if siblings and hint.startswith("Did") else "Check the path; it is read from the current folder."
        raise StorageError("The file must exist", str(path), remedy)
    return path


@contextmanager
def locked(path: Path, taken: SilosynthError | None = None, needed: bool = False) -> Iterator[None]:
    """Hold a lock file, which no other process can hold meanwhile; it is removed with the block.

    The lock is advisory, ends with the process in any case, and does not exist on Windows.

    Args:
        path: the lock file.
        taken: what to raise if another process holds the lock; None waits for it. With an error, a file system without
            locks is put up with, unless ``needed``.

    Raises:
        StorageError: the file cannot be written or locked.
    """
    if sys.platform == "win32":
        yield
        return
    handle = _lock(path, taken, needed)
    try:
        yield
    finally:
        if _is_at(handle, path):  # and was not moved
            path.unlink(missing_ok=True)  # before others can take it: see `_lock`
        os.close(handle)


def _lock(path: Path, taken: SilosynthError | None, needed: bool) -> int:
    """A handle of the locked file; opened again if the last holder of the lock has removed the file meanwhile."""
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise storage_error(error, "written", path) from error
        try:
            _take(handle, path, taken, needed)
            if _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file lies at a path."""
    return os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path))


def _take(handle: int, path: Path, taken: SilosynthError | None, needed: bool) -> None:
    if sys.platform == "win32":
        return
    import fcntl  # where there is one

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if taken else 0))
    except OSError as error:
        if taken is not None and isinstance(error, BlockingIOError):
            raise taken from error
        if taken is None or needed:
            raise storage_error(error, "locked", path) from error


def storage_error(error: OSError, verb: str, path: Path) -> StorageError:
    """An `OSError` in plain words; ``verb`` says what was tried ("read", "written")."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        rule = f"The file cannot be {verb}: the disk is full"
        return StorageError(rule, str(path), "Free space; nothing was kept.", public=rule)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        rule = f"The file cannot be {verb}: no permission"
        return StorageError(rule, str(path), "Choose another folder.", public=rule)
    return StorageError(f"The file cannot be {verb}: {error.strerror or error}", str(path), "Check path and device.")


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise StorageError("A file is needed, and this is a folder", str(target), "Name a file inside it.")
    if not target.parent.is_dir():
        raise StorageError("The folder to write to must exist", str(target.parent), "Create it first.")


def flush(path: Path) -> None:
    """Force a file or folder to disk, as it is now. Windows cannot open folders: their rename is journalled anyway."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
