"""Secret draws within tests: the same in every run, since a test may fail for its reason only and never by chance.

Noise, keys and shares come from the operating system's randomness, and so would what a test finds of them. While a test
runs, that randomness is a stream named after the test; while a fixture is made, after the fixture, whatever test asks
for it first. `--entropy N` gives all of them other streams: a test that is right for some draws only is found by it.
Processes that a test starts or forks keep the real thing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager


class Entropy:
    """In the place of `os.urandom`."""

    def __init__(self) -> None:
        self._real, self._owner, self._stream = os.urandom, os.getpid(), random.Random()
        self._named = False

    def __call__(self, length: int, /) -> bytes:
        if self._named and os.getpid() == self._owner:
            return self._stream.randbytes(length)
        return self._real(length)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Draws from the stream of that name, until the block ends."""
        before = self._named, self._stream
        self._named, self._stream = True, random.Random(name)
        try:
            yield
        finally:
            self._named, self._stream = before


entropy = Entropy()
# Before silosynth is first imported, which keeps the function as some defaults; `secrets` draws through `random`.
os.urandom = entropy
random._urandom = entropy  # type: ignore[attr-defined]
