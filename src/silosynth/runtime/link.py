"""What every runtime offers to `drive`: ask parties and get their answers, however they are reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias, TypeVar

from silosynth.core.conversation import Exchange
from silosynth.core.errors import CheckpointError, PartyLostError, SilosynthError
from silosynth.core.messages import Message
from silosynth.runtime.wire import encode

L = TypeVar("L", bound="Link")

Slow: TypeAlias = "Callable[[Mapping[str, str]], None]"
"""Is told who is slow, and why that is said of them; of nobody, if nobody is."""

PARTY_THREADS = 1
"""Torch threads of a party on this machine: the same in every runtime, so that numbers are equal to the last bit.
Silos' networks are small: side by side on one thread each they train faster than in turn on all."""


@dataclass(frozen=True, slots=True)
class Received:
    """A party's reply, with the length of the ask and of the reply in bytes on the wire."""

    reply: Message
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why there is no reply, and the ask's length in bytes on the wire; 0 if it was not sent to who was lost before."""

    sent: int
    reason: str


@dataclass(frozen=True, slots=True)
class Late:
    """A reply that came after the conversation had gone on without it: who sent it, to which step, and its length."""

    party: str
    step: int
    reply: Message
    received: int


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of an exchange that goes on without those that are lost.

    Attributes:
        received: replies, in the order of the asks.
        unanswered: who is lost, or was when the others were asked.
        late: replies to earlier asks. Nobody reads them, but they were sent.
    """

    received: Mapping[str, Received]
    unanswered: Mapping[str, Unanswered] = field(default_factory=dict)
    late: Sequence[Late] = ()


class Link(ABC):
    """The way to the parties. Use it as a context manager; `drive` closes it only when something goes wrong.

    Attributes:
        far: whether an exchange costs time on the way, so that joining two of them saves some.
    """

    far = False

    @abstractmethod
    def begin(self) -> None:
        """A new conversation starts: what parties remember of the last one's steps does not matter any more."""

    @abstractmethod
    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """Ask some parties and wait for all of them; replies come in the order of ``asks``.

        Raises:
            PartyLostError: a party died, failed or missed its time limit; names it, the step and the message type.
            SilosynthError: what a party itself raised, with the party, the step and the message type named.
        """

    def reach(self, step: int, exchange: Exchange, tell: Slow = lambda slow: None) -> Reached:
        """Ask some parties and wait for them as the exchange says. Here none is ever lost.

        Where it says that slow ones are waited for, ``tell`` is told who they are once the others are there.

        Who died stays lost. Who was too slow is not asked again before its answer has come in, which nobody reads.

        Raises:
            PartyLostError: a party failed, or got lost where that may not be; names it, the step and the message type.
            SilosynthError: what a party itself raised, with the party, the step and the message type named.
        """
        return Reached(self.exchange(step, exchange.asks))

    def lost(self) -> Collection[str]:
        """Who is lost now: they died, stayed away or were too slow, and owe an answer."""
        return ()

    @abstractmethod
    def save(self, number: int) -> None:
        """Have every party write its part of checkpoint ``number``.

        Raises:
            PartyLostError: a party is lost; the others have written theirs.
            StorageError: a party could not.
        """

    @abstractmethod
    def restore(self, number: int) -> None:
        """Have every party continue from its part of checkpoint ``number``.

        Raises:
            CheckpointError: a party has no such part, or a damaged one.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the parties; may be called twice."""

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encoded(step: int, asks: Mapping[str, Message]) -> dict[str, bytes]:
    """Each ask as bytes; one that goes to everybody is encoded once.

    Raises:
        MessageError: an ask cannot travel.
    """
    done: dict[int, bytes] = {}
    for ask in asks.values():
        if id(ask) not in done:
            try:
                done[id(ask)] = encode(ask)
            except SilosynthError as error:
                raise named(error, f"The coordinator, step {step}, on {type(ask).__name__}") from error.__cause__
    return {party: done[id(ask)] for party, ask in asks.items()}


def named(error: SilosynthError, where: str) -> SilosynthError:
    """The same error, its text led by who raised it and when."""
    error.rule = f"{where}: {error.rule}"
    error.args = (f"{where}: {error}",)
    return error


def at(party: str, step: int, ask: str) -> str:
    """How errors name a place in a conversation."""
    return f"Silo {party!r}, step {step}, on {ask}"


def failed(where: str, reason: str, more: str = "") -> PartyLostError:
    """The error for a party that raised something silosynth did not foresee."""
    remedy = " ".join(filter(None, ("Mend the cause, then resume from the checkpoint.", more)))
    return PartyLostError(f"{where}: a silo answers every message", reason, remedy)


def no_folder(party: str) -> CheckpointError:
    """The error for a checkpoint without a place to keep it."""
    return CheckpointError(f"Silo {party!r} has a folder for its part of a checkpoint", "none", "Name a folder.")
