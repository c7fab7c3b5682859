"""How many torch threads a coordinator computes on: a number, or the fastest one of a short trial.

More threads change the last bits of sums, so a run keeps the number that it found beside its checkpoints, and resumes
with it. Why one thread is the default, and why a machine must be tried: docs/decisions/0006 and 0052.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import read, write_atomic
from silosynth.core.streams import Streams
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.runtime.link import torch_threads

Threads = int | Literal["auto"]
FILE = "threads"
MOST = 64  # threads that a step of a few thousand rows can use
_WORTH = 1.3  # times as fast: twice the threads take twice the cores, which others may want
_ROUNDS = 3


def check_threads(threads: int | str) -> Threads:
    """``threads``, which is "auto" or a number from 1 on.

    Raises:
        ConfigError: it is something else.
    """
    if threads == "auto":
        return "auto"
    if type(threads) is int and 1 <= threads <= MOST:
        return threads
    rule = f"The coordinator computes on 1 to {MOST} threads, or on as many as a trial finds best"
    raise ConfigError(rule, threads, "Set threads to a number, or to 'auto'.")


def settle_threads(threads: Threads, folder: Path, again: bool, device: torch.device, config: Any) -> int:
    """The number of threads of a run in ``folder``: with ``again``, the one that an earlier trial found there.

    One without a trial where the coordinator trains no generator of latents, which is what trials are made of.

    Raises:
        StorageError: the folder holds something else than that number.
    """
    if threads != "auto":
        return threads
    if device.type != "cpu" or not isinstance(getattr(config, "latent", None), LatentConfig):
        return 1
    path = folder / FILE
    if again and path.exists():
        text = read(path).decode("ascii", "replace")
        if not (text.isdecimal() and 1 <= int(text) <= MOST):
            raise StorageError(f"{str(path)!r} holds the number of threads of a run", text[:20], "Name the number.")
        return int(text)
    number = fastest(some_steps(), usable_cores())
    write_atomic(path, str(number).encode())
    return number


def usable_cores() -> int:
    """Cores, hyperthreads counted, that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, usable)


def some_steps() -> Callable[[], None]:
    """Four training steps of SiloFuse's generator at its usual size, which most time goes into."""
    generator = LatentGenerator(2048, 32, LatentConfig(fit_to_rows=False), Streams(0), torch.device("cpu"))
    x_NL, draw = torch.zeros(2048, 32), Streams(0).torch()

    def steps() -> None:
        generator.learner.shampoo.done = 53  # as most steps are: without renewing its roots
        generator.descend(x_NL, torch.arange(2048), 4, draw)

    return steps


def fastest(step: Callable[[], None], most: int, clock: Callable[[], float] = time.perf_counter) -> int:
    """The number of threads, 1, 2, 4 … ``most``, beyond which twice as many are not worth it.

    Numbers are tried in turn, one call each, so that what else the machine does slows down all of them. Threads that
    wait for each other on a shared core are given up at the first call.
    """
    best = 1
    _seconds(step, best, clock)  # the first one takes memory
    while 2 * best <= most:
        few, many = [], []
        for _ in range(_ROUNDS):
            few.append(_seconds(step, best, clock))
            many.append(_seconds(step, 2 * best, clock))
            if many[-1] > 2 * few[-1]:
                return best
        if _WORTH * sum(many) > sum(few):
            return best
        best *= 2
    return best


def _seconds(step: Callable[[], None], threads: int, clock: Callable[[], float]) -> float:
    with torch_threads(threads):
        start = clock()
        step()
        return clock() - start
