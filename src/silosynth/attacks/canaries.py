"""Canaries: made-up records far from all others, whose traces in synthetic tables bound epsilon from below.

Two ways. *Many trainings*: one canary is in half of them; an adversary learns on half of the trainings to tell, a
threshold is chosen on the same half, and its rates on the other half bound epsilon (Jagielski et al. 2020). *One
training*: many canaries, each in with probability 1/2; those with the most synthetic rows nearby are guessed to be in,
those with the fewest to be out, and the number of right guesses bounds epsilon (Steinke, Nasr and Jagielski 2023).

A bound says that no smaller epsilon holds, with the confidence stated; it never says that some epsilon does. Canaries
change the table: the generator that is audited is not the one that is released.

Two tables are neighbours if one has one row more, as in `silosynth.privacy.events`.

Legend: N records, K canaries, M trainings of a side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.spatial import cKDTree
from sklearn.ensemble import RandomForestClassifier
from statsmodels.stats.proportion import proportion_confint

from silosynth.attacks import features, generators, shadows
from silosynth.attacks.findings import GROUP, Bools, Finding
from silosynth.attacks.membership import DEPTH, TREES, Trainings, coded_by
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import MAX_INTEGER_LEVELS, code_tables
from silosynth.evaluation.scores import Floats, Ints, Score

CANDIDATES = 2000  # made-up records that canaries are chosen from
GUESSED = 1 / 3  # share of canaries that are guessed to be in, and as many to be out
LEAST = 20  # trainings of a side
FEATURES = ("naive", "correlation", "near")
CONFIDENCE = 0.95
MOST_EPSILON = 64.0  # no audit of this size shows more


@dataclass(frozen=True)
class Claim:
    """The (epsilon, delta) that a generator states; an infinite epsilon states nothing."""

    epsilon: float = math.inf
    delta: float = 0.0


@dataclass(frozen=True)
class CanaryTraces:
    """Trains, and keeps the usual features and how near synthetic rows come to each canary."""

    fit: generators.Fit
    canaries: int  # the last rows of the whole table
    schema: Schema | None = None  # of the records; None infers it

    def __call__(self, trains: Sequence[shadows.Train], whole: pd.DataFrame) -> list[shadows.Kept]:
        """Features by name; "near" has one number for each canary."""
        records, canaries = whole.iloc[: -self.canaries], whole.iloc[-self.canaries :]
        return [
            features.to_plain(
                features.of_table(records, made, self.schema) | {"near": near(canaries, made, records, self.schema)}
            )
            for made in generators.tables(self.fit, trains)
        ]


def near(
    canaries: pd.DataFrame, synthetic: pd.DataFrame, records: pd.DataFrame, schema: Schema | None = None
) -> Floats:
    """How many synthetic rows are nearer to each canary (K) than half its way to the next record or canary.

    Where none is, a number below 1 that grows as the nearest synthetic row comes nearer.
    """
    points = features.embed(code_tables({"records": records, "members": canaries, "others": synthetic}, schema))
    radius_K, _ = cKDTree(points["records"]).query(points["members"])
    if len(canaries) > 1:
        radius_K = np.minimum(radius_K, cKDTree(points["members"]).query(points["members"], k=2)[0][:, 1])
    tree = cKDTree(points["others"])
    count_K = tree.query_ball_point(points["members"], radius_K / 2, return_length=True)
    nearest_K, _ = tree.query(points["members"])
    return np.asarray(count_K + 1 / (1 + nearest_K))


def craft(records: pd.DataFrame, count: int, streams: Streams, schema: Schema | None = None) -> pd.DataFrame:
    """Canaries (K) far from the records and from each other, of values that their columns have.

    Candidates take each column's least, greatest or some record's value, or any of its levels alike; of these, always
    the one is taken next that is furthest from all records and from the canaries so far.

    Raises:
        ConfigError: fewer than one canary is asked for, or more than there are candidates.
    """
    if not 1 <= count <= CANDIDATES:
        raise ConfigError(f"There are between 1 and {CANDIDATES} canaries", count)
    draw = streams.numpy()
    candidates = pd.DataFrame({name: _values(records[name], draw) for name in records.columns})
    points = features.embed(code_tables({"records": records, "members": candidates}, schema))
    distance, _ = cKDTree(points["records"]).query(points["members"])
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points["members"] - points["members"][chosen[-1]], axis=1))
    return candidates.iloc[chosen].reset_index(drop=True)


def _values(column: pd.Series, draw: np.random.Generator) -> pd.Series:
    """A candidate's value of one column, many times."""
    present = column.dropna()
    anyone = draw.integers(len(present), size=CANDIDATES)
    if present.nunique() > MAX_INTEGER_LEVELS and pd.api.types.is_numeric_dtype(column):
        order = present.argsort()
        ends = np.asarray(order)[[0, -1]]
        at = np.where(draw.random(CANDIDATES) < 1 / 3, anyone, ends[draw.integers(2, size=CANDIDATES)])
        return present.iloc[at].reset_index(drop=True)
    distinct = present.drop_duplicates()
    return distinct.iloc[draw.integers(len(distinct), size=CANDIDATES)].reset_index(drop=True)


