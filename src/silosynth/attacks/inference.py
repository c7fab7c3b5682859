"""What VT-GAN's parties can infer from the messages that they are sent: attacks, and how well they do.

==================  =================================================================================================
coordinator
numbers, cells      figures 4 and 5 of the paper: votes for the level that a row number has in each column
numbers, rows       that a number in two rounds is the same row
levels, rows        that rows drawn for the same rare levels in two rounds are the same row (ours)
columns together    for how many numbers it learns two columns' levels at once, before numbers change (ours)
features, cells     a classifier from features to levels, trained on the pairs that the protocol hands out (ours)
features, rows      that the nearest features in two rounds are of equal rows (ours)
silo
lists, rare level   how often a row is asked for shows whether it holds a rare level of the contributor's columns
lists, batch        that the rows asked for are the batch
lists, surest       the same for those among them that were asked for most often before
gradients, levels   a classifier from a silo's own columns and gradients to others' levels (ours)
==================  =================================================================================================

Granted to the coordinator: which levels belong to a column, and how often they occur. Sampling shows it the second; the
first shows in the conditions, because every column is drawn equally often. Where the others are sent lists, numbers are
places in these.

Granted to a silo that attacks with gradients: the others' columns of half of the rows. The gradient of the critic with
respect to a silo's features depends on the features of all silos; what the silo's own columns predict by themselves is
the chance that the finding is compared with.

Shapes: N rows, C categorical columns of a silo (or of all), P their levels, R pushed rows, B rows of a batch, G rows
with gradients, W features. A unit is what lies between two renumberings; U and V are the numbers of two units.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.attacks.findings import Bools, Ints, PartyFinding, against_permuted, balanced, estimate, nothing, share
from silosynth.attacks.listening import CriticStep, Overheard, SiloEar, levels_of
from silosynth.evaluation.scores import Floats, auc_with_influence

PAIRS = 2000  # (features, level) that a classifier is trained on, at most
HELD = 10  # rows that hold a rare level, at least: fewer say nothing about an area
QUERIES = 1000  # rows that are looked for in another round, at most
SUREST = 0.1  # share of claims that an attacker who may choose would make


def attack(heard: Overheard, rng: np.random.Generator) -> list[PartyFinding]:
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


# The coordinator: levels


def cells_by_numbers(heard: Overheard, rng: np.random.Generator) -> list[PartyFinding]:
    """Each row number is given, column by column, the level that it was drawn for most often."""
    guesses, truths, known = [], [], []
    for name, silo in heard.silos.items():
        truth_NC, widths = levels_of(silo)
        for c, votes_NL in enumerate(np.split(heard.coordinator.votes[name].numpy(), np.cumsum(widths)[:-1], axis=1)):
            if len(widths):
                guesses.append(votes_NL.argmax(1))
                truths.append(truth_NC[:, c])
                known.append(votes_NL.any(1))
    meaning = "share of the cells filled in by row numbers that are right"
    covered = "share of all categorical cells that are filled in"
    if not guesses:
        return [nothing("coordinator", "numbers, cells", meaning), nothing("coordinator", "numbers, coverage", covered)]
    known_NC = np.stack(known, axis=1)
    guess_NC, truth_NC = np.stack(guesses, axis=1), np.stack(truths, axis=1)
    cells = against_permuted("numbers, cells", guess_NC, truth_NC, known_NC, rng, meaning)
    return [cells, share("coordinator", "numbers, coverage", int(known_NC.sum()), known_NC.size, None, covered)]


def cells_by_features(heard: Overheard, rng: np.random.Generator) -> PartyFinding:
    """Levels of all rows that silos push in the last step, by classifiers trained on earlier rounds' pairs."""
    meaning = "share of the cells of real rows that can be read off their features (levels weigh alike)"
    last = max(heard.coordinator.steps)
    values, errors, floors, weights, cells = [], [], [], [], 0
    for name, silo in heard.silos.items():
        truth_NC, widths = levels_of(silo)
        pairs = _pairs(heard, name, before=heard.round_of(last))
        if not len(widths) or pairs is None:
            continue
        truth_RC = truth_NC[heard.truth.pushed[last][name].numpy()]
        guess_RC = _by_features(pairs, heard.coordinator.steps[last].features[name].numpy(), widths, rng)
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
    value, error, chance = float(weight @ values), float(np.sqrt(weight**2 @ errors)), float(weight @ floors)
    return estimate("coordinator", "features, cells", value, error, chance, cells, meaning)


