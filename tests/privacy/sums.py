"""Secure sums driven by hand, in wire format, with lost silos."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch

from silosynth.core.conversation import Exchange
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.aggregation import WeightedSum, secure_sum
from silosynth.privacy.masker import Masker
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

Lost = Callable[[str, Message], bool]
Meddle = Callable[[str, Message], Message]


TOLD = b"what all silos were told"


class Train(Message):
    """What an algorithm would ask."""

    number: int


class Silo:
    """A minimal party: an update, a weight and a masker."""

    def __init__(self, masker: Masker, update: torch.Tensor, weight: float) -> None:
        self.masker, self.update, self.weight = masker, update, weight

    def answer(self, ask: Message) -> Message:
        if (reply := self.masker.answer(ask)) is not None:
            return reply
        assert isinstance(ask, Train)
        return self.masker.mask(self.update, self.weight, ask.number, TOLD)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"silo{i}" for i in range(count))


def maskers(count: int, least: int = 3, colluding: int = 0) -> dict[str, Masker]:
    made = seats(names(count), Streams(0))
    return {name: Masker(seat, least, colluding) for name, seat in made.items()}


def silos(count: int, width: int = 5, least: int = 3, colluding: int = 0) -> dict[str, Silo]:
    draw = torch.Generator().manual_seed(count)
    return {
        name: Silo(masker, torch.randn(width, generator=draw), 1.0 + i)
        for i, (name, masker) in enumerate(maskers(count, least, colluding).items())
    }


def nobody(silo: str, ask: Message) -> bool:
    return False


def untouched(silo: str, ask: Message) -> Message:
    return ask


@dataclass
class Talk:
    """A finished round: its result and all messages, by silo."""

    total: WeightedSum
    asks: list[tuple[str, Message]]
    replies: list[tuple[str, Message]]


def play(
    parties: Mapping[str, Silo],
    number: int = 0,
    lost: Lost = nobody,
    meddle: Meddle = untouched,
    least: int = 3,
    colluding: int = 0,
    answered: Meddle = untouched,
) -> Talk:
    """Drive one sum. ``lost`` decides whose replies to which asks never arrive: the silo still gets the ask.

    ``meddle`` alters asks in transit, ``answered`` replies.
    """
    width = len(next(iter(parties.values())).update)
    talk = secure_sum({name: Train(number) for name in parties}, number, width, least, colluding, TOLD)
    asks: list[tuple[str, Message]] = []
    given: list[tuple[str, Message]] = []
    replies: dict[str, Message] = {}
    try:
        step = next(talk)
        while True:
            assert isinstance(step, Exchange)
            replies = {}
            for silo, ask in step.asks.items():
                heard = decode(encode(meddle(silo, ask)))
                reply = decode(encode(parties[silo].answer(heard)))  # type: ignore[arg-type]
                asks.append((silo, heard))  # type: ignore[arg-type]
                given.append((silo, reply))  # type: ignore[arg-type]
                if not lost(silo, ask):
                    replies[silo] = answered(silo, reply)  # type: ignore[arg-type]
            step = talk.send(replies)
    except StopIteration as end:
        return Talk(end.value, asks, given)


def sums(parties: Mapping[str, Silo], among: tuple[str, ...]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The oracle's input."""
    return {name: parties[name].update.double().tolist() for name in among}, {
        name: parties[name].weight for name in among
    }


def until(kind: type[Message], parties: Mapping[str, Silo], number: int = 0) -> Mapping[str, Message]:
    """An honest round up to asks of this kind, which are returned and not yet delivered."""
    talk = secure_sum({name: Train(number) for name in parties}, number, 5, told=TOLD)
    step = next(talk)
    while True:
        assert isinstance(step, Exchange)
        if isinstance(next(iter(step.asks.values())), kind):
            return step.asks
        step = talk.send({silo: parties[silo].answer(ask) for silo, ask in step.asks.items()})


def refused(silo: Silo, ask: Message, words: str) -> None:
    with pytest.raises(ProtocolError, match=words) as caught:
        silo.answer(ask)
    assert caught.value.value and caught.value.remedy
