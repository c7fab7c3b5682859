"""ASSD and ASIF: are trainings with one record unlike trainings without it? (VFLGAN, section 4, Algorithms 2-5)

===================================  ==================================================================================
Algorithms 3 and 5, lines 1-4        `play`: M trainings on all records and M without the target, each with its own seed
line 5, Extr                         `LeaveOneOut`: naive and correlation features, of the synthetic table (ASSD) and
                                     of the intermediate features of all records (ASIF); and, ours, how near
                                     synthetic rows come to the target
line 6, and Algorithms 2 and 4       `guess`: a random forest, learnt on 70 % of the trainings, guesses the others
===================================  ==================================================================================

Readings: the figures of table 3 are areas under the ROC curve; repeats split the trainings anew (section 5.4.1). The
depth of the trees, 3, is the public code's. The interval is ours: it takes the mean over repeats for no more precise
than one repeat is, because all use the same trainings.

Records to attack (appendix A.7): `most_isolated` by neighbours (record 1), `most_outlying` by outliers (record 2).

Legend: M trainings of a side, F features; N records, D numeric and C categorical columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

from silosynth.attacks import features, generators, shadows
from silosynth.attacks.findings import Finding, auc_score, curve
from silosynth.core.errors import ConfigError, DataError
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import Coded
from silosynth.evaluation.scores import Floats, Ints, auc_with_influence

LEAST = 10  # trainings of a side: with fewer, 30 % are too few to guess
REPEATS = 5
CELLS = 8_000_000  # distances held at a time
SHARE = 0.7  # of trainings that the adversary learns from
TREES = 200
DEPTH = 3
NEAR = "nearness-"  # what such features are called by, and then the target's position
TEXT = "How well a random forest tells trainings with this record from trainings without it."
METHOD = "95 % normal interval, DeLong's variance of one split"


@dataclass(frozen=True)
class LeaveOneOut:
    """Trains, and keeps the features of the synthetic table; with ``intermediate`` those of intermediate features.

    ``targets`` are positions of the records that nearness is taken to; without a ``schema`` it is inferred.
    """

    fit: generators.Fit
    targets: tuple[int, ...] = ()
    intermediate: bool = False
    schema: Schema | None = None

    def __call__(self, trains: Sequence[shadows.Train], whole: pd.DataFrame) -> list[shadows.Kept]:
        """Features of each training by "assd naive", "assd correlation", "assd nearness-<target>"; and of "asif"."""
        if not self.intermediate:
            return [self._of(whole, made) for made in generators.tables(self.fit, trains)]
        return [
            self._of(whole, made) | _named("asif", features.of_numbers(inner))
            for made, inner in generators.sending(self.fit).with_features(trains, whole)
        ]

    def _of(self, whole: pd.DataFrame, made: pd.DataFrame) -> shadows.Kept:
        near = {f"{NEAR}{row}": features.of_record(whole, row, made, self.schema) for row in self.targets}
        return _named("assd", {**features.of_table(whole, made, self.schema), **near})


def _named(scheme: str, own: Mapping[str, Floats]) -> shadows.Kept:
    return {f"{scheme} {name}": values for name, values in features.to_plain(own).items()}


@dataclass(frozen=True)
class Trainings:
    """How many trainings, and where they are kept."""

    count: int = 100  # M, of a side
    seed: int = 0
    folder: Path | None = None
    processes: int = 1
    together: int = 1  # trainings that one process carries out in lockstep, where the algorithm can
    tell: shadows.Tell = field(default=lambda stage, share: None)
    announce: shadows.Announce | None = None  # called with how long they will take

    def carry_out(
        self, game: shadows.Game, jobs: Sequence[shadows.Shadow], fit: generators.Fit, folder: Path | None
    ) -> dict[str, shadows.Kept]:
        """`shadows.train` of ``fit``: one training at a time where lockstep saves nothing, so that each is kept."""
        together = self.together if generators.in_lockstep(fit) else 1
        foresee = partial(generators.expected, fit)
        return shadows.train(game, jobs, folder, self.processes, together, self.tell, self.announce, foresee)


def play(
    train: pd.DataFrame, fit: generators.Fit, targets: Mapping[str, int], how: Trainings, intermediate: bool = False,
    schema: Schema | None = None,
) -> list[Finding]:  # fmt: skip
    """ASSD against each target, and ASIF with ``intermediate``; the trainings on all records serve all targets.

    Args:
        train: all records.
        fit: (records, seed) -> synthetic table.
        targets: what to call a record in the findings -> its position in ``train``.
        how: how many trainings, and where they are kept.
        intermediate: whether ASIF too.
        schema: of the records; None infers it.

    Raises:
        ConfigError: fewer than `LEAST` trainings of a side, or there are no intermediate features.
        StorageError: see `shadows.train`.
    """
    if intermediate:
        generators.sending(fit)  # refused before hours of training
    if how.count < LEAST:
        raise ConfigError(f"An adversary learns from {LEAST} trainings or more on either side", how.count)
    streams = Streams(how.seed)
    sides = {"all": np.arange(len(train))}
    sides |= {f"without-{row}": np.delete(np.arange(len(train)), row) for row in targets.values()}
    jobs = [
        shadows.Shadow(name, rows, shadows.seed_of(streams, name))
        for i in range(how.count)
        for name, rows in ((f"{side}-{i:04d}", rows) for side, rows in sides.items())
    ]
    known = tuple(targets.values())
    description = f"{generators.described(fit)} {known} {intermediate} {how.seed}" + coded_by(schema)
    game = shadows.Game(train.reset_index(drop=True), LeaveOneOut(fit, known, intermediate, schema), description)
    kept = how.carry_out(game, jobs, fit, how.folder)
    return [
        judge(kept, row, label, kind, how.count, streams.child("adversary", row, kind))
        for label, row in targets.items()
        for kind in kept[jobs[0].name]
        if NEAR not in kind or kind.endswith(f"{NEAR}{row}")
    ]


def coded_by(schema: Schema | None) -> str:
    """What a description says of the kinds by which features are taken."""
    return "" if schema is None else f" {[(column.name, column.kind) for column in schema.columns]}"


def judge(kept: dict[str, shadows.Kept], row: int, label: str, kind: str, count: int, streams: Streams) -> Finding:
    """How well features called ``kind`` give away whether record ``row`` was among the training records."""
    with_, without = (
        shadows.matrix(kept, [f"{side}-{i:04d}" for i in range(count)], kind) for side in ("all", f"without-{row}")
    )
    guessed = guess(with_, without, streams)
    scheme, kind = kind.partition("-")[0].split(" ")
    name, shown = f"{scheme}_{kind}_{label}".replace(" ", "_"), f"{scheme.upper()}, {kind}, {label}"
    score = auc_score(name, shown, guessed.area, guessed.error, 2 * count, guessed.pairs, TEXT, METHOD)
    return Finding(score, guessed.spread, guessed.roc)


@dataclass(frozen=True)
class AdversarySuccess:
    """Mean area over repeats, its standard error and spread, an ROC curve, and trainings of a side in a repeat."""

    area: float
    error: float
    spread: float
    roc: tuple[tuple[float, float], ...]
    pairs: int


def guess(with_MF: Floats, without_MF: Floats, streams: Streams, repeats: int = REPEATS) -> AdversarySuccess:
    """Have random forests learn from `SHARE` of both sides and guess the rest, ``repeats`` times."""
    areas, errors, chances, truths = [], [], [], []
    for repeat in range(repeats):
        draw = streams.child(repeat).numpy()
        learn, test = zip(_split(with_MF, draw), _split(without_MF, draw), strict=True)
        forest = RandomForestClassifier(TREES, max_depth=DEPTH, random_state=int(draw.integers(2**31)))
        forest.fit(np.concatenate(learn), np.repeat([True, False], [len(side) for side in learn]))
        truth = np.repeat([True, False], [len(side) for side in test])
        chance = forest.predict_proba(np.concatenate(test))[:, 1]
        area, influence = auc_with_influence(truth, chance)
        areas.append(area)
        errors.append(float((influence**2).sum()))
        chances.append(chance)
        truths.append(truth)
    error = math.sqrt(float(np.mean(errors)))
    roc = curve(np.concatenate(truths), np.concatenate(chances))
    pairs = min(int(truths[0].sum()), int((~truths[0]).sum()))
    return AdversarySuccess(float(np.mean(areas)), error, float(np.std(areas)), roc, pairs)


def _split(side_MF: Floats, draw: np.random.Generator) -> tuple[Floats, Floats]:
    order = draw.permutation(len(side_MF))
    cut = round(SHARE * len(side_MF))
    return side_MF[order[:cut]], side_MF[order[cut:]]


# Records most at risk, which audits should try first


def outlier_counts(table: Coded) -> Ints:
    """How many numeric attributes of each record (N) are outliers, by equations (30) and (31).

    With quartiles Q1 and Q3 and T = Q3 - Q1, a value is one if it lies more than T below Q1 or above Q3 (after Stadler
    et al. 2022). Missing values are none.

    Raises:
        DataError: no column is numeric.
    """
    return np.asarray((_beyond(table) > 1).sum(axis=1), np.int64)


def most_outlying(table: Coded, threshold: float = 1.0) -> int:
    """The record with the most outlier attributes; of several, the one that lies furthest out over all of them.

    A value is an outlier if it lies ``threshold`` times T outside the quartiles. The paper takes several records as
    equally vulnerable; that one is taken first is our reading.
    """
    beyond_ND = _beyond(table)
    counts_N = (beyond_ND > threshold).sum(axis=1)
    reach_N = np.where(beyond_ND > threshold, beyond_ND, 0.0).sum(axis=1)
    return int(np.lexsort((-reach_N, -counts_N))[0])


def _beyond(table: Coded) -> Floats:
    """How far each value lies outside the quartiles, in units of T: (N, D), 0 within."""
    columns = [values for field, values in zip(table.fields, table.values, strict=True) if not field.categorical]
    if not columns:
        raise DataError("Outliers are counted over numeric columns", "none", "Choose the record by its neighbours.")
    values_ND = np.stack(columns, axis=1)
    first_D, third_D = (np.nanpercentile(values_ND, q, axis=0) for q in (25, 75))
    span_D = np.maximum(third_D - first_D, np.finfo(np.float64).tiny)  # where half of all are equal, others are far out
    far_ND = np.maximum(first_D - values_ND, values_ND - third_D) / span_D
    return np.asarray(np.nan_to_num(np.maximum(far_ND, 0.0), nan=0.0))


def nearest_distances(table: Coded) -> Floats:
    """Each record's distance to its nearest neighbour (N), by equation (32), after Meeus et al. 2023.

    1 less the cosine similarities of the one-hot categorical part and of the numeric part, weighted by their shares of
    columns. Numbers are brought to [0, 1] first, as Meeus et al. do; a missing one is the mean.

    Raises:
        DataError: there is a single record.
    """
    if len(table) < 2:
        raise DataError("A record needs another one as its neighbour", len(table))
    codes_NC, numbers_ND = _parts(table)
    columns = len(table.fields)
    share = codes_NC.shape[1] / columns
    unit_ND = numbers_ND / np.maximum(np.linalg.norm(numbers_ND, axis=1, keepdims=True), 1e-12)
    step = max(1, CELLS // len(table))
    nearest_N = np.empty(len(table))
    for start in range(0, len(table), step):
        rows = slice(start, start + step)
        alike = (1 - share) * (unit_ND[rows] @ unit_ND.T)
        for codes_N in codes_NC.T:  # the cosine of two one-hot parts is their share of equal levels
            alike += (codes_N[rows, None] == codes_N[None, :]) / columns
        inner = np.arange(len(alike))
        alike[inner, inner + start] = -np.inf
        nearest_N[rows] = 1 - alike.max(axis=1)
    return nearest_N


def most_isolated(table: Coded) -> int:
    """The record that is furthest from its nearest neighbour."""
    return int(nearest_distances(table).argmax())


def _parts(table: Coded) -> tuple[Ints, Floats]:
    """Level codes (N, C) and numbers (N, D) between 0 and 1."""
    codes, numbers = [], []
    for column, values in zip(table.fields, table.values, strict=True):
        if column.categorical:
            codes.append(values)
            continue
        present = values[~np.isnan(values)]
        low, high, mean = (present.min(), present.max(), present.mean()) if len(present) else (0.0, 1.0, 0.5)
        numbers.append((np.where(np.isnan(values), mean, values) - low) / (high - low if high > low else 1.0))
    empty = np.zeros((len(table), 0))
    return (
        np.stack(codes, axis=1) if codes else empty.astype(np.int64),
        np.stack(numbers, axis=1) if numbers else empty,
    )
