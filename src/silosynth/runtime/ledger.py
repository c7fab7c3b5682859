"""Who sent what to whom: one record per message, in memory and as JSON lines.

It holds no times, so that a run that was stopped and resumed leaves the same bytes as one that was not.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

from silosynth.core.errors import CheckpointError, SilosynthError, StorageError
from silosynth.core.files import make_folder, storage_error
from silosynth.core.messages import Message, Release, wire_name
from silosynth.privacy.events import Event

_FLUSH_EVERY = 20_000  # records; bounds what a killed run has not yet written to about 3 MB


class Record(NamedTuple):
    """One message: step, sender, receiver, type, length, what it gives away, and its privacy events."""

    step: int
    sender: str
    receiver: str
    type: str
    bytes: int
    privacy: str
    events: tuple[Event, ...] = ()

    def entry(self) -> dict[str, Any]:
        """The record as it stands in the file."""
        entry = dict(zip(("step", "from", "to", "type", "bytes", "privacy"), self, strict=False))
        return entry | {"events": [asdict(event) for event in self.events]} if self.events else entry


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the ledger: number of records, and of bytes in the file."""

    records: int
    bytes: int


class _Route(NamedTuple):
    """The part of a record that many records share."""

    sender: str
    receiver: str
    type: str
    privacy: str
    events: tuple[Event, ...]

    @classmethod
    def of(cls, sender: str, receiver: str, kind: Any, events: tuple[Event, ...]) -> _Route:
        """That of a type of messages. Noised statistics without an event are exact statistics."""
        exact = kind.release is Release.NOISED and not events
        release = Release.STATISTICS if exact else kind.release
        return cls(sender, receiver, wire_name(kind), release.value, events)

    def frame(self) -> tuple[str, str]:
        """What a line of a ledger file holds between step and size, and after the size."""
        head = json.dumps({"from": self.sender, "to": self.receiver, "type": self.type})[1:-1]
        tail: dict[str, object] = {"privacy": self.privacy}
        if self.events:
            tail["events"] = [asdict(event) for event in self.events]
        return f', {head}, "bytes": ', f", {json.dumps(tail)[1:]}\n"


