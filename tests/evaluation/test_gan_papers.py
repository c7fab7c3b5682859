"""The VT-GAN paper's figures against slow, obvious versions, and for tables with absent classes and columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from silosynth.core.errors import ConfigError
from silosynth.evaluation import Report, evaluate
from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.gan_papers import UTILITY, Trial, _area, _area_lost, _shares_lost, classifier_differences
from silosynth.evaluation.scores import Score, Skipped
from silosynth.evaluation.utility import GDTS, MLP, TREE, VTGAN, Classifier, Judgement, features, judge

People = Callable[..., pd.DataFrame]
SILOS = {"tax office": ["age", "wage", "gain", "rich"], "registry": ["job", "children", "born"]}
SIMILARITY = (
    "gan_jsd", "gan_wasserstein", "gan_correlation", "gan_correlation_avg_client", "gan_correlation_across_client",
)  # fmt: skip
NUMERIC, CATEGORICAL = ("age", "wage", "gain", "born"), ("job", "children", "rich")


def gan(train: pd.DataFrame, synthetic: pd.DataFrame, target: str | None = None, **options: object) -> Report:
    """Only the figures of the GAN papers; without a target they take no time."""
    return evaluate(train, options.pop("holdout", None), synthetic, target, SILOS, figures="gan", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report(people: People) -> Report:
    return evaluate(people(400, 1), people(300, 2), people(350, 3), "rich", SILOS, figures="gan")


def words(column: pd.Series) -> pd.Series:
    """Levels as text, missing ones too."""
    return column.astype(object).where(column.notna(), "missing").astype(str)


def coded(*frames: pd.DataFrame) -> list[Coded]:
    return list(code_tables(dict(zip(("training", "hold-out", "synthetic"), frames, strict=False))).values())


# All together


def test_gan_computes_these_figures_and_no_other(report: Report) -> None:
    assert [s.name for s in report.scores] == [
        "column_shape_error", "pair_trend_error", "pair_trend_error_within", "pair_trend_error_across",
        *UTILITY, *SIMILARITY,
    ]  # fmt: skip
    assert report.skipped == ()


def test_every_figure_has_a_floor_and_an_interval(report: Report) -> None:
    for score in report.scores:
        assert score.floor is not None and score.floor_note and score.explanation and score.method, score.name
        assert score.low is not None and score.high is not None, score.name
        assert score.low <= score.value <= score.high, score.name
        assert score.n > 0


def test_reports_of_these_figures_can_be_saved(report: Report, tmp_path: Path) -> None:
    page = report.save(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Diff. Corr., Across-client" in page and "Macro F1 lost" in page
    assert json.loads(report.save(tmp_path / "report.json").read_text())["scores"]


def test_real_rows_score_about_their_floors(report: Report) -> None:
    for name in SIMILARITY:
        score = report.score(name)
        assert score.floor is not None
        assert score.floor / 3 < score.value < 3 * score.floor, name
    for name in UTILITY:
        assert abs(report.score(name).value) < 0.06, name


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures(people: People, report: Report) -> None:
    again = evaluate(people(400, 1), people(300, 2), people(350, 3), "rich", SILOS, figures="gan")
    assert again.scores == report.scores


@pytest.mark.slow
def test_all_contains_them_and_leaves_the_other_figures_as_they_are(people: People) -> None:
    tables = people(120, 1), people(80, 2), people(100, 3)
    quick, everything = (evaluate(*tables, "rich", SILOS, figures=f) for f in ("quick", "all"))  # type: ignore[arg-type]
    assert everything.scores[: len(quick.scores)] == quick.scores
    assert [s.name for s in everything.scores[len(quick.scores) :]] == [*UTILITY, *SIMILARITY]


def test_other_words_for_figures_are_refused(people: People) -> None:
    with pytest.raises(ConfigError, match="'quick', 'all', 'gan' or 'gdts'"):
        evaluate(people(20, 1), None, people(20, 2), figures="none")  # type: ignore[arg-type]


def test_identical_tables_lose_nothing(people: People) -> None:
    report = gan(people(200, 1), people(200, 1), "job", holdout=people(150, 2))
    for name in (*UTILITY, *SIMILARITY):
        assert report.score(name).value == pytest.approx(0, abs=1e-9), name


# Similarity against slow versions


def test_the_average_divergence_is_scipys(people: People) -> None:
    real, other = people(300, 1), people(250, 2).assign(children=1)
    expected = []
    for name in CATEGORICAL:
        shares = [words(t[name]).value_counts(normalize=True) for t in (real, other)]
        p, q = shares[0].align(shares[1], fill_value=0.0)
        expected.append(jensenshannon(p, q, base=2))
    assert gan(real, other).score("gan_jsd").value == pytest.approx(np.mean(expected))


def test_the_average_wasserstein_distance_is_scipys(people: People) -> None:
    real, other = people(300, 1), people(250, 2)
    other["gain"] = other["gain"] * 3 + 17
    expected = []
    for name in NUMERIC:
        x, y = (t[name].dropna().astype("int64" if name == "born" else float).to_numpy(float) for t in (real, other))
        expected.append(wasserstein_distance((x - x.min()) / np.ptp(x), (y - x.min()) / np.ptp(x)))
    assert gan(real, other).score("gan_wasserstein").value == pytest.approx(np.mean(expected))


def slow_association(frame: pd.DataFrame, a: str, b: str) -> float:
    """Of two columns, as dython's documentation defines it; missing is a category."""
    categorical = [name in CATEGORICAL for name in (a, b)]
    if all(categorical):
        return slow_theils_u(words(frame[a]), words(frame[b]))
    if any(categorical):
        number, level = (b, a) if categorical[0] else (a, b)
        return slow_correlation_ratio(frame[number], words(frame[level]))
    both = frame[[a, b]].apply(lambda c: c.astype("int64") if c.name == "born" else c).astype(float).dropna()
    return float(np.corrcoef(both[a], both[b])[0, 1])


