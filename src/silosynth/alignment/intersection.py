"""Two parties' private set intersection by elliptic-curve Diffie-Hellman, as four functions of bytes.

The work is openmined-psi's, on P-256: both sides hash items to points and multiply them by a secret number of their
own. What was multiplied by both is the same for the same item, whichever came first; what was multiplied by the other's
number says nothing. `encrypt` is the holder's set, `query` the asker's, `answer` the asker's with both numbers; with
it and with what is encrypted the asker finds which of its items the holder has. The holder learns how many were asked.

Whole points are compared, not a Bloom filter or Golomb-coded set of them: there are no false positives.
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
_FEWEST = 500  # items that are worth a thread


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
    """A secret number, drawn from the operating system. One for each query; a holder may keep its own."""
    key: bytes = library().client.CreateWithNewKey(True).GetPrivateKeyBytes()
    return key


def encrypt(key: bytes, tags: Sequence[bytes]) -> bytes:
    """The holder's items, multiplied by its number, in an order that says nothing: points are sorted."""
    psi = library()

    def work(part: Sequence[str]) -> list[bytes]:
        server = psi.server.CreateFromKey(key, True)
        return list(server.CreateSetupMessage(0.0, 0, part, psi.DataStructure.RAW).raw.encrypted_elements)

    setup = psi.ServerSetup()
    setup.raw.SetInParent()  # also where there is no item
    setup.raw.encrypted_elements.extend(sorted(_in_parts(work, _items(tags))))
    raw: bytes = setup.SerializeToString()
    return raw


def query(key: bytes, tags: Sequence[bytes]) -> bytes:
    """The asker's items, multiplied by its number; in their order, as points look random without the number."""
    psi = library()

    def work(part: Sequence[str]) -> list[bytes]:
        return list(psi.client.CreateFromKey(key, True).CreateRequest(part).encrypted_elements)

    points = _in_parts(work, _items(tags))
    raw: bytes = psi.Request(reveal_intersection=True, encrypted_elements=points).SerializeToString()
    return raw


def answer(key: bytes, asked: bytes) -> bytes:
    """What the asker sent, multiplied by the holder's number too.

    Raises:
        ProtocolError: it is not a `query`.
    """
    psi = library()

    def work(part: Sequence[bytes]) -> list[bytes]:
        request = psi.Request(reveal_intersection=True, encrypted_elements=part)
        return list(psi.server.CreateFromKey(key, True).ProcessRequest(request).encrypted_elements)

    with _refused("a query"):
        request = psi.Request.FromString(asked)
        if not request.reveal_intersection:
            raise ValueError
        raw: bytes = psi.Response(encrypted_elements=_in_parts(work, request.encrypted_elements)).SerializeToString()
    return raw


def matches(key: bytes, held: bytes, answered: bytes, asked: int) -> list[int]:
    """Which of the ``asked`` items, by number and ascending, the holder has.

    Raises:
        ProtocolError: these are not the holder's `encrypt` and its `answer` to as many items.
    """
    psi = library()

    def work(part: Sequence[tuple[int, bytes]]) -> list[int]:
        response = psi.Response(encrypted_elements=[point for _, point in part])
        hits = psi.client.CreateFromKey(key, True).GetIntersection(setup, response)
        return [part[hit][0] for hit in hits]

    with _refused("an answer"):
        setup, points = psi.ServerSetup.FromString(held), psi.Response.FromString(answered).encrypted_elements
        if setup.WhichOneof("data_structure") != "raw" or len(points) != asked:
            raise ValueError
        return sorted(_in_parts(work, list(enumerate(points))))


def _items(tags: Sequence[bytes]) -> list[str]:
    return [tag.hex() for tag in tags]


def _in_parts(work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """What ``work`` makes of ``items``, in order, on all cores: the library lets go of Python's lock meanwhile."""
    size = max(_FEWEST, -(-len(items) // (os.cpu_count() or 1)))
    parts = [items[at : at + size] for at in range(0, len(items), size)]
    if len(parts) < 2:
        return work(items)
    with ThreadPoolExecutor(len(parts)) as pool:
        return [one for made in pool.map(work, parts) for one in made]


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # the library's, and one of protobuf's own; neither says anything that helps
        raise ProtocolError(
            "Silos answer each other with what openmined-psi writes",
            f"{what} that it cannot read",
            "Install the same version of silosynth[psi] in every silo.",
        ) from None
