"""Rows under conditions in jobs that draw, with silos in this process: whom silos refuse, and which rows come."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, SMALL, Rows, customers, job
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, same_rows, sides, table
from tests.deployment.test_drawing import begin, simulated

import silosynth as ss
from silosynth.algorithms.silofuse.protocol import WeighLatents
from silosynth.core.conditions import from_text, fulfils
from silosynth.core.errors import ConfigError, DataError, PolicyError, ProtocolError
from silosynth.core.messages import from_state
from silosynth.core.rules import read_rules
from silosynth.core.schema import Column, Table
from silosynth.data.given import _of_cells, rows_in
from silosynth.deployment import conditions, exposure
from silosynth.deployment.coordinator import Order, drawing_order, read_status
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import Drawing, GivenColumn, GivenRows, OtherShares, PrepareGroup, PreparePool
from silosynth.runtime.wire import unpack

ALLOWED = OPEN.model_copy(update={"conditions": ["age", "income", "pa*"], "least_condition_rows": 10})


def given(folder: Path, name: str, *texts: str, rows: int = 20, seed: int | None = 3) -> Order:
    """An order of rows under conditions."""
    return drawing_order(folder / "coordinator" / "trial", rows, seed, name, "coordinator", texts)


def shared_out(folder: Path, name: str, shares: OtherShares, *texts: str, rows: int = 20) -> Order:
    """An order of rows in other shares."""
    place = folder / "coordinator" / "trial"
    return drawing_order(place, rows, 3, name, "coordinator", texts, shares)


def framed(folder: Path, name: str, frame: pd.DataFrame, seed: int = 3) -> Order:
    """An order of a row for each row of a frame of conditions, with cells as texts."""
    rows = [_of_cells(row) for row in frame.to_dict("records")]
    return drawing_order(folder / "coordinator" / "trial", None, seed, name, "coordinator", frame=rows)


def trained_with(folder: Path, silos: dict[str, Rows], policy: SiloPolicy = ALLOWED, **changes: Any) -> Path:
    """All sites, after a job "trial"."""
    carry_out(Order(job(silos, **{"align": None, **changes})), silos, folder, policy=policy)
    return folder


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job whose policies allow conditions."""
    return trained_with(tmp_path_factory.mktemp("once"), same_rows())


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy, to be drawn from."""
    return Path(shutil.copytree(once, tmp_path / "sites"))


def whom(number: int) -> tuple[float, float]:
    """Age and income of a customer."""
    person = customers(120).loc[number]
    return float(person["age"]), float(person["income"])


@pytest.mark.parametrize("form", ["income={1}", '{{"income": {{"low": {1}, "high": {1}}}}}', "both"])
def test_the_one_person_is_asked_for_and_refused(form: str, trained: Path) -> None:
    age, income = whom(17)
    texts = [form.format(age, income)] if form != "both" else [f"age={age:g}", f"income={income - 50}..{income + 50}"]
    with pytest.raises(PolicyError, match="'least_condition_rows'") as refused:
        carry_out(given(trained, "one", *texts), ABSENT, trained, policy=ALLOWED)
    assert f"{income:g}" not in str(refused.value) and read_status(trained / "coordinator" / "one").state == "failed"
    lines = [json.loads(line) for line in (trained / "bank" / "one" / "ledger.jsonl").read_text().splitlines()]
    (asked,) = [line for line in lines if line.get("kind") == "conditions"]
    assert asked["given"] == texts and asked["by"] == "coordinator" and asked["verified"] is False


def test_nobody_is_singled_out_by_conditions_in_two_silos(trained: Path) -> None:
    """Each of which some fulfil, and the expected number of whom fulfils both is too small."""
    one = carry_out(given(trained, "a", "age=18..35"), ABSENT, trained, policy=ALLOWED)
    assert table(one)["age"].between(18, 35).all()
    with pytest.raises(PolicyError, match="'least_condition_rows'"):
        carry_out(given(trained, "b", "age=18..35", "paid=voucher"), ABSENT, trained, policy=ALLOWED)


@pytest.mark.parametrize("framed", [False, True])
def test_a_lone_income_is_not_searched_for(framed: bool, trained: Path) -> None:
    """By ends at which there are just enough people: the last income is the end of the last range that is allowed."""
    lone, place = 98_765.43, trained / "bank" / "trial"
    rows = from_state(Table, unpack((place / conditions.ROWS_BEHIND).read_bytes()))
    rows["income"].values[17] = lone
    conditions.keep_rows_behind(place, rows)
    asked, draws = given(trained, "x", "income=0..9").job, itertools.count()
    assert asked.drawing is not None

    def allowed(low: float, high: float) -> bool:
        name, kind = f"draw-{next(draws)}", (GivenColumn("income", f"income={low!r}..{high!r}"),)
        drawing = replace(asked.drawing, given=kind)
        if framed:  # with others, that are allowed
            kinds = kind, (GivenColumn("income", "income=0..4000"),), (GivenColumn("age", "age=18..80"),)
            drawing = replace(asked.drawing, given=(), frame=GivenRows(kinds, (0, 1, 2)))
        try:
            rows = 3 if framed else asked.rows
            begin(sides(ABSENT, trained, name, ALLOWED)["bank"], replace(asked, name=name, rows=rows, drawing=drawing))
        except PolicyError:
            return False
        return True

    low, high = 0.0, 4000.0
    for _ in range(13):
        low, high = (middle, high) if allowed(middle := (low + high) / 2, 1e6) else (low, middle)
    first, low, high = low, low, 1e6
    for _ in range(13):
        low, high = (low, middle) if allowed(first, middle := (low + high) / 2) else (middle, high)
    assert first > 3000 and abs(high - lone) > 0.5 * lone


@pytest.mark.parametrize("values", [[0.1] * 7 + [1.5, 2.5, 3.0, 7.0, 9.0, 80.0], [3.0] * 6 + [5.0], [1.0, 2.0]])
def test_numbers_that_few_share_are_compared_as_means(values: list[float]) -> None:
    given, nothing = torch.tensor(values, dtype=torch.float64), torch.zeros(len(values), dtype=torch.bool)
    column = Column("x", "float64", given, nothing)
    made = conditions.without_lone_values(column, 5)
    present = made.values[~made.missing].tolist()
    assert all(present.count(value) >= 5 for value in present) and max(present, default=0.0) < 20
    assert [value for value in values if values.count(value) >= 5] == [one for one in present if one in (0.1, 3.0)]
    assert torch.equal(conditions.without_lone_values(column, 1).values, column.values)


def test_silos_take_the_share_that_leaves_enough() -> None:
    policy = SiloPolicy(least_condition_rows=100)
    assert [conditions.least_rows(policy, 1600, others) for others in (0, 1, 3)] == [100, 400, 800]
    assert conditions.least_rows(policy, 50, 0) == 100 and conditions.least_rows(policy, 0, 2) == 100


@pytest.mark.parametrize("texts", [["age=40..70"], ["age=40..", "paid=card"]])
def test_rows_are_those_of_a_simulated_model(texts: Sequence[str], trained: Path) -> None:
    made = table(carry_out(given(trained, "x", *texts, rows=40), ABSENT, trained, policy=ALLOWED))
    wanted: dict[str, Any] = {"age": (40, 70)} if len(texts) == 1 else {"age": (40, None), "paid": "card"}
    pd.testing.assert_frame_equal(made, simulated(trained).sample(40, seed=3, given=wanted))
    again = table(carry_out(given(trained, "y", *texts, rows=40), ABSENT, trained, policy=ALLOWED))
    pd.testing.assert_frame_equal(again, made)
    assert json.loads((trained / "bank" / "x" / "label.json").read_text())["facts"]["conditions"] == list(texts)


def test_gaps_of_a_silos_own_rows_are_filled_in_from_its_copy_of_the_table_and_nothing_is_sent_or_kept(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silosynth.simulation.imputing._TREES", 3)
    published = table(trained / "bank" / "trial")
    own = published.head(20)[["age", "income"]].assign(income=None).astype({"income": float})
    before = {path: path.read_bytes() for path in sorted(trained.rglob("*")) if path.is_file()}
    found = ss.impute(own, published, draws=2, seed=1)
    assert found.table["income"].between(published["income"].min(), published["income"].max()).all()
    assert {path: path.read_bytes() for path in sorted(trained.rglob("*")) if path.is_file()} == before  # ledgers, too


EQUAL, VOUCHERS = OtherShares("paid"), OtherShares("paid", '{"voucher": 0.4}')
FEW = ALLOWED.model_copy(update={"least_condition_rows": 1})


@pytest.mark.parametrize(
    ("shares", "texts", "how", "vouchers"),
    [
        (EQUAL, (), {"balance": "paid"}, 10),
        (VOUCHERS, (), {"shift": {"paid": {"voucher": 0.4}}}, 12),
        (OtherShares("paid", '{"card": 0.5}'), ("age=30..",), {"shift": {"paid": {"card": 0.5}}}, None),
    ],
)
def test_other_shares_are_those_of_a_simulated_model(
    shares: OtherShares, texts: Sequence[str], how: dict[str, Any], vouchers: int | None, trained: Path
) -> None:
    place = carry_out(shared_out(trained, "x", shares, *texts, rows=30), ABSENT, trained, policy=FEW)
    made = table(place)
    conditions = {"given": {"age": (30, None)}} if texts else {}
    pd.testing.assert_frame_equal(made, simulated(trained).sample(30, seed=3, **how, **conditions))
    counts = made["paid"].value_counts()
    assert counts.sum() == 30 and (counts["card"] == 15 if vouchers is None else counts["voucher"] == vouchers)
    for silo in COLUMNS:
        asked = json.loads((trained / silo / "x" / "label.json").read_text())["facts"]["conditions"]
        assert asked == [*texts, shares.in_words]
        lines = [json.loads(line) for line in (trained / silo / "x" / "ledger.jsonl").read_text().splitlines()]
        assert [line["given"] for line in lines if line.get("kind") == "conditions"] == [asked]


def test_a_level_that_too_few_people_have_is_not_balanced(trained: Path) -> None:
    """A policy would refuse rows of this level alone, too."""
    vouchers = int((customers(120)["paid"] == "voucher").sum())
    strict = ALLOWED.model_copy(update={"least_condition_rows": vouchers + 1})
    with pytest.raises(PolicyError, match="'least_condition_rows'"):
        carry_out(shared_out(trained, "x", EQUAL), ABSENT, trained, policy=strict)
    just = ALLOWED.model_copy(update={"least_condition_rows": vouchers})
    carry_out(shared_out(trained, "y", EQUAL), ABSENT, trained, policy=just)
    with pytest.raises(PolicyError, match=r"'conditions'.*age, income"):
        carry_out(
            shared_out(trained, "z", EQUAL), ABSENT, trained,
            policy=just.model_copy(update={"conditions": ["age", "income"]}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "texts", "rule"),
    [
        (OtherShares("pade"), (), "Did you mean 'paid'"),
        (OtherShares("paid", "{oops"), (), "are a JSON object"),
        (OtherShares("paid", '{"crad": 0.4}'), (), "no level of this name"),
        (OtherShares("paid", '{"card": 1.4}'), (), "a share is a number from 0 to 1"),
        (OtherShares("age"), (), "at least two levels"),
        (EQUAL, ("paid=card",), "Each column is named once"),
    ],
)
def test_shares_that_cannot_be_had_are_refused(
    shares: OtherShares, texts: Sequence[str], rule: str, trained: Path
) -> None:
    with pytest.raises(ConfigError, match=rule):
        carry_out(shared_out(trained, "x", shares, *texts), ABSENT, trained, policy=FEW)


def test_groups_are_those_of_the_job_and_columns_that_stay_have_none(trained: Path) -> None:
    asked = shared_out(trained, "x", EQUAL).job
    with pytest.raises(ConfigError, match="where synthetic columns are shared"):
        replace(asked, config=replace(asked.config, synthesis="partitioned"))
    shop = sides(ABSENT, trained, "x", FEW)["shop"]
    begin(shop, asked)
    shop._turns._at, shop._terms = 4, None  # as if the silos had agreed
    with pytest.raises(ProtocolError, match="number of a group of rows is at least 0 and below 3"):
        shop._prepare_group(3)
    plain = sides(ABSENT, trained, "y", FEW)["shop"]
    begin(plain, given(trained, "y", "age=30..").job)
    plain._turns._at, plain._terms = 5, None
    with pytest.raises(ProtocolError, match="in their turn"):
        plain.answer(PrepareGroup(0))


def many(rows: int) -> pd.DataFrame:
    """A frame of conditions of ten kinds, no two of which a row fulfils."""
    ages = customers(120)["age"].unique()[:10]
    return pd.DataFrame({"age": [int(ages[k % 10]) for k in range(rows)]})


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"age": ["18..60", None, "30..", "18..60"], "paid": ["card", "cash", None, "card"]}),
        pd.DataFrame({"age": ["30..70", "18..40"] * 10}),
        many(60),
    ],
)
def test_a_row_for_each_row_of_a_frame_is_that_of_a_simulated_model(frame: pd.DataFrame, trained: Path) -> None:
    order, lone = framed(trained, "x", frame), FEW.model_copy(update={"min_count": 1})  # ages that one row has
    assert order.job.frame is not None and len(order.job.frame.kinds) == len(frame.drop_duplicates())
    made = table(carry_out(order, ABSENT, trained, policy=lone))
    said = {
        json.loads(line)["type"] for line in (trained / "coordinator" / "x" / "ledger.jsonl").read_text().splitlines()
    }
    assert ("deployment.PreparePool" in said) is (len(frame) > 40)
    model = simulated(trained)
    columns = model.makes()
    asked = [from_text(_of_cells(row), columns) for row in frame.to_dict("records")]
    pd.testing.assert_frame_equal(made, model.sample(given=asked, seed=3))
    for (_, row), given in zip(made.iterrows(), asked, strict=True):
        if isinstance(given.get("age"), tuple):
            low, high = given["age"]
            assert low <= row["age"] <= (high or 100)
        assert given.get("paid", row["paid"]) == row["paid"]


def test_ledgers_and_labels_say_what_a_frame_asks_for_in_few_words(trained: Path) -> None:
    few = pd.DataFrame({"age": ["18..60", "18..60", None]})
    carry_out(framed(trained, "few", few), ABSENT, trained, policy=FEW)
    values = [f"{18 + k / 7}..80" for k in range(21)]
    said = ["age=18..60 in 2 rows", "no condition in 1 rows"]
    for silo in COLUMNS:
        place = trained / silo / "few"
        assert json.loads((place / "label.json").read_text())["facts"]["conditions"] == said
        lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
        (asked,) = [line for line in lines if line.get("kind") == "conditions"]
        assert asked["given"] == said and asked["by"] == "coordinator"
    order = framed(trained, "many", pd.DataFrame({"age": values}))
    assert order.job.asked[0].startswith("21 rows of 21 kinds by age; SHA-256 ")
    other = framed(trained, "other", pd.DataFrame({"age": [*values[:-1], "18..81"]}))
    assert other.job.asked != order.job.asked  # which the signed label therefore tells apart


RARE_ROW = {"age": "18..19", "income": "1500..1600"}


@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_row_of_a_frame_that_points_at_few_has_all_refused_and_nobody_says_which(
    place: int, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind is counted whichever fails first, so that neither words nor time tell it."""
    rows: list[dict[str, str]] = [{"age": f"{18 + k}..80"} for k in range(8)]
    counted = list[int]()

    def count(table: Table, wanted: Any) -> torch.Tensor:
        counted.append(len(wanted))
        return fulfils(table, wanted)

    monkeypatch.setattr(conditions, "fulfils", count)
    carry_out(framed(trained, "fine", pd.DataFrame(rows)), ABSENT, trained, policy=ALLOWED)
    assert len(counted) == 8
    counted.clear()
    rows[place] = RARE_ROW
    with pytest.raises(PolicyError, match=r"'least_condition_rows'.*fewer") as refused:
        carry_out(framed(trained, "x", pd.DataFrame(rows)), ABSENT, trained, policy=ALLOWED)
    assert len(counted) == 8 and "18" not in str(refused.value) and "kind" not in str(refused.value)