def many(
    records: pd.DataFrame, fit: generators.Fit, how: Trainings, claim: Claim | None = None, schema: Schema | None = None
) -> Finding:
    """A lower bound on epsilon from ``how.count`` trainings with one canary, and as many without.

    A training's side is part of its name, so that what is kept of fewer trainings goes with more of them.

    Raises:
        ConfigError: fewer than `LEAST` trainings of a side.
        StorageError: see `shadows.train`.
    """
    if how.count < LEAST:
        raise ConfigError(f"A bound needs {LEAST} trainings or more on either side", how.count)
    streams, size = Streams(how.seed).child("canaries"), len(records)
    sides = {"in": np.array([0]), "out": np.array([], np.int64)}
    jobs = [
        _job(f"canary-{side}-{i:04d}", size, present, how.seed)
        for i in range(how.count)
        for side, present in sides.items()
    ]
    kept = _trained(records, craft(records, 1, streams.child("craft"), schema), fit, jobs, how, schema)
    features_MF = np.concatenate([shadows.matrix(kept, [job.name for job in jobs], kind) for kind in FEATURES], axis=1)
    with_MF, without_MF = features_MF[::2], features_MF[1::2]
    half, delta = how.count // 2, _delta(claim)
    forest = RandomForestClassifier(
        TREES, max_depth=DEPTH, oob_score=True, random_state=streams.child("forest").integer() % 2**31
    )
    forest.fit(np.concatenate([with_MF[:half], without_MF[:half]]), np.repeat([True, False], half))
    votes = forest.oob_decision_function_[:, 1]
    test = best_threshold(votes[:half], votes[half:], delta)
    scores = [forest.predict_proba(side[half:])[:, 1] for side in (with_MF, without_MF)]
    bound = counted(scores[0], scores[1], test, delta)
    method = "Clopper-Pearson on true and false positive rates, one half of the trainings held back"
    return _finding("canary", f"Epsilon from {len(jobs)} trainings", bound, 2 * (how.count - half), claim, method)


def one_run(
    records: pd.DataFrame, fit: generators.Fit, count: int, how: Trainings, claim: Claim | None = None,
    schema: Schema | None = None,
) -> Finding:  # fmt: skip
    """A lower bound on epsilon from one training with about half of ``count`` canaries.

    Raises:
        ConfigError: there are fewer than three canaries, or too many.
        StorageError: see `shadows.train`.
    """
    if count < 3:
        raise ConfigError("One training needs three canaries or more", count)
    streams, size = Streams(how.seed).child("one run", count), len(records)
    coin_K = streams.child("coins").numpy().random(count) < 0.5
    job = _job(f"one-run-{count}", size, np.flatnonzero(coin_K), how.seed)
    kept = _trained(records, craft(records, count, streams.child("craft"), schema), fit, [job], how, schema)
    near_K, each = np.array(kept[job.name]["near"]), max(1, int(GUESSED * count))
    order = np.argsort(near_K, kind="stable")
    right = int(coin_K[order[-each:]].sum() + (~coin_K[order[:each]]).sum())
    bound = epsilon_of_one_run(right, 2 * each, count, _delta(claim))
    method = f"{right} of {2 * each} guesses right; theorem 5.2 of Steinke, Nasr and Jagielski 2023"
    return _finding("canaries_one_run", f"Epsilon from one training, {count} canaries", bound, count, claim, method)


def _job(name: str, records: int, present: Ints, seed: int) -> shadows.Shadow:
    rows = np.concatenate([np.arange(records), records + present])
    return shadows.Shadow(name, rows, shadows.seed_of(Streams(seed).child("canaries"), name))


def _trained(
    records: pd.DataFrame,
    canaries: pd.DataFrame,
    fit: generators.Fit,
    jobs: list[shadows.Shadow],
    how: Trainings,
    schema: Schema | None,
) -> dict[str, shadows.Kept]:
    whole = pd.concat([records, canaries.astype(records.dtypes.to_dict())], ignore_index=True)
    description = f"{generators.described(fit)} {how.seed}" + coded_by(schema)
    game = shadows.Game(whole, CanaryTraces(fit, len(canaries), schema), description)
    folder: Path | None = None if how.folder is None else how.folder / f"canaries-{len(canaries)}"
    return how.carry_out(game, jobs, fit, folder)


