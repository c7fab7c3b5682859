"""The coordinator's networks: partial encoder, partial decoder, and the layer that predicts the label (section IV-A).

Shapes: B rows of a batch, W numbers of all silos, D latents, K classes (or 1, for a number).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.algorithms.tabvfl.messages import FINETUNING, PRETRAINING, TabVFLConfig
from silosynth.algorithms.tabvfl.part import Part
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.models.tabnet import Decoder, Encoder, latent, plain_layer


@dataclass(frozen=True)
class Labels:
    """What is to be predicted.

    Attributes:
        values: (N,) int64 numbers of classes, or float32 numbers with mean 0 and deviation 1.
        classes: how many classes there are; 0 where labels are numbers.
    """

    values: Tensor
    classes: int


@dataclass
class Sent:
    """What silos sent of a batch, or what stands in for it, in the order of the roster.

    Attributes:
        z: (B, W_i) of each silo; with gradients for those that are there.
        masks: (B, W_i) of each, in pre-training.
        there: which silos sent theirs.
    """

    z: list[Tensor]
    masks: list[Tensor]
    there: list[bool]


class Host:
    """The coordinator's networks, and their training. ``widths`` (W_i) is what each silo sends in fine-tuning."""

    def __init__(
        self, widths: Sequence[int], classes: int, config: TabVFLConfig, streams: Streams, device: torch.device
    ) -> None:
        self.config, self.device, self.classes, self.silos = config, device, classes, len(widths)
        size = config.net.latent
        networks = nn.ModuleDict({"mapping": plain_layer(size, classes or 1, streams.child("mapping").torch())})
        if config.design == "tabvfl":
            networks["encoder"] = Encoder(sum(widths), config.net, streams.child("encoder").torch())
        if config.design != "local":
            networks["decoder"] = Decoder(config.net, streams.child("decoder").torch())
        self.part = Part(networks.to(device), config)

    @property
    def partitions(self) -> list[int]:
        """P_i, how many numbers of what is decoded are each silo's; as equal as can be."""
        return partitions(self.config, self.silos)

    def take(self, sent: Sent) -> Sent:
        """The same on the device, where what is there can have gradients."""
        z = [part.to(self.device).requires_grad_(there) for part, there in zip(sent.z, sent.there, strict=True)]
        return Sent(z, [mask.to(self.device) for mask in sent.masks], sent.there)

    # Pre-training: Algorithm 1, lines 15 to 21 and 25 to 32.

    def decode(self, sent: Sent) -> Tensor:
        """out_intermediate (B, D), with its graph."""
        self.part.begin(PRETRAINING)
        self.part.clear()
        return self._decode(sent)

    def descend(self, sent: Sent, out_BD: Tensor, slopes: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Update by the slopes of silos' losses, None where one is lost; the gradients for those that are there."""
        parts = zip(slopes, out_BD.split(self.partitions, dim=1), strict=True)
        whole = [torch.zeros_like(part) if slope is None else slope.to(self.device) for slope, part in parts]
        out_BD.backward(torch.cat(whole, dim=1))
        self.part.step()
        return [None if part.grad is None else part.grad.cpu() for part in sent.z]

    # Fine-tuning: Algorithm 2, lines 12 to 18.

    def classify(self, sent: Sent, labels_B: Tensor) -> tuple[list[Tensor | None], float]:
        """Update by the loss of the labels; the gradients for those that are there, and the loss."""
        self.part.begin(FINETUNING)
        self.part.clear()
        latent_BD, entropy = self._latent(sent.z)
        loss = self._loss(latent_BD, labels_B)
        (loss + self.config.sparsity * entropy).backward()
        self.part.step()
        return [None if part.grad is None else part.grad.cpu() for part in sent.z], loss.item()

    # Without training.

    @torch.no_grad()
    def look(self, z: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Latents (B, D) and what is predicted of them (B, K), of rows as they are; on the CPU."""
        self.part.networks.eval()
        latent_BD, _ = self._latent([part.to(self.device) for part in z])
        out_BK: Tensor = self.part.networks["mapping"](latent_BD)
        return latent_BD.cpu(), out_BK.cpu()

    @torch.no_grad()
    def rebuild(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Each silo's part (B, P_i) of what is decoded of rows as they are."""
        self.part.networks.eval()
        parts = [part.to(self.device) for part in z]
        out_BD = self._decode(Sent(parts, [torch.zeros_like(part) for part in parts], [True] * len(parts)))
        return [part.contiguous() for part in out_BD.cpu().split(self.partitions, dim=1)]

    @torch.no_grad()
    def loss(self, z: Sequence[Tensor], labels_B: Tensor) -> float:
        """The label's loss of rows as they are."""
        self.part.networks.eval()
        latent_BD, _ = self._latent([part.to(self.device) for part in z])
        return self._loss(latent_BD, labels_B).item()

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; or the weights alone."""
        return self.part.state(training)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.part.restore(state)

    def _decode(self, sent: Sent) -> Tensor:
        if self.config.design == "tabvfl":
            prior_BW = 1 - torch.cat(sent.masks, dim=1).float()
            decisions, _ = self.part.networks["encoder"](torch.cat(sent.z, dim=1), prior_BW)
        else:  # step by step, the sum of what silos decided
            decisions = torch.stack(sent.z).sum(dim=0).split(self.config.net.latent, dim=1)
        out_BD: Tensor = self.part.networks["decoder"](decisions)
        return out_BD

    def _latent(self, z: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if self.config.design == "tabvfl":
            decisions, entropy = self.part.networks["encoder"](torch.cat(list(z), dim=1))
            return latent(decisions), entropy
        none = z[0].new_zeros(())
        return (torch.cat(list(z), dim=1) if self.config.design == "local" else torch.stack(list(z)).sum(0)), none

    def _loss(self, latent_BD: Tensor, labels_B: Tensor) -> Tensor:
        out_BK, labels_B = self.part.networks["mapping"](latent_BD), labels_B.to(self.device)
        return F.cross_entropy(out_BK, labels_B) if self.classes else F.mse_loss(out_BK[:, 0], labels_B)


def partitions(config: TabVFLConfig, silos: int) -> list[int]:
    """How the D numbers of a latent vector, or of what is decoded, are dealt out to silos.

    Raises:
        ConfigError: there are fewer numbers than silos.
    """
    size = config.net.latent
    if size < silos:
        raise ConfigError(
            "The latent dimension is at least the number of silos: each gets a part of what is decoded",
            f"{size} for {silos} silos",
            f"Set net.latent = {silos} or more.",
        )
    return [len(part) for part in torch.arange(size).tensor_split(silos)]
