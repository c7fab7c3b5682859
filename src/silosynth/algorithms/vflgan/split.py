"""A silo's part in training VFLGAN: features out, D_s' slopes in. Each answer to slopes begins the next step.

Shapes: B made rows, R real rows of a batch, W features.
"""

from __future__ import annotations

from typing import Any

import torch

from silosynth.algorithms.vflgan.draws import Draws
from silosynth.algorithms.vflgan.local import Budget, Local
from silosynth.algorithms.vflgan.messages import (
    Criticise,
    DescendCritic,
    DescendGenerator,
    FakeFeatures,
    Features,
    GANConfig,
)
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.streams import Streams
from silosynth.models.encoded import EncodedRows
from silosynth.models.layers import build
from silosynth.models.training import trainee
from silosynth.models.vflgan import Generator


class Split:
    """See the module's docstring."""

    def __init__(
        self, coded: EncodedRows, config: GANConfig, draws: Draws, budget: Budget | None, streams: Streams,
        device: torch.device,
    ) -> None:  # fmt: skip
        generator = build(
            Generator, config.noise, config.generator, coded.shape.size, config.norm_epsilon, True,
            generator=streams.child("weights", "generator").torch(),
        )  # fmt: skip
        parts = [trainee(generator.to(device), config)]
        self.local = Local(coded, config, parts, draws, budget, streams, device)
        self.open: type[Message] | None = None  # what slopes are awaited for

    def answer(self, ask: Message) -> Message | None:
        """The answer to a message of training; None if ``ask`` is not one.

        Raises:
            ProtocolError: slopes come for another step than the last; or the step is beyond what was charged.
        """
        match ask:
            case Criticise():
                return self._criticise()
            case DescendCritic():
                self._check_open(Criticise)
                self.local.descend_critic(ask.fake_BW, ask.real_RW)
                return self._criticise() if ask.more else self._generate()
            case DescendGenerator():
                self._check_open(DescendGenerator)
                self.local.generator_gradient(ask.fake_BW)
                self.local.parts[0].step()
                self.local.average()
                return self._criticise() if ask.more else Done()
            case _:
                return None

    def _criticise(self) -> Features:
        """Lines 3 to 5 of Algorithm 1."""
        self.open = Criticise
        return Features(*self.local.criticise())

    def _generate(self) -> FakeFeatures:
        """Line 13."""
        self.open = DescendGenerator
        return FakeFeatures(self.local.generate())

    def _check_open(self, kind: type[Message]) -> None:
        found, self.open = self.open, None
        if found is not kind:
            raise ProtocolError(
                "Slopes follow the features that they are of", "none" if found is None else found.__name__
            )

    def state(self, training: bool) -> dict[str, Any]:
        """See `Local.state`. No step is open at a checkpoint."""
        return self.local.state(training)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.local.restore(state)