def test_a_search_by_frames_asks_no_fewer_conditions_than_one_by_single_ones(trained: Path) -> None:
    """Each row of a frame counts as a condition of a draw of its own, and all get one answer: that of the hardest."""
    draws, limit = itertools.count(), ALLOWED.model_copy(update={"conditions_per_day": 14})

    def allowed(*lows: float) -> bool:
        frame = pd.DataFrame({"income": [f"{low}.." for low in lows]})
        name = f"draw-{next(draws)}"
        try:
            begin(sides(ABSENT, trained, name, limit)["bank"], framed(trained, name, frame).job)
        except PolicyError as error:
            if "least_condition_rows" not in str(error):
                raise
            return False
        return True

    ends = [2500 + 120 * k for k in range(12)]
    assert not allowed(*ends)
    single = [allowed(end) for end in ends]  # asked already: the same answer, and it does not count again
    assert single[0] and not single[-1]
    assert all(allowed(*ends[: last + 1]) == single[last] for last in range(12))
    assert allowed(2400, 2450)
    with pytest.raises(PolicyError, match=r"'conditions_per_day': at most 14 different"):
        allowed(2300)


def test_conditions_of_a_row_in_two_silos_are_held_to_the_share_that_leaves_enough(trained: Path) -> None:
    """Not to that of other rows of the frame, which have one silo's columns alone."""
    one = pd.DataFrame({"age": ["18..35", "30.."], "paid": [None, None]}).dropna(axis=1)
    carry_out(framed(trained, "a", one), ABSENT, trained, policy=ALLOWED)
    with pytest.raises(PolicyError, match="'least_condition_rows'"):
        carry_out(
            framed(trained, "b", pd.DataFrame({"age": ["30..", "18..35"], "paid": [None, "voucher"]})), ABSENT, trained,
            policy=ALLOWED,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "policy", "error", "rule"),
    [
        (pd.DataFrame({"visits": ["0..9"]}), ALLOWED, PolicyError, r"'conditions'.*age, income, pa\*"),
        (pd.DataFrame({"agee": [3]}), ALLOWED, ConfigError, "Did you mean 'age'"),
        (pd.DataFrame({"paid": ["card", "crad"]}), FEW, ConfigError, "no level of this name"),
        (pd.DataFrame({"age": [30.0 + k / 400 for k in range(10_001)]}), FEW, ConfigError, "at most 10,000 different"),
    ],
)
def test_frames_that_cannot_be_had_are_refused(
    frame: pd.DataFrame, policy: SiloPolicy, error: type[Exception], rule: str, trained: Path
) -> None:
    with pytest.raises(error, match=rule):
        carry_out(framed(trained, "x", frame), ABSENT, trained, policy=policy)


