"""Networks of VT-GAN and their steps: `Bottoms` of a silo, G^b_i and D^b_i; `Tops` of the coordinator, G^t, D^t, D^s.

D^s filters conditional vectors. What a step computes is kept until its gradients come back.

Shapes: B rows of a batch, R pushed rows, C columns with levels, S scores, K levels of a silo, P levels that conditions
can name, W features (of one silo; at the coordinator of all), F outputs of G^t (those of a silo; or all), G generated
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from silosynth.algorithms.vtgan.options import VTGANConfig
from silosynth.core.streams import Streams
from silosynth.models import gan
from silosynth.models.encoded import RowShape

_MOST = 2**24  # numbers held at once while sampling: 64 MB, also with 10 000 levels
WIDEST_FILTER = 256  # most outputs of D^s; it has one per level where there are fewer


@dataclass(frozen=True)
class SiloSizes:
    """What silos have said about themselves, in roster order."""

    rows: int
    columns: list[int]
    conditions: list[int]

    def contributors(self, draws: int, spread: bool, generator: torch.Generator) -> Tensor:
        """Numbers of the silos (draws,) that contribute conditions, each drawn by P_r, the ratio of columns.

        With ``spread`` (systematic sampling, in random order) every silo's number of draws is near its share.
        """
        line = torch.tensor(self.columns).double().cumsum(0)
        share = torch.rand(1 if spread else draws, generator=generator, dtype=torch.float64)
        at = (torch.arange(draws) + share) / draws if spread else share
        chosen = torch.searchsorted(line, at * line[-1], right=True).clamp(max=len(line) - 1)
        return chosen[torch.randperm(draws, generator=generator)]

    def among_all(self, silo: int, position_B: Tensor) -> Tensor:
        """The silo's positions as positions in the whole conditional vector; -1, no condition, stays."""
        position_B = position_B.long()
        return torch.where(position_B < 0, position_B, position_B + sum(self.conditions[:silo]))


