"""What silos sent last of each row, for when they are lost (section IV-E). Row by row, so that batches may change.

Shapes: N rows, B rows of a batch, W_i numbers that silo i sends of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.host import Sent
from silosynth.algorithms.tabvfl.messages import PRETRAINING, Embedded, Phase, TabVFLConfig
from silosynth.core.errors import ConfigError, ProtocolError

MIB = 2**20


class Memory:
    """Of one phase. With ``missing`` = "cache" it takes 4 N (W_1 + … ) bytes, and 1 more per number that is masked."""

    def __init__(self, widths: Mapping[str, int], rows: int, phase: Phase, config: TabVFLConfig) -> None:
        self.widths, self.phase = widths, phase
        self.masked = phase == PRETRAINING and config.design == "tabvfl"
        self.keeps = config.missing == "cache" and not (phase == PRETRAINING and config.design == "local")
        self.complete = False  # whether every row of every silo has been here
        size = (4 + self.masked) * rows * sum(widths.values()) * self.keeps / MIB
        if size > config.cache_limit:
            raise ConfigError(
                f"The cache for silos that get lost may take cache_limit = {config.cache_limit:g} MiB",
                f"{size:.0f} MiB",
                'Raise the limit, or set missing = "zeros", "wait" or "fail".',
            )
        rows = rows if self.keeps else 0
        self.z = {party: torch.zeros(rows, width) for party, width in widths.items()}
        marked = rows if self.masked else 0
        self.masks = {party: torch.zeros(marked, width, dtype=torch.bool) for party, width in widths.items()}

    def gather(self, rows_B: Tensor, replies: Mapping[str, Embedded]) -> Sent:
        """What silos sent of a batch, noted; in place of what did not come, what is known, or zeros.

        Algorithm 1, lines 8 to 14; Algorithm 2, lines 7 to 11.
        """
        sent = Sent([], [], [party in replies for party in self.widths])
        for party, width in self.widths.items():
            shape = (len(rows_B), width)
            if party in replies:
                z_BW, mask_BW = replies[party].z_BW, replies[party].mask_BW
                if z_BW.shape != shape or (self.masked and (mask_BW is None or mask_BW.shape != shape)):
                    raise ProtocolError(f"Silo {party!r} sends {width} numbers of each row", tuple(z_BW.shape))
                self._note(party, rows_B, z_BW, mask_BW)
            elif self.keeps:
                z_BW, mask_BW = self.z[party][rows_B], self.masks[party][rows_B] if self.masked else None
            else:
                z_BW, mask_BW = torch.zeros(shape), torch.zeros(shape) if self.masked else None
            sent.z.append(z_BW)
            if mask_BW is not None:
                sent.masks.append(mask_BW)
        return sent

    def _note(self, party: str, rows_B: Tensor, z_BW: Tensor, mask_BW: Tensor | None) -> None:
        if self.keeps:
            self.z[party][rows_B] = z_BW
            if mask_BW is not None and self.masked:
                self.masks[party][rows_B] = mask_BW

    def state(self) -> dict[str, Any]:
        """All of it."""
        return {"z": self.z, "masks": self.masks}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.z, self.masks, self.complete = dict(state["z"]), dict(state["masks"]), True
