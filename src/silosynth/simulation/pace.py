"""How long an experiment will take, from trainings that are stopped early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Watch = Callable[[str, float], None]  # a stage, and the share of it that is done


class _Enough(Exception):
    """Ends a trial training."""


def seconds_of(work: Callable[[Watch], object], limit: float) -> float:
    """About how many seconds ``work`` takes, which tells how far it is, and is stopped early.

    These are those before its longest stage that began within ``limit`` seconds, and that stage's, if it goes on as it
    began. Of work that ends before, the seconds that it took.
    """
    start = time.perf_counter()
    began: dict[str, tuple[float, float]] = {}  # a stage's first moment and share
    guesses: dict[str, float] = {}  # by each stage, as it was last seen: what is done first is slower

    def watch(stage: str, share: float) -> None:
        now = time.perf_counter()
        moment, first = began.setdefault(stage, (now, share))
        if share > first:
            guesses[stage] = moment - start + (now - moment) * (1 - first) / (share - first)
        if now - start > limit and share > first:
            raise _Enough

    try:
        work(watch)
    except _Enough:
        return max(guesses.values())
    return time.perf_counter() - start


def duration(seconds: float) -> str:
    """Seconds in the unit that people would say."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{math.ceil(seconds)} seconds"
