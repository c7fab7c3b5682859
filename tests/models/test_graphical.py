"""Graphical models against the whole joint distribution, as one array."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.oracles import whole_joint

from silosynth.core.errors import ConfigError
from silosynth.models import graphical
from silosynth.models.graphical import GAP, GraphicalModel, MeasuredTable, cells_of, junction_tree, spread

QUICK = settings(max_examples=25, deadline=None)


@st.composite
def models(draw: st.DrawFn) -> GraphicalModel:
    """Random terms of up to three of up to five attributes, or of their groups; some cells are impossible."""
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=5)))
    ends = tuple((size,) if size < 2 else (draw(st.integers(1, size - 1)), size) for size in sizes)
    axes = graphical.Axes(sizes, ends if draw(st.booleans()) else ())
    sets = [set_ for n in (1, 2, 3) for set_ in itertools.combinations(range(len(sizes)), n)]
    chosen = draw(st.lists(st.sampled_from(sets), unique=True, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    terms = []
    for attributes in chosen:
        if axes.ends:
            attributes = tuple(axes.groups(one) if rng.random() < 0.5 else one for one in attributes)
        numbers = rng.normal(0, 2, [axes.size(one) for one in attributes])
        numbers[rng.random(numbers.shape) < 0.1] = -math.inf
        numbers.flat[0] = 0.5  # so that a cell is left
        terms.append((attributes, numbers))
    return GraphicalModel(sizes, tuple(terms), axes.ends)


@given(models(), st.data())
@QUICK
def test_marginals_conditions_and_probabilities_are_those_of_the_whole(
    model: GraphicalModel, data: st.DataObject
) -> None:
    whole, attributes = whole_joint.joint(model.sizes, model.terms, model.ends), range(len(model.sizes))
    asked = tuple(data.draw(st.lists(st.sampled_from(attributes), unique=True)))
    np.testing.assert_allclose(model.marginal(asked), whole_joint.marginal(whole, asked), atol=1e-12)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = {one: rng.random(model.sizes[one]).round(1) for one in attributes if rng.random() < 0.5}
    conditional, probability = whole_joint.conditional(whole, weights)
    assert model.probability(weights) == pytest.approx(probability, abs=1e-12)
    if not probability:
        with pytest.raises(ConfigError, match="share of 0"):
            model.draw(1, rng, weights)
        return
    rows = 400
    drawn = model.draw(rows, rng, weights).numpy()
    assert all(conditional[tuple(levels)] > 0 for levels in drawn)
    for one in attributes:  # each clique misses its expected numbers by less than one per state and cell
        found = np.bincount(drawn[:, one], minlength=model.sizes[one]) / rows
        assert np.abs(found - whole_joint.marginal(conditional, (one,))).max() < 0.2


@given(models(), st.data())
@QUICK
def test_a_marginal_is_the_same_whatever_was_asked_before(model: GraphicalModel, data: st.DataObject) -> None:
    whole, attributes = whole_joint.joint(model.sizes, model.terms, model.ends), range(len(model.sizes))
    sets = data.draw(st.lists(st.lists(st.sampled_from(attributes), unique=True).map(tuple), max_size=8))
    for asked in (*sets, *reversed(sets)):
        found = model.marginal(asked)
        np.testing.assert_allclose(found, whole_joint.marginal(whole, asked), atol=1e-12)
        found.fill(math.nan)  # it is the caller's


@given(models())
@QUICK
def test_a_junction_tree_contains_all_tables_and_runs_through_each_attribute_once(model: GraphicalModel) -> None:
    sets = [attributes for attributes, _ in model.terms]
    axes, count = model.axes, len(model.sizes)
    tree = junction_tree(axes, sets)
    assert all(any(axes.within(one, clique.attributes) for clique in tree) for one in sets)
    assert sorted(one for clique in tree for one in clique.own if one < count) == list(range(count))
    grouped = {one for attributes in sets for one in attributes if one >= count}
    closed = [{*one.attributes, *(grouped & {axes.groups(own) for own in one.attributes})} for one in tree]
    for place, clique in enumerate(tree):
        before = {one for other in closed[:place] for one in other}
        assert set(clique.separator) == set(axes.ordered(closed[place] & before))
        assert place == 0 or axes.within(clique.separator, tree[clique.parent].attributes)
    cells = sum(math.prod(axes.size(one) for one in clique.attributes) for clique in tree)
    assert cells_of(model.sizes, sets, model.ends) == cells


SIZES, ENDS = (2, 3, 2), ((1, 2), (1, 3), (2,))
FITTED = [
    [(0, 1), (1, 2)],
    [(0, 1), (2, 1), (0, 2), (1,)],
    [(2, 0, 1)],
    [(1, 2)],
    [(4, 3), (1, 2)],  # groups of 1 and 0
    [(3, 2), (0, 4), (1,), (0, 2)],
    [(0, 1), (4, 2), (1, 2)],
]


def measured(
    sizes: tuple[int, ...], sets: list[tuple[int, ...]], rows: int, noise: float, seed: int
) -> list[MeasuredTable]:
    rng = np.random.default_rng(seed)
    whole = rng.dirichlet(np.full(math.prod(sizes), 0.3)).reshape(sizes)
    counts = rng.multinomial(rows, whole.ravel()).reshape(sizes).astype(float)
    tables = []
    for attributes in sets:
        table = whole_joint.marginal(counts, attributes, ENDS if sizes == SIZES else ())
        tables.append(MeasuredTable(attributes, table + rng.normal(0, noise, table.shape), noise**2))
    return tables


def check_fit(model: GraphicalModel, tables: list[MeasuredTable], noise: float, possible: np.ndarray | None) -> None:
    """The objective is that of the whole joint distribution which a general solver finds, but for what GAP leaves."""
    ours = whole_joint.joint(SIZES, model.terms, ENDS)
    weight = max(1.0, graphical.SMOOTHING * 300 / noise), graphical.EXACT
    slow = whole_joint.fitted(SIZES, tables, 300, *weight, possible, ENDS)
    values = [whole_joint.objective(one, tables, 300, *weight, ENDS) for one in (ours, slow)]
    assert values[1] - 1e-4 <= values[0] <= values[1] + GAP * sum(table.counts.size for table in tables)
    np.testing.assert_allclose(ours, slow, atol=0.03)


@pytest.mark.parametrize("sets", FITTED)
@pytest.mark.parametrize("noise", [3.0, 30.0])
def test_a_fit_is_as_near_as_a_long_plain_one(sets: list[tuple[int, ...]], noise: float) -> None:
    tables = measured(SIZES, sets, 300, noise, seed=len(sets))
    check_fit(GraphicalModel.fitted(SIZES, tables, 300, ends=ENDS), tables, noise, None)


@pytest.mark.parametrize("noise", [3.0, 30.0])
@pytest.mark.parametrize("sets", FITTED)
def test_structural_zeros_stay_empty_and_the_rest_is_as_near_as_it_can_be(
    sets: list[tuple[int, ...]], noise: float
) -> None:
    """Whether the tables that were measured have the pair, or not, or more, or groups of which some are ruled out."""
    tables, rng = measured(SIZES, sets, 300, noise, seed=3), np.random.default_rng(7)
    flags = np.array([[True, False], [False, True], [True, True]])  # of attributes 1 and 0, in this order
    possible = [((1, 0), flags)]
    cells = np.broadcast_to(flags.T[:, :, None], SIZES)
    model = GraphicalModel.fitted(SIZES, tables, 300, ends=ENDS, possible=possible)
    ours = whole_joint.joint(SIZES, model.terms, ENDS)
    assert (ours[~cells] == 0).all()
    check_fit(model, tables, noise, cells)
    drawn = GraphicalModel.restored(model.state()).draw(500, rng).numpy()
    assert flags[drawn[:, 1], drawn[:, 0]].all()
    again = GraphicalModel.fitted(SIZES, tables, 300, start=model, ends=ENDS, possible=possible)
    np.testing.assert_allclose(whole_joint.joint(SIZES, again.terms, ENDS), ours, atol=0.01)


def test_levels_that_no_row_can_have_are_left_out_of_every_table() -> None:
    """Where a level has no partner at all, its margin and its group are ruled out with it."""
    flags = np.array([[False, True, True], [True, True, True]]) & np.array([False, True, True])
    tables = measured(SIZES, [(1,), (4, 2), (0, 1)], 300, 3.0, seed=1)
    model = GraphicalModel.fitted(SIZES, tables, 300, ends=ENDS, possible=[((0, 1), flags)])
    assert model.marginal((1,))[0] == 0 and (model.marginal((1,))[1:] > 0).all()
    assert all(numbers[0].max() == -math.inf for names, numbers in model.terms if names in {(1,), (4, 2)})
    check_fit(model, tables, 3.0, np.broadcast_to(flags[:, :, None], SIZES))


def test_a_model_without_rows_is_refused() -> None:
    tables = [MeasuredTable((0, 1), np.full((2, 2), 25.0), 9.0)]
    with pytest.raises(ConfigError, match="rows that keep all rules"):
        GraphicalModel.fitted((2, 2), tables, 100, possible=[((0, 1), np.zeros((2, 2), bool))])


def test_nothing_tells_the_levels_of_a_group_apart() -> None:
    """Where only tables of groups were measured."""
    tables = measured(SIZES, [(4, 2)], 300, 3.0, seed=4)
    levels_L = GraphicalModel.fitted(SIZES, tables, 300, ends=ENDS).marginal((1,))
    np.testing.assert_allclose(levels_L[1:], levels_L[1], atol=1e-9)


BY_PRIVATE_PGM = """
import itertools, json, sys
import jax
jax.config.update("jax_enable_x64", True)
import mbi
sizes, rows, tables = json.load(sys.stdin)
names = "abcd"
cliques = [tuple(names[a] for a in attributes) for attributes, _ in tables]
counted = [jax.numpy.array(counts) for _, counts in tables]
told = [mbi.LinearMeasurement(counts, clique, stddev=20.0) for counts, clique in zip(counted, cliques)]
found = mbi.estimation.MirrorDescent().estimate(mbi.Domain(tuple(names), sizes), told, known_total=rows, iters=5000)
pairs = itertools.combinations(names, 2)
print(json.dumps([(found.project(pair).datavector() / rows).tolist() for pair in pairs]))
"""


@pytest.mark.live
@pytest.mark.skipif(sys.version_info < (3, 11), reason="private-pgm needs Python 3.11")
def test_without_smoothing_a_fit_is_that_of_private_pgm(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: JAX, which it needs, has threads that no other test is to be forked with."""
    monkeypatch.setattr(graphical, "SMOOTHING", 0.0)
    monkeypatch.setattr(graphical, "GAP", 1e-5)
    sizes, sets, rows = (3, 4, 2, 3), [(0, 1), (1, 2), (0, 2), (2, 3)], 2000
    tables = measured(sizes, sets, rows, 20.0, seed=5)
    asked = json.dumps([sizes, rows, [(one.attributes, one.counts.ravel().tolist()) for one in tables]])
    command = [sys.executable, "-W", "ignore", "-c", BY_PRIVATE_PGM]
    theirs = json.loads(subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout)
    ours = GraphicalModel.fitted(sizes, tables, rows)
    for pair, expected in zip(itertools.combinations(range(4), 2), theirs, strict=True):
        np.testing.assert_allclose(ours.marginal(pair).ravel(), expected, atol=5e-4)


