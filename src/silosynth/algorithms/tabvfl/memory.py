"""What silos sent last of each row, for when they are lost (section IV-E): features, and in pre-training masks.

Shapes: N rows, B rows of a batch, W_i numbers that silo i sends of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.host import Sent
from silosynth.algorithms.tabvfl.messages import PRETRAINING, Embedded, Phase, TabVFLConfig
from silosynth.core.absence import LastRows
from silosynth.core.errors import ConfigError, ProtocolError

MIB = 2**20


class Memory:
    """Of one phase. With ``missing`` = "cache" it takes 4 N (W_1 + … ) bytes, and 1 more per number that is masked."""

    def __init__(self, widths: Mapping[str, int], rows: int, phase: Phase, config: TabVFLConfig) -> None:
        self.parties, self.masked = list(widths), phase == PRETRAINING and config.design == "tabvfl"
        self.complete = False  # whether every row of every silo has been here
        alone = phase == PRETRAINING and config.design == "local"
        policy = "zeros" if alone else config.missing
        size = (4 + self.masked) * rows * sum(widths.values()) * (policy == "cache") / MIB
        if size > config.cache_limit:
            raise ConfigError(
                f"The cache for silos that get lost may take cache_limit = {config.cache_limit:g} MiB",
                f"{size:.0f} MiB",
                'Raise the limit, or set missing = "zeros", "wait" or "fail".',
            )
        self.z = LastRows(widths, rows, policy)
        self.masks = LastRows(widths if self.masked else {}, rows, policy, torch.bool)

    def gather(self, rows_B: Tensor, replies: Mapping[str, Embedded]) -> Sent:
        """What silos sent of a batch, noted; in place of what did not come, what is known, or zeros.

        Algorithm 1, lines 8 to 14; Algorithm 2, lines 7 to 11.
        """
        z = self.z.fill(rows_B, {party: reply.z_BW for party, reply in replies.items()})
        masks = self.masks.fill(rows_B, {party: _mask(party, reply) for party, reply in replies.items() if self.masked})
        return Sent(z, masks, [party in replies for party in self.parties])

    def state(self) -> dict[str, Any]:
        """All of it."""
        return {"z": self.z.state(), "masks": self.masks.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.z.restore(state["z"])
        self.masks.restore(state["masks"])
        self.complete = True


def _mask(party: str, reply: Embedded) -> Tensor:
    if reply.mask_BW is None:
        raise ProtocolError(f"Silo {party!r} says what it has masked", None, "Compare versions.")
    return reply.mask_BW
