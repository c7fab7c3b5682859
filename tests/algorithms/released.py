"""What a private training releases, twice: of a table, and of the same without its last row, with the same noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from silosynth.core.conversation import Conversation, Exchange, Party
from silosynth.core.messages import Message
from silosynth.runtime.wire import pack


class Record:
    """Outputs of mechanisms, in order; a second run on other rows gets the same ones, and says what it would add to."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Any]] = []
        self.replay = False
        self.differences: list[float] = []

    def wrap(self, real: Callable[..., Any], at: int) -> Callable[..., Any]:
        """The same function, recorded; argument ``at`` is what noise is added to."""

        def called(*args: Any) -> Any:
            if not self.replay:
                self.told.append((args[at], real(*args)))
                return self.told[-1][1]
            before, found = self.told.pop(0)
            pairs = [(before[k], args[at][k]) for k in before] if isinstance(before, dict) else [(before, args[at])]
            self.differences.append(math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs)))
            return found

        return called


def talk(conversation: Conversation[Any], parties: Mapping[str, Party]) -> bytes:
    """A training, one silo after the other; all that is released of it."""
    step = next(conversation)
    try:
        while True:
            replies: dict[str, Message] = {}
            if isinstance(step, Exchange):
                replies = {silo: parties[silo].answer(ask) for silo, ask in step.asks.items()}
            step = conversation.send(replies)
    except StopIteration as end:
        return pack({"coordinator": end.value, "parts": {silo: party.trained() for silo, party in parties.items()}})