def _pairs(heard: Overheard, silo: str, before: int) -> tuple[Floats, Ints] | None:
    """Features of the rows that a silo contributed, and the levels that they were drawn for; newest first."""
    steps = [
        heard_step
        for step, heard_step in sorted(heard.coordinator.steps.items(), reverse=True)
        if heard_step.contributor == silo and heard.round_of(step) < before and silo in heard_step.features
    ]
    if not steps:
        return None
    features = np.concatenate([step.features[silo].numpy() for step in steps])
    return features, np.concatenate([step.position_B.numpy() for step in steps])


def _by_features(pairs: tuple[Floats, Ints], features_RW: Floats, widths: Ints, rng: np.random.Generator) -> Ints:
    """Levels (R, C) of rows by their features, one classifier per column."""
    known, position = pairs
    columns = []
    for start, width in zip(np.cumsum(widths) - widths, widths, strict=True):
        own = np.flatnonzero((position >= start) & (position < start + width))[:PAIRS]
        level = position[own] - start
        if len(np.unique(level)) < 2:
            columns.append(np.full(len(features_RW), level[0] if len(level) else 0))
            continue
        model = LogisticRegression(max_iter=50, random_state=int(rng.integers(2**31)))
        columns.append(_predict(model, known[own], level, features_RW))
    return np.stack(columns, axis=1)


def _predict(model: LogisticRegression, x: Floats, y: Ints, new_x: Floats) -> Ints:
    """Fit on scaled ``x`` and predict."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a good guess is wanted, not a last digit
        warnings.filterwarnings("ignore", "The number of unique classes")  # names have as many levels as rows
        return np.asarray(make_pipeline(StandardScaler(), model).fit(x, y).predict(new_x))


def _commonest(truth_RC: Ints) -> Ints:
    """Each column's commonest level, everywhere."""
    commonest = [np.bincount(truth_RC[:, c]).argmax() for c in range(truth_RC.shape[1])]
    return np.broadcast_to(np.array(commonest), truth_RC.shape)


# The coordinator: which rows of two rounds are the same


@dataclass(frozen=True, eq=False)
class Unit:
    """What the coordinator knows of the numbers of a unit: their levels (U, P); and, for scoring, their rows (U,)."""

    number_U: Ints
    levels_UP: Bools
    row_U: Ints


def units_of(heard: Overheard) -> Iterator[list[Unit]]:
    """The units of each of the last rounds: single steps where numbers change with each step, else whole rounds."""
    config = heard.config
    by_step = config.shuffle == "step" or config.index_privacy != "full"
    numbered = sorted(heard.coordinator.steps.items())
    for _, group in itertools.groupby(numbered, lambda item: heard.round_of(item[0])):
        steps = list(group)
        yield [_unit(heard, part) for part in ([[one] for one in steps] if by_step else [steps])]


def _unit(heard: Overheard, steps: list[tuple[int, CriticStep]]) -> Unit:
    starts = np.cumsum([0, *(votes.shape[1] for votes in heard.coordinator.votes.values())])
    start_of = dict(zip(heard.coordinator.votes, starts, strict=False))
    numbers = np.concatenate([step.number_B.numpy() for _, step in steps])
    rows = np.concatenate([heard.truth.row_B[number].numpy() for number, _ in steps])
    positions = np.concatenate([step.position_B.numpy() + start_of[step.contributor] for _, step in steps])
    drawn = np.concatenate([step.position_B.numpy() >= 0 for _, step in steps])
    number_U, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    levels_UP = np.zeros((len(number_U), int(starts[-1])), dtype=bool)
    levels_UP[place[drawn], positions[drawn]] = True
    return Unit(number_U, levels_UP, rows[first])


def rows_by_numbers(heard: Overheard, units: list[list[Unit]]) -> PartyFinding:
    """The same number in two consecutive rounds is taken for the same row."""
    hits = trials = 0
    for before, after in _consecutive(units):
        _, i, j = np.intersect1d(before.number_U, after.number_U, return_indices=True)
        hits, trials = hits + int((before.row_U[i] == after.row_U[j]).sum()), trials + len(i)
    meaning = "share of the row numbers seen in two rounds that are the same row"
    return share("coordinator", "numbers, rows", hits, trials, 1 / heard.rows, meaning)


