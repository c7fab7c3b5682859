"""Options and presets of TabVFL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, TypeAlias

from silosynth.core.errors import ConfigError
from silosynth.core.messages import AtMost, Fraction, NonNegative, Positive, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.models.tabnet import TabNetConfig

Phase: TypeAlias = Literal["pretraining", "finetuning"]
PRETRAINING: Phase = "pretraining"
FINETUNING: Phase = "finetuning"


class TabVFLConfig(Struct):
    """All options, with the paper's symbols.

    Raises:
        ConfigError: an option is out of its range, or two do not go together; names them.
    """

    design: Literal["tabvfl", "local", "local_encoders"] = "tabvfl"  # the paper's TabVFL, LT, and TabVFL-LE
    pretrain: bool = True  # Algorithm 1
    finetune: bool = True  # Algorithm 2
    label_gradients: bool = True  # whether silos get gradients of the label's loss; else only the host learns it
    pretraining_epochs: Positive[int] = 300
    finetuning_epochs: Positive[int] = 300
    batch: AtMost[int] = 64  # B
    shuffle: bool = True  # draw batches anew in each epoch, or (paper) use the same in all
    mask: Fraction[float] = 0.5  # share of the features that pre-training masks
    net: TabNetConfig = field(default_factory=TabNetConfig)
    sparsity: NonNegative[float] = 1e-3  # λ_sparse
    rate: Positive[float] = 1e-3  # Adam's
    betas: Fraction[tuple[float, float]] = (0.9, 0.999)
    decay: NonNegative[float] = 1e-4
    validation: Fraction[float] = 0.0  # share of rows held out for early stopping; 0 for none
    patience: Positive[int] = 10  # evaluations without an improvement after which a phase ends
    missing: Literal["cache", "zeros", "wait", "fail"] = "cache"  # what happens when a silo is lost in training
    absence: Fraction[float] = 0.0  # simulated probability that a silo is away for an epoch, from the second on
    cache_limit: Positive[float] = 2048.0  # MiB
    numbers: Literal["standard", "quantile"] = "standard"  # numbers are standardised (paper), or normal scores
    encoders: EncoderConfig = EncoderConfig(dependencies="ignore")  # no rows are made

    def _check(self) -> None:
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2: batch normalisation needs as many", self.batch)
        if not (self.pretrain or self.finetune):
            raise ConfigError("At least one of 'pretrain' and 'finetune' takes place", "neither", "Set one of them.")
        if self.design != "tabvfl" and not (self.pretrain or self.label_gradients):
            rule = "Encoders in silos learn from pre-training or from gradients of the label's loss"
            raise ConfigError(rule, "neither", "Set pretrain or label_gradients.")
        if self.absence and not self.goes_on:
            rule = "Option 'absence' is for training that goes on without silos"
            raise ConfigError(rule, self.missing, 'Set missing = "cache" or "zeros".')

    @property
    def goes_on(self) -> bool:
        """Whether training goes on without silos that are lost."""
        return self.missing in ("cache", "zeros")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that take place, in order."""
        return (PRETRAINING,) * self.pretrain + (FINETUNING,) * self.finetune

    def epochs(self, phase: Phase) -> int:
        """Epochs of a phase, at most."""
        return self.pretraining_epochs if phase == PRETRAINING else self.finetuning_epochs


_PAPER = TabVFLConfig(
    shuffle=False, validation=0.15 / 0.85, encoders=EncoderConfig(pool_rare=False, dependencies="ignore")
)
_OURS = TabVFLConfig(
    batch=128, rate=5e-3, validation=0.1, patience=8, net=TabNetConfig(latent=16, attention=8, steps=3)
)

PRESETS: Mapping[str, TabVFLConfig] = {
    "paper": _PAPER,
    "fast": replace(_OURS, pretraining_epochs=5, finetuning_epochs=10),
    "balanced": replace(_OURS, pretraining_epochs=30, finetuning_epochs=60, rate=2e-3),
}
