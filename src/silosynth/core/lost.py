"""Lost silos: how a conversation continues without them, what replaces their values, and simulated absence.

The runtime notices who is lost; the conversation's policy decides what follows. Each algorithm declares the policies
that it supports, since its mathematics decides what it can do without.

Shapes: N rows, B rows of a batch, W_i numbers per row that party i sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange
from silosynth.core.errors import ConfigError, ProtocolError

Policy: TypeAlias = Literal["fail", "wait", "omit", "cache", "zeros"]
"""How a run treats a silo that died or did not reply within its time limit:

* "fail": the run ends, and can be resumed.
* "wait": the run waits, with a warning, as long as the silo is alive. A silo that died ends the run.
* "omit", "cache", "zeros": exchanges that can do without the silo continue, all others wait for it. Its values are left
  out, replaced by those that it sent last, or replaced by zeros.
"""

T = TypeVar("T")


def under(policy: Policy, conversation: Conversation[T]) -> Conversation[T]:
    """The same conversation, with lost silos treated as ``policy`` says."""
    try:
        step = next(conversation)
        while True:
            step = conversation.send((yield _bound(policy, step) if isinstance(step, Exchange) else step))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        conversation.close()


def _bound(policy: Policy, exchange: Exchange) -> Exchange:
    missing = exchange.missing and policy not in ("fail", "wait")
    return replace(exchange, missing=missing, wait=policy != "fail" and not missing)


def chosen(asked: str | None, supported: Sequence[Policy]) -> Policy:
    """The policy asked for, or the first supported one where none was.

    Raises:
        ConfigError: it is not supported; names those that are.
    """
    for policy in supported:
        if asked in (None, policy):
            return policy
    names = " or ".join(f'"{policy}"' for policy in supported)
    raise ConfigError("The policy for lost silos must be one that the algorithm supports", asked, f"Choose {names}.")


def present(parties: Sequence[T], absence: float, rng: np.random.Generator, least: int = 0) -> list[T]:
    """Draw who is present: each is absent with probability ``absence``, but at least ``least`` are present."""
    there = [party for party in parties if rng.random() >= absence]
    return there if len(there) >= least else list(parties[:least])


class LastRows:
    """The values that each party sent last for each row, to replace its own while it is lost.

    Kept by row, so that batches may change. Under any policy but "cache" nothing is kept, and zeros are used.

    Args:
        widths: W_i, by party.
        rows: N.
        policy: "cache", or any other for zeros.
        dtype: of the values.
    """

    def __init__(
        self, widths: Mapping[str, int], rows: int, policy: Policy, dtype: torch.dtype = torch.float32
    ) -> None:
        self._widths, self._dtype = dict(widths), dtype
        kept = rows if policy == "cache" else 0
        self._last = {party: torch.zeros(kept, width, dtype=dtype) for party, width in widths.items()}

    def fill(self, rows_B: Tensor, sent: Mapping[str, Tensor]) -> list[Tensor]:
        """Store the values (B, W_i) of a batch; returns those of all parties, lost ones replaced.

        Raises:
            ProtocolError: a party sent something of another shape.
        """
        return [
            self._stored(party, rows_B, sent[party]) if party in sent else self._replacement(party, rows_B)
            for party in self._widths
        ]

    def _stored(self, party: str, rows_B: Tensor, part_BW: Tensor) -> Tensor:
        if part_BW.shape != (len(rows_B), self._widths[party]):
            raise ProtocolError(f"Silo {party!r} sends {self._widths[party]} numbers per row", tuple(part_BW.shape))
        if len(self._last[party]):
            self._last[party][rows_B] = part_BW
        return part_BW

    def _replacement(self, party: str, rows_B: Tensor) -> Tensor:
        if len(self._last[party]):
            return self._last[party][rows_B]
        return torch.zeros(len(rows_B), self._widths[party], dtype=self._dtype)

    def state(self) -> dict[str, Any]:
        """All of it, in storable form."""
        return self._last

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._last = dict(state)