def rows_by_levels(heard: Overheard, units: list[list[Unit]]) -> PartyFinding:
    """Numbers with the rarest levels in common, and none that differ, are taken for the same row; the surest tenth."""
    sure, right = [], []
    rarity_P, column_PC = _rarity(heard), _columns(heard)
    for before, after in _consecutive(units):
        best_U, score_U = _most_alike(before.levels_UP, after.levels_UP, rarity_P, column_PC)
        claimed = score_U > 0
        sure.append(score_U[claimed])
        right.append((before.row_U == after.row_U[best_U])[claimed])
    meaning = "share of rows linked by the rarest levels they were drawn for, the surest tenth, that are the same row"
    if not sum(map(len, sure)):
        return nothing("coordinator", "levels, rows", meaning)
    chosen = np.argsort(-np.concatenate(sure), kind="stable")
    chosen = chosen[: max(1, round(SUREST * len(chosen)))]
    hits = int(np.concatenate(right)[chosen].sum())
    return share("coordinator", "levels, rows", hits, len(chosen), 1 / heard.rows, meaning)


def _most_alike(a_UP: Bools, b_VP: Bools, rarity_P: Floats, column_PC: Floats) -> tuple[Ints, Floats]:
    """For each profile of the first unit the most alike of the second, and how rare what they share is."""
    a, b = a_UP.astype(np.float64), b_VP.astype(np.float64)
    both = (a @ column_PC) @ (b @ column_PC).T  # columns of which both levels are known
    alike_UV = np.where(both == a @ b.T, (a * rarity_P) @ b.T, 0.0)
    best_U = alike_UV.argmax(1)
    return best_U, alike_UV[np.arange(len(a)), best_U]


def columns_together(heard: Overheard, units: list[list[Unit]]) -> PartyFinding:
    """Numbers of which two columns are known, or more, before numbers change."""
    column_PC = _columns(heard)
    known = [unit.levels_UP.astype(np.float64) @ column_PC for round_ in units for unit in round_]
    hits = sum(int(((known_UC > 0).sum(1) > 1).sum()) for known_UC in known)
    meaning = "share of the rows drawn of which it knows two columns together, or more"
    return share("coordinator", "columns together", hits, sum(map(len, known)), None, meaning)


def _consecutive(units: list[list[Unit]]) -> Iterator[tuple[Unit, Unit]]:
    """Units of consecutive rounds."""
    for before, after in itertools.pairwise(units):
        yield from zip(before, after, strict=True)


def _rarity(heard: Overheard) -> Floats:
    """-log of the share of rows that hold each level (P,), over all silos."""
    counts = np.concatenate([silo.law.counts.numpy() for silo in heard.silos.values()])
    return np.asarray(-np.log(np.maximum(counts, 1) / heard.rows))


def _columns(heard: Overheard) -> Floats:
    """Which column each level (P, C) belongs to, over all silos."""
    widths = np.concatenate([levels_of(silo)[1] for silo in heard.silos.values()])
    return np.repeat(np.eye(len(widths)), widths, axis=0)


def rows_by_features(heard: Overheard, rng: np.random.Generator) -> PartyFinding:
    """Each row's nearest neighbour by features among those pushed in another round, where an equal row was pushed."""
    meaning = "share of the rows pushed again in another round that are found again by their features"
    pair = _pushed_twice(heard)
    if pair is None:
        return nothing("coordinator", "features, rows", meaning)
    silo, early, late = pair
    before, after = (heard.coordinator.steps[step].features[silo].numpy() for step in (early, late))
    kind_N = _equal_rows(heard.silos[silo])
    kind_before, kind_after = (kind_N[heard.truth.pushed[step][silo].numpy()] for step in (early, late))
    again = np.flatnonzero(np.isin(kind_before, kind_after))
    again = rng.permutation(again)[:QUERIES]
    if not len(again):
        return nothing("coordinator", "features, rows", meaning)
    _, nearest = cKDTree(after).query(before[again])
    hits = int((kind_after[nearest] == kind_before[again]).sum())
    chance = float(np.bincount(kind_after, minlength=kind_N.max() + 1)[kind_before[again]].mean() / len(after))
    return share("coordinator", "features, rows", hits, len(again), chance, meaning)


def _pushed_twice(heard: Overheard) -> tuple[str, int, int] | None:
    """A silo, and the last steps of two rounds in which it pushed rows for another's conditions."""
    for silo in heard.silos:
        steps = [n for n, step in heard.coordinator.steps.items() if silo in step.features and step.contributor != silo]
        for late, early in itertools.combinations(sorted(steps, reverse=True), 2):
            if heard.round_of(early) < heard.round_of(late):
                return silo, early, late
    return None


def _equal_rows(silo: VTGANSilo) -> Ints:
    """A number (N,) for each row, which equal encoded rows share."""
    parts = silo.rows.levels, silo.rows.scores
    rows = np.concatenate([part.numpy().astype(np.float64) for part in parts], axis=1)
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].ravel(), dtype=np.int64)


