"""Silos that get lost: what becomes of a conversation then, what stands in for them, and losing them by lot.

A runtime sees who is lost, and what follows is the conversation's policy. Which policies an algorithm supports, it
says itself: what it can do without is a matter of its mathematics.

Shapes: N rows, B rows of a batch, W_i numbers that party i sends of a row.
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
"""What becomes of a silo that died, or did not answer within its time limit:

* "fail": it ends the run, which can be resumed.
* "wait": it is waited for as long as it lives, with a warning. One that died ends the run.
* "omit", "cache", "zeros": exchanges that can do without it go on; all others wait for it. What stands in for it is
  nothing, what it sent last, or zeros.
"""

T = TypeVar("T")


def under(policy: Policy, talk: Conversation[T]) -> Conversation[T]:
    """Lead a conversation whose lost silos are dealt with by ``policy``."""
    try:
        step = next(talk)
        while True:
            step = talk.send((yield _bound(policy, step) if isinstance(step, Exchange) else step))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        talk.close()


def _bound(policy: Policy, exchange: Exchange) -> Exchange:
    missing = exchange.missing and policy not in ("fail", "wait")
    return replace(exchange, missing=missing, wait=policy != "fail" and not missing)


def chosen(asked: str | None, supported: Sequence[Policy]) -> Policy:
    """The policy that was asked for; the first one that is supported if none was.

    Raises:
        ConfigError: it is not supported; names those that are.
    """
    for policy in supported:
        if asked in (None, policy):
            return policy
    names = " or ".join(f'"{policy}"' for policy in supported)
    raise ConfigError("What becomes of lost silos is something that the algorithm supports", asked, f"Choose {names}.")


def present(parties: Sequence[T], absence: float, rng: np.random.Generator, least: int = 0) -> list[T]:
    """Who is there: each is away with probability ``absence``, by lot. The first ``least`` if fewer would be."""
    there = [party for party in parties if rng.random() >= absence]
    return there if len(there) >= least else list(parties[:least])


class LastRows:
    """What parties sent last of each row, to stand in for them while they are lost.

    By row, so that batches may change. Under any policy but "cache" nothing is kept, and zeros stand in.

    Args:
        widths: W_i, by party.
        rows: N.
        policy: what stands in.
        dtype: of what is sent.
    """

    def __init__(
        self, widths: Mapping[str, int], rows: int, policy: Policy, dtype: torch.dtype = torch.float32
    ) -> None:
        self._widths, self._dtype = dict(widths), dtype
        kept = rows if policy == "cache" else 0
        self._last = {party: torch.zeros(kept, width, dtype=dtype) for party, width in widths.items()}

    def fill(self, rows_B: Tensor, sent: Mapping[str, Tensor]) -> list[Tensor]:
        """Note what was sent (B, W_i) of a batch; the same of all parties, with what stands in for those that are lost.

        Raises:
            ProtocolError: a party sent something of another shape.
        """
        return [
            self._noted(party, rows_B, sent[party]) if party in sent else self._stands_in(party, rows_B)
            for party in self._widths
        ]

    def _noted(self, party: str, rows_B: Tensor, part_BW: Tensor) -> Tensor:
        if part_BW.shape != (len(rows_B), self._widths[party]):
            raise ProtocolError(f"Silo {party!r} sends {self._widths[party]} numbers of each row", tuple(part_BW.shape))
        if len(self._last[party]):
            self._last[party][rows_B] = part_BW
        return part_BW

    def _stands_in(self, party: str, rows_B: Tensor) -> Tensor:
        if len(self._last[party]):
            return self._last[party][rows_B]
        return torch.zeros(len(rows_B), self._widths[party], dtype=self._dtype)

    def state(self) -> dict[str, Any]:
        """All of it, in storable form."""
        return self._last

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._last = dict(state)