def test_frames_of_messages_that_no_honest_coordinator_sends_are_refused(trained: Path) -> None:
    asked = framed(trained, "x", pd.DataFrame({"age": ["30..", "40.."]})).job
    assert asked.drawing is not None and asked.frame is not None
    with pytest.raises(ConfigError, match="where synthetic columns are shared"):
        replace(asked, config=replace(asked.config, synthesis="partitioned"))
    with pytest.raises(ConfigError, match="2 rows for 3"):
        replace(asked, rows=3)
    with pytest.raises(ConfigError, match="comes alone"):
        replace(asked.drawing, given=(GivenColumn("paid", "paid=card"),))
    with pytest.raises(ConfigError, match="of one of its kinds"):
        replace(asked.frame, kind_of=(0, 2))
    with pytest.raises(ConfigError, match="named once"):
        GivenRows(((GivenColumn("age", "age=30"), GivenColumn("age", "age=40")),), (0,))
    bank = sides(ABSENT, trained, "x", FEW)["bank"]
    begin(bank, asked)
    bank._turns._at, bank._terms = 5, None  # as if the silos had agreed
    with pytest.raises(ProtocolError, match="number of a group of rows is at least 0 and below 2"):
        bank._prepare_group(2)
    plain = sides(ABSENT, trained, "y", FEW)["bank"]
    begin(plain, given(trained, "y", "age=30..").job)
    plain._turns._at, plain._terms = 5, None
    with pytest.raises(ProtocolError, match="in their turn"):
        plain.answer(PreparePool(0))


