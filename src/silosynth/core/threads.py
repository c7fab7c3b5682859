"""How many threads a coordinator computes on, and work that several of them share without changing a byte of it.

PyTorch's own threads share single operations: sums then differ in their last bits from those of one thread. Threads of
`SharedWork` compute whole results, such as a batch's gradients, which are then added in one order. So their number is
nobody's business but the machine's, and may change while a network trains (docs/decisions/0087).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import torch

from silosynth.core.errors import ConfigError

R = TypeVar("R")
Threads = int | Literal["auto"]
Share = Callable[[Callable[..., Any], Sequence[tuple[object, ...]]], list[Any]]
"""The results of a function for each of some arguments, in their order."""

MOST = 64  # threads that a step of a few thousand rows can use
_WORTH = 1.3  # times as fast: twice the threads take twice the cores, which others may want
_TRIED, _REMEMBERED, _AGAIN = 2, 3, 50  # times of each number, at first and at most; after how many one is tried again
_allowed: ContextVar[Threads] = ContextVar("threads", default=1)


def check_threads(threads: int | str) -> Threads:
    """``threads``, which is "auto" or a number from 1 on.

    Raises:
        ConfigError: it is something else.
    """
    if threads == "auto":
        return "auto"
    if type(threads) is int and 1 <= threads <= MOST:
        return threads
    rule = f"The coordinator computes on 1 to {MOST} threads, or on as many as are fastest"
    raise ConfigError(rule, threads, "Set threads to a number, or to 'auto'.")


def usable_cores() -> int:
    """Cores, hyperthreads counted, that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, usable)


def torch_threads_of(threads: Threads) -> int:
    """How many torch threads single operations have: with "auto" one, for the same bytes everywhere."""
    return 1 if threads == "auto" else threads


@contextmanager
def computing_on(threads: Threads) -> Iterator[None]:
    """Compute on so many threads here: torch's, and those of `SharedWork`."""
    before, reset = torch.get_num_threads(), _allowed.set(threads)
    torch.set_num_threads(torch_threads_of(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allowed.reset(reset)


class SharedWork:
    """Calls of functions that compute the same wherever they run, shared by as many threads as `computing_on` allows.

    With "auto" by as many, 1, 2, 4 … up to the cores, beyond which twice as many have not been worth it when they were
    last tried, for each function. That is found out by the work itself, and now and then again: machines get busy and
    idle.

    Args:
        calls: how many there are at a time, at most.
        clock: seconds, to compare how long they take.
    """

    def __init__(self, calls: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._calls, self._clock = calls, clock
        self._trials: dict[tuple[str, int], _Trials] = {}  # by function, and calls at a time

    @contextmanager
    def shared(self) -> Iterator[Share]:
        """A way to make calls: this thread makes some, and others, which live while the block runs, the rest.

        Each has one torch thread, this one as well: single operations are the same however many there are.
        """
        allowed = _allowed.get()
        most = min(self._calls, usable_cores() if allowed == "auto" else allowed)
        if most == 1:
            yield in_turn
            return
        before = torch.get_num_threads()

        def start() -> None:
            torch.get_num_threads()  # or this thread would take its number from whichever thread set one last
            torch.set_num_threads(1)

        def share(call: Callable[..., Any], given: Sequence[tuple[object, ...]]) -> list[Any]:
            trials = self._trials.setdefault((call.__qualname__, len(given)), _Trials())
            workers, started = trials.fastest(most) if allowed == "auto" else most, self._clock()
            results = _in_lanes(pool, workers, call, given)
            trials.took(workers, self._clock() - started)
            return results

        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(most - 1, "silosynth-shared", start) as pool:
                yield share
        finally:
            torch.set_num_threads(before)


def in_turn(call: Callable[..., Any], given: Sequence[tuple[object, ...]]) -> list[Any]:
    """Calls that this thread makes, one after the other."""
    return [call(*one) for one in given]


class _Trials:
    """How many threads make some calls fastest, by the seconds that they took last."""

    def __init__(self) -> None:
        self._times = 0
        self._seconds: dict[int, deque[float]] = {}

    def fastest(self, most: int) -> int:
        """How many threads make the next calls: the fastest number, at first each, and now and then one beside it."""
        self._times += 1
        number = 1
        while 2 * number <= most and self._worth_twice(number):
            number *= 2
        if self._times % _AGAIN:
            return number
        beside = 2 * number if self._times // _AGAIN % 2 else number // 2
        return beside if 1 <= beside <= most else number

    def took(self, number: int, seconds: float) -> None:
        """How long so many threads took."""
        self._seconds.setdefault(number, deque(maxlen=_REMEMBERED)).append(seconds)

    def _worth_twice(self, number: int) -> bool:
        """Whether twice as many threads are to be used, or tried."""
        few, many = (self._seconds.get(threads, ()) for threads in (number, 2 * number))
        return len(few) >= _TRIED and (len(many) < _TRIED or min(few) > _WORTH * min(many))


def _in_lanes(
    pool: ThreadPoolExecutor, workers: int, call: Callable[..., R], given: Sequence[tuple[object, ...]]
) -> list[R]:
    """The calls' results, in order; every ``workers``-th is this thread's."""

    def lane(first: int) -> list[R]:
        return [call(*one) for one in given[first::workers]]

    others = [pool.submit(lane, first) for first in range(1, workers)]
    lanes = [lane(0), *(other.result() for other in others)]
    return [lanes[i % workers][i // workers] for i in range(len(given))]
