"""Progress for users: bars with the time left in a terminal, an occasional line in a log, nothing when quiet.

`seconds_of` estimates how long a training takes from one that is stopped early.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping

import rich.progress
from rich.console import Console
from rich.text import Text

from silosynth.core.conversation import Progress

_BAR_EVERY = 0.05  # seconds between two updates of a bar; more would not be seen
_LINE_EVERY = 10.0  # seconds between two lines of one stage in a log


class RichProgress:
    """Shows progress; pass it to `drive` as ``watch`` and use it as a context manager.

    >>> with RichProgress(quiet=True) as watch:
    ...     watch(Progress("diffusion", 1, 10, {"loss": 0.5}))

    Args:
        console: where to show it; standard error when None.
        quiet: show nothing.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, console: Console | None = None, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = Console(file=sys.stderr) if console is None else console
        self._quiet, self._clock = quiet, clock
        self._bars: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._shown: dict[str, float] = {}

    def __enter__(self) -> RichProgress:
        if not self._quiet and self._console.is_terminal:
            self._bars = _bars(self._console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, progress: Progress) -> None:
        """Show progress. Cheap enough to be called for every batch."""
        if self._quiet:
            return
        now = self._clock()
        first = progress.stage not in self._began
        self._began.setdefault(progress.stage, (now, progress.done))  # a resumed stage does not start at 0
        if first and progress.note:
            self._console.print(Text(f"{progress.stage}: {progress.note}"), soft_wrap=True)
        pause = _BAR_EVERY if self._bars is not None else _LINE_EVERY
        if not first and progress.done < progress.total and now - self._shown[progress.stage] < pause:
            return
        self._shown[progress.stage] = now
        if self._bars is not None:
            self._bar(self._bars, progress)
        else:
            self._line(progress, now)

    def _bar(self, bars: rich.progress.Progress, progress: Progress) -> None:
        figures = _figures(progress.figures)
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = bars.add_task(progress.stage, figures="")
        bars.update(self._tasks[progress.stage], completed=progress.done, total=progress.total, figures=figures)

    def _line(self, progress: Progress, now: float) -> None:
        began, already = self._began[progress.stage]
        left = ""
        if already < progress.done < progress.total:
            pace = (now - began) / (progress.done - already)
            left = f", {_clock_time(pace * (progress.total - progress.done))} left"
        figures = _figures(progress.figures)
        line = f"{progress.stage}: {progress.done}/{progress.total}{left}{', ' if figures else ''}{figures}"
        self._console.print(Text(line), soft_wrap=True)


def _bars(console: Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.fields[figures]}", markup=False),
        console=console,
    )


def _figures(figures: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in figures.items())


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


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
