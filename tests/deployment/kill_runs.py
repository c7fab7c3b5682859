"""A job whose processes are killed, attempt after attempt: as FLARE and the dispatcher do, all are started anew.

A run is a folder with the kits of a coordinator and of silos. All processes are forks of this one, which must have no
threads of its own, so that nobody loads torch again; they talk over streams with mutual TLS.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.deployment.kill_points import MarkedEndpoint, MarkedRemote, Marks, Point, note_kill

from silosynth.core.conversation import COORDINATOR, Roster
from silosynth.deployment import approval
from silosynth.deployment.coordinator import Order, Status, read_status, run_order
from silosynth.deployment.entry import journal, open_endpoint
from silosynth.deployment.kits import read_kit
from silosynth.deployment.policy import read_policy
from silosynth.runtime.stream import StreamHub, serve_endpoint

LIMIT = 240.0  # seconds for one attempt
PATIENCE = 120.0  # seconds for which a stream may be broken
RESULTS = ("synthetic.parquet", "ledger.jsonl", "result.json", "model.silosynth", "counted.silosynth")
_LEDGERS = re.compile(
    rb'("type": "deployment.(?:SealedHeads|RelayedHeads|LabelSigned|KeepLabel)",[^{}]*?"bytes": )\d+'
    rb'|(?<=^silosynth)(?s:.*?)(?=\{"d":)'
)
"""Heads and labels tell how many lines a silo's ledger has, and so their size hangs on the digits of that number; the
first bytes of a model file, which hold its messages, are its length and checksum."""
_TIMES = re.compile(rb'("(?:begun|ended)": ")[^"]*')
KEPT = ("synthetic.parquet", "part.silosynth", "counted.silosynth")


@dataclass(frozen=True)
class Plan:
    """What happens in one attempt.

    Attributes:
        point: where a process kills itself.
        later: who is killed from outside, and after how many seconds.
        orderly: whether the coordinator is told who died, and all leave by themselves; else all are killed.
        linger: seconds for which silos outlive a coordinator that died, if the next attempt lasts so long.
    """

    point: Point | None = None
    later: tuple[str, float] | None = None
    orderly: bool = False
    linger: float = 0.0


@dataclass
class Run:
    """One job in its folder. ``every``: least seconds between two checkpoints; ``lingering``: until when who lives."""

    place: Path
    order: Order
    every: float = 0.0
    attempts: int = 0
    address: str = "127.0.0.1:0"
    lingering: dict[int, float] = field(default_factory=dict)
    kills: list[dict[str, str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The coordinator's, of the job."""
        return self.place / COORDINATOR / "work" / "jobs" / self.order.job.name

    @property
    def file(self) -> Path:
        """Where kills are written down."""
        return self.place / "kills.jsonl"

    def to_the_end(self, plans: Sequence[Plan]) -> None:
        """One attempt by each plan, and more until the job is done.

        Raises:
            RuntimeError: it cannot go on, though nobody was killed; or hangs.
        """
        plans, done = list(plans), False
        self.order.keep(self.folder)  # as the dispatcher does
        Status().write(self.folder)
        while not done:
            before = len(self.kills)
            done = Attempt(self, plans.pop(0) if plans else Plan()).watch()
            self.kills = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
            if not done and len(self.kills) == before:
                raise RuntimeError(f"attempt {self.attempts} ended, though nobody was killed\n{self.words()}")
        self.end_lingering(math.inf)

    def end_lingering(self, now: float) -> None:
        """Kill those whose time has come."""
        for process in [one for one, until in self.lingering.items() if until <= now]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            del self.lingering[process]

    def hash(self) -> str:
        """Of all results: at the coordinator and at each silo."""
        job = self.order.job
        files = [self.folder / name for name in RESULTS]
        files += [self.place / silo / "work" / "jobs" / job.name / name for silo in job.silos for name in KEPT]
        seen = hashlib.sha256()
        for path in files:
            blob = _comparable(path.read_bytes()) if path.exists() else b"none"
            seen.update(f"{path.relative_to(self.place)} {len(blob)}\n".encode() + blob)
        return seen.hexdigest()

    def words(self) -> str:
        """What the processes of the last attempt have said."""
        logs = sorted((self.place / "logs").glob(f"{self.attempts}.*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-2500:]}" for path in logs)


def _comparable(blob: bytes) -> bytes:
    """A result without what hangs on the clock, or on how often silos were asked again."""
    return _TIMES.sub(rb"\1?", _LEDGERS.sub(rb"\1?", blob.replace(b'\\"', b'"')))


class Attempt:
    """All processes of a job, from their start until all have ended."""

    def __init__(self, run: Run, plan: Plan) -> None:
        run.attempts += 1
        self._run, self._plan, self._begun = run, plan, time.monotonic()
        self._logs = run.place / "logs"
        self._logs.mkdir(exist_ok=True)
        self._alive: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        ear, mouth = os.pipe()
        self._fork(COORDINATOR, partial(_coordinate, run, mouth, self._dead))
        os.close(mouth)
        address = os.read(ear, 200).decode()  # nothing, if it was killed before it had one
        os.close(ear)
        run.address = address or run.address
        for silo in run.order.job.silos if address else ():
            self._fork(silo, partial(_serve, run, silo))

    def watch(self) -> bool:
        """Kill and wait; whether the job is done.

        Raises:
            RuntimeError: a process fails that was not killed, or hangs.
        """
        try:
            while self._alive:
                for name in list(self._alive):
                    self._look_at(name)
                self._strike()
                self._run.end_lingering(time.monotonic())
                if time.monotonic() - self._begun > LIMIT:
                    raise RuntimeError(f"attempt {self._run.attempts} hangs\n{self._run.words()}")
                time.sleep(0.002)
        finally:
            self._end_all()
        code = self._ended[COORDINATOR]
        if code > 0 and read_status(self._run.folder).state == "failed":
            raise RuntimeError(f"attempt {self._run.attempts} failed\n{self._run.words()}")
        return code == 0

    def _look_at(self, name: str) -> None:
        if name not in self._alive or not self._reaped(name, os.WNOHANG):
            return
        code = self._ended[name]
        if code < 0 and name == COORDINATOR and self._plan.linger:
            self._run.lingering |= dict.fromkeys(self._alive.values(), time.monotonic() + self._plan.linger)
            self._alive = {}
        elif code < 0 and (name == COORDINATOR or not self._plan.orderly):
            self._end_all()
        elif code < 0:
            self._death(name).touch()
        elif code > 0 and COORDINATOR in self._alive:
            raise RuntimeError(f"silo {name} left by itself, with {code}\n{self._run.words()}")

    def _strike(self) -> None:
        """Kill from outside, when it is time."""
        if self._plan.later is None or time.monotonic() - self._begun < self._plan.later[1]:
            return
        name = self._plan.later[0]
        self._plan = replace(self._plan, later=None)
        if name in self._alive:
            note_kill(self._run.file, name, "outside", "?")
            os.kill(self._alive[name], signal.SIGKILL)

    def _end_all(self) -> None:
        for name, process in list(self._alive.items()):
            os.kill(process, signal.SIGKILL)
            self._reaped(name, 0)

    def _reaped(self, name: str, options: int) -> bool:
        """Whether it has ended."""
        ended, status = os.waitpid(self._alive[name], options)
        if ended:
            del self._alive[name]
            self._ended[name] = os.waitstatus_to_exitcode(status)
        return bool(ended)

    def _death(self, silo: str) -> Path:
        return self._logs / f"{self._run.attempts}.{silo}.dead"

    def _dead(self, silo: str) -> str | None:
        """What the coordinator is told of silos, as FLARE tells it."""
        return "it was killed" if self._death(silo).exists() else None

    def _fork(self, name: str, work: Callable[[Marks], None]) -> None:
        point = self._plan.point
        marks = Marks(name, point if point and point.process == name else None, self._run.file)
        self._alive[name] = os.fork() or _live(work, marks, self._logs / f"{self._run.attempts}.{name}")


def _live(work: Callable[[Marks], None], marks: Marks, about: Path) -> NoReturn:
    """What a fork does, to its end."""
    code = 1
    try:
        log = os.open(f"{about}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        marks.watch_files()
        work(marks)
        seen = {"process": marks.process, "passed": marks.passed, "modules": list(sys.modules)}
        Path(f"{about}.json").write_text(json.dumps(seen))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _coordinate(run: Run, mouth: int, dead: Callable[[str], str | None], marks: Marks) -> None:
    """As `silosynth.deployment.entry.coordinate` over the stream."""
    kit, order = read_kit(run.place / COORDINATOR), run.order
    order.keep(run.folder)
    roster = Roster(order.job.silos)
    hub = StreamHub(roster, kit.certificates(), run.address, PATIENCE, str(run.attempts))
    os.write(mouth, hub.address.encode())
    os.close(mouth)
    try:
        hub.wait_for_all(PATIENCE, dead)
        with MarkedRemote(roster, hub, dead, order.limit) as link:
            link.marks = marks
            run_order(order, link, run.folder, journal(run.folder), run.every)
    finally:
        hub.stop()


def _decide(folder: Path, marks: Marks) -> None:
    """What an officer does while the silo waits, who approves of whatever she has looked at."""
    marks.passes("held")
    approval.looked_at(folder)
    approval.decide(folder, True, "no close copies")
    marks.passes("decided")


def _serve(run: Run, silo: str, marks: Marks) -> None:
    """As `silosynth.deployment.entry.JobAnswerer` over the stream."""
    kit = read_kit(run.place / silo)
    endpoint = open_endpoint(kit, read_policy(kit.folder), run.order.job.name, run.order.job.submitter)
    marks.passes("ask", "connect")
    approval.wait = partial(_decide, kit.jobs / run.order.job.name, marks)
    marked, attempt = MarkedEndpoint.of(endpoint, marks), str(run.attempts)
    serve_endpoint(marked, address=run.address, certs=kit.certificates(), patience=PATIENCE, attempt=attempt)
