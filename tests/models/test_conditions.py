"""Conditions and matching rows against the laws they must have, by chi-square."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from silosynth.core.streams import Streams
from silosynth.models.gan import ConditionLaw, Conditions

DRAWS = 60_000
RAGGED = (2, 7, 3)


def generator(*path):
    return Streams(0).child(*path).torch()


def table(widths=RAGGED, rows=500):
    """Skewed levels; the last one of every column of more than two is never used."""
    draw = np.random.default_rng(1)
    columns = []
    for width in widths:
        used = width - (width > 2)
        columns.append(draw.choice(used, rows, p=np.arange(1, used + 1) / np.arange(1, used + 1).sum()))
    return torch.from_numpy(np.stack(columns, axis=1))


def wanted_law(levels, widths, weigh):
    """Probability of each position, by a loop over columns."""
    laws = []
    for c, width in enumerate(widths):
        weight = weigh(np.bincount(levels[:, c], minlength=width).astype(float))
        laws.append(weight / weight.sum() / len(widths))
    return np.concatenate(laws)


def check(positions, law):
    counts = np.bincount(positions, minlength=len(law))
    assert counts[law == 0].sum() == 0
    assert chisquare(counts[law > 0], law[law > 0] * len(positions)).pvalue > 1e-4


@pytest.mark.parametrize(("law", "weigh"), [("log", np.log1p), ("frequency", np.asarray)])
@pytest.mark.parametrize("widths", [RAGGED, (5,), (2, 2, 2, 40)])
def test_conditions_have_their_law(widths, law, weigh):
    levels = table(widths)
    positions = Conditions(levels, widths).draw(DRAWS, generator("draw"), law)
    check(positions.numpy(), wanted_law(levels, widths, weigh))


def test_matching_rows_are_uniform_among_those_that_fit():
    levels = table(rows=60)
    conditions = Conditions(levels, RAGGED)
    fixed = 2 + 4  # level 4 of the second column
    rows = conditions.matching(torch.full((DRAWS,), fixed), generator("rows")).numpy()
    fits = (levels[:, 1] == 4).numpy()
    check(rows, fits / fits.sum())


def test_every_matching_row_has_its_level():
    levels = table()
    conditions = Conditions(levels, RAGGED)
    positions = conditions.draw(5000, generator("draw"))
    rows = conditions.matching(positions, generator("rows"))
    starts = np.cumsum((0, *RAGGED))
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        column = int(np.searchsorted(starts, position, side="right")) - 1
        assert levels[row, column] == position - starts[column]


def test_where_no_row_has_the_level_any_row_matches():
    """A silo is asked for levels that only others hold; in the last place of all, too."""
    levels = table(rows=40)
    levels[:, 2] = 0
    conditions = Conditions(levels, RAGGED)
    for position in (2 + 6, 2 + 7 + 1, 2 + 7 + 2):
        assert conditions.law.counts[position] == 0
        check(conditions.matching(torch.full((DRAWS,), position), generator("rows")).numpy(), np.full(40, 1 / 40))
    mixed = conditions.matching(torch.tensor([2 + 6, 2 + 4] * 500), generator("rows"))
    assert (levels[mixed[1::2], 1] == 4).all() and not (levels[mixed[::2], 1] == 4).all()


def test_without_a_column_there_is_no_condition_and_every_row_fits():
    conditions = Conditions(torch.zeros(12, 0, dtype=torch.int64), ())
    positions = conditions.draw(DRAWS, generator("draw"))
    assert (positions == -1).all()
    check(conditions.matching(positions, generator("rows")).numpy(), np.full(12, 1 / 12))


def test_the_law_alone_draws_the_same():
    """A model that is restored to sample has the counts, and no rows."""
    conditions = Conditions(table(), RAGGED)
    law = ConditionLaw(conditions.law.counts, RAGGED)
    for kind in ("log", "frequency"):
        drawn = conditions.draw(1000, generator("draw"), kind)
        assert torch.equal(law.draw(1000, generator("draw"), kind), drawn)


def test_a_thousand_columns_leave_no_gap_to_fall_into():
    """Shares are sums of many rounded numbers: the very last level must still be reached, and no unused one."""
    levels = table((3,) * 1000, rows=7)
    positions = Conditions(levels, (3,) * 1000).draw(200_000, generator("draw"))
    assert int(positions.min()) >= 0 and (positions % 3 < 2).all()
