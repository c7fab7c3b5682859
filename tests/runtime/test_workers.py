"""Workers: threads whose computations are interrupted."""

from __future__ import annotations

import threading
import time
import weakref

from silosynth.runtime.link import Worker, stop_workers


class Thing:
    pass


def test_an_interrupt_that_python_swallows_is_repeated_and_not_reported() -> None:
    """What is raised in the callback of a weak reference goes no further."""
    reached, swallowed = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        reached.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            swallowed.set()

    def endless() -> None:
        thing = Thing()
        reference = weakref.ref(thing, callback)
        del thing
        while reference is not None:
            time.sleep(0.001)

    worker = Worker("endless")
    worker.do(endless)
    reached.wait()
    stop_workers([worker])
    assert swallowed.is_set() and not worker.is_alive()


def test_workers_that_never_began_or_have_stopped_are_left_alone() -> None:
    idle, done = Worker("idle"), Worker("done")
    assert done.do(len, "abc").result() == 3
    stop_workers([idle, done])
    stop_workers([idle, done])
    assert not done.is_alive()
