"""What an attack yields: a score with its guessing rate and interval, and how it came about."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from silosynth.evaluation.auc import DELONG, EXACT, auc_interval
from silosynth.evaluation.scores import Floats, Score

GROUP = "audit"


@dataclass(frozen=True)
class Finding:
    """One attack's success.

    Attributes:
        score: the figure; its floor is what guessing gets.
        spread: standard deviation over repeats, where there were any.
        roc: false and true positive rates, for attacks that sort records or trainings.
        rates: other rates that belong to it, in %, by name: with the lower and upper ends of their intervals.
        claimed: for a lower bound on epsilon, the upper bound that the generator's accountant states.
    """

    score: Score
    spread: float | None = None
    roc: tuple[tuple[float, float], ...] = ()
    rates: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    claimed: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As dicts, lists, strings and numbers."""
        return asdict(self) | {"roc": [list(point) for point in self.roc], "refuted": self.refuted}

    @property
    def refuted(self) -> bool:
        """Whether the attack shows more than the accountant allows: then one of them is wrong."""
        return self.claimed is not None and self.score.value > self.claimed


def auc_score(
    name: str, label: str, area: float, error: float, n: int, pairs: int, text: str, method: str = DELONG
) -> Score:
    """An area under the ROC curve, beside the guesser's 0.5; for ``pairs`` see `auc_interval`."""
    low, high = auc_interval(area, error, pairs)
    return Score(
        name=name, label=label, group=GROUP, value=area, floor=0.5, floor_note="guessing", low=low, high=high,
        unit="AUC", better="near", ideal=0.5, n=n, explanation=text, method=EXACT if area in (0, 1) else method,
    )  # fmt: skip


def curve(truth_n: NDArray[np.bool_], score_n: Floats) -> tuple[tuple[float, float], ...]:
    """An ROC curve: false and true positive rates."""
    false, true, _ = roc_curve(truth_n, score_n)
    return tuple(zip(false.tolist(), true.tolist(), strict=True))
