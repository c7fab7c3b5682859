"""How long an experiment will take, estimated from trainings that are stopped early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Watch = Callable[[str, float], None]  # called with a stage and the share of it that is done


class _LimitReached(Exception):
    """Stops the work that is timed."""


def seconds_of(work: Callable[[Watch], object], limit: float) -> float:
    """An estimate of the seconds that ``work`` takes. It reports its progress, and is stopped after ``limit`` seconds.

    The estimate extrapolates each stage that began within the limit, and is the largest of these. Work that ends within
    the limit took what it took.
    """
    start = time.perf_counter()
    began: dict[str, tuple[float, float]] = {}  # each stage's first moment and share
    estimates: dict[str, float] = {}  # of each stage, renewed as it goes on: it is slower at first

    def watch(stage: str, share: float) -> None:
        now = time.perf_counter()
        moment, first = began.setdefault(stage, (now, share))
        if share > first:
            estimates[stage] = moment - start + (now - moment) * (1 - first) / (share - first)
        if now - start > limit and share > first:
            raise _LimitReached

    try:
        work(watch)
    except _LimitReached:
        return max(estimates.values())
    return time.perf_counter() - start


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{math.ceil(seconds)} seconds"
