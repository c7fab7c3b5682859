"""How silos speak of rows past the coordinator: by numbers in a secret order, or by places in sealed lists.

Shapes: N rows, B rows of a batch, R rows that are pushed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.vtgan.messages import VTGANConfig
from silosynth.core.errors import ProtocolError
from silosynth.privacy.agreement import Group


class Numbers:
    """A silo's side; all silos that share the secret understand each other.

    Args:
        secret: what the silos have agreed on.
        config: index privacy, decoys, and how often the order changes.
        rows: N.
    """

    def __init__(self, secret: Group, config: VTGANConfig, rows: int) -> None:
        self.secret, self.config, self.rows = secret, config, rows
        self._order_of, self._order = "", torch.arange(0)

    def hide(self, step: int, row_B: Tensor, rng: np.random.Generator) -> tuple[Tensor, bytes | None]:
        """Where the coordinator finds these rows among what the others push, and the list for the others, if any."""
        if self.config.index_privacy == "full":
            number_of = torch.empty(self.rows, dtype=torch.int64)
            number_of[self.order(step)] = torch.arange(self.rows)
            return number_of[row_B], None
        if self.config.index_privacy == "none":
            place, listed = torch.arange(len(row_B)), row_B
        else:
            place, listed = _among_decoys(row_B, self.config.decoys * len(row_B), self.rows, rng)
        return place, self.secret.seal(_list_of(step), listed.int().numpy().tobytes())

    def order(self, step: int) -> Tensor:
        """The rows (N,) in the order that the coordinator's row numbers refer to (Algorithm 1, line 23)."""
        steps = self.config.critic_steps + 1
        name = {"step": f"step {step}", "round": f"round {step // steps}", "off": "off"}[self.config.shuffle]
        if name == "off":
            return torch.arange(self.rows)
        if name != self._order_of:
            self._order_of, self._order = name, self.secret.permutation(self.rows, f"order of rows, {name}")
        return self._order

    def listed(self, step: int, sealed: bytes) -> Tensor:
        """The rows (R,) that the contributor wants to have pushed.

        Raises:
            ProtocolError: the list was altered, is of another step, or names rows that there are not.
        """
        content = self.secret.open(_list_of(step), sealed)
        rows = torch.frombuffer(bytearray(content), dtype=torch.int32).long()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.rows:
            raise ProtocolError("A list names rows that there are", int(rows.max()), f"There are {self.rows}.")
        return rows


def _among_decoys(row_B: Tensor, many: int, rows: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Where each row (B,) stands in a list, and the list: no row twice, and ``many`` in all, or all that there are.

    A list in which the batch's rows were repeated as conditions repeat them would tell them from decoys.
    """
    distinct, which_B = row_B.unique(return_inverse=True)
    spare = torch.ones(rows, dtype=torch.bool)
    spare[distinct] = False
    others = spare.nonzero().squeeze(1)
    decoys = others[torch.from_numpy(rng.permutation(len(others)))[: max(0, many - len(distinct))]]
    place = torch.from_numpy(rng.permutation(len(distinct) + len(decoys)))
    listed = torch.empty_like(place)
    listed[place] = torch.cat([distinct, decoys])
    return place[which_B], listed


def _list_of(step: int) -> str:
    return f"rows to push, step {step}"