class Ledger:
    """All messages of a run. ``path`` None keeps them in memory only.

    Nothing is written before `start` or `resume`, which `drive` calls. A record takes about a microsecond.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._file: BinaryIO | None = None
        self._written = Position(0, 0)
        self._clear()

    @property
    def records(self) -> Sequence[Record]:
        """All records, oldest first."""
        return _Records(self._steps, self._sizes, self._route_of, self._routes)

    def entries(self) -> list[dict[str, Any]]:
        """All records as they stand in the file."""
        return [record.entry() for record in self.records]

    def add(self, step: int, sender: str, receiver: str, message: Message, size: int) -> None:
        """Record that ``message``, ``size`` bytes long, went from ``sender`` to ``receiver``.

        Its privacy events are the message's field ``events``, where it has one.
        """
        kind, events = type(message), getattr(message, "events", ())
        index = self._known.get((sender, receiver, kind, events))
        if index is None:
            index = self._known[sender, receiver, kind, events] = self._route(_Route.of(sender, receiver, kind, events))
        self._steps.append(step)
        self._sizes.append(size)
        self._route_of.append(index)
        if len(self._steps) - self._written.records >= _FLUSH_EVERY and self._file is not None:
            self._write()

    def start(self) -> None:
        """Begin an empty ledger; replaces an older file at the same path.

        Raises:
            StorageError: the file cannot be written.
        """
        self.close()
        self._clear()
        self._written = Position(0, 0)
        self._open("wb")

    def resume(self, position: Position) -> None:
        """Continue from ``position``: later records are dropped, in memory and in the file.

        Raises:
            CheckpointError: the ledger is shorter than the checkpoint says, or damaged.
        """
        self.close()
        if self.path is None:
            self._cut_memory(position)
        else:
            self._load(self.path, position)
            self._open("r+b")
            assert self._file is not None
            self._file.truncate(position.bytes)
            self._file.seek(position.bytes)
        self._written = position if self.path is not None else Position(0, 0)

    def flush(self) -> Position:
        """Write everything recorded so far to disk, and return that position.

        Raises:
            StorageError: the disk is full…
        """
        if self._file is None:
            return Position(len(self._steps), 0)
        self._write()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._write_error(error) from error
        return self._written

    def close(self) -> None:
        """Write what is left and close the file; records stay readable."""
        if self._file is None:
            return
        try:
            self._write()
        finally:
            file, self._file = self._file, None
            file.close()

    def _clear(self) -> None:
        self._steps, self._sizes, self._route_of = array("q"), array("q"), array("l")
        self._routes: list[_Route] = []
        self._index: dict[_Route, int] = {}
        self._known: dict[tuple[str, str, type[Message], tuple[Event, ...]], int] = {}
        self._frames: list[tuple[str, str]] = []

    def _route(self, route: _Route) -> int:
        if route not in self._index:
            self._index[route] = len(self._routes)
            self._routes.append(route)
            self._frames.append(route.frame())
        return self._index[route]

    def _open(self, mode: str) -> None:
        if self.path is None:
            return
        make_folder(self.path.parent)
        try:
            # Unbuffered: after a failed write nothing is left that a later close would try to write again.
            self._file = open(self.path, mode, buffering=0)  # type: ignore[assignment]  # noqa: SIM115
        except OSError as error:
            raise self._write_error(error) from error

    def _write(self) -> None:
        assert self._file is not None
        count = len(self._steps)
        lines = []
        for i in range(self._written.records, count):
            middle, end = self._frames[self._route_of[i]]
            lines.append(f'{{"step": {self._steps[i]}{middle}{self._sizes[i]}{end}')
        text = "".join(lines).encode("ascii")
        try:
            self._file.seek(self._written.bytes)  # overwrites what a failed write left behind
            if text and self._file.write(text) != len(text):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise self._write_error(error) from error
        self._written = Position(count, self._written.bytes + len(text))

    def _write_error(self, error: OSError) -> StorageError:
        return storage_error(error, "written", self.path or Path("ledger"))

    def _cut_memory(self, position: Position) -> None:
        if len(self._steps) < position.records:
            raise CheckpointError(
                f"The checkpoint's ledger has {position.records} records; this one is in memory only and has",
                len(self._steps),
                "Give the ledger a path, and resume with the same one.",
            )
        for column in (self._steps, self._sizes, self._route_of):
            del column[position.records :]

    def _load(self, path: Path, position: Position) -> None:
        self._clear()
        try:
            with open(path, "rb") as file:
                text = file.read(position.bytes)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint's ledger {str(path)!r} can be read", error.strerror, _START_OVER
            ) from error
        try:
            for line in text.splitlines():
                record = json.loads(line)
                events = tuple(Event(**event) for event in record.pop("events", ()))
                step, sender, receiver, kind, size, privacy = record.values()
                self._steps.append(step)
                self._sizes.append(size)
                self._route_of.append(self._route(_Route(sender, receiver, kind, privacy, events)))
        except (ValueError, TypeError, AttributeError, SilosynthError) as error:
            raise CheckpointError(f"Every line of {str(path)!r} is a record", str(line[:80]), _START_OVER) from error
        if len(text) != position.bytes or len(self._steps) != position.records:
            size = f"{len(self._steps)} records, {len(text)} bytes"
            raise CheckpointError(
                f"The ledger {str(path)!r} reaches to the checkpoint: {position.records} records, "
                f"{position.bytes} bytes",
                size,
                _START_OVER,
            )


_START_OVER = "Restore the file, or start over without resuming."


def frame_of(sender: str, receiver: str, message: Message) -> tuple[str, str]:
    """What a line of a message holds between step and size, and after the size, without braces."""
    kind: Any = type(message)  # mypy takes the hash of its instances for that of the class
    return _frame(sender, receiver, kind, getattr(message, "events", ()))


@lru_cache(maxsize=1024)
def _frame(sender: str, receiver: str, kind: Any, events: tuple[Event, ...]) -> tuple[str, str]:
    head, tail = _Route.of(sender, receiver, kind, events).frame()
    return head, tail[:-2]  # no brace


class _Records(Sequence[Record]):
    """A view of the columns in which the ledger keeps its records, at 24 bytes each."""

    def __init__(self, steps: array[int], sizes: array[int], of: array[int], routes: list[_Route]) -> None:
        self._steps, self._sizes, self._route_of, self._routes = steps, sizes, of, routes

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        sender, receiver, kind, privacy, events = self._routes[self._route_of[index]]
        return Record(self._steps[index], sender, receiver, kind, self._sizes[index], privacy, events)
