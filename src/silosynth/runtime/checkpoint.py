"""Checkpoints: numbered, all or nothing. Every party writes its own part first; the coordinator's commits.

``folder/coordinator/000007.ckpt`` exists only when every ``folder/parties/<name>/000007.ckpt`` does. The last two
checkpoints are kept; parties keep one more, because their newest part may not be committed yet.
"""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from silosynth.core.conversation import State
from silosynth.core.errors import CheckpointError, StorageError
from silosynth.core.files import PRIVATE, close_to_others, private_folder, read, storage_error, write_atomic
from silosynth.runtime.ledger import Position
from silosynth.runtime.wire import pack, unpack

KEPT = 2
SEED = "seed"


class CheckpointWarning(UserWarning):
    """The newest checkpoint cannot be used, and an older one is; or others could read one."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The coordinator's part of a checkpoint.

    Attributes:
        number: of the checkpoint in the run, from 1.
        step: number of exchanges before it.
        ledger: the ledger's position.
        state: the state that the conversation yielded.
    """

    number: int
    step: int
    ledger: Position
    state: State


class CheckpointStore:
    """The coordinator's parts, in ``folder``. ``fingerprint`` identifies their experiment.

    Parties' parts belong below `parties`, one folder each: pass that to the link.
    """

    def __init__(self, folder: Path | str, fingerprint: str) -> None:
        self.folder, self.fingerprint = Path(folder), fingerprint

    @property
    def parties(self) -> Path:
        """The folder in which the parties of a run on this machine keep their parts."""
        return self.folder / "parties"

    def commit(self, saved: Saved) -> None:
        """Write the coordinator's part, after every party has written its own.

        Raises:
            StorageError: the disk is full…; earlier checkpoints stay usable.
        """
        content = {"fingerprint": self.fingerprint, "step": saved.step, "ledger": asdict(saved.ledger)}
        _write_part(self.folder / "coordinator", saved.number, {**content, "state": saved.state}, keep=KEPT)

    def latest(self) -> Saved | None:
        """The newest usable checkpoint; None when there is none at all.

        Raises:
            CheckpointError: it belongs to another experiment, or there are some but all are damaged.
        """
        return next(self.committed(), None)

    def committed(self) -> Iterator[Saved]:
        """All usable checkpoints, newest first. A damaged one is skipped with a `CheckpointWarning`.

        Raises:
            CheckpointError: one belongs to another experiment, or there are some but all are damaged.
        """
        paths = _parts(self.folder / "coordinator")
        damaged: CheckpointError | None = None
        usable = 0
        for path in reversed(paths):
            try:
                saved = self._read(path)
            except _DamagedError as error:
                damaged = error.reported
                if path != paths[0]:
                    warn_skipped(damaged)
                continue
            usable += 1
            yield saved
        if damaged is not None and not usable:
            raise damaged

    def clear(self) -> None:
        """Remove the coordinator's parts, so that a new run can start in the same folder. Parties overwrite their own.

        Raises:
            CheckpointError: they belong to another experiment.
        """
        for path in reversed(_parts(self.folder / "coordinator")):
            with contextlib.suppress(_DamagedError):  # a damaged part could not be resumed from anyway
                self._read(path)
            _remove(path)

    def discard(self) -> None:
        """Remove the coordinator's parts, whatever experiment they belong to."""
        for path in _parts(self.folder / "coordinator"):
            _remove(path)

    def _read(self, path: Path) -> Saved:
        content = _read_part(path)
        if content["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                f"The checkpoints in {str(self.folder)!r} belong to experiment {content['fingerprint']!r}",
                self.fingerprint,
                "Name another folder, or run that experiment.",
            )
        return Saved(int(path.stem), content["step"], Position(**content["ledger"]), content["state"])


class PartStore:
    """One party's parts, in its own folder, which never leaves the silo."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def save(self, number: int, state: State) -> None:
        """Write part ``number``.

        Raises:
            StorageError: the disk is full…
        """
        _write_part(self.folder, number, {"state": state}, keep=KEPT + 1)

    def load(self, number: int) -> State:
        """The state that `save` wrote.

        Raises:
            CheckpointError: there is no such part, or it is damaged.
        """
        try:
            state: State = _read_part(_path(self.folder, number))["state"]
        except _DamagedError as error:
            raise error.reported from error
        return state


def secret_seed(folder: Path, again: bool) -> int:
    """A secret seed of 256 bits, kept in the run's folder: drawn anew, or with ``again`` the one that is there."""
    path = folder / SEED
    if not (again and path.exists()):
        write_atomic(path, str(secrets.randbits(256)).encode(), PRIVATE)
    return int(_read_private(path))


def warn_skipped(error: CheckpointError) -> None:
    """Warn the user that an older checkpoint is used; it leads to the same bytes, only later."""
    warnings.warn(f"{error} The checkpoint before it is used instead.", CheckpointWarning, stacklevel=3)


class _DamagedError(Exception):
    def __init__(self, path: Path, reason: StorageError) -> None:
        super().__init__(str(path))
        self.reported = CheckpointError(
            f"Checkpoint {str(path)!r} can be read", str(reason), "Restore the file, or start over without resuming."
        )
        self.reported.__cause__ = reason


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.ckpt"


def _parts(folder: Path) -> list[Path]:
    """Committed parts, oldest first."""
    return sorted((p for p in folder.glob("*.ckpt") if p.stem.isdecimal()), key=lambda path: int(path.stem))


def _write_part(folder: Path, number: int, content: State, keep: int) -> None:
    private_folder(folder)
    write_atomic(_path(folder, number), pack(content), PRIVATE)
    # Higher numbers are left over from a run that this one replaces (it resumed from before them, or started over).
    for path in _parts(folder):
        if not number - keep < int(path.stem) <= number:
            _remove(path)


def _read_part(path: Path) -> State:
    try:
        return unpack(_read_private(path))
    except StorageError as error:
        raise _DamagedError(path, error) from error


def _read_private(path: Path) -> bytes:
    """A file's bytes, after closing it to others, of which users should know if they could read it."""
    content = read(path)
    if close_to_others(path):
        warnings.warn(f"Others on this machine could read {path}; it is closed to them now.", CheckpointWarning, 2)
    return content


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, "removed", path) from error
