"""What a silo's columns say of each other holds in decoded rows, and nothing is found that chance explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.core.messages import to_state
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.encoders.column import RARE, EncoderConfig, HeadEncoder
from silosynth.encoders.combinations import repair
from silosynth.encoders.normalised import ModeConfig
from silosynth.encoders.table import TableCoder
from silosynth.runtime.wire import pack, unpack

ROWS = 2000


def coder(data: pd.DataFrame, schema: dict[str, Any] | None = None, kept: tuple[str, ...] = (), **options: Any):
    """A fitted coder of a table in one silo; `modes` among the options gives modes."""
    federation = ss.simulate(data, silos={"a": list(data)}, schema=schema)
    made = TableCoder(federation.tables["a"], federation.schemas["a"], Streams(3))
    modes = options.pop("modes", False)
    config = ModeConfig(modes=3, **options) if modes else EncoderConfig(**options)
    made.fit(config, kept=kept)
    return made


def shuffled(made: TableCoder, rows: int = ROWS) -> tuple[Table, pd.DataFrame]:
    """Decoded rows whose encoded columns are independent, as from a model that has learnt nothing of them."""
    levels, scores = made.encode()
    rng = torch.Generator().manual_seed(0)

    def mixed(of: torch.Tensor) -> torch.Tensor:
        columns = [column[torch.randperm(len(of), generator=rng)[:rows]] for column in of.T]
        return torch.stack(columns, 1) if columns else of[:rows]

    table = made.decode(mixed(levels), mixed(scores), Streams(4))
    return table, pd.DataFrame({column.name: values(column) for column in table.columns})


def values(column: Any) -> list[Any]:
    plain = column.values.tolist() if column.levels is None else [(*column.levels, None)[v] for v in column.values]
    return [None if gone else value for value, gone in zip(plain, column.missing.tolist(), strict=True)]


def rules(made: TableCoder) -> list[tuple[str, str, bool]]:
    return [(rule.keys.name, rule.values.name, rule.modelled) for rule in made.determined]


def shop(rows: int = ROWS) -> pd.DataFrame:
    """Code → name and price; name ↔ code; code → group: a chain; and `age` → `group of age`."""
    rng = np.random.default_rng(1)
    code = rng.integers(100, 110, rows)
    age = rng.integers(18, 90, rows)
    return pd.DataFrame(
        {
            "code": code,
            "age": age,
            "name": [f"thing {c}" for c in code],
            "price": np.round(code * 1.37 + 0.11, 2),
            "group": np.where(code < 104, "small", "large"),
            "old": np.where(age >= 65, "old", "young"),
            "free": rng.choice(["x", "y"], rows),
        }
    )


@pytest.mark.parametrize("modes", [False, True])
def test_dependencies_hold_in_all_rows_however_little_a_model_learns(modes: bool) -> None:
    data = shop()
    made = coder(data, modes=modes)
    assert rules(made) == [
        ("name", "code", False),
        ("code", "price", False),
        ("price", "group", False),
        ("age", "old", False),
    ]
    assert [encoder.name for encoder in made.encoders] == ["age", "name", "free"]
    table, back = shuffled(made)
    assert table.names == made.table.names
    for by, of in (("code", "name"), ("name", "code"), ("code", "price"), ("code", "group")):
        assert set(zip(back[by], back[of], strict=True)) == set(zip(data[by], data[of], strict=True))
    assert ((back["age"] >= 65) == (back["old"] == "old")).all()


def test_what_is_ignored_is_modelled() -> None:
    made = coder(shop(), dependencies="ignore")
    assert rules(made) == [] and made.barred == ()
    assert [encoder.name for encoder in made.encoders] == list(made.table.names)


def test_a_kept_column_determines_its_like_and_is_modelled_whatever_determines_it() -> None:
    made = coder(shop(), kept=("code", "group"))
    assert ("code", "name", False) in rules(made)
    encoded = [encoder.name for encoder in made.encoders]
    assert "code" in encoded and "group" in encoded and "name" not in encoded
    _, back = shuffled(made)
    assert ((back["code"] < 104) == (back["group"] == "small")).all()


def test_missing_is_a_value_of_its_own() -> None:
    data = shop()
    data["price"] = data["price"].where(data["code"] != 105)
    data["name"] = data["name"].where(data["code"] != 107)
    made = coder(data)
    _, back = shuffled(made)
    assert (pd.isna(back["price"]) == (back["code"] == 105)).all() and pd.isna(back["price"]).any()
    assert (pd.isna(back["name"]) == (back["code"] == 107)).all() and pd.isna(back["name"]).any()


def towns(rare_in_one_land: bool) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    town = np.array([f"town {i}" for i in rng.integers(0, 12, ROWS)], dtype=object)
    for i in range(12):
        town[3 * i : 3 * i + 3] = f"hamlet {i}"  # each held by three rows: pooled
    number = pd.Series(town).str.extract(r"(\d+)")[0].astype(int)
    land = np.where(number % 2 == 0, "North", "South")
    if rare_in_one_land:
        land = np.where(pd.Series(town).str.startswith("hamlet"), "North", land)
    return pd.DataFrame({"town": town, "land": land, "free": rng.choice(["x", "y"], ROWS)})


def test_rare_levels_determine_only_where_they_really_do() -> None:
    made = coder(towns(rare_in_one_land=True))
    assert rules(made) == [("town", "land", False)]
    _, back = shuffled(made)
    assert (back["land"][back["town"] == RARE] == "North").all() and (back["town"] == RARE).any()

    made = coder(towns(rare_in_one_land=False))
    assert rules(made) == [("town", "land", True)]
    _, back = shuffled(made)
    assert set(back["land"][back["town"] == RARE]) == {"North", "South"}
    common = back[back["town"] != RARE]
    assert set(zip(common["town"], common["land"], strict=True)) <= set(
        zip(towns(False)["town"], towns(False)["land"], strict=True)
    )


@pytest.mark.parametrize("rare_in_one_land", [False, True])
def test_no_value_of_too_few_rows_is_kept(rare_in_one_land: bool) -> None:
    state = pack({"state": coder(towns(rare_in_one_land)).state()})
    assert b"hamlet" not in state and b"town 3" in state


def test_of_numbers_too_a_table_names_common_values_only() -> None:
    data = shop()
    data.loc[:2, ["code", "name", "price"]] = 777, "thing 777", 4321.5
    data.loc[:2, "group"] = "large"
    made = coder(data)
    keys = [float(v) for rule in made.determined for column in (rule.keys, rule.values) for v in column.values]
    assert 777 not in keys and 4321.5 not in keys and len(keys) > 20
    assert "thing 777" not in {level for rule in made.determined for level in rule.keys.levels or ()}


def test_numbers_between_the_common_ones_go_with_the_nearest() -> None:
    rng = np.random.default_rng(3)
    age = np.concatenate([rng.integers(18, 90, ROWS), [91, 93, 14]])
    made = coder(pd.DataFrame({"age": age, "band": np.where(age >= 65, "old", np.where(age >= 30, "adult", "young"))}))
    assert rules(made) == [("age", "band", False)]
    _, back = shuffled(made)
    assert (back["band"] == np.where(back["age"] >= 65, "old", np.where(back["age"] >= 30, "adult", "young"))).all()


def test_a_boundary_that_single_rows_draw_is_not_kept() -> None:
    pay = np.random.default_rng(4).normal(0, 1, ROWS)
    assert rules(coder(pd.DataFrame({"pay": pay, "rich": pay > 1}))) == []


def test_one_row_that_disagrees_ends_a_dependency() -> None:
    data = shop()
    data.loc[5, "group"] = "large" if data.loc[5, "group"] == "small" else "small"
    assert "group" not in [of for _, of, _ in rules(coder(data))]


@pytest.mark.parametrize("rows", [4, 10, 20, 40])
def test_chance_is_not_taken_for_a_dependency(rows: int) -> None:
    """Columns with no relation at all; some of which show a dependency, in tables as small as these."""
    shown = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame({f"c{i}": rng.permutation(["x", "y"] * (rows // 2)) for i in range(6)})
        data["seldom"] = rng.permutation([*["x"] * (rows - 1), "y"])
        shown += sum(data.groupby(f"c{i}")[f"c{j}"].nunique().max() == 1 for i in range(6) for j in range(i))
        assert rules(coder(data, min_count=1)) == []
    assert shown > 0 or rows > 4


def test_a_column_that_is_nearly_constant_is_no_dependant_of_columns_of_many_values() -> None:
    rng = np.random.default_rng(5)
    many = rng.integers(0, 40, 1000)
    data = pd.DataFrame({"many": [f"m{i}" for i in many], "few": np.where(many == 7, "x", "y")})
    found = rules(coder(data))
    assert found == [("many", "few", False)]  # 25 rows or so: no accident
    data["few"] = np.where(np.arange(1000) == 0, "x", "y")
    assert rules(coder(data)) == []


def test_numbers_keep_within_declared_bounds() -> None:
    made = coder(shop(), schema={"price": {"low": 0, "high": 145.0}})
    _, back = shuffled(made)
    assert back["price"].max() == 145.0
    big = 2**60 + np.arange(10)[np.random.default_rng(0).integers(0, 10, ROWS)]
    data = pd.DataFrame({"name": [f"n{v}" for v in big], "big": big})
    made = coder(data, schema={"big": {"kind": "integer", "low": 2**59, "high": 2**62}})
    assert rules(made) == [("name", "big", False)]
    assert set(shuffled(made)[1]["big"]) == set(big.tolist())


def couples(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(6)
    role = rng.choice(["husband", "wife", "child", "alone"], rows, p=[0.4, 0.2, 0.2, 0.2])
    sex = np.where(role == "husband", "m", np.where(role == "wife", "f", rng.choice(["f", "m"], rows)))
    sex[np.flatnonzero(role == "husband")[0]] = "f"  # one real row
    married = np.where(np.isin(role, ["husband", "wife"]), "yes", rng.choice(["no", "once"], rows))
    return pd.DataFrame({"role": role, "sex": sex, "married": married, "free": rng.choice(["x", "y"], rows)})


def test_pairs_that_do_not_occur_are_repaired() -> None:
    data = couples()
    made = coder(data)
    _, back = shuffled(made)
    pairs = {("husband", "f"), ("wife", "m")}
    assert not pairs & set(zip(back["role"], back["sex"], strict=True))
    married = set(zip(data["role"], data["married"], strict=True))
    assert set(zip(back["role"], back["married"], strict=True)) <= married


def test_a_repair_changes_few_rows_and_leaves_the_others() -> None:
    made = coder(couples())
    levels, _ = made.encode()
    moved = (repair(levels, made.barred, np.random.default_rng(0)) != levels).any(1)
    assert int(moved.sum()) == 1  # the one real row that holds a barred pair


def test_a_repair_asks_all_other_columns() -> None:
    """A level is drawn that goes with all of them: no pair is barred afterwards, however mixed the rows were."""
    made = coder(couples())
    rng = np.random.default_rng(0)
    levels = torch.from_numpy(np.stack([rng.integers(0, e.width, 500) for e in made.encoders if e.width > 1], 1))
    back = repair(levels, made.barred, rng)
    for rule in made.barred:
        assert not rule.barred[back[:, rule.first], back[:, rule.second]].any()


def test_pairs_that_are_merely_seldom_are_left_alone() -> None:
    rng = np.random.default_rng(7)
    data = pd.DataFrame({name: rng.choice(["a", "b", "c"], 300, p=[0.8, 0.15, 0.05]) for name in "pqr"})
    assert coder(data).barred == ()  # "c" with "c" occurs in no row or two, of 0.75 that are expected


def test_state_restores_all_that_decoding_needs() -> None:
    for data in (shop(), towns(False), couples()):
        made = coder(data)
        levels, scores = made.encode()
        again = TableCoder(Table(()), made.schema, Streams(9))
        again.restore(unpack(pack({"state": made.state()}))["state"])
        first, second = (to_state(one.decode(levels, scores, Streams(4))) for one in (made, again))
        assert pack(first) == pack(second)


def test_columns_come_back_in_their_order_and_dtypes() -> None:
    data = shop()
    data["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(data["code"], unit="D")
    data["truth"] = data["code"] > 104
    data["size"] = pd.Categorical(np.where(data["code"] > 107, "XL", "S"), categories=["S", "M", "XL"], ordered=True)
    model = ss.fit("tvae", ss.simulate(data, silos={"a": list(data)}), preset="fast", seed=0,
                   options={"epochs": 1, "least_steps": 1}, progress=False)  # fmt: skip
    back = model.sample(300)
    assert back.dtypes.astype(str).tolist() == data.dtypes.astype(str).tolist()
    assert list(back) == list(data)
    known = set(map(tuple, data.drop(columns=["age", "old", "free"]).astype(str).to_numpy()))
    assert set(map(tuple, back.drop(columns=["age", "old", "free"]).astype(str).to_numpy())) <= known


def test_of_more_categories_than_are_learnt_those_are_drawn_that_go_with_the_rest_of_a_row() -> None:
    rng = np.random.default_rng(4)
    town = np.minimum(rng.exponential(60, 6000).astype(int), 299)
    places = pd.DataFrame({"town": [f"town {t:03d}" for t in town], "region": [f"region {t // 100}" for t in town]})
    places["height"] = town % 50 * 2.5
    places.loc[town % 50 == 3, "height"] = np.nan
    made = coder(places, most_categories=40)
    assert isinstance(made.encoders[0], HeadEncoder) and len(made.encoders[0].others) > 150
    assert {("town", "region", True), ("town", "height", True)} <= set(rules(made))
    back = made.decode(*made.encode(), Streams(1))
    drawn, region, height = (values(back[name]) for name in ("town", "region", "height"))
    assert region == places["region"].to_list() and pd.Series(height).equals(places["height"])
    known = [place for place, name in enumerate(drawn) if name != RARE]
    assert len(known) > 5000 and all(int(drawn[place][5:]) // 100 == int(region[place][7:]) for place in known)
    as_it_was = np.mean([drawn[place] == f"town {town[place]:03d}" for place in known])
    assert 0.4 < as_it_was < 0.95  # others of the same region and height are drawn
    again = made.decode(*made.encode(), Streams(2))
    assert values(again["town"]) != drawn


def test_a_column_of_fewer_values_is_modelled_beside_categories_of_which_some_are_drawn() -> None:
    rng = np.random.default_rng(4)
    town = rng.integers(0, 300, 6000)
    places = pd.DataFrame({"town": [f"town {t:03d}" for t in town], "code": [f"{7 * t}" for t in town]})
    places["region"] = [f"region {t % 7}" for t in town]
    made = coder(places, {"code": "categorical"}, most_categories=40)
    assert rules(made) == [("town", "code", False), ("code", "region", True)]
    back = made.decode(*made.encode(), Streams(1))
    drawn, code, region = (values(back[name]) for name in ("town", "code", "region"))
    assert region == places["region"].to_list() and drawn != places["town"].to_list()
    assert all(
        int(c) == 7 * int(t[5:]) and int(t[5:]) % 7 == int(r[7:]) for t, c, r in zip(drawn, code, region, strict=True)
    )
    assert rules(coder(places, {"code": "categorical"}, most_categories=400))[1] == ("code", "region", False)