class Bottoms(gan.AveragedGAN[gan.CriticPart]):
    """A silo's parts: features of a critic ``width`` wide, of rows made from a slice of G^t ``slice_width`` wide."""

    def __init__(
        self, shape: RowShape, config: VTGANConfig, width: int, slice_width: int, silos: int, streams: Streams,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.shape, self.streams = config, shape, streams
        weights, blocks = streams.child("weights"), (width,) * config.critic_blocks[1]
        self.activation = gan.Activation(shape).to(device)
        generator = gan.make_generator(
            slice_width, (slice_width,) * config.generator_blocks[1], shape.size, weights.child("generator").torch(),
            1 + config.kind(silos - 1),
        )  # fmt: skip
        draw = weights.child("critic").torch()
        critic = gan.make_critic(shape.size, blocks, None if blocks else width, config.dropout, draw)
        self.orthonormal = config.bottom_critics == "orthonormal"
        if self.orthonormal:
            gan.orthonormalise(critic, exactly=True)
        super().__init__(generator, critic, config, config.average, device)

    def criticise(
        self, step: int, slice_BF: Tensor, kind: int, levels_RC: Tensor, scores_RS: Tensor, order_R: Tensor | None,
        updated: bool, own: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Features of made rows (B, W) and of real ones (R, W) (Algorithm 1, lines 6, 10 and 12).

        Args:
            order_R: where all rows are pushed, their order: dropout masks must not depend on the silos' secret order,
                or it would leave its mark on the model.
            updated: whether gradients will come back.
            own: whether they will be for all these rows.
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

    def descend_critic(self, grad_fake_BW: Tensor, grad_real_BW: Tensor, picks_B: Tensor | None) -> None:
        """Update D^b_i (line 16). With ``picks_B`` only these of the pushed rows have a gradient."""
        real = self._real
        if picks_B is not None:
            levels, scores, masks = self._pushed
            picks = picks_B.long().to(self.device)
            real = self.critic.network.of_codes(self.shape, levels[picks], scores[picks], [m[picks] for m in masks])
        self.critic.descend([self._fake, real], [grad_fake_BW.to(self.device), grad_real_BW.to(self.device)])
        if self.orthonormal:
            gan.orthonormalise(self.critic.network)

    def generate(self, step: int, slice_BF: Tensor, kind: int) -> Tensor:
        """Features (B, W) of made rows, for the update of the generator (line 20)."""
        self._slice = slice_BF.to(self.device).requires_grad_()
        critic = self.critic.network
        with gan.frozen(critic):
            made = self.made(step, self._slice, kind)
            self._fake = critic(made, critic.masks(len(made), self._dropout(step)))
        features: Tensor = self._fake.detach().cpu()
        return features

    def descend_generator(self, grad_fake_BW: Tensor, level_B: Tensor | None) -> Tensor:
        """Update G^b_i (line 22); returns the gradient (B, F) in the slice.

        With ``level_B``, levels counted among all K, the loss has their cross-entropy.
        """
        losses, gradients = [self._fake], [grad_fake_BW.to(self.device)]
        if level_B is not None:
            losses.append(self.condition_loss(self.made_from, level_B.to(self.device)))
            gradients.append(torch.ones((), device=self.device))
        self.generator.descend(losses, gradients)
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

    def made(self, step: int, slice_BF: Tensor, kind: int) -> Tensor:
        """Rows (B, K + S), levels by the Gumbel-softmax."""
        self.made_from = self.generator.network(slice_BF.to(self.device), kind)
        draw = self.streams.child("gumbel", step).torch(self.device)
        made: Tensor = self.activation(self.made_from, self.config.tau, draw)
        return made

    def _dropout(self, step: int) -> torch.Generator:
        return self.streams.child("dropout", step).torch(self.device)


class Tops(gan.AveragedGAN[nn.ModuleList]):
    """The coordinator's parts; ``critic`` trains ``top``, D^t, and ``filter``, D^s, which is None without conditions.

    Attributes:
        conditions: P.
        widths, slices: each silo's W and F.
    """

    def __init__(self, config: VTGANConfig, sizes: SiloSizes, streams: Streams, device: torch.device) -> None:
        self.config, self.conditions = config, sum(sizes.conditions)
        self.widths = gan.proportions(config.width, sizes.columns)
        self.slices = gan.proportions(config.generator_width, sizes.columns)
        passed = min(self.conditions, WIDEST_FILTER)
        generator = gan.make_generator(
            config.noise + self.conditions, (config.generator_width,) * config.generator_blocks[0], sum(self.slices),
            streams.child("generator").torch(), 1 + config.kind(len(sizes.columns) - 1),
        )  # fmt: skip
        draw, blocks = streams.child("critic").torch(), (config.width,) * config.critic_blocks[0]
        self.top = gan.make_critic(sum(self.widths) + passed, blocks, 1, config.dropout, draw)
        self.filter = gan.make_critic(self.conditions, (), passed, 0.0, draw) if passed else None
        self.orthonormal = self.filter is not None and config.bottom_critics == "orthonormal"
        self._keep_distances(exactly=True)
        parts = nn.ModuleList([self.top] if self.filter is None else [self.top, self.filter])
        super().__init__(generator, parts, config, config.average, device)

    def conditional(self, position_B: Tensor) -> Tensor:
        """CV_p: conditional vectors (B, P)."""
        return gan.one_hot(position_B.to(self.device), self.conditions)

    def generate(self, cv_BP: Tensor, draw: torch.Generator, kind: int) -> Tensor:
        """G^t(Z, CV_p): (B, F), for a batch of this kind."""
        z_BZ = torch.randn(len(cv_BP), self.config.noise, generator=draw, device=self.device)
        out: Tensor = self.generator.network(torch.cat([z_BZ, cv_BP], dim=1), kind)
        return out

    def split_slices(self, slice_BF: Tensor) -> list[Tensor]:
        """Split by P_r: each silo's slice."""
        return [part.contiguous() for part in slice_BF.cpu().split(self.slices, dim=1)]

    def split_features(self, h_BW: Tensor) -> list[Tensor]:
        """Features of all silos, or gradients in them, as each silo's own."""
        return [part.contiguous() for part in h_BW.cpu().split(self.widths, dim=1)]

    def critic_loss(self, fake_BW: Tensor, real_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Loss of the critic (line 16): both kinds of rows judged, and the penalty between their concatenated inputs.

        Real rows stand beside *permuted* conditional vectors, as in CTGAN: no fake row meets the real one of its own
        condition.
        """
        order = torch.randperm(len(cv_BP), generator=draw, device=self.device)
        mix_B1 = torch.rand(len(cv_BP), 1, generator=draw, device=self.device)
        fake = self._inputs(fake_BW, cv_BP)
        real = self._inputs(real_BW[order], cv_BP[order])
        masks = self.top.masks(2 * len(cv_BP), draw)
        judged = self.top(torch.cat([fake, real]), masks)
        masks = self.top.masks(len(cv_BP), draw)
        penalty = gan.norm_penalty(self.top.input_gradient(fake + mix_B1 * (real - fake), masks)).mean()
        loss: Tensor = gan.critic_loss(*judged.chunk(2)) + self.config.penalty * penalty
        return loss

    def descend_critic(
        self, fake_BW: Tensor, real_BW: Tensor, cv_BP: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Update D^t and D^s; returns gradients (B, W) in the features."""
        fake_BW, real_BW = (x.to(self.device).requires_grad_() for x in (fake_BW, real_BW))
        self.critic.descend(self.critic_loss(fake_BW, real_BW, cv_BP, draw))
        self._keep_distances()
        assert fake_BW.grad is not None and real_BW.grad is not None
        return fake_BW.grad, real_BW.grad

    def generator_loss(self, fake_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Loss of the generator (line 22), without the cross-entropy of the conditions."""
        loss: Tensor = -self.top(self._inputs(fake_BW, cv_BP), self.top.masks(len(cv_BP), draw)).mean()
        return loss

    def gradient_of_generator_loss(self, fake_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Gradient (B, W) of the generator's loss in the features of made rows."""
        fake_BW = fake_BW.to(self.device).requires_grad_()
        with gan.frozen(self.critic.network):
            self.generator_loss(fake_BW, cv_BP, draw).backward()
        assert fake_BW.grad is not None
        return fake_BW.grad

    def descend_generator(self, slice_BF: Tensor, grad_slice_BF: Tensor) -> None:
        """Update G^t by the gradient in its outputs."""
        self.generator.descend(slice_BF, grad_slice_BF.to(self.device))
        self.average.take()

    @torch.no_grad()
    def sample(self, position_G: Tensor, draw: torch.Generator, kind: int) -> Tensor:
        """Outputs of G^t (G, F), by its running statistics for batches of this kind."""
        self.generator.network.eval()
        most = max(64, _MOST // (self.config.noise + self.conditions))
        parts = position_G.split(most)  # one part of no rows, where there are none
        with self.average.applied():
            return torch.cat([self.generate(self.conditional(part), draw, kind) for part in parts])

    def _inputs(self, h_BW: Tensor, cv_BP: Tensor) -> Tensor:
        """Features of all silos beside the filtered conditional vectors (lines 7 and 14)."""
        return h_BW if self.filter is None else torch.cat([h_BW, self.filter(cv_BP, ())], dim=1)

    def _keep_distances(self, exactly: bool = False) -> None:
        """Keep the matrix of D^s orthonormal, as those of the bottom critics are."""
        if self.filter is not None and self.orthonormal:
            gan.orthonormalise(self.filter, exactly)
