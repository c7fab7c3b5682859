"""Features of tables, against NumPy and pandas; and Giomi's attacks against the library of its authors."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.proportion import proportion_confint
from tests.attacks.makers import table

from silosynth.attacks import features, questions
from silosynth.attacks.questions import Rate, risk
from silosynth.evaluation.coding import code_tables

TRAIN, MADE = table(80, 1), table(300, 2)


def test_naive_features_are_moments_and_shares() -> None:
    naive = features.of_table(TRAIN, MADE)["naive"]
    age = MADE["age"]
    assert naive[:4] == pytest.approx([age.mean(), age.median(), age.var(ddof=0), 0.0])
    assert naive[-3:] == pytest.approx([(MADE["region"] == level).mean() for level in ("east", "north", "west")])
    assert len(naive) == 4 * 10 + 3


def test_correlations_are_pearson_s_of_numbers_and_of_indicators() -> None:
    found = features.of_table(TRAIN, MADE)["correlation"]
    dummies = pd.get_dummies(MADE, columns=["region"], drop_first=True, dtype=float)
    assert found == pytest.approx(np.corrcoef(dummies.to_numpy().T)[np.triu_indices(12, 1)])


def test_every_table_has_as_many_features_whatever_it_lacks() -> None:
    full = features.of_table(TRAIN, MADE)
    gaps = MADE.assign(x1=np.nan, region="east", x2=1.0)
    gaps.loc[:9, "age"] = np.nan
    other = features.of_table(TRAIN, gaps.assign(region=["new", *["east"] * 299]))
    assert {name: values.shape for name, values in other.items()} == {name: v.shape for name, v in full.items()}
    assert all(np.isfinite(values).all() for values in other.values())
    assert other["naive"][3] == pytest.approx(10 / 300)


def test_features_of_numbers_are_as_those_of_tables() -> None:
    numbers = MADE.drop(columns="region").to_numpy()
    found = features.of_numbers(numbers)
    assert found["naive"][:3] == pytest.approx([numbers[:, 0].mean(), np.median(numbers[:, 0]), numbers[:, 0].var()])
    assert len(found["correlation"]) == 45


def test_nearness_is_distance_to_a_record_and_reach_towards_it() -> None:
    train = pd.DataFrame({"x": [0.0, 1.5, 2.0, 9.0], "y": [1.5, 1.5, 2.0, 2.5]})
    made = pd.DataFrame({"x": [8.0, 0.0, 3.0], "y": [2.0, 1.0, 2.0]})
    found = features.of_record(train, 3, made)
    spread = train.std(ddof=0)
    away = np.sort(np.linalg.norm((made - train.iloc[3]) / spread, axis=1))
    towards = ((train.iloc[3] - train.mean()) / spread).to_numpy()
    reach = np.sort(((made - train.mean()) / spread).to_numpy() @ towards / np.linalg.norm(towards))[::-1]
    assert found[:3] == pytest.approx(np.log(away[[0, 1, 2]]))  # the 1st, the 2nd, and for the 4th the last
    assert found[8:11] == pytest.approx(reach[[0, 1, 2]])
    assert len(found) == 16 and np.isfinite(features.of_record(TRAIN, 0, TRAIN)).all()


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (10, 10), (421, 1000)])
def test_rates_are_wilson_s(hits: int, n: int) -> None:
    rate = Rate.of(np.arange(n) < hits)
    assert (rate.low, rate.high) == pytest.approx(proportion_confint(hits, n, method="wilson"))
    assert rate.value == pytest.approx((rate.low + rate.high) / 2)


@pytest.mark.parametrize("cells", [questions.CELLS, 90, 7])
def test_nearest_rows_against_loops(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "CELLS", cells)
    draw = np.random.default_rng(0)
    asked, made = (  # distances are sums of powers of two, so that equals are equal in whatever order they are added
        pd.DataFrame(
            {"a": draw.integers(0, 5, n) / 4, "b": draw.choice(list("xyz"), n), "c": draw.integers(0, 3, n) / 2}
        )
        for n in (12, 30)
    )
    asked.loc[[0, 3], "c"] = asked.loc[0, "a"] = made.loc[[1, 2], "a"] = np.nan
    kinds = {"a": "continuous", "b": "categorical", "c": "continuous"}
    coded = code_tables({"asked": asked, "made": made}, kinds)

    def gower(i: int, j: int) -> float:
        gaps = [abs(asked[name][i] - made[name][j]) for name in ("a", "c")]
        return float(sum(1.0 if np.isnan(gap) else gap for gap in gaps) + (asked["b"][i] != made["b"][j]))

    for k in (1, 4, 40):
        slow = [[j for _, j in sorted((gower(i, j), j) for j in range(30))[:k]] for i in range(12)]
        found = questions._nearest(coded["asked"], coded["made"], np.arange(3), k)
        assert found.tolist() == slow


def test_the_risk_is_what_the_control_does_not_explain() -> None:
    attack, control = Rate(0.6, 0.55, 0.65), Rate(0.2, 0.15, 0.25)
    found = risk(attack, control)
    assert found.value == pytest.approx(0.5)
    assert found.error == pytest.approx(np.hypot(0.05 / 0.8, 0.4 * 0.05 / 0.64))
    assert risk(control, attack).value == 0


def test_missing_numbers_are_right_when_both_are_missing_and_far_otherwise() -> None:
    frame = pd.DataFrame({"x": [1.0, np.nan, 3.0] * 20, "y": np.linspace(0, 1, 60)})
    found = {f.score.name: f for f in questions.ask(frame, frame, frame)}["inference_x"]
    assert found.rates["attack"][0] > 90  # the nearest in y is the row itself
    assert found.score.value == 0  # and the control knows as much: it is the same table


def half_copied() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Training rows, others, and a synthetic table of which half are training rows."""
    return table(300, 1), table(300, 2), pd.concat([table(300, 1)[:150], table(150, 3)], ignore_index=True)


