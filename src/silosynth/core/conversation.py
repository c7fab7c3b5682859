"""A protocol is a conversation, and the conversation does no I/O.

The coordinator's side of an algorithm is a generator: it yields an `Exchange` (what it asks of parties) and receives
their replies; it yields a `Checkpoint` where it is safe to stop, and `Progress` while it computes. A party is an object
with one handler per message type. A runtime drives both; the algorithm never learns which one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from silosynth.core.messages import Message

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


R = TypeVar("R")
Step: TypeAlias = "Exchange | Checkpoint | Progress"
Replies: TypeAlias = "Mapping[str, Message]"
Conversation: TypeAlias = Generator[Step, Replies, R]


class Party(ABC):
    """A silo's side of an algorithm: answers messages, and can save and restore what it has learnt.

    A party never sees another party's messages. ``answer`` must be a function of its state and the ask, so that a
    repeated ask after `restore` gives the repeated reply.
    """

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