def test_frames_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,paid,code\n60..80,"card,cash",007\n,voucher,\n35,,\n')
    said = [("age=60..80", "paid=card,cash", "code=007"), ("paid=voucher",), ("age=35",)]
    assert rows_in(tmp_path / "a.csv") == said
    (tmp_path / "a.json").write_text('[{"age": {"low": 60}, "paid": ["card"]}, {}]')
    assert rows_in(tmp_path / "a.json") == [('{"age": {"low": 60}}', '{"paid": ["card"]}'), ()]
    pd.DataFrame({"age": [35.5, None], "paid": [None, "card"]}).to_parquet(tmp_path / "a.parquet")
    assert rows_in(tmp_path / "a.parquet") == [('{"age": 35.5}',), ("paid=card",)]
    for text, says in (("{}", "a list of conditions"), ("[3]", "a list of conditions"), ("[", "must be JSON")):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(DataError, match=says):
            rows_in(tmp_path / "b.json")


@pytest.mark.parametrize("algorithm", [pytest.param("vtgan", marks=pytest.mark.slow), "mst"])
def test_other_algorithms_have_conditions_too(algorithm: str, tmp_path: Path) -> None:
    options = {
        "vtgan": {"epochs": 2, "width": 16, "generator_width": 16, "noise": 8, "batch": 30, "least_rounds": 1},
        "mst": {},
    }[algorithm]
    policy = ALLOWED.model_copy(update={"algorithms": [algorithm], "open_tables": "exact"})
    trained_with(tmp_path, same_rows(), policy, algorithm=algorithm, options=options)
    made = table(carry_out(given(tmp_path, "x", "age=30..70"), ABSENT, tmp_path, policy=policy))
    assert len(made) == 20 and made["age"].between(30, 70).all()


