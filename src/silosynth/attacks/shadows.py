"""Many trainings of one generator, in parallel processes, each kept in a file of its own as soon as it has ended.

What is kept of a training are figures measured on it. They reveal as much of the table as its synthetic tables do: only
the user may read the folder.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd

from silosynth.core.errors import StorageError, UnavailableError
from silosynth.core.files import make_folder, read, sweep, write_atomic
from silosynth.core.streams import Streams
from silosynth.core.threads import computing_on
from silosynth.core.version import VERSION
from silosynth.evaluation.scores import Floats, Ints

Train = tuple[pd.DataFrame, int]  # records and a seed
Kept = dict[str, list[float]]
Tell = Callable[[str, float], None]  # the stage, and the share of the work that is done
Announce = Callable[[int, float], None]  # how many trainings are left, and the seconds that they will take
OFF = 1.5  # a forecast that was off by more is corrected
_PLAN = "plan.json"
_BLINK = 0.5  # seconds; some systems deliver Ctrl-C only between two waits


@dataclass(frozen=True, eq=False)
class Shadow:
    """One shadow training: its name, the rows of the table that it gets, and its seed."""

    name: str
    rows: Ints
    seed: int


@dataclass(frozen=True, eq=False)
class Game:
    """What all trainings share.

    Attributes:
        table: all rows that a training may get.
        measure: (records and seed of each training, the table) -> what is kept of each. Both are sent to other
            processes.
        description: what besides the table decides the outcome; trainings kept under another one are not reused.
    """

    table: pd.DataFrame
    measure: Callable[[Sequence[Train], pd.DataFrame], list[Kept]]
    description: str

    def __call__(self, jobs: Sequence[Shadow]) -> list[tuple[str, Kept]]:
        """Carry them out; names and outcomes."""
        kept = self.measure(self.trains(jobs), self.table)
        return [(job.name, outcome) for job, outcome in zip(jobs, kept, strict=True)]

    def trains(self, jobs: Sequence[Shadow]) -> list[Train]:
        """Records and seed of each training."""
        return [(self.table.iloc[job.rows].reset_index(drop=True), job.seed) for job in jobs]


def fingerprint(table: pd.DataFrame, description: str) -> str:
    """A hash of a table, of how it is used, and of the version of this package."""
    cells = np.asarray(pd.util.hash_pandas_object(table, index=False)).tobytes()
    return hashlib.sha256(cells + f"{list(table.columns)} {description} {VERSION}".encode()).hexdigest()


def seed_of(streams: Streams, name: str) -> int:
    """A training's seed: a function of the audit's and of its name; other programs take no more than 31 bits."""
    return streams.child("shadow", name).integer() % 2**31


def train(
    game: Game,
    jobs: Sequence[Shadow],
    folder: Path | None = None,
    processes: int = 1,
    together: int = 1,
    tell: Tell = lambda stage, share: None,
    announce: Announce | None = None,
    foresee: Callable[[Sequence[Train]], float | None] = lambda trains: None,
) -> dict[str, Kept]:
    """What is kept of every job, by name; jobs whose outcome is in ``folder`` already are not done again.

    ``game.measure`` gets ``together`` jobs at a time. Before the first, ``announce`` is called with how long all will
    take if ``foresee`` can estimate that for the first ones; and again if these turn out much slower or quicker. If it
    cannot, the first ones are carried out alone and timed. One process is this one; several are started afresh, and end
    when this one does, however that happens.

    Raises:
        StorageError: the folder holds another audit, or cannot be written.
        UnavailableError: a process died; it was killed, or out of memory.
    """
    kept = _kept(game, folder)
    pending = [job for job in jobs if job.name not in kept]
    groups = [pending[start : start + together] for start in range(0, len(pending), together)]
    foreseen = None
    if announce is not None and groups:
        with computing_on(1):  # as other processes have
            foreseen = foresee(game.trains(groups[0]))
    if announce is not None and foreseen is not None:
        announce(len(pending), foreseen * len(pending) / len(groups[0]) / min(processes, len(groups)))
    began = time.perf_counter()
    alone = announce is not None and foreseen is None
    for number, outcomes in enumerate(_outcomes(game, groups, processes, alone)):
        for name, outcome in outcomes:
            if folder is not None:
                write_atomic(folder / f"{name}.json", json.dumps(outcome).encode())
            kept[name] = outcome
        left = len(groups) - number - 1
        if announce is not None and number == 0 and left:
            took = time.perf_counter() - began
            if foreseen is None or not 1 / OFF < took / foreseen < OFF:
                announce(len(pending) - len(outcomes), took * left / min(processes, left))
        done = sum(job.name in kept for job in jobs)
        tell(f"{done}/{len(jobs)} trainings", done / len(jobs))
    return {job.name: kept[job.name] for job in jobs}


def _kept(game: Game, folder: Path | None) -> dict[str, Kept]:
    """What an earlier run has left."""
    if folder is None:
        return {}
    claim(folder, fingerprint(game.table, game.description))
    return {path.stem: json.loads(read(path)) for path in sorted(folder.glob("*.json")) if path.name != _PLAN}


def claim(folder: Path, fingerprint: str) -> None:
    """Make ``folder`` ready, for its user alone and for what ``fingerprint`` stands for alone.

    Raises:
        StorageError: it holds something else, or cannot be written.
    """
    make_folder(folder)
    with suppress(OSError):
        folder.chmod(0o700)
    sweep(folder)
    plan = folder / _PLAN
    if not plan.exists():
        write_atomic(plan, json.dumps({"form": "silosynth audit", "mark": fingerprint}).encode())
    if json.loads(read(plan)).get("mark") != fingerprint:
        raise StorageError(
            "A folder keeps one audit: one table, generator and seed", str(folder), "Name another one, or empty it."
        )


def _outcomes(
    game: Game, groups: Sequence[Sequence[Shadow]], processes: int, alone: bool
) -> Iterator[list[tuple[str, Kept]]]:
    """Names and outcomes as they come; the first group ``alone``, or beside the others."""
    if processes <= 1 or len(groups) <= 1:
        yield from map(game, groups)
        return
    with _pool(game, min(processes, len(groups))) as pool:
        try:
            first = 1 if alone else 0
            for part in (groups[:first], groups[first:]):
                yield from _as_they_end({pool.submit(_work, group) for group in part})
        except BrokenProcessPool as error:
            remedy = "Run again, with fewer processes if memory is short: what was kept is taken up."
            raise UnavailableError("A process that trains must live until its end", remedy=remedy) from error


def _as_they_end(pending: set[Future[list[tuple[str, Kept]]]]) -> Iterator[list[tuple[str, Kept]]]:
    while pending:
        done, pending = wait(pending, _BLINK, FIRST_COMPLETED)
        yield from (future.result() for future in done)


@contextmanager
def _pool(game: Game, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that each hold a reading end of a pipe, and end at once when its writing end is closed."""
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _begin, (game, reading))
    try:
        yield pool
    finally:
        writing.close()
        pool.shutdown(wait=True, cancel_futures=True)
        reading.close()


_game: Game | None = None  # of a process that trains


def _begin(game: Game, alive: Connection) -> None:
    """Make ready a process that trains: one torch thread, deaf to Ctrl-C (who started it ends it)."""
    import signal

    import torch

    global _game
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    _game = game


def _end_with(alive: Connection) -> None:
    with suppress(EOFError, OSError):
        alive.recv()
    os._exit(0)


def _work(jobs: Sequence[Shadow]) -> list[tuple[str, Kept]]:
    assert _game is not None  # `_begin` came first
    return _game(jobs)


def matrix(kept: dict[str, Kept], names: Sequence[str], kind: str) -> Floats:
    """Features called ``kind`` of the trainings called ``names``: (M, F)."""
    return np.array([kept[name][kind] for name in names], dtype=np.float64)
