"""Points at which a process can be killed: what it passes is counted, and at a drawn point it kills itself.

A point is passed before and after each message, before and after each part of a checkpoint, and three times for each
file that is written: half of it is there; all of it is, under its temporary name; it has just got its own.
"""

from __future__ import annotations

import json
import os
import signal
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silosynth.core.conversation import Exchange
from silosynth.core.messages import Message, wire_name
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.link import Reached, Received, Remote, TellSlow
from silosynth.runtime.wire import decode

FILES = ("half", "whole", "renamed")
ONCE = "status.json"  # written by the clock; only the first time in an attempt comes for certain


@dataclass(frozen=True)
class Point:
    """Where ``process`` is killed: the ``number``-th time, from 1, that it passes ``label``; "" is any."""

    process: str
    label: str
    number: int


class Marks:
    """What one process has passed, and where it dies.

    Args:
        process: whose.
        point: where it dies; None to live on.
        kills: a file; who dies leaves a line there.
    """

    def __init__(self, process: str, point: Point | None, kills: Path) -> None:
        self.process, self.point, self.kills = process, point, kills
        self.passed: list[str] = []
        self._times: Counter[str] = Counter()
        self._last = "start"  # the last message's type

    def due(self, kind: str, what: str = "") -> bool:
        """Take note of a point; whether this is where to die."""
        label = f"{kind} {what}".rstrip()
        if what == ONCE and self._times[label]:
            return False
        self.passed.append(label)
        self._times[label] += 1
        self._last = what if "." in what and kind not in FILES else self._last
        at = self.point
        if at is None:
            return False
        return (self._times[label] if at.label else len(self.passed)) == at.number and at.label in ("", label)

    def passes(self, kind: str, what: str = "") -> None:
        """Die here, if it is the point."""
        if self.due(kind, what):
            self.die()

    def die(self) -> None:
        """Without a word, but for the line."""
        note_kill(self.kills, self.process, self.passed[-1], self._last)
        os.kill(os.getpid(), signal.SIGKILL)

    def watch_files(self) -> None:
        """Count what is written, from here on, in this process."""
        flush, rename = os.fsync, os.replace
        flushed: dict[int, int] = {}

        def fsync(handle: int) -> None:
            about = os.fstat(handle)
            if stat.S_ISREG(about.st_mode):
                path = os.readlink(f"/proc/self/fd/{handle}")
                before = flushed.get(about.st_ino, 0 if Path(path).name.startswith(".") else about.st_size)
                if self.due("half", _file(path)):
                    os.ftruncate(os.open(path, os.O_RDWR), before + max(0, about.st_size - before) // 2)
                    self.die()
                flushed[about.st_ino] = about.st_size
            flush(handle)

        def replace(source: str | Path, target: str | Path, **more: Any) -> None:
            self.passes("whole", _file(target))
            rename(source, target, **more)
            self.passes("renamed", _file(target))

        os.fsync, os.replace = fsync, replace


def note_kill(path: Path, process: str, at: str, after: str) -> None:
    """Write down a kill, in one piece."""
    line = json.dumps({"process": process, "at": at, "after": after}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


def read_points(path: Path) -> list[Point]:
    """All points that a process has passed, as `Marks.passed` was written there."""
    labels: Counter[str] = Counter()
    points = []
    about = json.loads(path.read_text())
    for label in about["passed"]:
        labels[label] += 1
        points.append(Point(about["process"], label, labels[label]))
    return points


def _file(path: str | Path) -> str:
    """A file's name, without what a temporary neighbour or a number adds to it."""
    name = Path(path).name
    name = name.split(".", 2)[2] if name.startswith(".") else name
    return "checkpoint" if name.endswith(".ckpt") else name


class MarkedEndpoint(PartyEndpoint):
    """A silo's endpoint that passes points."""

    marks: Marks

    @classmethod
    def of(cls, endpoint: PartyEndpoint, marks: Marks) -> MarkedEndpoint:
        """The same endpoint, with points."""
        marked = cls.__new__(cls)
        marked.__dict__.update(vars(endpoint))
        marked.marks = marks
        return marked

    def answer(self, job: str, step: int, blob: bytes) -> bytes:
        what = wire_name(type(decode(blob)))
        self.marks.passes("ask", what)
        reply = super().answer(job, step, blob)
        self.marks.passes("answered", what)
        return reply

    def save(self, number: int) -> None:
        self.marks.passes("save")
        super().save(number)
        self.marks.passes("saved")

    def restore(self, number: int) -> None:
        self.marks.passes("restore")
        super().restore(number)
        self.marks.passes("restored")


class MarkedRemote(Remote):
    """The coordinator's way to silos that passes points. After "saved" comes the commit."""

    marks: Marks

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        what = self._asks(asks)
        received = super().exchange(step, asks)
        self.marks.passes("heard", what)
        return received

    def reach(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
        what = self._asks(exchange.asks)
        reached = super().reach(step, exchange, tell)
        self.marks.passes("heard", what)
        return reached

    def save(self, number: int) -> None:
        self.marks.passes("save")
        super().save(number)
        self.marks.passes("saved")

    def restore(self, number: int) -> None:
        self.marks.passes("restore")
        super().restore(number)
        self.marks.passes("restored")

    def _asks(self, asks: Mapping[str, Message]) -> str:
        what = wire_name(type(next(iter(asks.values()))))
        self.marks.passes("asks", what)
        return what
