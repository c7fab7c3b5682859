"""What is said in TabVFL, in talking order, and its options. What each part means: see `conversation`.

Shapes: B rows of a batch, W numbers that a silo sends of a row, P numbers of its part of what is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.encoders.column import EncoderConfig
from silosynth.models.tabnet import TabNetConfig

Phase: TypeAlias = Literal["pretraining", "finetuning"]
PRETRAINING: Phase = "pretraining"
FINETUNING: Phase = "finetuning"
Rows: TypeAlias = Literal["held out", "all"]
HELD_OUT: Rows = "held out"
ALL: Rows = "all"


@dataclass(frozen=True, slots=True)
class TabVFLConfig(Struct):
    """All options."""

    design: Literal["tabvfl", "local", "local_encoders"] = "tabvfl"  # the paper's TabVFL, LT, and TabVFL-LE
    pretrain: bool = True  # Algorithm 1
    finetune: bool = True  # Algorithm 2
    label_gradients: bool = True  # silos get gradients of the label's loss; else only the coordinator's part learns it
    pretraining_epochs: int = 300
    finetuning_epochs: int = 300
    batch: int = 64  # B
    shuffle: bool = True  # batches are drawn anew in each epoch, or (paper) are the same in all
    mask: float = 0.5  # share of the features that pre-training masks
    net: TabNetConfig = field(default_factory=TabNetConfig)
    sparsity: float = 1e-3  # λ_sparse
    rate: float = 1e-3  # Adam's
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 1e-4
    validation: float = 0.0  # share of the rows that is held out, to stop early and to choose weights by; 0 for none
    patience: int = 10  # judgements without an improvement after which a phase ends
    missing: Literal["cache", "zeros", "wait", "fail"] = "cache"  # what becomes of silos that get lost in training
    absence: float = 0.0  # probability with which a silo is away for an epoch, by lot, from the second epoch on
    cache_limit: float = 2048.0  # MiB that the cache may take
    numbers: Literal["standard", "quantile"] = "standard"  # numbers are standardised (paper), or normal scores
    encoders: EncoderConfig = EncoderConfig()

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "pretraining_epochs", "finetuning_epochs", "rate", "patience", "cache_limit")
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2: batch normalisation needs as many", self.batch)
        for name in ("mask", "validation", "absence"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"Option {name!r} is a share, at least 0 and below 1", getattr(self, name))
        if self.sparsity < 0 or self.decay < 0 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                "Options 'sparsity' and 'decay' are not negative, 'betas' at least 0 and below 1",
                (self.sparsity, self.decay, self.betas),
            )
        if not (self.pretrain or self.finetune):
            raise ConfigError("At least one of 'pretrain' and 'finetune' takes place", "neither")
        if self.design != "tabvfl" and not (self.pretrain or self.label_gradients):
            raise ConfigError(
                "Encoders in silos learn from pre-training or from gradients of the label's loss", "neither",
                "Set pretrain or label_gradients.",
            )  # fmt: skip
        if self.absence and not self.goes_on:
            raise ConfigError(
                "Option 'absence' is for training that goes on without silos", self.missing,
                'Set missing = "cache" or "zeros".',
            )  # fmt: skip

    @property
    def goes_on(self) -> bool:
        """Whether training goes on without silos that are lost."""
        return self.missing in ("cache", "zeros")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What takes place."""
        return (PRETRAINING,) * self.pretrain + (FINETUNING,) * self.finetune

    def epochs(self, phase: Phase) -> int:
        """Of a phase, at most."""
        return self.pretraining_epochs if phase == PRETRAINING else self.finetuning_epochs


_PAPER = TabVFLConfig(shuffle=False, validation=0.15 / 0.85, encoders=EncoderConfig(pool_rare=False))
_OURS = TabVFLConfig(
    batch=128, rate=5e-3, validation=0.1, patience=8, net=TabNetConfig(latent=16, attention=8, steps=3)
)

PRESETS: Mapping[str, TabVFLConfig] = {
    "paper": _PAPER,
    "fast": replace(_OURS, pretraining_epochs=5, finetuning_epochs=10),
    "balanced": replace(_OURS, pretraining_epochs=30, finetuning_epochs=60, rate=2e-3),
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Fit your encoders and make your networks. ``partition`` (P) is the width of your part of what is decoded.

    All draw the same batches from ``order``.
    """

    config: TabVFLConfig
    partition: int
    order: int


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """I have so many rows, and send so many numbers of each: as many as my encoded columns, or my latents."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Embed(Message):
    """Embed the batch of step ``step``. Before that take this gradient (B, W) in what you sent in step ``of``.

    None where there is no gradient: in the first step of an epoch, and where you were away.
    """

    release: ClassVar[Release] = Release.GRADIENTS
    phase: Phase
    step: int
    of: int = -1
    gradient_BW: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Embedded(Message):
    """What I make of these rows (B, W), and in pre-training which features I have masked: 1 for masked (B, W)."""

    release: ClassVar[Release] = Release.ROWS
    z_BW: Tensor
    mask_BW: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Reconstruct(Message):
    """Your part of what was decoded (B, P) for the batch of step ``step``. It depends on the other silos' rows."""

    release: ClassVar[Release] = Release.ROWS
    step: int
    out_BP: Tensor


@dataclass(frozen=True, slots=True)
class Reconstructed(Message):
    """My reconstruction loss, and its gradient (B, P)."""

    release: ClassVar[Release] = Release.GRADIENTS
    loss: float
    gradient_BP: Tensor


@dataclass(frozen=True, slots=True)
class Descend(Message):
    """The gradient (B, W) of the last step ``of`` of an epoch, by itself."""

    release: ClassVar[Release] = Release.GRADIENTS
    of: int
    gradient_BW: Tensor


@dataclass(frozen=True, slots=True)
class TrainAlone(Message):
    """Design "local": pre-train by yourself, for this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Look(Message):
    """Embed these rows as they are, without training: those from ``start`` up to ``stop``."""

    phase: Phase
    rows: Rows
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Compare(Message):
    """Reconstruct those rows without training, from this (B, P); by yourself where there is nothing."""

    release: ClassVar[Release] = Release.ROWS
    start: int
    stop: int
    out_BP: Tensor | None


@dataclass(frozen=True, slots=True)
class Judged(Message):
    """My mean reconstruction loss."""

    release: ClassVar[Release] = Release.STATISTICS
    loss: float


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Keep your weights as they are now under this number, besides those of number ``before``, and no others."""

    number: int
    before: int


@dataclass(frozen=True, slots=True)
class Settle(Message):
    """Go back to the weights of this number; -1 leaves them as they are. A phase has ended."""

    number: int
