"""A silo's networks of VT-GAN: G^b_i and D^b_i, with one step of training for each side.

Shapes: B rows of a batch, R rows that are pushed, C columns with levels, S scores, K levels of this silo, W features
and F outputs of G^t that belong to it, G generated rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.vtgan.messages import Build, VTGANConfig
from silosynth.core.streams import Streams
from silosynth.models.encoded import RowShape
from silosynth.models.gan import Activation, frozen, make_critic, make_generator, orthonormalise
from silosynth.models.training import MovingAverage, Trainee

_MOST = 2**24  # numbers held at once while sampling: 64 MB, also with 10 000 levels


class Bottoms:
    """Both bottom parts. What a step has computed is kept until its gradients come back."""

    def __init__(
        self, shape: RowShape, config: VTGANConfig, build: Build, silos: int, streams: Streams, device: torch.device
    ) -> None:
        self.shape, self.config, self.streams, self.device = shape, config, streams, device
        weights = streams.child("weights")
        self.activation = Activation(shape).to(device)
        generator = make_generator(
            build.slice, (build.slice,) * config.generator_blocks[1], shape.size, weights.child("generator").torch(),
            1 + config.kind(silos - 1),
        )  # fmt: skip
        blocks = (build.width,) * config.critic_blocks[1]
        draw = weights.child("critic").torch()
        critic = make_critic(shape.size, blocks, None if blocks else build.width, config.dropout, draw)
        self.orthonormal = config.bottom_critics == "orthonormal"
        if self.orthonormal:
            orthonormalise(critic, exactly=True)
        rate, betas, decay = config.rate, config.betas, config.decay
        self.generator = Trainee(generator.to(device), rate=rate, betas=betas, decay=decay)
        self.average = MovingAverage(generator, config.average)
        self.critic = Trainee(critic.to(device), rate=rate, betas=betas, decay=decay)

    def criticise(
        self,
        step: int,
        slice_BF: Tensor,
        kind: int,
        levels_RC: Tensor,
        scores_RS: Tensor,
        order_R: Tensor | None,
        updated: bool,
        own: bool,
    ) -> tuple[Tensor, Tensor]:
        """Features of made rows (B, W) and of real ones (R, W) (Algorithm 1, lines 6, 10 and 12).

        Where all rows are pushed, ``order_R`` is their order: what dropout does to a row must not depend on it, or the
        silos' secret would leave its mark on the model. ``updated`` says whether gradients will come, and ``own`` that
        they will be of all these rows.
        """
        with torch.no_grad():
            made = self.made(step, slice_BF, kind)
        critic, draw = self.critic.network, self._dropout(step)
        with torch.set_grad_enabled(updated):
            self._fake = critic(made, critic.masks(len(made), draw))
        masks = critic.masks(len(levels_RC), draw)
        self._pushed = levels_RC, scores_RS, masks if order_R is None else [mask[order_R] for mask in masks]
        with torch.set_grad_enabled(updated and own):
            self._real = critic.of_codes(self.shape, *self._pushed)
        return self._fake.detach().cpu(), self._real.detach().cpu()

    def descend_critic(self, fake_BW: Tensor, real_BW: Tensor, picks_B: Tensor | None) -> None:
        """Update D^b_i (line 16). With ``picks_B`` only these of the pushed rows have a gradient."""
        real = self._real
        if picks_B is not None:
            levels, scores, masks = self._pushed
            picks = picks_B.long().to(self.device)
            real = self.critic.network.of_codes(self.shape, levels[picks], scores[picks], [m[picks] for m in masks])
        self.critic.clear()
        torch.autograd.backward([self._fake, real], [fake_BW.to(self.device), real_BW.to(self.device)])
        self.critic.step()
        if self.orthonormal:
            orthonormalise(self.critic.network)

    def generate(self, step: int, slice_BF: Tensor, kind: int) -> Tensor:
        """Features (B, W) of made rows, on the way to updating the generator (line 20)."""
        self._slice = slice_BF.to(self.device).requires_grad_()
        critic = self.critic.network
        with frozen(critic):
            made = self.made(step, self._slice, kind)
            self._fake = critic(made, critic.masks(len(made), self._dropout(step)))
        features: Tensor = self._fake.detach().cpu()
        return features

    def descend_generator(self, fake_BW: Tensor, level_B: Tensor | None) -> Tensor:
        """Update G^b_i (line 22); gradient (B, F) in the slice.

        With ``level_B`` the loss has the cross-entropy of these levels, counted among all K.
        """
        losses, gradients = [self._fake], [fake_BW.to(self.device)]
        if level_B is not None:
            losses.append(self.condition_loss(self.made_from, level_B.to(self.device)))
            gradients.append(torch.ones((), device=self.device))
        self.generator.clear()
        torch.autograd.backward(losses, gradients)
        self.generator.step()
        self.average.take()
        assert self._slice.grad is not None
        return self._slice.grad.cpu()

    def condition_loss(self, out_BO: Tensor, level_B: Tensor) -> Tensor:
        """Mean cross-entropy between the drawn levels and the columns that were made for them."""
        return -self.activation.log_likelihood(out_BO, level_B).mean()

    @torch.no_grad()
    def draw(self, slice_GF: Tensor, counts: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Levels (G, C) and scores (G, S), by the generator's running statistics; ``counts`` rows for each silo."""
        self.generator.network.eval()
        drawn = []
        with self.average.applied():
            for i, rows in enumerate(slice_GF.split(list(counts))):
                for part in rows.split(max(64, _MOST // self.shape.size)):
                    out_BO = self.generator.network(part.to(self.device), self.config.kind(i))
                    drawn.append(self.activation.draw(out_BO, generator))
        self.generator.network.train()
        levels, scores = zip(*drawn, strict=True)
        return torch.cat(levels).cpu(), torch.cat(scores).cpu()

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; to sample, the generator alone, averaged where that is wanted."""
        if not training:
            return {"generator": {"network": self.average.weights, "moments": None}, "average": None, "critic": None}
        return {
            "generator": self.generator.state(training),
            "average": self.average.state(),
            "critic": self.critic.state(training),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.generator.restore(state["generator"])
        self.average.restore(state["average"])
        if state["critic"] is not None:
            self.critic.restore(state["critic"])

    def made(self, step: int, slice_BF: Tensor, kind: int) -> Tensor:
        """Rows (B, K + S), levels by the Gumbel-softmax."""
        self.made_from = self.generator.network(slice_BF.to(self.device), kind)
        draw = self.streams.child("gumbel", step).torch(self.device)
        made: Tensor = self.activation(self.made_from, self.config.tau, draw)
        return made

    def _dropout(self, step: int) -> torch.Generator:
        return self.streams.child("dropout", step).torch(self.device)
