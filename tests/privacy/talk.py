"""Agreements driven by hand, in wire format."""

from __future__ import annotations

from collections.abc import Callable

from silosynth.core.conversation import Conversation, Exchange, Roster
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import Group, agree
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

NAMES = ("bank", "clinic", "shop", "school", "town")
Meddle = Callable[[str, Message], Message]


def groups(count: int = 3, seed: int = 7) -> dict[str, Group]:
    return {name: Group(seat) for name, seat in seats(NAMES[:count], Streams(seed).child("seats")).items()}


def untouched(silo: str, ask: Message) -> Message:
    return ask


def run(talk: Conversation[None], silos: dict[str, Group], meddle: Meddle = untouched) -> list[tuple[Message, bytes]]:
    """Drive an agreement; returns the bytes of all messages: all that a coordinator sees."""
    seen: list[tuple[Message, bytes]] = []

    def across(message: Message) -> Message:
        blob = encode(message)
        seen.append((message, blob))
        return decode(blob)  # type: ignore[return-value]

    replies: dict[str, Message] | None = None
    while True:
        try:
            step = talk.send(replies)  # type: ignore[arg-type]
        except StopIteration:
            return seen
        assert isinstance(step, Exchange)
        replies = {}
        for silo, ask in step.asks.items():
            heard = across(meddle(silo, ask))
            answer = silos[silo].answer(heard)
            assert answer is not None
            replies[silo] = across(answer)


def agreed(count: int = 3, purpose: str = "shuffle", fresh: bool = True, seed: int = 7) -> dict[str, Group]:
    silos = groups(count, seed)
    run(agree(Roster(NAMES[:count]), purpose, fresh), silos)
    return silos


def secret(group: Group) -> bytes:
    return group.state()["secret"]
