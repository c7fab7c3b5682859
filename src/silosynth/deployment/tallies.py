"""How much a silo was asked for: synthetic rows of a model (`DrawnRows`), identifiers of others that it was compared
with (`ComparedIdentifiers`), jobs within a day (`BegunJobs`), and hold-outs of which tables open exactly
(`ExactHoldout`).

All are on disk before the silo answers, so that neither a restart nor a restored checkpoint makes it forget them.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from silosynth.algorithms.dplt.protocol import DPLTSynthesise
from silosynth.algorithms.marginals.protocol import SynthesiseLevels
from silosynth.algorithms.silofuse.protocol import SynthesiseFromLatents, WeighLatents
from silosynth.algorithms.vflgan.protocol import VFLGANSynthesise
from silosynth.algorithms.vtgan.protocol import SampleConditions, VTGANSynthesise
from silosynth.core import files
from silosynth.core.errors import StorageError
from silosynth.core.messages import Message, wire_name
from silosynth.runtime import wire

_WEIGHED = 40  # times that a latent is weighed on its way to a row
DRAWN: Mapping[type[Message], Callable[[Any], int]] = {
    SynthesiseFromLatents: lambda ask: int(ask.rows),
    VTGANSynthesise: lambda ask: len(ask.slice_GF),
    VFLGANSynthesise: lambda ask: int(ask.rows),
    DPLTSynthesise: lambda ask: len(ask.states_RL),
    SynthesiseLevels: lambda ask: len(ask.levels_RA),
    SampleConditions: lambda ask: int(ask.rows),
    WeighLatents: lambda ask: math.ceil(len(ask.z_GL) / _WEIGHED),
}
"""Messages that ask for synthetic rows, or for levels as often as they occur, and for how many; or how probable
conditions are, which counts as a row where a latent is weighed as often as on its way to one."""
_DAY = 86400.0  # seconds


class DrawnRows:
    """The synthetic rows that a job has asked for, each different ask once: a repeated one gets the same rows.

    Of a job that trained, also what other jobs have drawn from it.

    Args:
        folder: the job's.
    """

    FILE, LOCK = "drawn.jsonl", "drawn.lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE

    def with_ask(self, ask: Message, most: float, chance: str = "") -> int:
        """Rows asked for by messages of this type, this one included; it is recorded if they are at most ``most``.

        ``chance`` names the silo's randomness: with another one, the same ask gets other rows.

        Raises:
            StorageError: the record cannot be read or written.
        """
        name, digest = wire_name(type(ask)), hashlib.sha256(wire.encode(ask) + chance.encode()).hexdigest()
        with files.locked(files.make_folder(self._path.parent) / self.LOCK):
            lines = _read(self._path)
            known = any(line["ask"] == digest for line in lines)
            if not known:
                lines.append({"ask": digest, "type": name, "rows": max(0, DRAWN[type(ask)](ask))})
            drawn = sum(int(line["rows"]) for line in lines if line["type"] == name)
            if not known and drawn <= most:
                _write(self._path, lines)
        return drawn

    def add_unknown(self, rows: int, when: str) -> None:
        """Count rows that may have been drawn by any ask, as nobody knows: between a backup and its restore.

        Raises:
            StorageError: the record cannot be read or written.
        """
        with files.locked(self._path.parent / self.LOCK):
            _write(self._path, _read(self._path) + [{"ask": when, "type": wire_name(t), "rows": rows} for t in DRAWN])


class ComparedIdentifiers:
    """The identifiers of other silos that a job has compared this one with, in all its attempts.

    Args:
        folder: the job's.
    """

    FILE = "compared.jsonl"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE

    @property
    def number(self) -> int:
        """So far.

        Raises:
            StorageError: the record cannot be read.
        """
        return max((int(line["identifiers"]) for line in _read(self._path)), default=0)

    def record(self, number: int) -> None:
        """Note that there were so many in all.

        Raises:
            StorageError: the record cannot be written.
        """
        if number > self.number:
            _write(self._path, [{"identifiers": number}])


class BegunJobs:
    """The jobs that have begun at a silo.

    Args:
        folder: the silo's.
        clock: seconds since 1970.
    """

    FILE, LOCK = "begun.jsonl", "begun.lock"

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / self.FILE, clock

    def with_job(self, name: str, most: int) -> bool:
        """Whether at most ``most`` jobs have begun within the last 24 hours with this one, which is then recorded.

        Raises:
            StorageError: the record cannot be read or written.
        """
        with files.locked(self._path.parent / self.LOCK):
            now = self._clock()
            lines = [line for line in _read(self._path) if line["at"] > now - _DAY]
            if len(lines) >= most:
                return False
            _write(self._path, [*lines, {"job": name, "at": now}])
            return True


class AskedConditions:
    """Under which conditions a silo was asked whether enough of its rows fulfil them.

    Args:
        folder: the silo's.
        clock: seconds since 1970.
    """

    FILE, LOCK = "asked.jsonl", "asked.lock"

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / self.FILE, clock

    def with_these(self, asked: Collection[str], most: int) -> bool:
        """Whether at most ``most`` different ones were asked within the last 24 hours with these, which are recorded.

        Args:
            asked: a digest of each.
            most: how many.

        Raises:
            StorageError: the record cannot be read or written.
        """
        with files.locked(self._path.parent / self.LOCK):
            now = self._clock()
            lines = [line for line in _read(self._path) if line["at"] > now - _DAY]
            new = {*asked} - {line["asked"] for line in lines}
            if len(lines) + len(new) > most:
                return False
            _write(self._path, [*lines, *({"asked": one, "at": now} for one in sorted(new))])
            return True


class ExactHoldout:
    """The share of rows that jobs hold out whose tables open without noise: one in all jobs.

    Tables of two shares would tell what the rows between them hold, which may be few.

    Args:
        folder: the silo's.
    """

    FILE, LOCK = "exact-holdout.jsonl", "exact-holdout.lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE

    def first(self, share: float) -> float:
        """The share of the first such job, which is this one if there was none; it is recorded.

        Raises:
            StorageError: the record cannot be read or written.
        """
        with files.locked(self._path.parent / self.LOCK):
            for line in _read(self._path):
                return float(line["share"])
            _write(self._path, [{"share": share}])
            return share


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in files.read(path).splitlines()]
    except ValueError as error:
        raise StorageError("A silo's record of jobs can be read", str(path), "Restore it from a copy.") from error


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    files.make_folder(path.parent)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    files.write_atomic(path, text.encode(), files.PRIVATE)
