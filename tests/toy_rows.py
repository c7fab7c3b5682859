"""A toy algorithm for silos that hold different rows: its coordinator draws from the first silo's rows.

It keeps nothing private. What it is for is all that surrounds an algorithm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from silosynth.catalog import ALGORITHMS, Algorithm
from silosynth.core.conversation import COORDINATOR, Conversation, Party, Progress, Roster, State
from silosynth.core.messages import Message, Struct, from_state, to_state
from silosynth.core.schema import Schema, Table, agreed
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import Seat

NAME = "toyrows"


class Options(Struct):
    steps: int = 1


class Tell(Message):
    """Tell me all."""


class Told(Message):
    schema: Schema
    table: Table


class Teller(Party):
    def __init__(
        self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device, config: Any
    ) -> None:
        self.table, self.schema = table, schema

    def answer(self, ask: Message) -> Message:
        return Told(self.schema, self.table)

    def _state(self, training: bool) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


def coordinate(
    roster: Roster, config: Any, streams: Streams, device: torch.device, state: Any = None
) -> Conversation[dict[str, Any]]:
    yield Progress("telling", 0, 1)
    replies = yield roster.everyone(Tell())
    told = {silo: reply for silo, reply in replies.items() if isinstance(reply, Told)}
    kinds = agreed({silo: reply.schema for silo, reply in told.items()})
    table = next(iter(told.values())).table.select(kinds.modelled)
    rare = [{"struct": "", "fields": {"name": kinds.modelled[0], "rare": True}}] * 2
    return {"table": to_state(table), "encoders": rare}


def synthesise(
    roster: Roster, config: Any, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    yield Progress("drawing", 0, 1)
    table = from_state(Table, model["table"])
    return {COORDINATOR: table.take(torch.randint(len(table), (rows,), generator=streams.torch()))}


ENTRY = Algorithm("a toy", {"fast": Options()}, Teller, coordinate, synthesise, horizontal=True)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the toy in the catalog for the duration of a test."""
    monkeypatch.setitem(ALGORITHMS, NAME, ENTRY)  # type: ignore[arg-type]
