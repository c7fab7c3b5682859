"""A silo's networks. Section IV-A: a batch normalisation and a square layer, and the layer that reconstructs.

In designs "local" and "local_encoders" the whole encoder is here, and in "local" the decoder too.
Shapes: N rows, B rows of a batch, F features of this silo, W numbers sent of a row, P its part of what is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.algorithms.tabvfl.batches import Batches
from silosynth.algorithms.tabvfl.messages import FINETUNING, PRETRAINING, Phase, TabVFLConfig
from silosynth.algorithms.tabvfl.part import Part
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams
from silosynth.models.tabnet import (
    INPUT_MOMENTUM,
    Decoder,
    Encoder,
    latent,
    obfuscate,
    plain_layer,
    reconstruction_loss,
)


@dataclass(frozen=True)
class Features:
    """Rows as networks see them: scores, a flag for each column of two levels, one-hot levels of the others.

    Attributes:
        widths: numbers of levels, by column.
        levels: (N, C) int64.
        scores: (N, S) float32.
    """

    widths: Sequence[int]
    levels: Tensor
    scores: Tensor

    @property
    def width(self) -> int:
        """F; a table of constants has one feature, always 0."""
        return max(1, self.scores.shape[1] + sum(1 if width == 2 else width for width in self.widths))

    def of(self, rows_B: Tensor) -> Tensor:
        """Features (B, F) of some rows."""
        levels, scores = self.levels[rows_B], self.scores[rows_B]
        columns = zip(self.widths, levels.T, strict=True)
        parts = [level[:, None] if width == 2 else F.one_hot(level, width) for width, level in columns]
        whole = torch.cat([scores, *(part.float() for part in parts)], dim=1)
        return F.pad(whole, (0, self.width - whole.shape[1]))


class Front(nn.Module):
    """f_bottom_repr: what is between a silo's columns and the coordinator (thesis, 5.1 and 5.2)."""

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=INPUT_MOMENTUM)
        self.mix = plain_layer(features, features, generator)

    def forward(self, x_BF: Tensor, prior_BF: Tensor | None, phase: Phase) -> tuple[Tensor, Tensor]:
        """What is sent (B, F); no masks are made here, so that their entropy is 0."""
        return self.mix(self.norm(x_BF)), x_BF.new_zeros(())


class LocalEncoder(nn.Module):
    """TabNet's whole encoder in the silo."""

    def __init__(self, features: int, config: TabVFLConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=INPUT_MOMENTUM)
        self.encoder = Encoder(features, config.net, generator)

    def forward(self, x_BF: Tensor, prior_BF: Tensor | None, phase: Phase) -> tuple[Tensor, Tensor]:
        """In pre-training all steps' decisions, side by side, for decoders; else latents. And the masks' entropy."""
        decisions, entropy = self.encoder(self.norm(x_BF), prior_BF)
        return torch.cat(decisions, dim=1) if phase == PRETRAINING else latent(decisions), entropy


@dataclass
class Pending:
    """What was computed of a batch and waits for its gradient."""

    step: int
    x_BF: Tensor
    mask_BF: Tensor
    sent_BW: Tensor
    entropy: Tensor


