"""Countings driven by hand, through the form that messages have on the wire; and what tables should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Party, Roster, State
from silosynth.core.messages import Message
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn, CountRequest, TableCounter, count
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode, pack, unpack

NAMES = ("bank", "clinic", "shop", "school")
Meddle = Callable[[str, Message], Message]
Held = Mapping[str, np.ndarray]
"""Codes of each column, (N,), by a name such as "bank 0"; those of missing values are one below the column's size."""


def untouched(silo: str, message: Message) -> Message:
    return message


def levels(size: int) -> tuple[str, ...]:
    return tuple(f"level {i}" for i in range(size - 1))


def counters(held: Held, sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, TableCounter]:
    made = seats(names, Streams(7).child("seats"))
    silos = {}
    for silo in names:
        columns = [
            Column(name, "str", torch.from_numpy(np.where(codes == sizes[name] - 1, 0, codes)),
                   torch.from_numpy(codes == sizes[name] - 1), levels(sizes[name]))
            for name, codes in held.items() if name.startswith(silo)
        ]  # fmt: skip
        schema = Schema(tuple(ColumnSchema(column.name, "categorical", "str") for column in columns))
        silos[silo] = TableCounter(Table(tuple(columns)), schema, made[silo])
    return silos


def request(
    sizes: Mapping[str, int], sets: Sequence[Sequence[str]], names: Sequence[str], rows: int, bits: int = 16,
    block: int = 4,
) -> CountRequest:  # fmt: skip
    columns = tuple(CountedColumn(name.split()[0], name, levels(size)) for name, size in sizes.items())
    places = tuple(tuple(list(sizes).index(name) for name in one) for one in sets)
    return CountRequest(tuple(names), columns, places, rows, bits, block)  # type: ignore[arg-type]


@dataclass
class Talk:
    """A counting that has ended: its silos, and all messages that the coordinator sent and received."""

    silos: dict[str, TableCounter]
    asked: list[tuple[str, Message]] = field(default_factory=list)
    answered: list[tuple[str, Message]] = field(default_factory=list)

    def tables(self) -> list[np.ndarray]:
        shares = zip(*(silo.shares for silo in self.silos.values()), strict=True)
        return [np.sum(own, axis=0, dtype=own[0].dtype) for own in shares]

    def replies(self, kind: type[Message]) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = {}
        for silo, message in self.answered:
            if isinstance(message, kind):
                found.setdefault(silo, []).append(message)
        return found


def run(
    silos: dict[str, TableCounter], asked: CountRequest, asks: Meddle = untouched, replies: Meddle = untouched
) -> Talk:
    """Drive it; ``asks`` and ``replies`` may change what goes each way."""
    talk, got = Talk(silos), None
    conversation = count(Roster(tuple(silos)), asked)
    while True:
        try:
            step = conversation.send(got)  # type: ignore[arg-type]
        except StopIteration:
            return talk
        got = {}
        for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
            ask = asks(silo, decode(encode(ask)))  # type: ignore[arg-type]
            talk.asked.append((silo, ask))
            got[silo] = replies(silo, decode(encode(silos[silo].answer(ask))))  # type: ignore[arg-type]
            talk.answered.append((silo, got[silo]))
        if isinstance(step, Exchange) and step.rides:
            got = {}


def until_checkpoint(conversation: Conversation[Any], silos: Mapping[str, Party]) -> State:
    """Drive a conversation to its first checkpoint; the coordinator's state there."""
    got: Any = None
    while True:
        step = conversation.send(got)
        if isinstance(step, Checkpoint):
            return step.state
        if isinstance(step, Exchange):
            got = {silo: silos[silo].answer(ask) for silo, ask in step.asks.items()}


def restore(silos: Mapping[str, Party], others: Mapping[str, Party]) -> None:
    """Bring silos to where others are, through the form that states are stored in."""
    for silo, party in silos.items():
        party.restore(unpack(pack(others[silo].state())))


def crosstab(held: Held, sizes: Mapping[str, int], names: Sequence[str]) -> np.ndarray:
    """The oracle: rows counted one by one."""
    table = np.zeros([sizes[name] for name in names], np.int64)
    for row in zip(*(held[name] for name in names), strict=True):
        table[row] += 1
    return table
