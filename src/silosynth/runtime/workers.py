"""Threads in which parties compute in parallel, and which can be interrupted.

`concurrent.futures` cannot interrupt a call: after Ctrl-C the interpreter would wait until every silo has finished.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from silosynth.runtime.link import PARTY_THREADS

T = TypeVar("T")
_WAIT = 0.5  # seconds; some systems deliver Ctrl-C only between two waits
_PATIENCE = 5.0  # seconds for a computation to notice that it was interrupted


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Use ``number`` torch threads in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Stopped(BaseException):
    """Raised in a computation that nobody waits for any more."""


class PendingResult(Generic[T]):
    """A call that a worker is to make, and later its outcome."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._done = threading.Lock()  # held until there is an outcome; an Event is several times slower
        self._done.acquire()
        self._value: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call."""
        work, self._work = self._work, None
        assert work is not None
        try:
            self._value = work()
        except BaseException as error:  # raised again by `result`
            self.error = error
            if isinstance(error, Stopped):
                raise
        finally:
            self._done.release()

    def result(self) -> T:
        """Wait for the outcome; raises what the call raised. To be called once."""
        while not self._done.acquire(timeout=_WAIT):
            pass
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]


def run_here(work: Callable[..., T], *args: Any) -> PendingResult[T]:
    """Run ``work`` in this thread, with a worker's settings for gradients and threads. Ctrl-C is raised at once."""
    pending = PendingResult(lambda: work(*args))
    with torch_threads(PARTY_THREADS), torch.inference_mode(False), torch.enable_grad():
        pending.run()
    if pending.error is not None and not isinstance(pending.error, Exception):
        raise pending.error
    return pending


class Worker(threading.Thread):
    """One thread that makes one call after the other, with `PARTY_THREADS` torch threads. Starts when needed.

    It keeps no finished call: an error's traceback would keep all local variables alive.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=f"silosynth-{name}", daemon=True)
        self._inbox: queue.SimpleQueue[PendingResult[Any] | None] = queue.SimpleQueue()
        self._busy = self._stopping = False

    def do(self, work: Callable[..., T], *args: Any) -> PendingResult[T]:
        """Run ``work`` in the thread; its outcome is in the returned `PendingResult`."""
        if self.ident is None:
            self.start()
        pending = PendingResult(lambda: work(*args))
        self._inbox.put(pending)
        return pending

    def run(self) -> None:
        """The thread's main loop."""
        try:
            torch.get_num_threads()  # or this thread would take its number from whichever thread set one last
            torch.set_num_threads(PARTY_THREADS)
            while (pending := self._inbox.get()) is not None and not self._stopping:
                self._busy = True
                pending.run()
                self._busy = False
                del pending
        except Stopped:
            pass

    def stop(self) -> None:
        """Interrupt the current call at its next step in Python; do not wait."""
        self._stopping = True
        self._inbox.put(None)
        if self._busy and self.is_alive():
            identity = ctypes.c_ulong(self.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(Stopped))


def stop_workers(workers: Iterable[Worker]) -> None:
    """Stop all workers; those that have stopped are left alone."""
    workers = list(workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        if worker.ident is not None and worker is not threading.current_thread():
            worker.join(_PATIENCE)
