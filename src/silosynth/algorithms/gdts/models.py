"""Which model a silo trains, and what the coordinator needs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from silosynth.algorithms.gdts.messages import GDTSConfig
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder
from silosynth.models.averaging import flatten, unflatten
from silosynth.models.ctgan import ConditionalGAN
from silosynth.models.encoded import TableModel, encoded_rows, shape_of
from silosynth.models.latent_table import LatentTable


class LocalModel(TableModel, Protocol):
    """A model whose training in parts says which networks each part trains, and which it starts from."""

    def networks(self, part: int, parts: int) -> Mapping[str, nn.Module]:
        """What part ``part`` trains."""

    def given(self, part: int, parts: int) -> Mapping[str, nn.Module]:
        """What it starts from: these, and what earlier parts have trained, as it was averaged."""


def make_model(
    config: GDTSConfig, encoders: Sequence[Encoder], rows: int, levels_NC: Tensor, scores_NS: Tensor,
    streams: Streams, device: torch.device, counts_K: Tensor | None = None,
) -> LocalModel | None:  # fmt: skip
    """A fresh model of encoded rows, or None where every column is constant: there is nothing to learn.

    ``rows`` is how many all silos have. The coordinator has none; it has ``counts_K``, how often each level occurs.
    """
    if not shape_of(encoders).size:
        return None
    coded = encoded_rows(encoders, levels_NC.to(device), scores_NS.to(device))
    if config.generator == "ctgan":
        gan = ConditionalGAN(coded, config.ctgan, streams, device)
        if counts_K is not None:
            gan.counted(counts_K)
        return gan
    return LatentTable(coded, config.diffusion, streams, device, rows, counts_K)


def weights_of(networks: Mapping[str, nn.Module]) -> Tensor:
    """All numbers (W,) of some networks, batch normalisation's running statistics included."""
    return flatten(_state(networks))


def put_weights(networks: Mapping[str, nn.Module], weights_W: Tensor) -> None:
    """Put them back; networks keep what is not averaged, such as counts of batches."""
    state = unflatten(weights_W, _state(networks))
    for name, network in networks.items():
        network.load_state_dict({key.split("/", 1)[1]: x for key, x in state.items() if key.startswith(f"{name}/")})


def _state(networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    return {f"{name}/{key}": x for name, network in networks.items() for key, x in network.state_dict().items()}
