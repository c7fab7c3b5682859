"""How much each silo's model weighs in the average (GDTS, section II-C and figure 4).

The paper's own weights flatten: a softmax of numbers between 0 and 1 lets no silo weigh more than e times another,
however few rows it has or however odd they are. "sharp" (ours) weighs by rows, and a silo less the further its columns
are from those of most others. "rows" is federated averaging (the paper's baseline without similarity weights).

Shapes: P silos, Q columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr
from scipy.stats import wasserstein_distance

from silosynth.encoders.federated import Merged

Floats = NDArray[np.float64]
SHARPNESS = 10.0  # a silo that differs by the whole range of divergences weighs exp(-10) times as much


def weights(kind: str, columns: Sequence[Merged], rows: Sequence[int]) -> list[float]:
    """Weights (P,), sum 1, by the rule called ``kind``."""
    share = np.asarray(rows, np.float64).clip(min=1) / np.clip(rows, 1, None).sum()
    found = RULES[kind](columns, share)
    return [float(weight) for weight in found / found.sum()]


def to_whole(columns: Sequence[Merged]) -> Floats:
    """Step 0: divergence S (P, Q) of each silo's column from that of all silos."""
    return np.array([_each(column, None) for column in columns]).T.reshape(-1, len(columns))


def figure_4(divergence_PQ: Floats, share_P: Floats) -> Floats:
    """Steps 1 to 4: weights (P,) from divergences and shares of rows.

    Where all silos equal the whole, which the paper leaves undefined (0 / 0), they are equally far from it.
    """
    silos = len(share_P)
    normal = _shares(divergence_PQ, silos)  # step 1, by column
    sums = normal.sum(axis=1)  # step 2, SS
    score = share_P * (1 - _shares(sums, silos))  # step 3, SD
    weighed: Floats = np.exp(score) / np.exp(score).sum()  # step 4
    return weighed


def sharp(columns: Sequence[Merged], share_P: Floats) -> Floats:
    """Rows, times exp(-10 d): d is the middle one of a silo's distances to the others, averaged over columns.

    Distances of numbers are divided by the range of what was drawn; so d is between 0 and 1. The middle one, since a
    single odd silo is far from all, and must not make the others look far.
    """
    silos = len(share_P)
    if silos < 2 or not columns:
        return share_P
    apart = np.mean([[_each(column, i) for i in range(silos)] for column in columns], axis=0)
    others = apart[~np.eye(silos, dtype=bool)].reshape(silos, silos - 1)
    return np.asarray(share_P * np.exp(-SHARPNESS * np.median(others, axis=1)))


RULES: Mapping[str, Callable[[Sequence[Merged], Floats], Floats]] = {
    "paper": lambda columns, share_P: figure_4(to_whole(columns), share_P),
    "sharp": sharp,
    "rows": lambda columns, share_P: share_P,
    "equal": lambda columns, share_P: np.ones_like(share_P),
}


def _each(column: Merged, other: int | None) -> Floats:
    """Distance (P,) of every silo's column from another silo's, or (None) from that of all.

    Of categories the Jensen-Shannon distance to base 2, of numbers the Wasserstein distance as a share of their range.
    """
    if column.drawn is None:
        counts = column.counts.double().numpy()
        reference = counts.sum(axis=0) if other is None else counts[other]
        return np.array([_jensen_shannon(own, reference) for own in counts])
    everything = np.concatenate(column.drawn)
    reach = float(np.ptp(everything)) if len(everything) else 0.0
    drawn = [own / (reach or 1.0) for own in column.drawn]
    reference = everything / (reach or 1.0) if other is None else drawn[other]
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


def _shares(x: Floats, silos: int) -> Floats:
    """Along the first axis, what each is of the sum; equal where the sum is zero."""
    total = x.sum(axis=0, keepdims=True)
    return np.where(total > 0, x / np.where(total > 0, total, 1.0), 1.0 / silos)