@pytest.mark.parametrize("rules", [(), ({"kind": "inequality", "low": "visits", "high": "age"},)])
def test_the_coordinator_draws_alone_under_conditions_that_policies_allow(rules: Any, tmp_path: Path) -> None:
    whole = customers(240)[["age", "income", "visits", "paid"]]
    silos = {f"silo{k}": Rows(whole[k::3].reset_index(drop=True)) for k in range(3)}
    policy = ALLOWED.model_copy(update={"algorithms": ["mst"], "open_tables": "exact"})
    trained_with(tmp_path, silos, policy, algorithm="mst", options={"horizontal": True}, rules=read_rules(rules))
    absent, texts = dict.fromkeys(silos, ABSENT["bank"]), ["age=40..41", "income=3000.."]
    made = table(carry_out(given(tmp_path, "x", *texts), absent, tmp_path, policy=policy))
    assert made["age"].between(40, 41).all() and (made["income"] >= 3000).all() and len(made) == 20
    model = ss.load(tmp_path / "coordinator" / "trial" / "model.silosynth")
    pd.testing.assert_frame_equal(made, model.sample(20, seed=3, given={"age": (40, 41), "income": (3000, None)}))
    frame = pd.DataFrame({"age": ["30..40", "50", "30..40"], "paid": ["card", "", "card"]})
    made = table(carry_out(framed(tmp_path, "y", frame), absent, tmp_path, policy=policy))
    assert made["age"][[0, 2]].between(30, 40).all() and made["age"][1] == 50 and (made["paid"][[0, 2]] == "card").all()
    with pytest.raises(PolicyError, match="under conditions on these columns: age, income"):
        carry_out(given(tmp_path, "z", "visits=3.."), absent, tmp_path, policy=policy)