def slow_theils_u(x: pd.Series, y: pd.Series) -> float:
    """U(x | y) = (H(x) - H(x | y)) / H(x), cell by cell."""
    n, conditional, entropy = len(x), 0.0, 0.0
    for level in set(x):
        share = (x == level).sum() / n
        entropy -= share * math.log(share)
        for given in set(y):
            both = ((x == level) & (y == given)).sum() / n
            if both:
                conditional -= both * math.log(both / ((y == given).sum() / n))
    return (entropy - conditional) / entropy


def slow_correlation_ratio(number: pd.Series, level: pd.Series) -> float:
    number = number.astype("int64").astype(float) if number.name == "born" else number.astype(float)
    present = number.notna()
    number, level = number[present], level[present]
    groups = [number[level == name] for name in set(level)]
    between = sum(len(g) * (g.mean() - number.mean()) ** 2 for g in groups)
    return math.sqrt(between / ((number - number.mean()) ** 2).sum())


def test_correlation_differences_are_norms_of_slow_associations(people: People) -> None:
    real, other = (
        people(250, 1),
        people(200, 2).assign(job=lambda t: t["job"].sample(frac=1, random_state=0).to_numpy()),
    )
    names = list(real.columns)
    tables = [[[a == b or slow_association(t, a, b) for b in names] for a in names] for t in (real, other)]
    difference = pd.DataFrame(np.subtract(*np.asarray(tables, float)), names, names)
    report = gan(real, other)
    within = [np.linalg.norm(difference.loc[own, own]) for own in SILOS.values()]
    first, second = SILOS.values()
    across = np.hypot(np.linalg.norm(difference.loc[first, second]), np.linalg.norm(difference.loc[second, first]))
    assert report.score("gan_correlation").value == pytest.approx(np.linalg.norm(difference))
    assert report.score("gan_correlation_avg_client").value == pytest.approx(np.mean(within))
    assert report.score("gan_correlation_across_client").value == pytest.approx(across)


def test_shuffling_columns_and_shuffling_silos_tell_different_things(people: People) -> None:
    real = people(600, 1)
    rng = np.random.default_rng(0)
    columns = real.apply(lambda c: c.sample(frac=1, random_state=int(rng.integers(1e6))).to_numpy())
    blocks = real.assign(**dict(real[SILOS["registry"]].sample(frac=1, random_state=1).reset_index(drop=True).items()))
    torn, parted = gan(real, columns), gan(real, blocks)
    assert torn.score("gan_jsd").value == pytest.approx(0, abs=1e-9)
    assert torn.score("gan_wasserstein").value == pytest.approx(0, abs=1e-9)
    assert torn.score("gan_correlation").value > 1.5
    assert torn.score("gan_correlation_avg_client").value > 0.5
    assert parted.score("gan_correlation_avg_client").value == pytest.approx(0, abs=1e-9)
    across = parted.score("gan_correlation_across_client")
    assert across.value == pytest.approx(parted.score("gan_correlation").value) and across.value > 1
    assert across.low is not None and across.floor is not None and across.low > across.floor


