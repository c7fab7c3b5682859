"""Judging by joint tables: what is counted, what it comes to, and what is said of it; rows are the oracle."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silosynth.core.errors import ConfigError, DataError
from silosynth.counting import CountedColumn
from silosynth.evaluation import joint, judged, predictors, sound
from silosynth.evaluation.joint import JointTables, count_pooled, plan
from silosynth.evaluation.judged import judge_tables
from silosynth.evaluation.report import Report, relate, render

SILOS = {"bank": ["wage", "born", "rich"], "clinic": ["job", "ill", "fixed"]}


def rows(n: int, seed: int, blur: float = 0.0) -> pd.DataFrame:
    """Dependent columns: numbers with an atom and gaps, dates, truth values, levels of which two are rare, a constant;
    ``blur`` is the share of rows whose job is drawn anew.
    """
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, n)
    job = np.where(rng.random(n) < age / 100, "clerk", rng.choice(["smith", "baker"], n)).astype(object)
    job = np.where(rng.random(n) < blur, rng.choice(["smith", "baker"], n), job)
    job[::100] = [f"rare {k}" for k in range(len(job[::100]))]
    job[rng.random(n) < 0.05] = None
    wage = np.where(rng.random(n) < 0.3, 0.0, np.round(np.exp(rng.normal(0, 0.5, n)) * age, 2))
    return pd.DataFrame(
        {
            "wage": np.where(rng.random(n) < 0.1, np.nan, wage),
            "born": pd.Timestamp("2024-01-01") - pd.to_timedelta(age * 365, unit="D"),
            "rich": wage > 50,
            "job": pd.Series(job, dtype=object),
            "ill": np.where(rng.random(n) < age / 120, "yes", "no"),
            "fixed": 7,
        }
    )


TRAIN, HELD, SYNTHETIC = rows(3000, 1), rows(1500, 2), rows(2000, 3)
PLAN = plan(SYNTHETIC, target="ill", levels=6, silos=SILOS)
EXACT = count_pooled(PLAN, TRAIN, HELD, SILOS)


@pytest.fixture(scope="module", autouse=True)
def _few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged, "DRAWS", 8)
        patch.setattr(judged, "SIMULATED", 6)
        yield


@pytest.fixture(scope="module")
def report() -> Report:
    return judge_tables(EXACT, SYNTHETIC)


def noised(tables: JointTables, deviation: float, seed: int = 0) -> JointTables:
    rng = np.random.default_rng(seed)

    def added(own: Any) -> Any:
        return None if own is None else tuple(t + np.rint(rng.normal(0, deviation, t.shape)).astype(int) for t in own)

    noises = (deviation,) * len(tables.plan.sets)
    return replace(tables, training=added(tables.training), holdout=added(tables.holdout), noises=noises)


# What is counted.


def test_levels_and_edges_are_the_synthetic_table_s() -> None:
    by_name = {column.name: column for column in PLAN.columns}
    assert by_name["job"] == CountedColumn("", "job", ("baker", "clerk", "smith"), others=True)  # rare ones are others
    assert by_name["rich"].levels == (False, True) and not by_name["rich"].others
    assert by_name["fixed"].edges == (7, 8)  # below, that value, above
    assert by_name["wage"].edges[0] == SYNTHETIC["wage"][SYNTHETIC["wage"] > 0].min()  # zero has a bin of its own
    born = by_name["born"].edges
    assert all(isinstance(edge, int) for edge in born) and len(born) <= 8
    assert 1990 < pd.Timestamp(born[-1]).year < 2010
    assert PLAN.names == tuple(SYNTHETIC.columns) and PLAN.cells == sum(t.size for t in EXACT.training)


def test_all_pairs_are_counted_and_with_a_target_each_branch_of_a_tree() -> None:
    pairs, branches = PLAN.sets[:15], PLAN.sets[15:]
    assert pairs == tuple(itertools.combinations(range(6), 2))
    assert {child for child, *_ in branches} == {k for k, parent in enumerate(PLAN.parents) if parent is not None}
    assert len(branches) == 4 and all(places[2] == 4 for places in branches)  # d - 2: the label, and one root
    assert plan(SYNTHETIC, levels=6).sets == pairs


def test_a_tree_has_no_tables_of_three_silos_where_silos_are_given() -> None:
    apart = {"a": ["wage", "rich"], "b": ["born", "job"], "c": ["ill", "fixed"]}
    owner = {name: silo for silo, held in apart.items() for name in held}
    made = plan(SYNTHETIC, target="ill", silos=apart)
    assert max(len({owner[made.names[place]] for place in places}) for places in made.sets) == 2
    alone = plan(SYNTHETIC[["wage", "rich", "ill"]], target="ill", silos={"a": ["wage"], "b": ["rich"], "c": ["ill"]})
    assert alone.parents == (None, None, None) and len(alone.sets) == 3


def test_few_numbers_are_counted_one_by_one_and_many_by_quantiles() -> None:
    few = plan(pd.DataFrame({"x": np.repeat([1.5, 2.0, 4.0], 10)}), {"x": "continuous"})
    assert few.columns[0].edges == (2.0, 4.0) and few.sets == ((0,),)
    many = plan(pd.DataFrame({"x": np.arange(1000)}), {"x": "integer"}, levels=4)
    assert many.columns[0].edges == (250, 500, 750)
    atom = np.concatenate([np.full(500, 400.0), np.arange(500)])
    assert {400.0, 401.0} <= set(plan(pd.DataFrame({"x": atom}), {"x": "continuous"}, levels=4).columns[0].edges)


def test_columns_without_values_and_pooled_levels_can_be_counted() -> None:
    frame = pd.DataFrame({"x": [1.0] * 20, "city": ["(rare)"] * 12 + ["Bern"] * 8})
    made = plan(frame, {"x": "continuous", "city": "categorical"})
    assert made.columns[1].levels == ("Bern",)  # what the generator pooled counts as any other rare level
    real = frame.assign(city=["Bern"] * 8 + [f"village {k % 3}" for k in range(12)])
    assert judge_tables(count_pooled(made, real), frame).score("column_shape_error").value == 0
    empty = plan(pd.DataFrame({"x": [1, 2] * 5, "y": [None] * 10}), {"x": "integer", "y": "categorical"})
    assert empty.codes(pd.DataFrame({"x": [1], "y": [None]})).tolist() == [[0], [empty.sizes[1] - 1]]


def test_identifiers_are_not_counted_and_a_target_must_be() -> None:
    frame = SYNTHETIC.assign(person=[f"p{k:05d}" for k in range(2000)])
    made = plan(frame, {"person": "identifier"})
    assert made.names == PLAN.names
    with pytest.raises(DataError, match="target"):
        plan(frame, {"person": "identifier"}, target="person")
    with pytest.raises(DataError, match="neither an identifier"):
        plan(frame[["person"]], {"person": "identifier"})
    with pytest.raises(ConfigError, match="at least two"):
        plan(frame, levels=1)


def test_tables_are_those_of_pandas() -> None:
    labels = {name: pd.Categorical(codes) for name, codes in zip(PLAN.names, PLAN.codes(TRAIN), strict=True)}
    for places, table in zip(PLAN.sets, EXACT.training, strict=True):
        names = [PLAN.names[place] for place in places]
        own = pd.DataFrame({name: labels[name] for name in names}).value_counts()
        for cell, count in own.items():
            assert table[cell if isinstance(cell, tuple) else (cell,)] == count
        assert table.sum() == 3000
    job, ill = (pd.cut(TRAIN[n], [0]) if n == "wage" else TRAIN[n].fillna("gap") for n in ("job", "ill"))
    crossed = pd.crosstab(job, ill)
    assert EXACT.training[PLAN.sets.index((3, 4))][1, :2].tolist() == crossed.loc["clerk"].tolist()


def test_a_table_that_lacks_a_column_is_refused() -> None:
    with pytest.raises(DataError, match="all columns that are counted"):
        count_pooled(PLAN, TRAIN.drop(columns="job"))


def test_sets_that_did_not_open_are_left_out() -> None:
    tables: list[Any] = [np.stack([a, b], axis=-1) for a, b in zip(EXACT.training, EXACT.holdout or (), strict=True)]
    tables[-1] = None
    child = PLAN.sets[-1][0]
    found = {"owners": EXACT.owners, "tables": tables, "noises": [0.0] * len(tables)}
    opened = JointTables.opened(PLAN, found, holdout=True)
    assert opened.plan.sets == PLAN.sets[:-1] and opened.plan.parents[child] is None
    assert opened.opening == "exact" and opened.holdout is not None
    assert all(np.array_equal(a, b) for a, b in zip(opened.training, EXACT.training, strict=False))
    assert judge_tables(opened, SYNTHETIC).score("tree_bits").value > 0


# Figures.


def test_errors_are_total_variation_distances_of_tables(report: Report) -> None:
    a, b = (pd.DataFrame(dict(zip(PLAN.names, PLAN.codes(own), strict=True))) for own in (TRAIN, SYNTHETIC))

    def apart(names: list[str]) -> float:
        shares = [own.value_counts(names, normalize=True) for own in (a, b)]
        return 50 * float(shares[0].sub(shares[1], fill_value=0).abs().sum())

    assert report.score("column_shape_error").value == pytest.approx(np.mean([apart([n]) for n in PLAN.names]))
    pairs = {pair: apart(list(pair)) for pair in itertools.combinations(PLAN.names, 2)}
    assert report.score("pair_trend_error").value == pytest.approx(np.mean(list(pairs.values())))
    owner = {name: silo for silo, held in SILOS.items() for name in held}
    for part, same in (("within", True), ("across", False)):
        own = [error for (x, y), error in pairs.items() if (owner[x] == owner[y]) is same]
        assert report.score(f"pair_trend_error_{part}").value == pytest.approx(np.mean(own))
    assert report.pairs.error[0, 3] == report.pairs.error[3, 0] == pytest.approx(pairs["wage", "job"])


def test_floors_of_exact_tables_are_hold_out_rows_scaled_to_the_sizes(report: Report) -> None:
    as_synthetic = judge_tables(replace(EXACT, holdout=None), HELD)
    scale = np.sqrt((1 / 3000 + 1 / 2000) / (1 / 3000 + 1 / 1500))
    floor = report.score("pair_trend_error").floor
    assert floor == pytest.approx(scale * as_synthetic.score("pair_trend_error").value)


def test_a_perfect_table_is_at_its_floor_and_a_blurred_one_is_not(report: Report) -> None:
    names = ("column_shape_error", "pair_trend_error", "pair_trend_error_across")
    assert {relate(report.score(name)).state for name in names} <= {"level", "unsure"}
    blurred = rows(2000, 3, blur=0.5)
    made = plan(blurred, target="ill", levels=6)
    worse = judge_tables(count_pooled(made, TRAIN, HELD, SILOS), blurred)
    assert [relate(worse.score(name)).state for name in names] == ["short"] * 3


def test_associations_are_theil_s_u_of_the_tables(report: Report) -> None:
    table = EXACT.training[PLAN.sets.index((2, 4))] / 3000
    both, rich, ill = (-(p[p > 0] * np.log(p[p > 0])).sum() for p in (table, table.sum(1), table.sum(0)))
    assert report.pairs.real[2, 4] == pytest.approx((rich + ill - both) / rich)
    assert report.pairs.real[4, 2] == pytest.approx((rich + ill - both) / ill)
    assert (report.pairs.real[5, :5] == 0).all() and (np.diag(report.pairs.real) == 1).all()  # a constant tells nothing


def test_the_same_seed_gives_the_same_report(report: Report) -> None:
    assert judge_tables(EXACT, SYNTHETIC).to_dict() == report.to_dict()
    other = judge_tables(EXACT, SYNTHETIC, seed=1).score("pair_trend_error")
    mine = report.score("pair_trend_error")
    assert other.value == mine.value and other.low != mine.low


@pytest.mark.slow
def test_intervals_are_as_wide_as_errors_of_other_samples_spread() -> None:
    made, values, reach = plan(SYNTHETIC, levels=6), [], []
    for seed in range(20):
        real, synthetic = rows(1500, 100 + seed, blur=0.2), rows(1500, 200 + seed)
        score = judge_tables(count_pooled(made, real), synthetic).score("pair_trend_error")
        values.append(score.value)
        reach.append((score.high - score.low) / 3.92)
    assert np.mean(reach) == pytest.approx(np.std(values, ddof=1), rel=0.4)


# Models that need counts only.


def test_bits_are_the_mean_over_hold_out_rows(report: Report) -> None:
    """Row by row, from shares of synthetic rows."""
    fake, held = PLAN.codes(SYNTHETIC), PLAN.codes(HELD)
    for name, parents in (("naive_bayes_bits", (None,) * 6), ("tree_bits", PLAN.parents)):
        total = 0.0
        for child, parent in enumerate(parents):
            own = np.bincount(fake[child], minlength=PLAN.sizes[child]) + 0.5
            own = own / own.sum()
            context = [] if child == 4 else [4] if parent is None else [parent, 4]
            for (level, *given), rows_like_this in zip(*_distinct(held[[child, *context]]), strict=True):
                chance = own[level]
                if context:
                    same = np.all([fake[k] == at for k, at in zip(context, given, strict=True)], axis=0)
                    chance = ((fake[child][same] == level).sum() + 5 * chance) / (same.sum() + 5)
                total -= rows_like_this * np.log2(chance)
        assert report.score(name).value == pytest.approx(total / held.shape[1])
        assert report.score(name).ideal < report.score(name).value


def _distinct(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, counts = np.unique(codes, axis=1, return_counts=True)
    return found.T, counts


def test_accuracy_is_that_of_the_rule_on_hold_out_rows(report: Report) -> None:
    assert {one.columns for one in report.predictors} == {
        (), *((n,) for n in PLAN.names if n != "ill"),
        *((PLAN.names[a], PLAN.names[b]) for a, b, _ in PLAN.sets[15:]),
    }  # fmt: skip
    fake, held = (pd.DataFrame(dict(zip(PLAN.names, PLAN.codes(own), strict=True))) for own in (SYNTHETIC, HELD))
    for one in report.predictors:
        if one.columns:
            rule = fake.groupby(list(one.columns))["ill"].agg(lambda own: own.value_counts().sort_index().idxmax())
            joined = held.join(rule.rename("guess"), on=list(one.columns))["guess"].fillna(fake["ill"].mode()[0])
            assert one.accuracy == pytest.approx(100 * (joined == held["ill"]).mean())
    assert report.score("label_accuracy").value >= 50


def test_utility_needs_a_target_and_a_hold_out() -> None:
    alone = judge_tables(replace(EXACT, holdout=None), SYNTHETIC)
    with pytest.raises(KeyError, match="hold-out"):
        alone.score("tree_bits")
    with pytest.raises(KeyError, match="no target"):
        judge_tables(count_pooled(plan(SYNTHETIC), TRAIN, HELD), SYNTHETIC).score("naive_bayes_bits")
    assert "perfect generator" in alone.score("pair_trend_error").floor_note


# Noise, and figures only.


def test_noised_tables_are_judged_by_what_a_perfect_generator_would_score() -> None:
    exact = judge_tables(EXACT, SYNTHETIC).score("pair_trend_error")
    found = judge_tables(noised(EXACT, 20.0), SYNTHETIC)
    score = found.score("pair_trend_error")
    assert score.value > 1.5 * exact.value and score.floor == pytest.approx(score.value, rel=0.15)
    assert "same noise" in score.floor_note
    assert abs(found.rows.n_train - 3000) < 60 and found.about.counted is not None
    assert "noise of deviation 20" in found.about.counted["opened"]
    assert [p.holds for p in found.premises] == [True, None, None]
    assert "Real shares have noise" in render(found)


def test_what_noise_adds_to_associations_is_taken_off(report: Report) -> None:
    noisy, off = noised(EXACT, 20.0), ~np.eye(6, dtype=bool)
    plain = replace(noisy, noises=(1e-9,) * len(PLAN.sets))  # made sound, and taken to have next to no noise
    errors = [np.abs(judge_tables(t, SYNTHETIC).pairs.real - report.pairs.real)[off].mean() for t in (noisy, plain)]
    assert errors[0] < errors[1] / 2


def test_making_tables_sound_makes_them_agree_and_takes_noise_away() -> None:
    noisy = noised(EXACT, 20.0)
    made, truth = sound.shares(noisy.training, PLAN.sets, noisy.noises), sound.shares(EXACT.training, PLAN.sets)
    raw = [table / 3000 for table in noisy.training]
    for own, before, table in zip(made.tables, raw, truth.tables, strict=True):
        assert own.min() >= 0 and own.sum() == pytest.approx(1)
        assert np.abs(own - table).sum() < np.abs(before - table).sum()
    ill = [n for n, places in enumerate(PLAN.sets) if len(places) == 2 and places[1] == 4]  # of its levels
    before, after = (np.ptp([tables[n][:, 0].sum() for n in ill]) for tables in (raw, made.tables))
    assert after < before / 2


@pytest.mark.parametrize("with_holdout", [False, True])
def test_of_figures_there_are_distances_of_each_pair_and_nothing_else(with_holdout: bool) -> None:
    made = plan(SYNTHETIC, levels=6)
    tables, held = (count_pooled(made, own).training for own in (TRAIN, HELD))
    distances = [
        [((own / 3000 - other / other.sum()) ** 2).sum() for other in (*public, *([out] if with_holdout else []))]
        for own, public, out in zip(tables, joint.references(made, SYNTHETIC), held, strict=True)
    ]
    numbers = (3000, 1500 if with_holdout else 0)
    found = {"owners": EXACT.owners, "distances": distances, "tables": [None] * 15, "numbers": numbers}
    report = judge_tables(JointTables.opened(made, found, with_holdout), SYNTHETIC)
    own = np.bincount(made.codes(SYNTHETIC)[0] * made.sizes[1] + made.codes(SYNTHETIC)[1], minlength=tables[0].size)
    expected = 100 * np.sqrt(((tables[0].ravel() / 3000 - own / 2000) ** 2).sum())
    assert report.pairs.error[0, 1] == pytest.approx(expected)
    assert report.pairs.real[1, 4] > 5 * report.pairs.real[0, 5] > 0  # age goes with ill; nothing goes with a constant
    assert report.pairs.real == pytest.approx(report.pairs.synthetic, abs=0.05)
    assert report.columns == () and report.predictors == () and report.rows.n_holdout == (numbers[1] or None)
    assert {score.name for score in report.scores} == {f"pair_distance{x}" for x in ("", "_within", "_across")}
    score = report.score("pair_distance")
    assert score.floor == pytest.approx(score.value, rel=0.35) and score.low < score.value < score.high
    assert ("hold-out" if with_holdout else "perfect generator") in score.floor_note
    with pytest.raises(KeyError, match="no table was opened"):
        report.score("pair_trend_error")
    page = render(report)
    assert "Real from independence" in page and 'id="columns"' not in page and "6 columns" in str(report)


# The report.


def test_a_report_says_how_tables_were_counted_and_what_they_cannot_show(report: Report) -> None:
    page, facts = render(report), report.about.counted
    assert facts is not None and "15 of two columns and 4 of three columns" in facts["counted"]
    assert "exact counts" in facts["opened"] and "no epsilon" in facts["cost of judging"]
    for text in (*facts.values(), "What ill can be predicted by", "whole rows", "Theil"):
        assert text.replace("'", "&#39;") in page or text in page
    assert 'data-fact="clamped"' not in page and "Pearson" not in page
    assert {skipped.name for skipped in report.skipped} >= {"nearest_neighbour_share", "downstream"}
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["about"]["counted"] == facts
    assert report.about.silos == {"bank": ("wage", "born", "rich"), "clinic": ("job", "ill", "fixed")}


def test_columns_are_drawn_by_their_levels_and_bins(report: Report) -> None:
    drawn = {column.name: column for column in report.columns}
    assert drawn["job"].levels == ("baker", "clerk", "smith", "(other)", "(missing)")
    assert drawn["job"].real_shares.sum() == pytest.approx(1) and drawn["job"].missing_real > 0.03
    assert drawn["ill"].levels == ("no", "yes")
    for name in ("wage", "born", "fixed"):
        edges, real = drawn[name].edges, drawn[name].real_density
        assert (np.diff(edges) > 0).all() and (real * np.diff(edges)).sum() == pytest.approx(1, abs=0.03)
    assert [drawn[name].kind for name in ("wage", "born", "job")] == ["numeric", "datetime", "categorical"]
    assert report.plot("born").svg.startswith("<svg")


def test_hold_out_rows_of_another_kind_withhold_verdicts() -> None:
    other = judge_tables(count_pooled(PLAN, TRAIN, rows(1500, 2, blur=0.6)), SYNTHETIC)
    assert other.withheld is not None and "job" in other.withheld


def test_horizontal_silos_have_no_pairs_across() -> None:
    one = judge_tables(replace(EXACT, owners=(None,) * 6), SYNTHETIC)
    with pytest.raises(KeyError, match="only one"):
        one.score("pair_trend_error_across")
    assert one.about.silos is None


def test_a_tree_is_one_of_most_gain() -> None:
    rng = np.random.default_rng(0)
    for d in (2, 5):
        gain = rng.random((d, d))
        gain = gain + gain.T
        best = max(
            sum(gain[a, b] for a, b in edges)
            for edges in itertools.combinations(list(itertools.combinations(range(d), 2)), d - 1)
            if _connected(d, edges)
        )
        found = sound.spanning_tree(gain)
        assert sum(gain[child, parent] for child, parent in found if parent is not None) == pytest.approx(best)
        assert [parent is None for _, parent in found] == [True] + [False] * (d - 1)


def _connected(d: int, edges: Any) -> bool:
    reached = {0}
    for _ in range(d):
        reached |= {x for edge in edges if reached & set(edge) for x in edge}
    return len(reached) == d


def test_rows_are_made_as_the_tables_say() -> None:
    real = sound.shares(EXACT.training, PLAN.sets)
    made = sound.made_rows(real, PLAN.sizes, np.random.default_rng(0))
    for column in range(6):
        assert np.abs(np.bincount(made[column], minlength=PLAN.sizes[column]) / 20_000 - real.of(column)).max() < 0.02
    rich_wage = sound.count_rows(made, PLAN.sizes, [(0, 2)])[0] / 20_000
    assert np.abs(rich_wage - real.of(0, 2)).sum() < 0.03  # the strongest pair is in the tree


def test_a_level_that_was_never_seen_is_not_impossible() -> None:
    few = sound.shares([np.array([[3, 0], [0, 0]])], [(0, 1)])
    factors = predictors.bayes(few, 1, (None, None))
    assert all(np.isfinite(cost).all() for _, cost in factors)
    assert predictors.rule(few, (0,), 1).tolist() == [0, 0]
