"""ASSD and ASIF: can trainings with one record be told from trainings without it? (VFLGAN, section 4, Algorithms 2-5)

===================================  ==================================================================================
Algorithms 3 and 5, lines 1-4        `play`: M trainings on all records and M without the target, each with its own seed
line 5, Extr                         `Measure`: naive and correlation features, of the synthetic table (ASSD) and of the
                                     intermediate features of all records (ASIF); and, ours, how near synthetic rows
                                     come to the target
line 6, and Algorithms 2 and 4       `guess`: a random forest, learnt on 70 % of the trainings, guesses the others
===================================  ==================================================================================

Readings: the figures of table 3 are areas under the ROC curve; repeats split the trainings anew (section 5.4.1). The
depth of the trees, 3, is the public code's. The interval is ours: it takes the mean over repeats for no more precise
than one repeat is, because all use the same trainings.

Legend: M trainings of a side, F features.
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

from silosynth.attacks import features, shadows
from silosynth.attacks.findings import Finding, auc_score, curve
from silosynth.attacks.generators import Fit, described, expected, in_lockstep, sending, tables
from silosynth.attacks.shadows import Game, Job, Kept, Train
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.evaluation.auc import auc_with_influence
from silosynth.evaluation.scores import Floats

LEAST = 10  # trainings of a side: with fewer, 30 % are too few to guess
REPEATS = 5
SHARE = 0.7  # of trainings that the adversary learns from
TREES = 200
DEPTH = 3
NEAR = "nearness-"  # what such features are called by, and then the target's position
TEXT = "How well a random forest tells trainings with this record from trainings without it."
METHOD = "95 % normal interval, DeLong's variance of one split"


@dataclass(frozen=True)
class Measure:
    """Trains, and keeps the features of the synthetic table; with ``intermediate`` those of intermediate features.

    ``targets`` are positions of the records that nearness is taken to.
    """

    fit: Fit
    targets: tuple[int, ...] = ()
    intermediate: bool = False

    def __call__(self, trains: Sequence[Train], whole: pd.DataFrame) -> list[Kept]:
        """Features of each training by "assd naive", "assd correlation", "assd nearness-<target>"; and of "asif"."""
        if not self.intermediate:
            return [self._of(whole, made) for made in tables(self.fit, trains)]
        return [
            self._of(whole, made) | _named("asif", features.of_numbers(inner))
            for made, inner in sending(self.fit).with_features(trains, whole)
        ]

    def _of(self, whole: pd.DataFrame, made: pd.DataFrame) -> Kept:
        near = {f"{NEAR}{row}": features.of_record(whole, row, made) for row in self.targets}
        return _named("assd", {**features.of_table(whole, made), **near})


def _named(scheme: str, found: Mapping[str, Floats]) -> Kept:
    return {f"{scheme} {name}": values for name, values in features.to_plain(found).items()}


@dataclass(frozen=True)
class Trainings:
    """How many trainings, and where they are kept."""

    count: int = 100  # M, of a side
    seed: int = 0
    folder: Path | None = None
    processes: int = 1
    together: int = 1  # trainings that one process carries out in lockstep, where the algorithm can
    tell: shadows.Tell = field(default=lambda stage, share: None)
    announce: shadows.Announce | None = None  # who is told how long they will take, if anybody

    def carry_out(self, game: Game, jobs: Sequence[Job], fit: Fit, folder: Path | None) -> dict[str, Kept]:
        """`shadows.train` of ``fit``: one training at a time where lockstep saves nothing, so that each is kept."""
        together = self.together if in_lockstep(fit) else 1
        foresee = partial(expected, fit)
        return shadows.train(game, jobs, folder, self.processes, together, self.tell, self.announce, foresee)


def play(
    train: pd.DataFrame, fit: Fit, targets: Mapping[str, int], how: Trainings, intermediate: bool = False
) -> list[Finding]:
    """ASSD against each target, and ASIF with ``intermediate``; the trainings on all records serve all targets.

    Args:
        train: all records.
        fit: (records, seed) -> synthetic table.
        targets: what to call a record in the findings -> its position in ``train``.
        how: how many trainings, and where they are kept.
        intermediate: whether ASIF too.

    Raises:
        ConfigError: fewer than `LEAST` trainings of a side, or there are no intermediate features.
        StorageError: see `shadows.train`.
    """
    if intermediate:
        sending(fit)  # refused before hours of training
    if how.count < LEAST:
        raise ConfigError(f"An adversary learns from {LEAST} trainings or more on either side", how.count)
    streams = Streams(how.seed)
    sides = {"all": np.arange(len(train))}
    sides |= {f"without-{row}": np.delete(np.arange(len(train)), row) for row in targets.values()}
    jobs = [
        Job(name, rows, shadows.seed_of(streams, name))
        for i in range(how.count)
        for name, rows in ((f"{side}-{i:04d}", rows) for side, rows in sides.items())
    ]
    known = tuple(targets.values())
    measure, about = Measure(fit, known, intermediate), f"{described(fit)} {known} {intermediate} {how.seed}"
    game = Game(train.reset_index(drop=True), measure, about)
    found = how.carry_out(game, jobs, fit, how.folder)
    return [
        judge(found, row, label, kind, how.count, streams.child("adversary", row, kind))
        for label, row in targets.items()
        for kind in found[jobs[0].name]
        if NEAR not in kind or kind.endswith(f"{NEAR}{row}")
    ]


def judge(found: dict[str, Kept], row: int, label: str, kind: str, count: int, streams: Streams) -> Finding:
    """How well features called ``kind`` give away whether record ``row`` was among the training records."""
    with_, without = (
        shadows.matrix(found, [f"{side}-{i:04d}" for i in range(count)], kind) for side in ("all", f"without-{row}")
    )
    guessed = guess(with_, without, streams)
    scheme, kind = kind.partition("-")[0].split(" ")
    name, shown = f"{scheme}_{kind}_{label}".replace(" ", "_"), f"{scheme.upper()}, {kind}, {label}"
    score = auc_score(name, shown, guessed.area, guessed.error, 2 * count, guessed.pairs, TEXT, METHOD)
    return Finding(score, guessed.spread, guessed.roc)


@dataclass(frozen=True)
class Guessed:
    """An adversary's success: mean area over repeats, its standard error, its spread over repeats, an ROC
    curve; and how many trainings of a side one repeat guesses.
    """

    area: float
    error: float
    spread: float
    roc: tuple[tuple[float, float], ...]
    pairs: int


def guess(with_MF: Floats, without_MF: Floats, streams: Streams, repeats: int = REPEATS) -> Guessed:
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
    return Guessed(float(np.mean(areas)), error, float(np.std(areas)), roc, pairs)


def _split(side_MF: Floats, draw: np.random.Generator) -> tuple[Floats, Floats]:
    order = draw.permutation(len(side_MF))
    cut = round(SHARE * len(side_MF))
    return side_MF[order[:cut]], side_MF[order[cut:]]