@pytest.mark.slow
def test_columns_that_stay_are_drawn_under_conditions_and_nobody_sees_them(tmp_path: Path) -> None:
    policy = ALLOWED.model_copy(update={"share_synthetic": False})
    trained_with(tmp_path, same_rows(), policy, options={**SMALL, "synthesis": "partitioned"})
    place = carry_out(given(tmp_path, "x", "age=30..70", "paid=card,cash"), ABSENT, tmp_path, policy=policy)
    held = {silo: pd.read_parquet(tmp_path / silo / "x" / "synthetic.parquet") for silo in COLUMNS}
    parts = simulated(tmp_path).sample_parts(20, seed=3, given={"age": (30, 70), "paid": ["card", "cash"]})
    for silo in COLUMNS:
        pd.testing.assert_frame_equal(held[silo], parts[silo])
    said = {json.loads(line)["type"] for line in (place / "ledger.jsonl").read_text().splitlines()}
    assert "deployment.RowsAccepted" in said and "core.SyntheticColumns" not in said


@pytest.mark.parametrize(
    ("policy", "text", "rule"),
    [
        (OPEN, "age=30..60", "these columns: none"),
        (ALLOWED, "visits=0..9", r"these columns: age, income, pa\*"),
        (ALLOWED.model_copy(update={"conditions": ["visits"]}), "visits=0..9", "when the job trained"),
    ],
)
def test_columns_that_the_policy_does_not_name_are_refused(
    policy: SiloPolicy, text: str, rule: str, trained: Path
) -> None:
    with pytest.raises(PolicyError, match=rf"Policy rule 'conditions'.*{rule}"):
        carry_out(given(trained, "x", text), ABSENT, trained, policy=policy)


