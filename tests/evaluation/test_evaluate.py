"""The public face: one call, one report, for ordinary tables and strange ones."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import silosynth as ss
import silosynth.evaluation
from silosynth.core.errors import ConfigError, DataError, SchemaError
from silosynth.evaluation import Report, Score, Skipped, evaluate
from silosynth.evaluation.fidelity import _edges, densities
from silosynth.evaluation.report import render

People = Callable[..., pd.DataFrame]
SILOS = {"tax office": ["age", "wage", "gain", "rich"], "registry": ["job", "children", "born"]}


@pytest.fixture(scope="module")
def report(people: People) -> Report:
    return evaluate(people(400, 1), people(300, 2), people(350, 3), "rich", SILOS, ledger=[{"round": 1, "bytes": 10}])


def test_public_names_are_sorted_and_exist() -> None:
    names = silosynth.evaluation.__all__
    assert names == sorted(names)
    assert all(hasattr(silosynth.evaluation, name) for name in names)


def test_every_figure_has_a_floor_and_an_interval(report: Report) -> None:
    assert [s.name for s in report.scores] == [
        "column_shape_error",
        "pair_trend_error",
        "pair_trend_error_within",
        "pair_trend_error_across",
        "two_sample_auc_xgboost",
        "two_sample_auc_logistic",
        "resemblance",
        "resemblance_column_similarity",
        "resemblance_correlation_similarity",
        "resemblance_jensen_shannon",
        "resemblance_kolmogorov_smirnov",
        "resemblance_propensity",
        "downstream_auc",
        "downstream_f1",
        "utility",
        "exact_copy_rate",
        "exact_copy_rate_equal_size",
        "nearest_neighbour_share",
        "distance_to_closest_record",
    ]
    for score in report.scores:
        assert score.floor is not None, score.name
        assert score.floor_note, score.name
        assert score.low is not None, score.name
        assert score.high is not None, score.name
        assert score.low <= score.value <= score.high, score.name
        assert score.explanation, score.name
        assert score.method, score.name
        assert score.n > 0, score.name
    assert report.skipped == ()


def test_columns_and_pairs_add_up_to_the_scores(report: Report) -> None:
    assert np.mean([c.error for c in report.columns]) == pytest.approx(report.score("column_shape_error").value)
    upper = np.triu_indices(7, 1)
    assert report.pairs.error[upper].mean() == pytest.approx(report.score("pair_trend_error").value)
    assert report.pairs.floor is not None
    assert report.pairs.floor[upper].mean() == pytest.approx(report.score("pair_trend_error").floor)
    assert [c.silo for c in report.columns] == list(report.pairs.silos)
    assert report.rows == (400, 300, 350)


def test_silos_that_all_hold_the_same_columns_hold_rows(people: People) -> None:
    tables = people(60, 1), None, people(60, 2)
    names = list(tables[0].columns)
    rows = evaluate(*tables, silos={"north": names, "south": names[::-1], "west": names}, figures="gan")
    alone = evaluate(*tables, figures="gan").to_dict()
    assert rows.to_dict() | {"about": None} == alone | {"about": None}
    with pytest.raises(DataError, match="belongs to one silo"):
        evaluate(*tables, silos={"north": names, "south": names[1:]})
    with pytest.raises(DataError, match="Every column needs a silo"):
        evaluate(*tables, silos={"north": names[1:], "south": names[1:]})


def test_figures_of_a_silo_are_those_of_its_rows_alone(people: People) -> None:
    train, holdout, synthetic = people(200, 1), people(100, 2), people(100, 3)
    rows = {"north": range(150), "south": slice(120, None), "old": (train["age"] > 60).to_numpy()}
    made = evaluate(train, holdout, synthetic, figures="gan", rows=rows)
    assert [silo.name for silo in made.by_silo] == list(rows)
    assert [silo.rows for silo in made.by_silo] == [150, 80, (train["age"] > 60).sum()]
    assert made.about.silos is not None and list(made.about.silos) == list(rows)
    alone = evaluate(train[:150], None, synthetic, figures="gan")
    real = evaluate(train[:150], None, holdout, figures="gan")
    for score in made.by_silo[0].scores:
        assert score.value == pytest.approx(alone.score(score.name).value)
        assert score.floor == pytest.approx(real.score(score.name).value)
        assert score.low is not None and score.low < score.value
    others, old = (silo.scores[0].floor for silo in made.by_silo[1:])
    assert others is not None and old is not None and old > 2 * others  # unlike the others, which no generator mends


def test_silos_tables_are_evaluated_like_their_rows(people: People) -> None:
    train, synthetic = people(80, 1), people(80, 3)
    parts = {"north": train[:50], "south": train[50:]}
    apart = evaluate(parts, {"north": people(20, 2), "south": people(20, 4)}, synthetic, figures="gan")
    holdout = pd.concat([people(20, 2), people(20, 4)], ignore_index=True)
    rows = {"north": range(50), "south": range(50, 80)}
    assert apart.to_dict() == evaluate(train, holdout, synthetic, figures="gan", rows=rows).to_dict()


def test_without_a_holdout_silos_have_no_floor(people: People) -> None:
    (silo,) = evaluate(people(60, 1), None, people(60, 2), figures="gan", rows={"one": range(60)}).by_silo
    assert all(score.floor is None and "hold-out" in score.floor_note for score in silo.scores)


@pytest.mark.parametrize("rows", [[60], [], "north", {"a": 1}, np.zeros(60, bool), np.ones(7, bool)])
def test_rows_of_a_silo_must_exist(people: People, rows: object) -> None:
    with pytest.raises(DataError, match=r"[Ss]ilo 'north'"):
        evaluate(people(60, 1), None, people(60, 2), figures="gan", rows={"north": rows})


def test_tables_of_silos_say_which_rows_they_hold(people: People) -> None:
    with pytest.raises(ConfigError, match="Either each silo"):
        evaluate({"north": people(60, 1)}, None, people(60, 2), rows={"north": range(60)})


def test_overlays_are_laws(report: Report, people: People) -> None:
    real = people(400, 1)
    for column in report.columns:
        assert column.missing_real == pytest.approx(real[column.name].isna().mean())
        if column.kind == "categorical":
            assert column.levels is not None
            assert column.real_shares is not None
            assert column.real_shares.sum() == pytest.approx(1)
            assert len(column.levels) == len(column.real_shares)
        else:
            assert column.edges is not None
            assert column.real_density is not None
            assert (column.real_density * np.diff(column.edges)).sum() == pytest.approx(1)
    job = next(c for c in report.columns if c.name == "job")
    assert job.levels is not None
    assert job.real_shares is not None
    assert job.real_shares[job.levels.index("clerk")] == pytest.approx((real.job == "clerk").mean())
    assert "(missing)" in job.levels


def test_rare_levels_are_not_named(people: People) -> None:
    real = people(100, 1).assign(job=["harpsichord tuner"] + ["clerk"] * 99)
    column = next(c for c in evaluate(real, None, real).columns if c.name == "job")
    assert column.levels == ("clerk", "(other)")


def test_whole_numbers_get_whole_bins() -> None:
    edges = _edges(np.array([0.0, 1, 2, 3, 200]))
    assert np.ptp(np.diff(edges)) == 0
    assert (edges - 0.5 == np.floor(edges)).all()
    assert densities(np.array([np.nan]), np.array([1.0])) == (None, None, None)


def test_the_report_is_json_and_a_frame_and_a_table(report: Report, tmp_path: Path) -> None:
    path = report.save(tmp_path / "report.json")
    loaded = json.loads(path.read_text())
    assert loaded["rows"] == {"n_train": 400, "n_holdout": 300, "n_synthetic": 350}
    assert loaded["ledger"] == [{"round": 1, "bytes": 10}]
    assert loaded["scores"][0]["value"] == report.scores[0].value
    assert np.array(loaded["pairs"]["error"]).shape == (7, 7)
    assert list(tmp_path.iterdir()) == [path]
    assert report.to_frame().loc["utility", "floor"] == 100
    text = str(report)
    assert all(s.label in text for s in report.scores)
    assert "400 training" in text


def test_the_report_is_a_page(report: Report, tmp_path: Path) -> None:
    assert "<html" in report.save(tmp_path / "report.html").read_text(encoding="utf-8")


def test_score_by_name(report: Report, people: People) -> None:
    assert report.score("utility").name == "utility"
    with pytest.raises(KeyError, match="column_shape_error"):
        report.score("shape")
    with pytest.raises(KeyError, match="no target column"):
        evaluate(people(30, 1), people(30, 2), people(30, 3)).score("downstream")


def test_the_same_seed_gives_the_same_report_and_no_global_state_moves(people: People) -> None:
    tables = tuple(people(n, seed)[["wage", "job", "rich"]] for n, seed in ((120, 1), (100, 2), (110, 3)))
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    first, second, third = (evaluate(*tables, "rich", seed=seed) for seed in (4, 4, 5))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    assert first.to_dict() == second.to_dict()
    assert first.scores != third.scores
    assert first.score("column_shape_error").value == third.score("column_shape_error").value


def test_without_holdout_floors_come_from_halves(people: People) -> None:
    report = evaluate(people(300, 1), None, people(200, 2), "rich", SILOS)
    assert report.rows.n_holdout is None
    assert {s.name for s in report.skipped} == {
        "downstream",
        "utility",
        "exact_copy_rate_equal_size",
        "nearest_neighbour_share",
        "distance_to_closest_record",
    }
    for score in report.scores:
        assert score.floor is not None, score.name
    assert "halves" in report.score("two_sample_auc_xgboost").floor_note


def test_progress_rises_to_one(people: People) -> None:
    calls: list[tuple[str, float]] = []
    evaluate(people(40, 1), people(40, 2), people(40, 3), progress=lambda stage, share: calls.append((stage, share)))
    shares = [share for _, share in calls]
    assert shares == sorted(shares)
    assert (shares[0], calls[-1]) == (0.0, ("done", 1.0))


def test_max_rows_samples_all_but_copies(people: People) -> None:
    train = people(300, 1, gaps=False)
    report = evaluate(train, people(300, 2), train, max_rows=60)
    assert report.score("column_shape_error").n == 60
    assert report.score("exact_copy_rate").value == 100
    assert report.rows.n_train == 300


def test_quick_leaves_the_papers_utility_out_of_wide_tables(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("silosynth.evaluation.evaluate")  # the package's attribute is the function
    monkeypatch.setattr(module, "QUICK_OUTPUTS", 11)  # these tables need twelve boosters
    tables = [people(30, seed) for seed in (1, 2, 3)]
    assert 'figures="all"' in {s.name: s.why for s in evaluate(*tables).skipped}["utility"]
    assert evaluate(*tables, figures="all").score("utility").value <= 100


def test_options_are_checked(people: People) -> None:
    with pytest.raises(ConfigError, match="figures"):
        evaluate(people(9, 1), None, people(9, 2), figures="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_rows"):
        evaluate(people(9, 1), None, people(9, 2), max_rows=0)
    with pytest.raises(DataError, match="Did you mean 'wage'"):
        evaluate(people(9, 1), None, people(9, 2), target="wages")


def test_polars_tables_give_the_same_report(people: People) -> None:
    tables = [people(60, seed) for seed in (1, 2, 3)]
    pandas, polars = evaluate(*tables, "rich"), evaluate(*(pl.from_pandas(t) for t in tables), "rich")
    assert [s.value for s in pandas.scores] == [s.value for s in polars.scores]


def with_key(frame: pd.DataFrame, first: int) -> pd.DataFrame:
    """With an identifier, and dates as text."""
    return frame.assign(person_id=range(first, first + len(frame)), born=frame["born"].dt.strftime("%Y-%m-%d"))


@pytest.mark.slow
def test_columns_are_taken_as_fit_takes_them(people: People) -> None:
    train, holdout, synthetic = (with_key(people(120, seed), 1000 * seed) for seed in (1, 2, 3))
    silos = {name: [*columns, "person_id"] if name == "registry" else columns for name, columns in SILOS.items()}
    report = evaluate(train, holdout, synthetic, "rich", silos, figures="gan")
    kinds = {column.name: column.kind for column in report.columns}
    assert kinds["born"] == "datetime"
    assert list(report.about.left_out) == ["person_id"]
    assert "identifier" in report.about.left_out["person_id"]
    assert "person_id" not in kinds and "person_id" not in [column.name for column in report.columns]
    assert (
        "left out: person_id" in str(report) and "<b>person_id</b>" in render(report).split('data-fact="left out"')[1]
    )
    plain = [t.drop(columns="person_id").assign(born=pd.to_datetime(t["born"])) for t in (train, holdout, synthetic)]
    instants = evaluate(plain[0], plain[1], plain[2], "rich", SILOS, figures="gan")
    assert [score.value for score in instants.scores] == [score.value for score in report.scores]
    mixed = evaluate(train, holdout, plain[2], "rich", SILOS | {"registry": silos["registry"]}, figures="gan")
    assert [score.value for score in mixed.scores] == [score.value for score in report.scores]


def test_declared_kinds_count(people: People) -> None:
    train, synthetic = with_key(people(120, 1), 0), with_key(people(100, 3), 0)
    declared = {"born": "categorical", "age": "categorical", "person_id": "integer", "children": "continuous"}
    report = evaluate(train, None, synthetic, schema=declared, figures="gan")
    kinds = {column.name: column.kind for column in report.columns}
    assert (kinds["born"], kinds["age"], kinds["person_id"]) == ("categorical", "categorical", "numeric")
    assert kinds["children"] == "numeric"
    assert report.about.left_out == {}
    federation = ss.simulate(train, schema=declared)
    again = evaluate(train, None, synthetic, schema=federation.schema, figures="gan")
    assert again.to_dict() == report.to_dict()
    with pytest.raises(SchemaError, match="Did you mean 'born'"):
        evaluate(train, None, synthetic, schema={"borne": "categorical"})
    with pytest.raises(SchemaError, match="cannot be of kind 'integer'"):
        evaluate(train, None, synthetic, schema={"job": "integer"})


def test_a_model_knows_what_was_declared_to_stand_for_missing_values(people: People) -> None:
    silos = {"office": ["age", "wage"], "registry": ["job"]}
    declared = {"age": {"missing": [-9]}, "job": {"missing": ["?"]}}
    table, rows = people(120, 1)[["age", "wage", "job"]], np.arange(120)
    train = table.assign(age=np.where(rows % 3 == 0, -9, table["age"]), job=table["job"].where(rows % 4 > 0, "?"))
    federation = ss.simulate(train, silos, schema=declared)
    tiny = {"coder.steps": 2, "latent.steps": 2, "latent.width": 16, "latent.sample_steps": 2}
    model = ss.fit("silofuse", federation, "fast", options=tiny, progress=False)
    synthetic = model.sample(100, seed=1)
    reports = [
        evaluate(train, None, synthetic, figures="gan", **told)
        for told in ({"model": model}, {"schema": declared, "silos": silos})
    ]
    scores = [report.to_dict()["scores"] for report in reports]
    assert scores[0] == scores[1]
    shares = {column.name: column.missing_real for column in reports[0].columns}
    assert (shares["age"], shares["job"]) == (pytest.approx(1 / 3, abs=0.15), pytest.approx(1 / 4, abs=0.15))


def test_tables_that_do_not_fit_the_kinds_are_refused(people: People) -> None:
    train, synthetic = with_key(people(120, 1), 0), with_key(people(100, 3), 0)
    with pytest.raises(DataError, match="'born' of the synthetic table must be written as in the training table"):
        evaluate(train, None, synthetic.assign(born="spring"))
    with pytest.raises(DataError, match="needs a column that is neither an identifier nor a pseudonym"):
        evaluate(train[["person_id"]], None, synthetic[["person_id"]])
    with pytest.raises(DataError, match="target"):
        evaluate(train, None, synthetic, target="person_id")


STRANGE: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "one row": lambda t: t.iloc[:1],
    "two rows": lambda t: t.iloc[:2],
    "one number": lambda t: t[["wage"]],
    "one category": lambda t: t[["job"]],
    "two columns": lambda t: t[["wage", "job"]],
    "constant": lambda t: t.assign(wage=1.5, job="x", age=3),
    "all constant": lambda t: pd.DataFrame({"wage": [1.5] * len(t), "job": ["x"] * len(t), "age": 3}),
    "missing": lambda t: t.assign(wage=np.nan, job=None),
    "all missing": lambda t: pd.DataFrame({"wage": [np.nan] * len(t), "job": [None] * len(t)}),
    "huge": lambda t: t.assign(wage=t.wage * 1e50),
    "tiny": lambda t: t.assign(wage=t.wage * 1e-80),
    "many levels": lambda t: t.assign(job=[f"{len(t)} {i}" for i in range(len(t))]),
    "nullable": lambda t: t.convert_dtypes(),
    "categories": lambda t: t.assign(job=t.job.astype("category"), children=t.children.astype("category")),
}


@pytest.mark.parametrize(
    ("name", "holdout"),
    [*((name, True) for name in STRANGE), *((name, False) for name in ("one row", "constant", "missing"))],
)
def test_strange_tables_give_finite_scores_or_reasons(name: str, holdout: bool, people: People) -> None:
    change = STRANGE[name]
    train, unseen, synthetic = (change(people(40, seed)) for seed in (1, 2, 3))
    target = str(train.columns[-1])
    report = evaluate(train, unseen if holdout else None, synthetic, target)
    _check(report)
    assert report.score("column_shape_error").value <= 100
    assert len(report.columns) == train.shape[1]


@pytest.mark.parametrize("name", ["one row", "constant", "missing", "huge", "nullable", "many levels"])
def test_strange_synthetic_tables_too(name: str, people: People) -> None:
    train, unseen = people(40, 1), people(30, 2)
    synthetic = STRANGE[name](people(40, 3)).reindex(columns=train.columns)
    _check(evaluate(train, unseen, synthetic, "wage"))


def _check(report: Report) -> None:
    assert all(isinstance(s, Score) and np.isfinite(s.value) for s in report.scores)
    assert all(s.floor is not None or s.floor_note.startswith("no floor") for s in report.scores)
    assert all((s.low is None) == (s.high is None) == s.method.startswith("no interval") for s in report.scores)
    assert all(isinstance(s, Skipped) and s.why for s in report.skipped)
    json.dumps(report.to_dict(), allow_nan=False)
    assert str(report)


def test_columns_of_mixed_types_are_compared_though_nothing_can_be_fitted_on_them() -> None:
    table = pd.DataFrame({"mixed": [1, "x", 2.5] * 40, "n": np.arange(120) % 7})
    assert evaluate(table[:60], table[60:], table[:60], figures="gan").rows.n_train == 60