class Guest:
    """The networks of one silo, and their training."""

    def __init__(
        self, features: Features, config: TabVFLConfig, partition: int, batches: Batches, streams: Streams,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.features, self.batches, self.streams, self.device = features, batches, streams, device
        self.local = config.design == "local"
        if self.local:  # the latent vector is made of all silos' parts
            config = replace(config, net=replace(config.net, latent=partition))
        self.config = config
        self.pending: Pending | None = None
        networks = nn.ModuleDict({"rebuild": plain_layer(partition, features.width, self._draw("rebuild"))})
        if config.design == "tabvfl":
            networks["front"] = Front(features.width, self._draw("front"))
        else:
            networks["front"] = LocalEncoder(features.width, config, self._draw("front"))
        if self.local:
            networks["decoder"] = Decoder(config.net, self._draw("decoder"))
        self.part = Part(networks.to(device), config)

    @property
    def width(self) -> int:
        """W, how many numbers of a row are sent in fine-tuning."""
        return self.features.width if self.config.design == "tabvfl" else self.config.net.latent

    # Training.

    def embed(self, phase: Phase, step: int) -> tuple[Tensor, Tensor | None]:
        """Algorithm 1, lines 4 to 6; Algorithm 2, line 4. What is sent, and the mask where it goes with it."""
        self.part.begin(phase)
        self.part.clear()
        x_BF = self.features.of(self.batches.of(step).to(self.device))
        masked_BF, mask_BF = x_BF, torch.zeros_like(x_BF)
        if phase == PRETRAINING:
            masked_BF, mask_BF = obfuscate(x_BF, self.config.mask, self.streams.child("mask", step).torch(self.device))
        prior_BF = 1 - mask_BF if phase == PRETRAINING else None
        sent_BW, entropy = self.part.networks["front"](masked_BF, prior_BF, phase)
        self.pending = Pending(step, x_BF, mask_BF, sent_BW, entropy)
        shown = phase == PRETRAINING and self.config.design == "tabvfl"
        return sent_BW.detach().cpu(), mask_BF.bool().cpu() if shown else None

    def reconstruct(self, step: int, out_BP: Tensor) -> tuple[float, Tensor]:
        """Algorithm 1, lines 22 to 24: the loss of this silo's columns, and its gradient (B, P)."""
        if self.pending is None or self.pending.step != step:
            raise ProtocolError("A batch is embedded before it is reconstructed", f"step {step}")
        out_BP = out_BP.to(self.device).requires_grad_()
        loss = self._loss(out_BP, self.pending.x_BF, self.pending.mask_BF)
        loss.backward()
        assert out_BP.grad is not None
        return loss.item(), out_BP.grad.cpu()

    def descend(self, step: int, gradient_BW: Tensor) -> None:
        """Update all networks by what came back for a batch; nothing happens if that batch is not pending here."""
        pending, self.pending = self.pending, None
        if pending is None or pending.step != step:
            return
        roots, slopes = [pending.sent_BW], [gradient_BW.to(self.device)]
        if self.part.phase == FINETUNING and pending.entropy.requires_grad:
            roots.append(pending.entropy)
            slopes.append(torch.full_like(pending.entropy, self.config.sparsity))
        torch.autograd.backward(roots, slopes)
        self.part.step()

    def train_alone(self, epoch: int) -> float:
        """Design "local": an epoch of pre-training; returns the mean loss."""
        losses = []
        for step in self.batches.steps(epoch):
            self.embed(PRETRAINING, step)
            assert self.pending is not None
            loss = self._loss(self._decode(self.pending.sent_BW), self.pending.x_BF, self.pending.mask_BF)
            loss.backward()
            self.part.step()
            losses.append(loss.item())
        self.pending = None
        return sum(losses) / len(losses)

    # Without training.

    @torch.no_grad()
    def look(self, phase: Phase, rows_B: Tensor) -> Tensor:
        """What is sent (B, W) of rows as they are."""
        self.part.networks.eval()
        sent_BW: Tensor = self.part.networks["front"](self.features.of(rows_B.to(self.device)), None, phase)[0]
        return sent_BW.cpu()

    @torch.no_grad()
    def compare(self, rows_B: Tensor, out_BP: Tensor | None) -> float:
        """Reconstruction loss of rows as they are: of all features, as nothing is masked."""
        if out_BP is None:
            out_BP = self._decode(self.look(PRETRAINING, rows_B).to(self.device))
        self.part.networks.eval()
        x_BF = self.features.of(rows_B.to(self.device))
        return self._loss(out_BP.to(self.device), x_BF, torch.ones_like(x_BF)).item()

    def _loss(self, out_BP: Tensor, x_BF: Tensor, mask_BF: Tensor) -> Tensor:
        return reconstruction_loss(self.part.networks["rebuild"](out_BP), x_BF, mask_BF)

    def _decode(self, sent_BW: Tensor) -> Tensor:
        decisions = sent_BW.split(self.config.net.latent, dim=1)
        out_BP: Tensor = self.part.networks["decoder"](decisions)
        return out_BP

    def _draw(self, name: str) -> torch.Generator:
        return self.streams.child(name).torch()
