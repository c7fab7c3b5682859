"""What GDTS trains and averages: a silo's model, its weights as one vector, and what each silo weighs.

Section II-C and figure 4 are `silo_weights`. The paper's own rule flattens: a softmax of numbers between 0 and 1 lets
no silo weigh more than e times another, however few or odd its rows. "sharp" (ours) weighs by row counts, and a silo
less the further its columns are from those of most others. "rows" is federated averaging (the paper's baseline).

Shapes: N rows, C columns with levels, S scores, K levels, W numbers of a model, P silos, Q columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import rel_entr
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams
from silosynth.encoders.federated import Merged
from silosynth.models import ctgan, latent_table, training
from silosynth.models.encoded import EncodedRows, TableModel

Floats = NDArray[np.float64]
_ROUNDING = 1e-9  # of weights, relative
SHARPNESS = 10.0  # a silo that differs by the whole range of distances weighs exp(-10) times as much


class LocalModel(TableModel, Protocol):
    """A model that says which networks each part of its training trains, and which it starts from."""

    def networks(self, part: int, parts: int) -> Mapping[str, nn.Module]:
        """The networks that part ``part`` trains."""

    def given(self, part: int, parts: int) -> Mapping[str, nn.Module]:
        """Those that it starts from: the same, and averages of what earlier parts trained."""


def make_model(
    config: GDTSConfig, encoded: EncodedRows, rows: int, streams: Streams, device: torch.device,
    counts_K: Tensor | None = None,
) -> LocalModel | None:  # fmt: skip
    """A fresh model of encoded rows; None where every column is constant, so that there is nothing to learn.

    ``rows`` is the row count of all silos. The coordinator has no encoded rows, but ``counts_K``: rows on each level.
    """
    if not encoded.shape.size:
        return None
    if config.generator == "ctgan":
        gan = ctgan.ConditionalGAN(encoded, config.ctgan, streams, device)
        if counts_K is not None:
            gan.counted(counts_K)
        return gan
    return latent_table.LatentTable(encoded, config.diffusion, streams, device, rows, counts_K)


def weights_of(networks: Mapping[str, nn.Module]) -> Tensor:
    """All weights (W,) of some networks, and batch normalisation's running statistics."""
    return training.flatten(_state(networks))


def put_weights(networks: Mapping[str, nn.Module], weights_W: Tensor) -> None:
    """Put weights back; networks keep what is not averaged, such as batch counters."""
    state = training.unflatten(weights_W, _state(networks))
    for name, network in networks.items():
        network.load_state_dict({key.split("/", 1)[1]: x for key, x in state.items() if key.startswith(f"{name}/")})


def _state(networks: Mapping[str, nn.Module]) -> dict[str, Any]:
    return {f"{name}/{key}": x for name, network in networks.items() for key, x in network.state_dict().items()}


# Weights of silos: section II-C, figure 4.


def silo_weights(rule: str, columns: Sequence[Merged], rows: Sequence[int]) -> list[float]:
    """Weights (P,), sum 1, by the rule "paper", "sharp", "rows" or "equal"."""
    share_P = np.asarray(rows, np.float64).clip(min=1) / np.clip(rows, 1, None).sum()
    weight_P = RULES[rule](columns, share_P)
    return [float(weight) for weight in weight_P / weight_P.sum()]


def divergences(columns: Sequence[Merged]) -> Floats:
    """Step 0: divergence S (P, Q) of each silo's columns from those of all silos together."""
    return np.array([_distances(column, None) for column in columns]).T.reshape(-1, len(columns))


def figure_4(divergence_PQ: Floats, share_P: Floats) -> Floats:
    """Steps 1 to 4: weights (P,) from divergences and shares of rows.

    Where no silo diverges, which the paper leaves undefined (0 / 0), all count as equally far.
    """
    silos = len(share_P)
    normal = _normalised(divergence_PQ, silos)  # step 1, by column
    sums = normal.sum(axis=1)  # step 2, SS
    score = share_P * (1 - _normalised(sums, silos))  # step 3, SD
    weight_P: Floats = np.exp(score) / np.exp(score).sum()  # step 4
    return weight_P


def sharp(columns: Sequence[Merged], share_P: Floats) -> Floats:
    """Rows times exp(-10 d), where d is the median of a silo's distances to the others, averaged over columns.

    Distances of numbers are divided by the range of what was drawn, so that d is between 0 and 1. The median, since a
    single odd silo is far from all others and must not make them look far.
    """
    silos = len(share_P)
    if silos < 2 or not columns:
        return share_P
    apart = np.mean([[_distances(column, i) for i in range(silos)] for column in columns], axis=0)
    others = apart[~np.eye(silos, dtype=bool)].reshape(silos, silos - 1)
    return np.asarray(share_P * np.exp(-SHARPNESS * np.median(others, axis=1)))


RULES: Mapping[str, Callable[[Sequence[Merged], Floats], Floats]] = {
    "paper": lambda columns, share_P: figure_4(divergences(columns), share_P),
    "sharp": sharp,
    "rows": lambda columns, share_P: share_P,
    "equal": lambda columns, share_P: np.ones_like(share_P),
}


def check_weight(rule: str, weight: float, share: float, silos: int) -> None:
    """Check a silo's weight by its share of all rows, as far as the rule lets it: "sharp" goes by what others sent.

    Raises:
        ProtocolError: the rule gives no such weight.
    """
    least, most = {
        "rows": (share, share),
        "equal": (1 / silos, 1 / silos),
        "paper": (1 / (1 + math.e * (silos - 1)), math.e / (math.e + silos - 1)),
        "sharp": (0.0, 1.0),
    }[rule]
    if not least * (1 - _ROUNDING) <= weight <= most * (1 + _ROUNDING):
        raise ProtocolError(
            f"By weights = {rule!r} a silo counts from {least:.6g} to {most:.6g} in a sum of models",
            f"{weight:.6g}",
            "The coordinator altered it: do not trust this coordinator.",
        )


def _distances(column: Merged, other: int | None) -> Floats:
    """Distance (P,) of each silo's column from that of silo ``other``, or (None) from all silos' together.

    The Jensen-Shannon distance (base 2) of categories; the Wasserstein distance of numbers as a share of their range.
    """
    if column.drawn is None:
        counts = column.counts.double().numpy()
        reference = counts.sum(axis=0) if other is None else counts[other]
        return np.array([_jensen_shannon(own, reference) for own in counts])
    pooled = np.concatenate(column.drawn)
    reach = float(np.ptp(pooled)) if len(pooled) else 0.0
    drawn = [own / (reach or 1.0) for own in column.drawn]
    reference = pooled / (reach or 1.0) if other is None else drawn[other]
    return np.array([_wasserstein(own, reference) for own in drawn])


def _jensen_shannon(p: Floats, q: Floats) -> float:
    if not p.sum() or not q.sum():
        return float(bool(p.sum()) != bool(q.sum()))
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    divergence = (rel_entr(p, middle) + rel_entr(q, middle)).sum() / 2 / np.log(2)
    return float(np.sqrt(max(divergence, 0.0)))  # rounding may leave less than zero


def _wasserstein(a: Floats, b: Floats) -> float:
    if not len(a) or not len(b):
        return float(len(a) != len(b))
    return float(wasserstein_distance(a, b))


def _normalised(x: Floats, silos: int) -> Floats:
    """Shares of the sum along the first axis; equal shares where the sum is zero."""
    total = x.sum(axis=0, keepdims=True)
    return np.where(total > 0, x / np.where(total > 0, total, 1.0), 1.0 / silos)
