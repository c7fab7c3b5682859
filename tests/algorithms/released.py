"""Records what a private training releases for a table, and for it without its last row, with equal noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from silosynth.core.conversation import Conversation, Exchange, Party
from silosynth.core.messages import Message
from silosynth.runtime.wire import pack


class Record:
    """Records outputs of mechanisms, in order; a second run replays them and measures how its inputs differ."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, Any]] = []
        self.replay = False
        self.differences: list[float] = []

    def wrap(self, real: Callable[..., Any], at: int) -> Callable[..., Any]:
        """The same function, recorded; argument number ``at`` is the quantity that noise is added to."""

        def called(*args: Any) -> Any:
            if not self.replay:
                self.recorded.append((args[at], real(*args)))
                return self.recorded[-1][1]
            before, output = self.recorded.pop(0)
            pairs = [(before[k], args[at][k]) for k in before] if isinstance(before, dict) else [(before, args[at])]
            self.differences.append(math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs)))
            return output

        return called


def talk(conversation: Conversation[Any], parties: Mapping[str, Party]) -> bytes:
    """Run a training, one silo after the other, and return all that it releases."""
    step = next(conversation)
    try:
        while True:
            replies: dict[str, Message] = {}
            if isinstance(step, Exchange):
                replies = {silo: parties[silo].answer(ask) for silo, ask in step.asks.items()}
            step = conversation.send(replies)
    except StopIteration as end:
        return pack({"coordinator": end.value, "parts": {silo: party.trained() for silo, party in parties.items()}})