def test_what_cannot_be_read_is_refused_before_any_row(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"a column that is modelled \(got: agee\)"):
        given(trained, "x", "agee=3")
    with pytest.raises(ConfigError, match="Each column is named once"):
        given(trained, "x", "age=30", "age=40")
    with pytest.raises(ConfigError, match="no level of this name"):
        carry_out(given(trained, "x", "paid=crad"), ABSENT, trained, policy=ALLOWED)
    asked = given(trained, "y", "age=30..60").job
    assert asked.drawing is not None
    with pytest.raises(ConfigError, match="another name than the one that trained"):  # which it would take the place of
        replace(asked, name="trial")
    other = Drawing("trial", asked.drawing.seed, (GivenColumn("paid", "age=99"),))
    with pytest.raises(ProtocolError, match="on the column that the job names"):
        begin(sides(ABSENT, trained, "y", ALLOWED)["shop"], replace(asked, drawing=other))


@pytest.mark.slow
def test_where_all_is_charged_no_row_is_kept_counted_or_charged_again(tmp_path: Path) -> None:
    """Under differential privacy conditions are post-processing: an answer that hangs on rows would be none."""
    bounds = {"age": {"low": 18, "high": 80}, "income": {"low": 0, "high": 8000}, "visits": {"low": 0, "high": 40}}
    silos = {
        silo: replace(rows, declared={name: own for name, own in bounds.items() if name in COLUMNS[silo]})
        for silo, rows in same_rows().items()
    }
    policy = ALLOWED.model_copy(
        update={"algorithms": ["mst"], "least_condition_rows": 10**6, "largest_epsilon": 9.0, "public_seed": False}
    )
    target = {"dp": {"epsilon": 8.0, "delta": 1e-6}}
    trained_with(tmp_path, silos, policy, algorithm="mst", options=target, seed=None)
    before = (tmp_path / "bank" / "releases.jsonl").read_bytes()
    made = table(carry_out(given(tmp_path, "x", "age=30..70", seed=None), ABSENT, tmp_path, policy=policy))
    assert made["age"].between(30, 70).all() and len(made) == 20
    assert not (tmp_path / "bank" / "trial" / conditions.ROWS_BEHIND).exists()
    assert (tmp_path / "bank" / "releases.jsonl").read_bytes() == before


def test_latents_of_training_rows_are_not_weighed(trained: Path) -> None:
    """A coordinator has them, and would learn of each person whether she fulfils the condition."""
    asked = given(trained, "x", "age=30..70")
    bank = sides(ABSENT, trained, "x", ALLOWED)["bank"]
    kept = bank.__class__._reference
    begin(bank, asked.job)
    bank._turns._at = len(bank._turns._turns)  # as if the silos had agreed
    bank._terms = None
    bank._prepare_synthesis()
    z_GL = kept(bank)["rows"].float()[:40]
    with pytest.raises(ProtocolError, match="training rows"):
        bank.answer(WeighLatents(z_GL, "sample/seed 3/0"))


def test_the_officer_is_told_what_conditions_tell() -> None:
    learns = [one for one in exposure.exposures(ALLOWED) if one.key.startswith("conditions")]
    assert "age, income, pa*" in learns[0].learns and "least_condition_rows = 100" in learns[0].key
    assert not any(one.key.startswith("conditions") for one in exposure.exposures(OPEN))
