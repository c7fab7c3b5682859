"""A protocol is a conversation that does no I/O.

The coordinator's side of an algorithm is a generator: it yields an `Exchange` (what it asks the parties) and receives
their replies; it yields a `Checkpoint` where it is safe to stop, and `Progress` while it computes. A party is an object
that answers messages. A runtime drives both; the algorithm never learns which one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.schema import Table, below

State: TypeAlias = dict[str, Any]
"""What can be stored: nested dictionaries and lists whose leaves are tensors, numbers, strings, booleans and None."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Ask some parties and wait for their replies; the generator receives ``{party: reply}`` in the order of the asks.

    A party is lost if it died or did not reply in time. An error that a party itself raises always ends the
    conversation.

    Attributes:
        asks: the message for each party.
        missing: whether the conversation continues without lost parties; their replies are then left out.
        wait: whether to wait, with a warning, for a party that is late as long as it is alive; it is then not missing.
        times: multiple of the run's time limit that parties have, since some asks take longer than others.
        rides: whether all replies are a mere `Done` that nobody waits for: the asks may then travel with those of the
            next exchange, and the generator receives nothing.
    """

    asks: Mapping[str, Message]
    missing: bool = False
    wait: bool = False
    times: float = 1.0
    rides: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A safe point: calling the coordinator again with ``state`` continues from here, to the same bytes.

    Every party stores its own state with it. While a party is lost no checkpoint is written; the last one stays, and
    can be resumed from once all parties are back.
    """

    state: State


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` units of the stage called ``stage`` are done."""

    stage: str
    done: int
    total: int
    figures: Mapping[str, float] = field(default_factory=dict)


class SyntheticColumns(Message, release=Release.SYNTHETIC):
    """Synthetic columns of a silo, on their way to the coordinator."""

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
    """A silo's side of an algorithm: answers messages, and can save and restore its state.

    A party never sees another party's messages. `answer` must be a function of the party's state and the ask, so that
    repeating an ask after `restore` gives the same reply.
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
        """Everything needed to continue, in storable form. Stays inside the silo."""

    @abstractmethod
    def trained(self) -> State:
        """The silo's part of the model: what sampling needs after `restore`, without what only training needs."""

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
