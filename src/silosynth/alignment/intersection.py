"""Two-party private set intersection by elliptic-curve Diffie-Hellman, as four functions of bytes.

The work is done by openmined-psi, on P-256: both sides hash items to points and multiply them by their own secret
number. A point multiplied by both numbers is the same for the same item, whichever came first; a point multiplied by
the other side's number reveals nothing. `encrypt` gives the holder's set, `query` the asker's, `answer` the asker's
under both numbers; from the holder's set and the answer, `matches` gives the asker's items that the holder has. The
holder learns how many items were asked.

Full points are compared, not a Bloom filter or Golomb-coded set of them: there are no false positives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from silosynth.core.errors import ProtocolError, UnavailableError

T = TypeVar("T")
R = TypeVar("R")
_PER_THREAD = 500  # fewest items that are worth a thread


def library() -> Any:
    """openmined-psi.

    Raises:
        UnavailableError: it is not installed.
    """
    try:
        import private_set_intersection.python as psi
    except ImportError as error:
        raise UnavailableError(
            "Private set intersection needs openmined-psi", "not installed", "Run: pip install 'silosynth[psi]'"
        ) from error
    return psi


def new_key() -> bytes:
    """A secret number from the operating system's random source. Draw one per query; a holder may keep its own."""
    key: bytes = library().client.CreateWithNewKey(True).GetPrivateKeyBytes()
    return key


def encrypt(key: bytes, tags: Sequence[bytes]) -> bytes:
    """The holder's items, multiplied by its number and sorted, so that their order reveals nothing."""
    psi = library()

    def work(part: Sequence[str]) -> list[bytes]:
        server = psi.server.CreateFromKey(key, True)
        return list(server.CreateSetupMessage(0.0, 0, part, psi.DataStructure.RAW).raw.encrypted_elements)

    setup = psi.ServerSetup()
    setup.raw.SetInParent()  # even without items
    setup.raw.encrypted_elements.extend(sorted(_in_parts(work, _items(tags))))
    raw: bytes = setup.SerializeToString()
    return raw


def query(key: bytes, tags: Sequence[bytes]) -> bytes:
    """The asker's items, multiplied by its number, in their order: points look random without the number."""
    psi = library()

    def work(part: Sequence[str]) -> list[bytes]:
        return list(psi.client.CreateFromKey(key, True).CreateRequest(part).encrypted_elements)

    points = _in_parts(work, _items(tags))
    raw: bytes = psi.Request(reveal_intersection=True, encrypted_elements=points).SerializeToString()
    return raw


def answer(key: bytes, asked: bytes) -> bytes:
    """The asker's query, multiplied by the holder's number too.

    Raises:
        ProtocolError: it is not a `query`.
    """
    psi = library()

    def work(part: Sequence[bytes]) -> list[bytes]:
        request = psi.Request(reveal_intersection=True, encrypted_elements=part)
        return list(psi.server.CreateFromKey(key, True).ProcessRequest(request).encrypted_elements)

    with _readable("a query"):
        request = psi.Request.FromString(asked)
        if not request.reveal_intersection:
            raise ValueError
        raw: bytes = psi.Response(encrypted_elements=_in_parts(work, request.encrypted_elements)).SerializeToString()
    return raw


def matches(key: bytes, held: bytes, answered: bytes, asked: int) -> list[int]:
    """Indices of the ``asked`` items that the holder has, ascending.

    Raises:
        ProtocolError: ``held`` and ``answered`` are not the holder's `encrypt` and its `answer` to as many items.
    """
    psi = library()

    def work(part: Sequence[tuple[int, bytes]]) -> list[int]:
        response = psi.Response(encrypted_elements=[point for _, point in part])
        hits = psi.client.CreateFromKey(key, True).GetIntersection(setup, response)
        return [part[hit][0] for hit in hits]

    with _readable("an answer"):
        setup, points = psi.ServerSetup.FromString(held), psi.Response.FromString(answered).encrypted_elements
        if setup.WhichOneof("data_structure") != "raw" or len(points) != asked:
            raise ValueError
        return sorted(_in_parts(work, list(enumerate(points))))


def n_asked(asked: bytes) -> int:
    """How many items a `query` asks about.

    Raises:
        ProtocolError: it is not one.
    """
    psi = library()
    with _readable("a query"):
        return len(psi.Request.FromString(asked).encrypted_elements)


def n_held(held: bytes) -> int:
    """How many items the holder's `encrypt` has.

    Raises:
        ProtocolError: it was not made by it.
    """
    psi = library()
    with _readable("an answer"):
        return len(psi.ServerSetup.FromString(held).raw.encrypted_elements)


def _items(tags: Sequence[bytes]) -> list[str]:
    return [tag.hex() for tag in tags]


def _in_parts(work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """``work`` applied to ``items`` in order, on all cores: the library releases Python's lock."""
    size = max(_PER_THREAD, -(-len(items) // (os.cpu_count() or 1)))
    parts = [items[at : at + size] for at in range(0, len(items), size)]
    if len(parts) < 2:
        return work(items)
    with ThreadPoolExecutor(len(parts)) as pool:
        return [result for results in pool.map(work, parts) for result in results]


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # openmined-psi's and protobuf's own errors say nothing helpful
        raise ProtocolError(
            "Silos exchange what openmined-psi writes",
            f"{what} that it cannot read",
            "Install the same version of silosynth[psi] in every silo.",
        ) from None
