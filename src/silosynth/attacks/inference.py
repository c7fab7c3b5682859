"""Attacks on what VT-GAN's parties are told, and their scores.

==================  =================================================================================================
coordinator
numbers, cells      figures 4 and 5 of the paper: votes for the level that a row number has in each column
numbers, rows       that a number in two rounds is the same row
levels, rows        that rows drawn for the same rare levels in two rounds are the same row (ours)
columns together    of how many numbers it learns two columns' levels at once, before numbers change (ours)
features, cells     a classifier from features to levels, learnt from the pairs that the protocol hands out (ours)
features, rows      that the nearest features in two rounds are of equal rows (ours)
silo
lists, rare level   how often a row is asked for tells whether it holds a rare level of the contributor's columns
lists, batch        that the rows asked for are the batch
lists, surest       the same of those among them that were asked for most often before
gradients, levels   a classifier from a silo's own columns and gradients to others' levels (`gradients`; ours)
==================  =================================================================================================

Granted to the coordinator: which levels belong to a column, and how often they occur. Sampling tells it the second; the
first shows in the conditions, because every column is drawn equally often. Where the others are sent lists, numbers are
places in these.

Shapes: N rows, C categorical columns of a silo (or of all), P their levels, U numbers of a unit: the steps between two
renumberings.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from silosynth.attacks.gradients import levels_by_gradients
from silosynth.attacks.guesses import Bools, Finding, Ints, against_permuted, balanced, nothing, share
from silosynth.attacks.linking import columns_together, rows_by_features, rows_by_levels, rows_by_numbers, units_of
from silosynth.attacks.listening import Overheard, levels_of
from silosynth.evaluation.auc import auc_with_influence, normal_interval
from silosynth.evaluation.scores import Floats

PAIRS = 2000  # (features, level) that a classifier learns from, at most
HELD = 10  # rows that hold a rare level, at least: fewer say nothing about an area


def attack(heard: Overheard, rng: np.random.Generator) -> list[Finding]:
    """All findings of a training."""
    units = list(units_of(heard))
    return [
        *cells_by_numbers(heard, rng),
        rows_by_numbers(heard, units),
        rows_by_levels(heard, units),
        columns_together(heard, units),
        cells_by_features(heard, rng),
        rows_by_features(heard, rng),
        rare_levels_by_lists(heard),
        *batches_by_lists(heard),
        levels_by_gradients(heard, rng),
    ]


def cells_by_numbers(heard: Overheard, rng: np.random.Generator) -> list[Finding]:
    """Each row number is given, column by column, the level that it was drawn for most often."""
    guesses, truths, known = [], [], []
    for name, silo in heard.silos.items():
        truth_NC, widths = levels_of(silo)
        for c, votes_NL in enumerate(np.split(heard.coordinator.votes[name].numpy(), np.cumsum(widths)[:-1], axis=1)):
            if len(widths):
                guesses.append(votes_NL.argmax(1))
                truths.append(truth_NC[:, c])
                known.append(votes_NL.any(1))
    meaning = "of the cells it fills in by row numbers, so many are right"
    covered = "of all categorical cells it fills in so many"
    if not guesses:
        return [nothing("coordinator", "numbers, cells", meaning), nothing("coordinator", "numbers, coverage", covered)]
    known_NC = np.stack(known, axis=1)
    found = against_permuted(
        "numbers, cells", np.stack(guesses, axis=1), np.stack(truths, axis=1), known_NC, rng, meaning
    )
    return [found, share("coordinator", "numbers, coverage", int(known_NC.sum()), known_NC.size, None, covered)]


def cells_by_features(heard: Overheard, rng: np.random.Generator) -> Finding:
    """Levels of all rows that silos push in the last step, by classifiers learnt from earlier rounds' pairs."""
    meaning = "of the cells of real rows so many can be read off their features (levels weigh alike)"
    last = max(heard.coordinator.steps)
    values, errors, floors, weights, cells = [], [], [], [], 0
    for name, silo in heard.silos.items():
        truth_NC, widths = levels_of(silo)
        pairs = _pairs(heard, name, before=heard.round_of(last))
        if not len(widths) or pairs is None:
            continue
        truth_RC = truth_NC[heard.truth.pushed[last][name].numpy()]
        guess_RC = _read(pairs, heard.coordinator.steps[last].features[name].numpy(), widths, rng)
        value, influence = balanced(guess_RC == truth_RC, truth_RC)
        floor, _ = balanced(_commonest(truth_RC) == truth_RC, truth_RC)
        values.append(value)
        errors.append(float((influence**2).sum()))
        floors.append(floor)
        weights.append(len(widths))
        cells += truth_RC.size
    if not values:
        return nothing("coordinator", "features, cells", meaning)
    weight = np.array(weights) / sum(weights)
    mean, error = float(weight @ values), float(np.sqrt(weight**2 @ errors))
    low, high = normal_interval(mean, error, 0.0, 1.0)
    chance = float(weight @ floors)
    return Finding("coordinator", "features, cells", mean, low, high, chance, None, None, cells, meaning)


