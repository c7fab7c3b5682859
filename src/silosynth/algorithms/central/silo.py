"""The one silo of a central baseline: its columns and the model of them. Messages: `protocol`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from silosynth.algorithms.central import options, protocol
from silosynth.core.conditions import Condition
from silosynth.core.conversation import State, Turn, often, once
from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Done, Message, Struct, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.allowed import allowed
from silosynth.encoders.table import ColumnParty
from silosynth.models import autoencoder, conv_gan, ctgan, tabddpm
from silosynth.models.encoded import EncodedRows, TableModel, encoded_rows, no_codes, shape_of


def _conditional_gan(
    coded: EncodedRows, config: options.CTGANOptions, streams: Streams, device: torch.device
) -> TableModel:
    return ctgan.ConditionalGAN(coded, config, streams, device, config.normalised)


MODELS: Mapping[type[Struct], Callable[..., TableModel]] = {
    options.CTGANOptions: _conditional_gan,
    options.CTABGANOptions: conv_gan.ConvolutionalGAN,
    options.TVAEOptions: autoencoder.TVAE,
    options.TabDDPMOptions: tabddpm.RowDiffusion,
}


class CentralSilo(ColumnParty):
    """The one silo.

    Attributes:
        model: None before training, and where every column is constant: there is nothing to learn.
    """

    model: TableModel | None = None

    def _set_up(self) -> None:
        self.config = options.checked(self.config)

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(protocol.SynthesiseRows)
        return (*once(protocol.PrepareModel), *often(protocol.TrainModel, by="part"))

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.PrepareModel():
                return self._prepare()
            case protocol.TrainModel():
                return self._train(ask)
            case protocol.SynthesiseRows():
                return self._synthesise(ask)
            case _:
                raise ProtocolError("A central baseline does not understand this message", type(ask).__name__)

    def restrict(self, conditions: Sequence[Condition]) -> None:
        """GANs make rows for the rarest condition on a category, as they were trained to; see `Party.restrict`."""
        if isinstance(self.model, ctgan.ConditionalGAN | conv_gan.ConvolutionalGAN):
            found = allowed(self.columns.encoders, self.columns.determined, conditions)
            self.model.restrict({one.column: one.level_L for one in found if not one.encoder.lines})

    def _restore(self, state: State) -> None:
        if state["config"] is None:
            return
        self.columns.restore(state["encoders"])
        self._make_model()
        if self.model is not None:
            self.model.restore(state["model"])

    def _state(self, training: bool) -> State:
        """Options, encoders and model; with ``training`` also what training needs."""
        return {
            "config": to_state(self.config) if self.columns.encoders else None,
            "encoders": self.columns.state(),
            "model": None if self.model is None else self.model.state(training),
        }

    def _prepare(self) -> protocol.ModelPrepared:
        """Fit the column encoders and make a fresh model.

        Raises:
            DataError: the table has fewer than two rows, or no column to model.
            ConfigError: the target is no column to model, or has less than two levels.
        """
        config, table = self.config, self.columns.table
        target = getattr(config, "target", "")
        if target and target not in table.names:
            raise ConfigError("Option 'target' names a column to model", target, nearest(target, table.names))
        self.columns.fit(config.encoders, kept=[target])
        if target and all(encoder.width < 2 for encoder in self.columns.encoders if encoder.name == target):
            remedy = "Name another one, or none: the classifier is then left out."
            raise ConfigError("Option 'target' names a column with at least two levels or modes", target, remedy)
        self._make_model()
        return protocol.ModelPrepared(len(table))

    def _train(self, ask: protocol.TrainModel) -> Done:
        if self.model is not None:
            self.model.train(ask.part, protocol.PARTS)
        return Done()

    def _synthesise(self, ask: protocol.SynthesiseRows) -> Message:
        streams = self.streams.child("synthesise", ask.draw)
        levels, scores = no_codes(self.columns.encoders, ask.rows)
        if self.model is not None:
            levels, scores = self.model.sample(ask.rows, streams.child("rows"))
        return self.publish(self.columns.decode(levels, scores, streams), self._shares)

    def _make_model(self) -> None:
        """Encode the rows, if there are any, and make a model of them."""
        encoders = self.columns.encoders
        self.model = None
        if shape_of(encoders).size:
            rows = encoded_rows(encoders, self.columns.encode(), self.device, getattr(self.config, "target", ""))
            self.model = MODELS[type(self.config)](rows, self.config, self.streams.child("model"), self.device)
