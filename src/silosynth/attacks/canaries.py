"""Canaries: made-up records far from all others, whose traces in synthetic tables bound epsilon from below.

Two ways. *Many trainings*: one canary is in half of them; an adversary learns on half of the trainings to tell, a
threshold is chosen on the same half, and its rates on the other half bound epsilon (Jagielski et al. 2020). *One
training*: many canaries, each in with probability 1/2; those with the most synthetic rows nearby are guessed to be in,
those with the fewest to be out, and the number of right guesses bounds epsilon (Steinke, Nasr and Jagielski 2023).

A bound says that no smaller epsilon holds, with the confidence stated; it never says that some epsilon does. Canaries
change the table: the generator that is audited is not the one that is released.

Legend: N records, K canaries, M trainings of a side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from sklearn.ensemble import RandomForestClassifier

from silosynth.attacks import epsilon, features, shadows
from silosynth.attacks.epsilon import CONFIDENCE
from silosynth.attacks.features import embed
from silosynth.attacks.findings import GROUP, Finding
from silosynth.attacks.generators import Fit, described, tables
from silosynth.attacks.membership import DEPTH, TREES, Trainings
from silosynth.attacks.shadows import Game, Job, Kept, Train
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import MAX_INTEGER_LEVELS, Ints, code_tables
from silosynth.evaluation.scores import Floats, Score

CANDIDATES = 2000  # made-up records that canaries are chosen from
GUESSED = 1 / 3  # share of canaries that are guessed to be in, and as many to be out
LEAST = 20  # trainings of a side
FEATURES = ("naive", "correlation", "near")


@dataclass(frozen=True)
class Claim:
    """What a generator says of itself: (epsilon, delta); an infinite epsilon says nothing."""

    epsilon: float = math.inf
    delta: float = 0.0


@dataclass(frozen=True)
class Measure:
    """Trains, and keeps the usual features and how near synthetic rows come to each canary."""

    fit: Fit
    canaries: int  # the last rows of the whole table

    def __call__(self, trains: Sequence[Train], whole: pd.DataFrame) -> list[Kept]:
        """Features by name; "near" has one number for each canary."""
        records, canaries = whole.iloc[: -self.canaries], whole.iloc[-self.canaries :]
        return [
            features.to_plain(features.of_table(records, made) | {"near": near(canaries, made, records)})
            for made in tables(self.fit, trains)
        ]


def near(canaries: pd.DataFrame, synthetic: pd.DataFrame, records: pd.DataFrame) -> Floats:
    """How many synthetic rows are nearer to each canary (K) than half its way to the next record or canary.

    Where none is, a number below 1 that grows as the nearest synthetic row comes nearer.
    """
    points = embed(code_tables({"records": records, "members": canaries, "others": synthetic}))
    radius_K, _ = cKDTree(points["records"]).query(points["members"])
    if len(canaries) > 1:
        radius_K = np.minimum(radius_K, cKDTree(points["members"]).query(points["members"], k=2)[0][:, 1])
    tree = cKDTree(points["others"])
    count_K = tree.query_ball_point(points["members"], radius_K / 2, return_length=True)
    nearest_K, _ = tree.query(points["members"])
    return np.asarray(count_K + 1 / (1 + nearest_K))


def craft(records: pd.DataFrame, count: int, streams: Streams) -> pd.DataFrame:
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
    points = embed(code_tables({"records": records, "members": candidates}))
    distance, _ = cKDTree(points["records"]).query(points["members"])
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points["members"] - points["members"][chosen[-1]], axis=1))
    return candidates.iloc[chosen].reset_index(drop=True)


def _values(column: pd.Series, draw: np.random.Generator) -> pd.Series:
    """A candidate's value of one column, many times."""
    present = column.dropna()
    some = draw.integers(len(present), size=CANDIDATES)
    if present.nunique() > MAX_INTEGER_LEVELS and pd.api.types.is_numeric_dtype(column):
        order = present.argsort()
        ends = np.asarray(order)[[0, -1]]
        at = np.where(draw.random(CANDIDATES) < 1 / 3, some, ends[draw.integers(2, size=CANDIDATES)])
        return present.iloc[at].reset_index(drop=True)
    distinct = present.drop_duplicates()
    return distinct.iloc[draw.integers(len(distinct), size=CANDIDATES)].reset_index(drop=True)


def many(records: pd.DataFrame, fit: Fit, how: Trainings, claim: Claim | None = None) -> Finding:
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
    found = _trained(records, craft(records, 1, streams.child("craft")), fit, jobs, how)
    seen_MF = np.concatenate([shadows.matrix(found, [job.name for job in jobs], kind) for kind in FEATURES], axis=1)
    with_MF, without_MF = seen_MF[::2], seen_MF[1::2]
    half, delta = how.count // 2, _delta(claim)
    forest = RandomForestClassifier(
        TREES, max_depth=DEPTH, oob_score=True, random_state=streams.child("forest").integer() % 2**31
    )
    forest.fit(np.concatenate([with_MF[:half], without_MF[:half]]), np.repeat([True, False], half))
    votes = forest.oob_decision_function_[:, 1]
    test = epsilon.best_threshold(votes[:half], votes[half:], delta)
    said = [forest.predict_proba(side[half:])[:, 1] for side in (with_MF, without_MF)]
    bound = epsilon.counted(said[0], said[1], test, delta)
    how_found = "Clopper-Pearson on true and false positive rates, one half of the trainings held back"
    return _finding("canary", f"Epsilon from {len(jobs)} trainings", bound, 2 * (how.count - half), claim, how_found)


def one_run(records: pd.DataFrame, fit: Fit, count: int, how: Trainings, claim: Claim | None = None) -> Finding:
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
    found = _trained(records, craft(records, count, streams.child("craft")), fit, [job], how)
    near_K, each = np.array(found[job.name]["near"]), max(1, int(GUESSED * count))
    order = np.argsort(near_K, kind="stable")
    right = int(coin_K[order[-each:]].sum() + (~coin_K[order[:each]]).sum())
    bound = epsilon.of_one_run(right, 2 * each, count, _delta(claim))
    how_found = f"{right} of {2 * each} guesses right; theorem 5.2 of Steinke, Nasr and Jagielski 2023"
    return _finding("canaries_one_run", f"Epsilon from one training, {count} canaries", bound, count, claim, how_found)


def _job(name: str, records: int, present: Ints, seed: int) -> Job:
    rows = np.concatenate([np.arange(records), records + present])
    return Job(name, rows, shadows.seed_of(Streams(seed).child("canaries"), name))


def _trained(
    records: pd.DataFrame, canaries: pd.DataFrame, fit: Fit, jobs: list[Job], how: Trainings
) -> dict[str, Kept]:
    whole = pd.concat([records, canaries.astype(records.dtypes.to_dict())], ignore_index=True)
    game = Game(whole, Measure(fit, len(canaries)), f"{described(fit)} {how.seed}")
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
