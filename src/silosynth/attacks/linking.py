"""Attacks by the coordinator that link rows over rounds: by numbers, by levels they were drawn for, by features.

Shapes: N rows, C categorical columns and P levels of all silos, U and V numbers of two units, R pushed rows, W
features. A unit is what lies between two renumberings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from silosynth.algorithms.vtgan.silo import Silo
from silosynth.attacks.guesses import Bools, Finding, Ints, nothing, share
from silosynth.attacks.listening import Overheard, Told, levels_of
from silosynth.evaluation.scores import Floats

QUERIES = 1000  # rows that are looked for in another round, at most
SUREST = 0.1  # share of claims that an attacker who may choose would make


@dataclass(frozen=True, eq=False)
class Unit:
    """What the coordinator knows of the numbers of a unit: their levels (U, P); and, for scoring, their rows (U,)."""

    number_U: Ints
    levels_UP: Bools
    row_U: Ints


def units_of(heard: Overheard) -> Iterator[list[Unit]]:
    """The units of each of the last rounds: steps where numbers change with these, whole rounds otherwise."""
    config = heard.config
    by_step = config.shuffle == "step" or config.index_privacy != "full"
    told = sorted(heard.coordinator.steps.items())
    for _, group in itertools.groupby(told, lambda item: heard.round_of(item[0])):
        steps = list(group)
        yield [_unit(heard, part) for part in ([[one] for one in steps] if by_step else [steps])]


def _unit(heard: Overheard, steps: list[tuple[int, Told]]) -> Unit:
    starts = np.cumsum([0, *(votes.shape[1] for votes in heard.coordinator.votes.values())])
    start_of = dict(zip(heard.coordinator.votes, starts, strict=False))
    numbers = np.concatenate([told.number_B.numpy() for _, told in steps])
    rows = np.concatenate([heard.truth.row_B[step].numpy() for step, _ in steps])
    positions = np.concatenate([told.position_B.numpy() + start_of[told.contributor] for _, told in steps])
    drawn = np.concatenate([told.position_B.numpy() >= 0 for _, told in steps])
    number_U, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    levels_UP = np.zeros((len(number_U), int(starts[-1])), dtype=bool)
    levels_UP[place[drawn], positions[drawn]] = True
    return Unit(number_U, levels_UP, rows[first])


def rows_by_numbers(heard: Overheard, units: list[list[Unit]]) -> Finding:
    """The same number in two consecutive rounds is taken for the same row."""
    hits = trials = 0
    for before, after in _neighbours(units):
        _, i, j = np.intersect1d(before.number_U, after.number_U, return_indices=True)
        hits, trials = hits + int((before.row_U[i] == after.row_U[j]).sum()), trials + len(i)
    meaning = "of the row numbers seen in two rounds, so many are the same row"
    return share("coordinator", "numbers, rows", hits, trials, 1 / heard.rows, meaning)


def rows_by_levels(heard: Overheard, units: list[list[Unit]]) -> Finding:
    """Numbers with the rarest levels in common, and none that differ, are taken for the same row; the surest tenth."""
    sure, right = [], []
    rarity_P, column_PC = _rarity(heard), _columns(heard)
    for before, after in _neighbours(units):
        best_U, score_U = _most_alike(before.levels_UP, after.levels_UP, rarity_P, column_PC)
        claimed = score_U > 0
        sure.append(score_U[claimed])
        right.append((before.row_U == after.row_U[best_U])[claimed])
    meaning = "of rows linked by the rarest levels they were drawn for, the surest tenth, so many are the same row"
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


def columns_together(heard: Overheard, units: list[list[Unit]]) -> Finding:
    """Numbers of which two columns are known, or more, before numbers change."""
    column_PC = _columns(heard)
    known = [unit.levels_UP.astype(np.float64) @ column_PC for round_ in units for unit in round_]
    hits = sum(int(((known_UC > 0).sum(1) > 1).sum()) for known_UC in known)
    meaning = "of so many of the rows drawn it knows two columns together, or more"
    return share("coordinator", "columns together", hits, sum(map(len, known)), None, meaning)


def _neighbours(units: list[list[Unit]]) -> Iterator[tuple[Unit, Unit]]:
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


def rows_by_features(heard: Overheard, rng: np.random.Generator) -> Finding:
    """Each row's nearest neighbour by features among those pushed in another round, where an equal row was pushed."""
    meaning = "of rows pushed again in another round, so many are found again by their features"
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
    _, found = cKDTree(after).query(before[again])
    hits = int((kind_after[found] == kind_before[again]).sum())
    chance = float(np.bincount(kind_after, minlength=kind_N.max() + 1)[kind_before[again]].mean() / len(after))
    return share("coordinator", "features, rows", hits, len(again), chance, meaning)


def _pushed_twice(heard: Overheard) -> tuple[str, int, int] | None:
    """A silo, and the last steps of two rounds in which it pushed rows for another's conditions."""
    for silo in heard.silos:
        steps = [s for s, told in heard.coordinator.steps.items() if silo in told.features and told.contributor != silo]
        for late, early in itertools.combinations(sorted(steps, reverse=True), 2):
            if heard.round_of(early) < heard.round_of(late):
                return silo, early, late
    return None


def _equal_rows(silo: Silo) -> Ints:
    """A number (N,) for each row that equal encoded rows share."""
    rows = np.concatenate([silo.levels.numpy().astype(np.float64), silo.scores.numpy().astype(np.float64)], axis=1)
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].ravel(), dtype=np.int64)