def _pairs(heard: Overheard, silo: str, before: int) -> tuple[Floats, Ints] | None:
    """Features of the rows that a silo contributed, and the levels that they were drawn for; newest first."""
    steps = [
        told
        for step, told in sorted(heard.coordinator.steps.items(), reverse=True)
        if told.contributor == silo and heard.round_of(step) < before and silo in told.features
    ]
    if not steps:
        return None
    features = np.concatenate([told.features[silo].numpy() for told in steps])
    return features, np.concatenate([told.position_B.numpy() for told in steps])


def _read(pairs: tuple[Floats, Ints], features_RW: Floats, widths: Ints, rng: np.random.Generator) -> Ints:
    """Levels (R, C) of rows by their features, one classifier per column."""
    known, position = pairs
    columns = []
    for start, width in zip(np.cumsum(widths) - widths, widths, strict=True):
        about = np.flatnonzero((position >= start) & (position < start + width))[:PAIRS]
        level = position[about] - start
        if len(np.unique(level)) < 2:
            columns.append(np.full(len(features_RW), level[0] if len(level) else 0))
            continue
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50, random_state=int(rng.integers(2**31))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a good guess is wanted, not a last digit
            columns.append(model.fit(known[about], level).predict(features_RW))
    return np.stack(columns, axis=1)


def _commonest(truth_RC: Ints) -> Ints:
    """Each column's commonest level, everywhere."""
    commonest = [np.bincount(truth_RC[:, c]).argmax() for c in range(truth_RC.shape[1])]
    return np.broadcast_to(np.array(commonest), truth_RC.shape)


def rare_levels_by_lists(heard: Overheard) -> Finding:
    """Area under the ROC curve of how often a row was asked for, mean over silos and others' columns."""
    meaning = "how well the number of times a row is asked for tells others' rare levels (area under ROC)"
    areas, influences = [], []
    for name, ear in heard.ears.items():
        if not ear.count_N.any():
            continue
        count_N = ear.count_N.numpy().astype(np.float64)
        for other, silo in heard.silos.items():
            for level_N in levels_of(silo)[0].T if other != name else ():
                rare_N = _rarest(level_N)
                if rare_N is not None:
                    area, influence_N = auc_with_influence(rare_N, count_N)
                    areas.append(area)
                    influences.append(influence_N)
    if not areas:
        return nothing("silo", "lists, rare level", meaning)
    value, error = float(np.mean(areas)), float(np.sqrt((np.mean(influences, axis=0) ** 2).sum()))
    low, high = normal_interval(value, error, 0.0, 1.0)
    return Finding("silo", "lists, rare level", value, low, high, 0.5, None, None, heard.rows, meaning)


def _rarest(level_N: Ints) -> Bools | None:
    """Which rows hold the rarest level, of those that enough rows hold; None where all rows do."""
    counts = np.bincount(level_N)
    enough = np.flatnonzero(counts >= min(HELD, counts.max()))
    rare_N: Bools = level_N == enough[counts[enough].argmin()]
    return None if rare_N.all() else rare_N


def batches_by_lists(heard: Overheard) -> list[Finding]:
    """Rows that a silo is asked for are taken for the batch: all of them, and those asked for most often before."""
    hits, trials, drawn = [0, 0], [0, 0], []
    for ear in heard.ears.values():
        for step in ear.lists.keys() & heard.truth.row_B.keys():
            row_B = heard.truth.row_B[step].numpy()
            drawn.append(len(np.unique(row_B)) / heard.rows)
            for i, named in enumerate((ear.lists[step], ear.surest[step])):
                hits[i] += int(np.isin(named.numpy(), row_B).sum())
                trials[i] += len(named)
    chance = float(np.mean(drawn)) if drawn else None
    meaning = "of the rows it is asked for, so many are in the batch"
    surest = "of as many rows as a batch has, those asked for most often before, so many are in it"
    return [
        share("silo", "lists, batch", hits[0], trials[0], chance, meaning),
        share("silo", "lists, surest", hits[1], trials[1], chance, surest),
    ]
