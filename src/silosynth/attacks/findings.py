"""What attacks yield: a figure with its interval, beside what guessing would give.

`Finding` is of an attack on a generator or on its tables (`silosynth.attacks.study`), `PartyFinding` of a party of a
training that attacks with the messages it was sent (`silosynth.attacks.inference`).

Shapes: N rows, C columns; n trials.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from statsmodels.stats.proportion import proportion_confint

from silosynth.evaluation.scores import DELONG, EXACT, Floats, Score, auc_interval, normal_interval

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
GROUP = "audit"
PERMUTATIONS = 200


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of ``n`` independent trials that are hits."""
    low, high = proportion_confint(hits, n, method="wilson")
    return float(low), float(high)


@dataclass(frozen=True)
class Finding:
    """One attack's success.

    Attributes:
        score: the figure; its floor is what guessing gets.
        spread: standard deviation over repeats, where there were any.
        roc: false and true positive rates, for attacks that rank records or trainings.
        rates: other rates behind the score, in %, by name: each with the lower and upper end of its interval.
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
    """An area under the ROC curve, with 0.5 for guessing; for ``pairs`` see `auc_interval`."""
    low, high = auc_interval(area, error, pairs)
    return Score(
        name=name, label=label, group=GROUP, value=area, floor=0.5, floor_note="guessing", low=low, high=high,
        unit="AUC", better="near", ideal=0.5, n=n, explanation=text, method=EXACT if area in (0, 1) else method,
    )  # fmt: skip


def curve(truth_n: Bools, score_n: Floats) -> tuple[tuple[float, float], ...]:
    """An ROC curve: false and true positive rates."""
    false, true, _ = roc_curve(truth_n, score_n)
    return tuple(zip(false.tolist(), true.tolist(), strict=True))


@dataclass(frozen=True)
class PartyFinding:
    """One attack's success, by a party of a training.

    Attributes:
        attacker: "coordinator" or "silo".
        attack: its short name.
        value: a share, or an area under the ROC curve; None where the attacker was sent nothing to attack with.
        low, high: 95 % interval of the value; None where it has none.
        chance: what guessing gives; None where there is nothing to guess.
        chance_low, chance_high: 95 % of random guesses score between these; None where guessing was not simulated.
        trials: what the value is a share of; for an area, the rows.
        meaning: one clause.
    """

    attacker: str
    attack: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    chance_low: float | None
    chance_high: float | None
    trials: int
    meaning: str

    @property
    def at_chance(self) -> bool | None:
        """Whether guessing may do as well: the value is in guesses' range, or its interval reaches their mean."""
        if self.value is None or self.chance is None:
            return None
        return self.value <= self.chance_high if self.chance_high is not None else (self.low or 0.0) <= self.chance


def nothing(attacker: str, attack: str, meaning: str) -> PartyFinding:
    """The finding of an attacker who was sent nothing to attack with."""
    return PartyFinding(attacker, attack, None, None, None, None, None, None, 0, meaning)


def share(attacker: str, attack: str, hits: int, trials: int, chance: float | None, meaning: str) -> PartyFinding:
    """A share of trials, with Wilson's interval, which takes them for independent."""
    if not trials:
        return nothing(attacker, attack, meaning)
    low, high = wilson(hits, trials)
    return PartyFinding(attacker, attack, hits / trials, low, high, chance, None, None, trials, meaning)


def estimate(
    attacker: str, attack: str, value: float, error: float, chance: float, trials: int, meaning: str
) -> PartyFinding:
    """A value between 0 and 1 with its standard error, from which a normal interval follows."""
    low, high = normal_interval(value, error, 0.0, 1.0)
    return PartyFinding(attacker, attack, value, low, high, chance, None, None, trials, meaning)


def against_permuted(
    attack: str, guess_NC: Ints, truth_NC: Ints, known_NC: Bools, rng: np.random.Generator, meaning: str
) -> PartyFinding:
    """Share of the known cells that are guessed right; chance: the same guesses for other rows of the same table."""
    trials = int(known_NC.sum())
    if not trials:
        return nothing("coordinator", attack, meaning)

    def score(rows: Ints) -> float:
        return float((known_NC & (guess_NC == truth_NC[rows])).sum() / trials)

    right_N = (known_NC & (guess_NC == truth_NC)).sum(1)
    value = float(right_N.sum() / trials)
    error = float(np.sqrt(((right_N - value * known_NC.sum(1)) ** 2).sum())) / trials  # rows are independent
    by_chance = [score(rng.permutation(len(truth_NC))) for _ in range(PERMUTATIONS)]
    least, most = (float(end) for end in np.quantile(by_chance, [0.025, 0.975]))
    low, high = normal_interval(value, error, 0.0, 1.0)
    mean = float(np.mean(by_chance))
    return PartyFinding("coordinator", attack, value, low, high, mean, least, most, trials, meaning)


def balanced(right_NC: Bools, truth_NC: Ints) -> tuple[float, Floats]:
    """Mean over columns of the mean over levels of the share guessed right; and influences (N,) of rows.

    The sum of the influences' squares is the variance, rows being independent.
    """
    influence_N = np.zeros(len(truth_NC))
    means = []
    for c in range(truth_NC.shape[1]):
        _, level_N, count = np.unique(truth_NC[:, c], return_inverse=True, return_counts=True)
        recall = np.bincount(level_N, right_NC[:, c]) / count
        influence_N += (right_NC[:, c] - recall[level_N]) / (count[level_N] * len(count))
        means.append(float(recall.mean()))
    return float(np.mean(means)), influence_N / truth_NC.shape[1]
