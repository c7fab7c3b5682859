"""Whether latents that somebody wants decoded are draws of a generator, or those of training rows sent back.

Latents are not values, but whoever has the latents of a training row and may have any latents decoded gets the row. An
honest generator's draws lie around training rows too, but no nearer than the noise that is left in them. So a silo
compares: *copies* are latents of its own training rows, drawn at random, through noise of `LEFT` times the noise that
its decoder reads latents through. Of the distances of copies to their nearest training row it notes the quantiles
`LEVELS`. If clearly more of the latents that it is sent lie nearer than a quantile than of copies, they are refused.
One more level, ``RARE``, is beyond what copies were drawn for: near a point, the share of draws that lie within a
distance grows with its L-th power at most, for noise in all L dimensions.

What it does not see: latents of training rows through as much noise as copies have, or more. They are what a generator
that has learnt everything would draw. What is decoded from them then is measured in docs/decisions/0032.

Shapes: N training rows, R of them that are compared with, G latents to decode, L numbers of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from scipy.stats import binom
from torch import Tensor

from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams

LEFT = 2 / 3  # of the decoder's noise: honest draws have all of it
SPREAD = 0.03  # of each latent's standard deviation: the noise where decoders read none
LEVELS = (0.01, 0.1, 0.5)
RARE = 1e-6
COUNTED = ("examined", "near")  # keys of the state that grow with what is asked
CHANCE = 1e-7  # with which latents as near as copies are refused, at each level
_ROWS, _COPIES, _EXAMINED, _AT_ONCE = 16_384, 4096, 4096, 512


class Nearness:
    """Judges all latents that a silo is sent in a job.

    Args:
        z_NL: latents of the training rows, on the CPU.
        sigma: the noise that the decoder reads latents of unit variance through; 0 for none.
        streams: which rows are compared with, copies, and which latents are examined.
    """

    def __init__(self, z_NL: Tensor, sigma: float, streams: Streams) -> None:
        self._streams = streams.child("nearness")
        draw = self._streams.torch()
        self._rows_RL = z_NL[torch.randperm(len(z_NL), generator=draw)[:_ROWS]].double()
        copied = self._rows_RL[torch.randint(len(self._rows_RL), (_COPIES,), generator=draw)]
        scale_L = self._rows_RL.std(0, correction=0) * SPREAD
        scale_L = scale_L.clamp_min(LEFT * sigma) if sigma else scale_L
        distances = self._distances(copied + scale_L * torch.randn(copied.shape, generator=draw, dtype=torch.float64))
        cuts = [float(cut) for cut in distances.quantile(torch.tensor(LEVELS, dtype=torch.float64))]
        self._cuts = (cuts[0] * (RARE / LEVELS[0]) ** (1 / z_NL.shape[1]), *cuts)
        self._examined, self._near = 0, [0] * len(self._cuts)

    def check(self, z_GL: Tensor) -> None:
        """Count these latents too, and refuse them if all together are too near.

        Raises:
            ProtocolError: far more of them than of honest ones lie near training rows.
        """
        draw = self._streams.child(self._examined).torch()
        some = z_GL[torch.randperm(len(z_GL), generator=draw)[:_EXAMINED]].double()
        distances = self._distances(some)
        self._examined += len(some)
        for level, (share, cut) in enumerate(zip((RARE, *LEVELS), self._cuts, strict=True)):
            self._near[level] += int((distances <= cut).sum())
            if self._near[level] > binom.isf(CHANCE, self._examined, share):
                raise ProtocolError(
                    "A silo decodes latents that a generator drew; of these far too many lie near training rows",
                    "more than honest ones",
                    "Were latents of training rows sent back? If the generator has learnt rows by heart, train less.",
                )

    def state(self) -> dict[str, Any]:
        """All of it, in storable form; for the silo alone, as it has latents of training rows."""
        return {"rows": self._rows_RL, "cuts": list(self._cuts), "examined": self._examined, "near": list(self._near)}

    @classmethod
    def restored(cls, state: Mapping[str, Any], streams: Streams) -> Nearness:
        """What `state` returned."""
        made = cls.__new__(cls)
        made._streams, made._rows_RL, made._cuts = streams.child("nearness"), state["rows"], tuple(state["cuts"])
        made._examined, made._near = state["examined"], list(state["near"])
        return made

    def _distances(self, z_GL: Tensor) -> Tensor:
        """From each of these latents to the nearest training row (G,)."""
        squares_R = self._rows_RL.square().sum(1)
        nearest = []
        for z in z_GL.split(_AT_ONCE):
            squared = z.square().sum(1, keepdim=True) - 2 * z @ self._rows_RL.T + squares_R
            nearest.append(squared.clamp_min(0).amin(1))
        return torch.cat(nearest).sqrt()