def test_exact_tables_are_met_and_their_empty_cells_stay_empty() -> None:
    sizes, sets = (3, 4, 2, 3), [(0, 1), (1, 2), (0, 2), (2, 3)]
    tables = measured(sizes, sets, 60, 0.0, seed=1)
    model = GraphicalModel.fitted(sizes, tables, 60)
    assert any((table.counts == 0).any() for table in tables)
    drawn = model.draw(500, np.random.default_rng(0)).numpy()
    for table in tables:
        np.testing.assert_allclose(60 * model.marginal(table.attributes), table.counts, atol=0.1)
        assert (table.counts[tuple(drawn[:, list(table.attributes)].T)] > 0).all()


def test_tables_of_the_same_attributes_count_by_their_variances() -> None:
    one, other = np.array([10.0, 30.0]), np.array([20.0, 20.0])
    tables = [MeasuredTable((0,), one, 1.0), MeasuredTable((0,), other, 3.0)]
    near = GraphicalModel.fitted((2,), tables, 40).marginal((0,))
    np.testing.assert_allclose(40 * near, [12.5, 27.5], atol=0.2)
    tables[1] = MeasuredTable((0,), other, 0.0)
    np.testing.assert_allclose(GraphicalModel.fitted((2,), tables, 40).marginal((0,)), [0.5, 0.5], atol=1e-3)