# Degenerate similarity


def test_a_constant_real_column_counts_by_its_share_of_other_values() -> None:
    real = pd.DataFrame({"x": [2.5] * 40, "y": np.linspace(0, 1, 40)})
    other = real.assign(x=[2.5] * 30 + [1e9] * 10)
    report = evaluate(real, None, other, figures="gan")
    assert report.score("gan_wasserstein").value == pytest.approx(0.25 / 2)
    skipped = {s.name for s in report.skipped}
    assert skipped >= {"gan_jsd", "gan_correlation_avg_client", "gan_correlation_across_client", *UTILITY}


def test_a_column_without_values_counts_fully_or_not_at_all() -> None:
    real = pd.DataFrame({"x": np.linspace(0, 1, 40), "empty": [np.nan] * 40})
    report = evaluate(real, None, real.assign(x=np.nan), figures="gan")
    assert report.score("gan_wasserstein").value == 1.0


def test_tables_without_numbers_or_with_one_row_say_so() -> None:
    texts = pd.DataFrame({"a": list("xyxy") * 5, "b": list("ppqq") * 5})
    report = evaluate(texts, None, texts, figures="gan")
    assert "gan_wasserstein" in {s.name for s in report.skipped}
    assert report.score("gan_jsd").value == 0
    single = evaluate(texts[:1], None, texts[:1], figures="gan").score("gan_jsd")
    assert single.floor is None and single.low is None


# Utility against slow versions


def judgements(n: int, size: int, seed: int) -> tuple[np.ndarray, list[Trial]]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, size, n)
    made = [rng.random((n, size)) + 0.5 * np.eye(size)[truth] for _ in range(4)]
    made[3][:, 0] = -np.inf  # a class that the model has not seen
    return truth, [Trial(*(Judgement(s, True) for s in made[i : i + 2])) for i in (0, 2)]


def test_differences_are_those_of_scikit_learns_scores() -> None:
    truth, trials = judgements(200, 3, 0)
    for judged in (j for t in trials for j in (t.real, t.other)):
        slow = [roc_auc_score(truth == k, np.clip(judged.scores_hK[:, k], -9, 9)) for k in range(3)]
        assert _area(truth, judged)[0] == pytest.approx(np.mean(slow))

    def lost(score: Callable[..., float]) -> float:
        return float(np.mean([score(truth, t.real.predicted_h) - score(truth, t.other.predicted_h) for t in trials]))

    accuracy, f1 = _shares_lost(truth, trials, np.random.default_rng(0))
    assert accuracy[0] == pytest.approx(lost(accuracy_score))
    assert f1[0] == pytest.approx(lost(lambda a, b: f1_score(a, b, average="macro")))
    assert all(low < value < high for value, low, high in (accuracy, f1))


def test_the_areas_interval_is_as_wide_as_the_bootstraps() -> None:
    truth, trials = judgements(300, 2, 1)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(300):
        rows = rng.integers(300, size=300)
        draws.append(
            _area_lost(
                truth[rows], [Trial(*(Judgement(j.scores_hK[rows], True) for j in (t.real, t.other))) for t in trials]
            )[0]
        )
    _, low, high = _area_lost(truth, trials)
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(draws), rel=0.2)


@pytest.mark.slow
def test_shuffled_labels_lose_what_can_be_learnt(people: People) -> None:
    train = people(400, 1)
    noise = train.assign(rich=train["rich"].sample(frac=1, random_state=0).to_numpy())
    report = gan(train, noise, "rich", holdout=people(300, 2))
    for name, least in zip(UTILITY, (0.1, 0.15, 0.2), strict=True):
        score = report.score(name)
        assert score.low is not None and score.low > least, name


# Classes, levels and rows that are absent


def differences(tables: list[Coded], target: str, classifiers: tuple[Classifier, ...] = VTGAN) -> dict[str, Score]:
    position = [f.name for f in tables[0].fields].index(target)
    results = classifier_differences(*tables, position, np.random.default_rng(0), classifiers)  # type: ignore[call-arg, arg-type]
    assert all(isinstance(s, Score) for s in results), results
    return {s.name: s for s in results if isinstance(s, Score)}


