"""A protocol is a conversation, and the conversation does no I/O.

The coordinator's side of an algorithm is a generator: it yields an `Exchange` (what it asks of parties) and receives
their replies; it yields a `Checkpoint` where it is safe to stop, and `Progress` while it computes. A party is an object
with one handler per message type. A runtime drives both; the algorithm never learns which one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.schema import Table, below

State: TypeAlias = dict[str, Any]
"""What can be stored: nested dictionaries and lists whose leaves are tensors, numbers, strings, booleans and None."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Ask some parties and wait for all their answers; the generator receives ``{party: reply}``.

    A party is lost if it died, or did not answer in time. What a party itself raises ends the conversation in any case.

    Attributes:
        asks: what each is asked.
        missing: whether the conversation goes on without those that are lost: their replies are then left out.
        wait: whether one that did not answer in time is waited for as long as it lives, with a warning. It is then not
            missing.
        times: how many times the run's time limit parties have, as some asks are more work than others.
        rides: whether nobody waits for the answers, which only say `Done`: the asks may then travel with the next
            exchange's, and the generator receives nothing.
    """

    asks: Mapping[str, Message]
    missing: bool = False
    wait: bool = False
    times: float = 1.0
    rides: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A safe point: calling the coordinator again with ``state`` continues from here, to the same bytes.

    It takes a part of every party. While one is lost none is written; the last one stays, and resuming from it works
    once all parties are there.
    """

    state: State


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the conversation is: ``done`` of ``total`` units of the stage called ``stage``."""

    stage: str
    done: int
    total: int
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of a silo, on their way to the coordinator."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table


R = TypeVar("R")
M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Message)
Step: TypeAlias = "Exchange | Checkpoint | Progress"
Replies: TypeAlias = "Mapping[str, Message]"
Conversation: TypeAlias = Generator[Step, Replies, R]


def expect(replies: Replies, kind: type[M], other: type[N] | None = None) -> list[M | N]:
    """The replies in order, all of type ``kind`` (or ``other``, where two are valid).

    Raises:
        ProtocolError: a silo replied with something else.
    """
    return [expect_one(silo, reply, kind, other) for silo, reply in replies.items()]


def expect_one(silo: str, reply: Message, kind: type[M], other: type[N] | None = None) -> M | N:
    """The reply of one silo, which is of type ``kind`` (or ``other``).

    Raises:
        ProtocolError: it is something else.
    """
    if isinstance(reply, kind) or (other is not None and isinstance(reply, other)):
        return reply
    wanted = kind.__name__ if other is None else f"{kind.__name__} or {other.__name__}"
    raise ProtocolError(
        f"Silo {silo!r} replies with {wanted}",
        type(reply).__name__,
        "Both sides must run the same version of silosynth.",
    )


def check_same_rows(silos: Iterable[str], rows: Iterable[int | bytes]) -> None:
    """Check that silos hold equally many rows, by their counts or by tags that are equal where counts are.

    Raises:
        ProtocolError: they do not; names the counts, but no tags.
    """
    counts = dict(zip(silos, rows, strict=True))
    if len(set(counts.values())) > 1:
        tags = any(isinstance(count, bytes) for count in counts.values())
        raise ProtocolError(
            "Silos must hold the same rows in the same order",
            "different row counts" if tags else counts,
            "Align the silos by an identifier first.",
        )


def shared_columns(replies: Replies) -> dict[str, Table]:
    """Each silo's synthetic columns; none of a silo that keeps them.

    Raises:
        ProtocolError: a silo replied with something else.
    """
    tables = zip(replies, expect(replies, SyntheticColumns, Done), strict=True)
    return {silo: reply.table for silo, reply in tables if isinstance(reply, SyntheticColumns)}


class Party(ABC):
    """A silo's side of an algorithm: answers messages, and can save and restore what it has learnt.

    A party never sees another party's messages. ``answer`` must be a function of its state and the ask, so that a
    repeated ask after `restore` gives the repeated reply.
    """

    _kept: tuple[Table, ...] = ()

    @abstractmethod
    def answer(self, ask: Message) -> Message:
        """Answer one message.

        Raises:
            ProtocolError: the message is not one this party understands, or comes too early.
        """

    @abstractmethod
    def state(self) -> State:
        """All that is needed to continue, in storable form. Stays inside the silo."""

    @abstractmethod
    def trained(self) -> State:
        """The silo's part of the model: what `restore` needs to sample, without what only training needs."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from what `state` or `trained` returned."""

    def publish(self, table: Table, share: bool) -> Message:
        """The reply to a request for synthetic columns: the columns, or `Done` where they stay in the silo."""
        if share:
            return SyntheticColumns(table)
        self._kept = (*self._kept, table)
        return Done()

    def take_kept(self) -> Table:
        """The synthetic rows that `publish` has kept in the silo since this was last called.

        Raises:
            ProtocolError: there are none.
        """
        kept, self._kept = self._kept, ()
        if not kept:
            raise ProtocolError("Synthetic columns are kept before they are taken", "none", "Synthesise rows first.")
        return below(kept)