def test_numbers_that_one_synthetic_row_has_single_out_the_row_that_they_were_copied_from() -> None:
    train, control, made = half_copied()
    found = {f.score.name: f for f in questions.ask(train, control, made)}["singling_out_univariate"]
    attack, others = found.rates["attack"], found.rates["control"]
    assert attack[0] == pytest.approx(50, abs=5) and others[0] < 3
    assert found.score.value == pytest.approx(50, abs=6)


def test_all_conditions_that_single_out_a_row_of_a_small_table_are_found() -> None:
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, 4, 25) * 1.0 for name in "abcd"} | {"e": draw.choice(list("xyz"), 25)}
    made = pd.DataFrame(columns)
    made.loc[:4, "a"] = made.loc[3:9, "b"] = np.nan
    coded = code_tables({"made": made}, {name: "continuous" for name in "abcd"} | {"e": "categorical"})["made"]
    slow = set()
    for chosen in itertools.combinations(range(5), questions.COLUMNS):
        for row in made.itertuples(index=False):
            clauses = {
                j: row[j] if j == 4 else (1 if row[j] > made.iloc[:, j].median() else -1, row[j])
                for j in chosen if not pd.isna(row[j])
            }  # fmt: skip
            fulfil = sum(
                all(other[j] == c if j == 4 else other[j] * c[0] >= c[1] * c[0] for j, c in clauses.items())
                for other in made.itertuples(index=False)
            )
            slow |= {tuple(clauses.items())} if fulfil == 1 else set()
    found = questions._together(coded, draw)
    level = dict(enumerate(coded.fields[4].levels))
    assert slow == {
        tuple((c.column, level[int(c.value)] if c.column == 4 else (c.sign, c.value)) for c in predicate)
        for predicate in found
    }
    assert 20 < len(slow) == len(found)


def test_of_a_long_table_of_few_levels_many_conditions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    shares = [0.4, 0.3, 0.2, 0.09, 0.007, 0.003]
    made = pd.DataFrame({name: draw.choice(list("uvwxyz"), 2000, p=shares) for name in "abcdef"})
    coded = code_tables({"made": made})["made"]
    found = []
    for tries, looked_at in ((questions.TRIES, questions.LOOKED_AT), (questions.TRIES, 1), (6_000, 10**9)):
        monkeypatch.setattr(questions, "TRIES", tries)
        monkeypatch.setattr(questions, "LOOKED_AT", looked_at)
        found.append(len(questions._together(coded, np.random.default_rng(1))))
    assert found[0] > 1.5 * found[2] and found[2] > found[1] > 0, found


# The authors' own library, where it is installed: `pip install anonymeter "numpy<1.27"`, on Python below 3.12.


def test_singling_out_is_that_of_the_authors_library() -> None:
    evaluators = pytest.importorskip("anonymeter.evaluators")
    train, control, made = half_copied()
    ours = {f.score.name: f for f in questions.ask(train, control, made)}
    for mode in ("univariate", "multivariate"):
        theirs = evaluators.SinglingOutEvaluator(ori=train, syn=made, control=control, n_attacks=300, n_cols=4)
        theirs.evaluate(mode=mode)
        assert ours[f"singling_out_{mode}"].score.value / 100 == pytest.approx(theirs.risk().value, abs=0.1)


@pytest.mark.filterwarnings("ignore:Attack is as good or worse")  # than the most frequent level
@pytest.mark.parametrize("secret", ["age", "region"])  # their tolerance is not of a size where numbers are below zero
def test_inference_is_that_of_the_authors_library(secret: str) -> None:
    evaluators = pytest.importorskip("anonymeter.evaluators")
    train, control, made = half_copied()
    theirs = evaluators.InferenceEvaluator(
        ori=train, syn=made, control=control, aux_cols=[name for name in train.columns if name != secret],
        secret=secret, regression=secret == "age", n_attacks=300,
    )  # fmt: skip
    theirs.evaluate(n_jobs=1)
    ours = {f.score.name: f for f in questions.ask(train, control, made)}[f"inference_{secret}"]
    assert ours.score.value / 100 == pytest.approx(theirs.risk().value, abs=0.03)
    assert ours.rates["control"][0] / 100 == pytest.approx(theirs.results().control_rate.value, abs=0.03)


def test_linkability_is_that_of_the_authors_library() -> None:
    evaluators = pytest.importorskip("anonymeter.evaluators")
    train, control, made = half_copied()
    groups = (list(train.columns[:5]), list(train.columns[5:]))
    theirs = evaluators.LinkabilityEvaluator(
        ori=train, syn=made, control=control, n_attacks=300, aux_cols=groups, n_neighbors=1
    )
    theirs.evaluate(n_jobs=1)
    ours = {f.score.name: f for f in questions.ask(train, control, made, silos=groups)}["linkability"]
    assert ours.score.value / 100 == pytest.approx(theirs.risk().value, abs=0.05)