# A silo: lists of rows


def rare_levels_by_lists(heard: Overheard) -> PartyFinding:
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
    return estimate("silo", "lists, rare level", value, error, 0.5, heard.rows, meaning)


def _rarest(level_N: Ints) -> Bools | None:
    """Which rows hold the rarest level, of those that enough rows hold; None where all rows do."""
    counts = np.bincount(level_N)
    enough = np.flatnonzero(counts >= min(HELD, counts.max()))
    rare_N: Bools = level_N == enough[counts[enough].argmin()]
    return None if rare_N.all() else rare_N


def batches_by_lists(heard: Overheard) -> list[PartyFinding]:
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
    meaning = "share of the rows it is asked for that are in the batch"
    surest = "of as many rows as a batch has, those asked for most often before: share that is in the batch"
    return [
        share("silo", "lists, batch", hits[0], trials[0], chance, meaning),
        share("silo", "lists, surest", hits[1], trials[1], chance, surest),
    ]


# A silo: gradients


def levels_by_gradients(heard: Overheard, rng: np.random.Generator) -> PartyFinding:
    """Mean over pairs of silos of the share of cells that are read right."""
    meaning = "share of others' cells read off gradients and own columns (levels weigh alike; chance: off these alone)"
    granted_N = rng.permutation(heard.rows) < heard.rows // 2
    values, floors, errors, trials = [], [], [], 0
    for name, ear in heard.ears.items():
        for other, silo in heard.silos.items():
            truth_NC, widths = levels_of(silo)
            if other == name or not len(widths) or not ear.gradients:
                continue
            scores = _with_and_without_gradients(ear, truth_NC, granted_N)
            if scores is None:
                continue
            (by_both, influence), (by_own, _), cells = scores
            values.append(by_both)
            floors.append(by_own)
            errors.append(float((influence**2).sum()))
            trials += cells
    if not values:
        return nothing("silo", "gradients, levels", meaning)
    value, chance = float(np.mean(values)), float(np.mean(floors))
    error = float(np.sqrt(sum(errors))) / len(values)
    return estimate("silo", "gradients, levels", value, error, chance, trials, meaning)


ScoreWithInfluence = tuple[float, Floats]


def _with_and_without_gradients(
    ear: SiloEar, truth_NC: Ints, granted_N: Bools
) -> tuple[ScoreWithInfluence, ScoreWithInfluence, int] | None:
    """Scores with gradients and without, on rows that were not granted, and how many cells that is."""
    row_G, gradient_GW = _mean_gradients(ear)
    silo, granted_G = ear.silo, granted_N[row_G]
    own_GX = silo.rows.shape.vectors(silo.rows.levels.cpu(), silo.rows.scores.cpu()).numpy()[row_G]
    if not granted_G.any() or granted_G.all():
        return None
    truth_GC = truth_NC[row_G]
    guesses = [_from_granted(x, truth_GC, granted_G) for x in (np.hstack([own_GX, gradient_GW]), own_GX)]
    truth = truth_GC[~granted_G]
    with_gradients, without = (balanced(guess == truth, truth) for guess in guesses)
    return with_gradients, without, truth.size


def _mean_gradients(ear: SiloEar) -> tuple[Ints, Floats]:
    """Rows (G,), and the mean direction of the gradients (G, W) that were heard for each."""
    rows, gradients = (torch.cat(parts).numpy() for parts in zip(*ear.gradients.values(), strict=True))
    length = np.linalg.norm(gradients, axis=1, keepdims=True)
    row_G, place, times_G = np.unique(rows, return_inverse=True, return_counts=True)
    sum_GW = np.zeros((len(row_G), gradients.shape[1]))
    np.add.at(sum_GW, place, gradients / np.where(length > 0, length, 1))
    return row_G, sum_GW / times_G[:, None]


def _from_granted(x_GX: Floats, truth_GC: Ints, granted_G: Bools) -> Ints:
    """Levels of the rows that were not granted, by a classifier per column."""
    known = np.flatnonzero(granted_G)[:PAIRS]
    columns = []
    for level_G in truth_GC.T:
        if len(np.unique(level_G[known])) < 2:
            columns.append(np.full(int((~granted_G).sum()), level_G[known[0]]))
            continue
        model = LogisticRegression(C=0.01, max_iter=100, class_weight="balanced")
        columns.append(_predict(model, x_GX[known], level_G[known], x_GX[~granted_G]))
    return np.stack(columns, axis=1)
