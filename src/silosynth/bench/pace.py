"""How long an experiment will take, from trainings that are stopped early."""

from __future__ import annotations

import math
import time

from silosynth.bench.common import TRAINING, Fit, Job, Rows, Silos, splits, train
from silosynth.bench.tables import Split


class _Enough(Exception):
    """Ends a trial training."""


def expected(pending: list[Job], fit: Fit | None = None, seconds: float = 15.0) -> float:
    """About how many seconds these rows take, from the pace of the first training of each table, stopped early."""
    pace: dict[str, float] = {}
    split_of = splits()
    for job in pending:
        if job.table not in pace:
            data = split_of(job)
            pace[job.table] = _pace(job, data, job.setting.divide(data, job.seed), fit, seconds)
    return sum(pace[job.table] for job in pending) / TRAINING


def _pace(job: Job, data: Split, held: Silos | Rows, fit: Fit | None, seconds: float) -> float:
    """Seconds of one training: those before its longest stage, and that stage's, if it goes on as it began."""
    start = time.perf_counter()
    began: dict[str, tuple[float, float]] = {}  # a stage's first moment and share
    guess = 0.0

    def watch(stage: str, share: float) -> None:
        nonlocal guess
        now = time.perf_counter()
        moment, first = began.setdefault(stage, (now, share))
        if share > first:
            guess = max(guess, moment - start + (now - moment) * (1 - first) / (share - first))
        if now - start > seconds and share > first:
            raise _Enough

    try:
        train(job, data, held, fit, watch)
    except _Enough:
        return guess
    return time.perf_counter() - start


def duration(seconds: float) -> str:
    """Seconds in the unit that people would say."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{math.ceil(seconds)} seconds"