def test_a_fit_goes_on_from_another_and_is_kept() -> None:
    sizes, sets = (3, 4, 5), [(0, 1), (1, 2)]
    tables = measured(sizes, [*sets, (0, 2)], 1000, 5.0, seed=2)
    first = GraphicalModel.fitted(sizes, tables[:2], 1000)
    more = GraphicalModel.fitted(sizes, tables, 1000, start=first)
    again = GraphicalModel.restored(GraphicalModel.fitted(sizes, tables, 1000).state())
    np.testing.assert_allclose(more.marginal((2, 0)), again.marginal((2, 0)), atol=1e-3)
    same = GraphicalModel.fitted(sizes, tables, 1000, start=more)
    np.testing.assert_array_equal(same.marginal((1,)), more.marginal((1,)))  # it was near enough: no step


def test_attributes_without_tables_are_even() -> None:
    model = GraphicalModel.fitted((2, 4), [], 10)
    np.testing.assert_allclose(model.marginal((1, 0)), np.full((4, 2), 1 / 8))
    assert np.bincount(model.draw(40, np.random.default_rng(0))[:, 1]).tolist() == [10] * 4


def test_models_that_are_too_large_are_refused() -> None:
    tables = [MeasuredTable((a, b), np.ones((50, 50)), 1.0) for a, b in itertools.combinations(range(5), 2)]
    assert cells_of([50] * 5, [table.attributes for table in tables]) == 50**5
    with pytest.raises(ConfigError, match=r"at most 5,000,000 cells .*312,500,000"):
        GraphicalModel.fitted([50] * 5, tables, 100)


def test_rows_are_next_to_their_expected_numbers_and_never_where_none_are() -> None:
    share = np.array([[0.0, 0.25, 0.0, 0.75, 0.0], [0.5, 0.0, 0.5, 0.0, 0.0], [0.0] * 5])
    state = np.repeat([0, 1], [40, 61])
    cells = spread(share, state, np.random.default_rng(0))
    assert np.bincount(cells[state == 0], minlength=5).tolist() == [0, 10, 0, 30, 0]
    assert sorted(np.bincount(cells[state == 1], minlength=5).tolist()) == [0, 0, 0, 30, 31]