def _delta(claim: Claim | None) -> float:
    return 0.0 if claim is None else claim.delta


def _finding(name: str, label: str, bound: float, n: int, claim: Claim | None, method: str) -> Finding:
    score = Score(
        name=name, label=label, group=GROUP, value=bound, floor=0.0, floor_note="an attack that only guesses",
        low=bound, high=None, unit="epsilon", better="lower", ideal=0.0, n=n,
        explanation=f"No epsilon below this holds at delta {_delta(claim):g}.",
        method=f"one-sided, {100 * CONFIDENCE:.0f} %: {method}",
    )  # fmt: skip
    return Finding(score, claimed=None if claim is None or math.isinf(claim.epsilon) else claim.epsilon)


# From an attack's success to a lower bound: what (epsilon, delta) cannot hold, at a confidence level


def epsilon_of_rates(
    hits: int, inside: int, false: int, outside: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """The bound of a fixed test on independent trainings (Jagielski et al. 2020): 0 where it shows nothing.

    The attack says "in" for ``hits`` of ``inside`` trainings with the record, and for ``false`` of ``outside`` without.
    Under (epsilon, delta), TPR <= exp(epsilon) FPR + delta, and 1 - FPR <= exp(epsilon) (1 - TPR) + delta. The rates
    are taken at the bad ends of Clopper-Pearson intervals; both hold at once with the confidence asked for.

    Raises:
        ConfigError: counts do not fit.
    """
    if not (0 <= hits <= inside and 0 <= false <= outside and inside and outside):
        raise ConfigError("Counts of hits are at most those of trials", (hits, inside, false, outside))
    miss = (1 - confidence) / 2  # of two two-sided intervals; two of their four ends are used
    tpr, _ = proportion_confint(hits, inside, miss, method="beta")
    _, fpr = proportion_confint(false, outside, miss, method="beta")
    return max(_ratio(tpr, fpr, delta), _ratio(1 - fpr, 1 - tpr, delta))


def _ratio(rate: float, error: float, delta: float) -> float:
    return max(0.0, math.log((rate - delta) / error)) if rate > delta else 0.0


def epsilon_of_one_run(right: int, guesses: int, canaries: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The bound of one training with many canaries (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    Each of ``canaries`` was in with probability 1/2; the attacker guessed about ``guesses`` of them and was ``right``
    so often. The largest epsilon that the test refuses at this confidence; 0 where it refuses none.

    Raises:
        ConfigError: counts do not fit.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ConfigError("Right guesses are at most all guesses, and these the canaries", (right, guesses, canaries))
    if guesses == 0 or _tail(right, guesses, canaries, 0.0, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, MOST_EPSILON
    for _ in range(60):
        middle = (low + high) / 2
        refused = _tail(right, guesses, canaries, middle, delta) <= 1 - confidence
        low, high = (middle, high) if refused else (low, middle)
    return low


def _tail(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of this many right guesses under (epsilon, delta)."""
    chance = 1 / (1 + math.exp(-epsilon))
    pure = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, pure)
    i = np.arange(1, right + 1)
    slack = float((np.cumsum(stats.binom.pmf(right - i, guesses, chance)) / i).max())
    return min(1.0, pure + 2 * canaries * delta * slack)


def best_threshold(with_: Floats, without: Floats, delta: float) -> tuple[float, int]:
    """The threshold, and the side (1: "in" above it, -1: below), whose rates would bound epsilon highest.

    For choosing on trainings that are not counted afterwards: a test chosen on those it is counted on proves nothing.
    """
    best = (-1.0, 0.0, 1)
    for at in np.unique(np.concatenate([with_, without])).tolist():
        for side in (1, -1):
            hits, false = (int(_says_in(scores, at, side).sum()) for scores in (with_, without))
            best = max(best, (epsilon_of_rates(hits, len(with_), false, len(without), delta), at, side))
    return best[1], best[2]


def counted(with_: Floats, without: Floats, test: tuple[float, int], delta: float) -> float:
    """The bound of that test on these trainings."""
    hits, false = (int(_says_in(scores, *test).sum()) for scores in (with_, without))
    return epsilon_of_rates(hits, len(with_), false, len(without), delta)


def _says_in(scores: Floats, threshold: float, side: int) -> Bools:
    return np.asarray(side * scores >= side * threshold)