def test_a_synthetic_table_of_one_class_predicts_that_class(people: People) -> None:
    tables = coded(people(200, 1), people(150, 2), people(200, 3).assign(rich=True))
    x, test = (features(tables[0], t, 5) for t in (tables[2], tables[1]))
    for classifier in VTGAN:
        judged = judge(classifier, x, tables[2].values[5], test, 2, 0)
        assert (judged.predicted_h == 1).all()
        assert _area(tables[1].values[5], judged)[0] == 0.5
    assert differences(tables, "rich")["gan_auc_difference"].value > 0.2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("classifier", VTGAN, ids=lambda c: c.name)
def test_a_class_that_is_not_learnt_is_never_predicted(classifier: Classifier, people: People) -> None:
    train, holdout = people(200, 1, gaps=False), people(150, 2, gaps=False)
    tables = coded(train, holdout, people(200, 3, gaps=False).query("job != 'clerk'"))
    x, test = (features(tables[0], t, 3) for t in (tables[2], tables[1]))
    judged = judge(classifier, x, tables[2].values[3], test, 3, 0)
    clerk = tables[0].fields[3].levels.index("clerk")
    assert clerk not in judged.predicted_h
    assert judged.scores_hK.shape == (150, 3)
    assert _area(tables[1].values[3], Judgement(judged.scores_hK[:, [clerk] * 3], True))[0] == 0.5


def test_a_class_that_only_synthetic_rows_have_counts_as_wrong(people: People) -> None:
    odd = people(200, 3)
    odd.loc[odd.index[:150], "job"] = "pilot"
    results = differences(coded(people(200, 1), people(150, 2), odd), "job")
    assert results["gan_accuracy_difference"].value > 0.2


def test_missing_targets_columns_and_wild_values_are_survived(people: People) -> None:
    train, synthetic = people(200, 1), people(200, 3)
    train["empty"] = np.nan
    synthetic["empty"] = np.nan
    holdout = people(150, 2).assign(empty=np.nan)
    synthetic.loc[synthetic.index[:5], "wage"] = 1e55
    synthetic["job"] = np.where(synthetic.index % 2 == 0, None, synthetic["job"])
    assert differences(coded(train, holdout, synthetic), "job")["gan_auc_difference"].n == holdout["job"].notna().sum()


def test_features_take_levels_and_scales_from_the_real_rows(people: People) -> None:
    train, wild = people(100, 1), people(100, 2).assign(wage=1e30, job="pilot")
    tables = coded(train, wild)
    x, odd = (features(tables[0], t, 5) for t in tables)
    assert np.isfinite(odd).all() and odd.max() == 20
    assert x.shape[1] == odd.shape[1]
    assert (x == features(tables[0], tables[0], 5)).all()
    jobs = x[:, 6:10]  # three, and a missing one
    assert (jobs.sum(axis=1) == 1).all() and (odd[:, 6:10] == 0).all()


def test_a_fit_that_is_stopped_is_said_beside_the_figure(people: People) -> None:
    hasty = Classifier("hasty", lambda seed: MLP.make(seed).set_params(max_iter=2), 2)
    results = differences(coded(people(100, 1), people(80, 2), people(100, 3)), "rich", (TREE, hasty))
    assert "stopped at the iteration limit: hasty (real), hasty (synthetic)" in results["gan_f1_difference"].method
    assert "tree" not in results["gan_f1_difference"].method


@pytest.mark.slow
def test_gdts_has_no_svm(people: People) -> None:
    assert [c.name for c in VTGAN if c not in GDTS] == ["linear SVM"]
    tables = people(200, 1), people(150, 2), people(180, 3)
    five, four = (evaluate(*tables, "rich", figures=name).score("gan_f1_difference") for name in ("gan", "gdts"))
    assert "linear SVM" in five.explanation and "linear SVM" not in four.explanation
    assert "random forest" in four.explanation and five.value != four.value


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"target": None}, "no target"),
        ({"target": 1}, "category"),
        ({"holdout": None}, "hold-out"),
        ({"constant": True}, "constant"),
        ({"unlabelled": True}, "fewer than two rows"),
    ],
)
def test_why_there_is_no_difference_is_said(change: dict[str, object], why: str, people: People) -> None:
    holdout = people(50, 2).assign(job="clerk") if "constant" in change else people(50, 2)
    synthetic = people(50, 3).assign(job=None) if "unlabelled" in change else people(50, 3)
    train, held, made = coded(people(60, 1), holdout, synthetic)
    results = classifier_differences(
        train, None if "holdout" in change else held, made, change.get("target", 3), np.random.default_rng(0)  # type: ignore[arg-type]
    )  # fmt: skip
    assert [s.name for s in results] == list(UTILITY)
    assert all(isinstance(s, Skipped) and why in s.why for s in results), results
