"""What all silos draw alike and the coordinator cannot: rows of batches, and z. From the secret that they agreed on.

Shapes: N rows, R real rows of a batch, B made rows, Z numbers of z.
"""

from __future__ import annotations

import torch
from torch import Tensor

from silosynth.core.streams import keyed
from silosynth.privacy.agreement import Group
from silosynth.privacy.dpsgd import poisson_mask


class Draws:
    """A silo's view of what is drawn in common, for a table of N rows and batches of so many."""

    def __init__(self, secret: Group, rows: int, batch: int) -> None:
        self.secret, self.rows, self.batch = secret, rows, batch
        self._epoch, self._order = -1, torch.zeros(0, dtype=torch.int64)

    def batch_of(self, step: int) -> Tensor:
        """Row numbers (R,) of a critic step: every row once per epoch, the remainder of an epoch dropped."""
        epoch, place = divmod(step, max(1, self.rows // self.batch))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.secret.permutation(self.rows, f"epoch {epoch}")
        return self._order[place * self.batch : (place + 1) * self.batch]

    def sample_of(self, step: int, rate: float) -> Tensor:
        """Row numbers (R,) of a critic step with differential privacy: each row by itself, with this probability."""
        return poisson_mask(self.rows, rate, keyed(self.secret.key(f"rows {step}"))).nonzero().flatten()

    def noise(self, rows: int, width: int, context: str) -> Tensor:
        """z (B, Z), on the CPU whatever the silos' devices: it must be the same everywhere."""
        return torch.randn(rows, width, generator=seeded(self.secret, f"z {context}"))


def seeded(secret: Group, context: str) -> torch.Generator:
    """A generator that every silo of the group has. It keeps 32 bits of the secret: for z and weights alone."""
    return torch.Generator().manual_seed(int.from_bytes(secret.key(context)[:8], "big") >> 1)
