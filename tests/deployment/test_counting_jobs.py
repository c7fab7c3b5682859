"""Jobs that count: tables of silos' columns open as the job and every silo's policy say, and go to all silos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, Rows, customers, job, parties, run, shuffled, two_silos
from tests.deployment.test_holdout import KEY, begun

from silosynth.alignment import AlignConfig
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError, SilosynthError
from silosynth.counting import CountedColumn
from silosynth.counting.judge import JudgeConfig
from silosynth.deployment.coordinator import read_schemas
from silosynth.deployment.counted import read_counted
from silosynth.deployment.holdout import HoldoutKey
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.protocol import Job
from silosynth.privacy.events import Target
from silosynth.runtime.wire import pack, unpack

COLUMNS = (
    CountedColumn("", "age", edges=(30, 50)),
    CountedColumn("", "paid", ("card", "cash"), others=True),
    CountedColumn("", "income", edges=(2000.0, 3000.0)),
)
SETS = ((0, 1), (1, 2), (0, 2), (0, 1, 2))
EXACT = JudgeConfig(COLUMNS, SETS, "exact")
SHAPES = [[COLUMNS[place].size for place in places] for places in SETS]
FIGURES = replace(EXACT, opening="figures", references=tuple(torch.ones(shape).long() for shape in SHAPES))
NOISED = JudgeConfig(COLUMNS, SETS, "noised", Target(0.5, 1e-6), most_rows=200)
JUDGED = OPEN.model_copy(update={"algorithms": ["judge"], "open_tables": "exact", "public_seed": False, "min_count": 2})


def judging(silos: Mapping[str, Rows], config: JudgeConfig = EXACT, **changes: Any) -> Job:
    """A job that judges."""
    one = job(silos, algorithm="silofuse", seed=None, rows=None, **changes)
    return replace(one, algorithm="judge", preset="balanced", config=replace(config, holdout=bool(one.holdout)))


def pooled(silos: Mapping[str, Rows]) -> pd.DataFrame:
    """The rows that both silos have."""
    return silos["bank"].frame.merge(silos["shop"].frame, on="customer")


def crosstab(frame: pd.DataFrame, config: JudgeConfig, places: tuple[int, ...]) -> np.ndarray:
    """A set's table, counted from pooled rows: values beyond the levels are the last level but one."""
    shape, codes = [], []
    for column in (config.columns[place] for place in places):
        shape.append(column.size)
        values = frame[column.name]
        codes.append(
            np.searchsorted(column.edges, values, side="right") if column.edges
            else values.map({level: k for k, level in enumerate(column.levels)}).fillna(len(column.levels)).astype(int)
        )  # fmt: skip
    cells = np.ravel_multi_index(tuple(codes), shape)
    return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)


def test_tables_open_exactly_and_go_to_all_silos(tmp_path: Path) -> None:
    silos = two_silos(60)
    place = run(judging(silos), parties(silos, tmp_path, JUDGED), tmp_path)
    found = read_counted(place)
    assert found.result["owners"] == ["bank", "shop", "bank"] and found.result["noise"] == 0.0
    for places, table in zip(SETS, found.result["tables"], strict=True):
        assert np.array_equal(table.numpy(), crosstab(pooled(silos), EXACT, places))
    for silo in silos:
        kept = read_counted(tmp_path / silo)
        assert kept.job == found.job and kept.result["owners"] == found.result["owners"]
        assert all(map(lambda a, b: (a == b).all(), kept.result["tables"], found.result["tables"]))
        assert (
            not (tmp_path / silo / "synthetic.parquet").exists() and not (tmp_path / silo / "part.silosynth").exists()
        )
    told = json.loads((place / "result.json").read_text())
    assert told["opening"] == "exact" and told["silos"] == {"bank": ["age", "income"], "shop": ["visits", "paid"]}
    assert read_schemas(place)["bank"].names == ("age", "income")
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    reveals = {line["type"]: line["privacy"] for line in lines}
    assert reveals["deployment.CountedTables"].startswith("exact tables")
    assert "deployment.Publish" not in reveals


def test_figures_open_in_place_of_tables(tmp_path: Path) -> None:
    silos = two_silos(60)
    place = run(judging(silos, FIGURES), parties(silos, tmp_path, JUDGED), tmp_path)
    result = read_counted(place).result
    for places, (distance,), table in zip(SETS, result["distances"], result["tables"], strict=True):
        real = crosstab(pooled(silos), FIGURES, places)
        assert table is None
        assert distance == pytest.approx(((real / real.sum() - 1 / real.size) ** 2).sum(), rel=1e-4)
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    assert not any(line["privacy"].startswith("exact tables") for line in lines)
    assert any(line["type"] == "deployment.CountedFigures" for line in lines)


def test_a_silo_that_holds_none_of_the_columns_deals(tmp_path: Path) -> None:
    silos = two_silos(60)
    region = customers(60).assign(region="north")
    silos["notary"] = Rows(shuffled(region, ["region"], 3), ["customer"])
    config = replace(EXACT, dealer="notary")
    place = run(judging(silos, config), parties(silos, tmp_path, JUDGED), tmp_path)
    for places, table in zip(SETS, read_counted(place).result["tables"], strict=True):
        assert np.array_equal(table.numpy(), crosstab(pooled(silos), EXACT, places))
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    assert {"counting.SeedsDealt", "counting.TakeSeed"} <= {line["type"] for line in lines}
    assert "counting.DealSeed" not in {line["type"] for line in lines}


def test_with_a_hold_out_each_table_has_both_parts(tmp_path: Path) -> None:
    silos, policy = two_silos(100), JUDGED.model_copy(update={"min_count": 1})
    sides = parties(silos, tmp_path, policy)
    place = run(judging(silos, holdout=0.4), sides, tmp_path)
    held, order = sides["bank"]._held, sides["bank"]._order
    assert order is not None and len(held) == len(order) == len(pooled(silos))
    aligned = silos["bank"].frame.iloc[order.numpy()].merge(silos["shop"].frame, on="customer")
    for part, rows in enumerate((~held, held)):
        for places, table in zip(SETS, read_counted(place).result["tables"], strict=True):
            wanted = crosstab(aligned[rows.numpy()], EXACT, places)
            assert np.array_equal(table.numpy()[..., part], wanted)


def test_a_judging_holds_out_the_rows_that_the_training_did(tmp_path: Path) -> None:
    silos, policy = two_silos(100), JUDGED.model_copy(update={"min_count": 1})
    for silo in silos:  # rather than one drawn by chance, which may hold out few
        HoldoutKey(tmp_path / silo).keep(KEY)
    judge = parties(silos, tmp_path, policy)
    run(judging(silos, holdout=0.2), judge, tmp_path)
    begun(job(silos, holdout=0.2), train := parties(silos, tmp_path))
    order, held = judge["shop"]._order, judge["shop"]._held
    trained = set(silos["shop"].frame["customer"].iloc[train["shop"]._order.numpy()])  # type: ignore[union-attr]
    assert trained == set(silos["shop"].frame["customer"].iloc[order[~held].numpy()])  # type: ignore[index]


def test_noised_tables_are_charged_and_told_as_noised(tmp_path: Path) -> None:
    whole = customers(60)
    silos = {
        "bank": Rows(whole[["age", "income"]]),
        "shop": Rows(whole[["visits", "paid"]]),
    }
    policy = SiloPolicy(algorithms=["judge"], least_rows=10, require_alignment=False, largest_epsilon=0.55)
    place = run(judging(silos, NOISED, align=None), parties(silos, tmp_path, policy), tmp_path)
    result = read_counted(place).result
    for places, table in zip(SETS, result["tables"], strict=True):
        wanted = crosstab(whole, NOISED, places)
        assert 0 < np.abs(table.numpy() - wanted).max() < 12 * result["noise"]
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    kinds = {line["type"]: line["privacy"] for line in lines if line["from"] != "coordinator"}
    assert kinds["counting.SharesOpened"].startswith("noised") and "deployment.PreparedRows" not in kinds
    assert {line["privacy"] for line in lines if line["type"] == "deployment.NoisedTables"} == {
        "noised statistics, by the events listed"
    }
    charged = [Releases(tmp_path / silo).without("") for silo in silos]
    assert all(charged)
    again = replace(judging(silos, NOISED, align=None), name="again")
    with pytest.raises(PolicyError, match="largest_epsilon"):
        run(again, parties(silos, tmp_path, policy), tmp_path / "again")


class NoRows:
    """Of a silo that only deals: to read them fails."""

    identifiers: ClassVar[list[str]] = []
    declared: ClassVar[dict[str, Any]] = {}

    def read(self) -> pd.DataFrame:
        raise AssertionError("a dealer reads no rows")


def test_a_silo_without_rows_deals_and_is_told_nothing(tmp_path: Path) -> None:
    silos = two_silos(60)
    sides = parties({**silos, "notary": NoRows()}, tmp_path, JUDGED.model_copy(update={"min_count": 1}))  # type: ignore[dict-item]
    for side in sides.values():
        side.policy = side.policy.model_copy(update={"require_dealer": True})
    one = judging({**silos, "notary": Rows(pd.DataFrame())}, replace(EXACT, dealer="notary"), holdout=0.4)
    place = run(one, sides, tmp_path)
    for places, table in zip(SETS, read_counted(place).result["tables"], strict=True):
        assert np.array_equal(table.numpy().sum(-1), crosstab(pooled(silos), EXACT, places))
    assert not (tmp_path / "notary" / "counted.silosynth").exists()
    assert not (tmp_path / "notary" / "holdout.key").exists()
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    asked = {line["type"] for line in lines if line["to"] == "notary"}
    assert {"counting.PrepareDealing", "counting.DealBlock", "counting.FinishDealing"} <= asked
    again = parties({**silos, "notary": NoRows()}, tmp_path)["notary"]  # type: ignore[dict-item]
    again.policy = JUDGED
    again.restore(unpack(pack(sides["notary"].state())))
    assert not any(kind.startswith("alignment.") or "Holdout" in kind or "Tables" in kind for kind in asked)


@pytest.mark.parametrize("opening", ["noised", "exact"])
def test_tables_of_silos_with_different_rows_open_as_sums(opening: str, tmp_path: Path) -> None:
    whole = customers(120)
    silos = {f"branch{k}": Rows(whole[40 * k : 40 * k + 40].reset_index(drop=True), ["customer"]) for k in range(3)}
    config = replace(NOISED if opening == "noised" else EXACT, horizontal=True)
    budget = {"largest_epsilon": 0.55} if opening == "noised" else {}
    policy = JUDGED.model_copy(update={"require_alignment": True, "min_count": 1, "least_rows": 5, **budget})
    sides = parties(silos, tmp_path, policy)
    place = run(judging(silos, config, align=None, holdout=0.4), sides, tmp_path)
    held = np.concatenate([side._held.numpy() for side in sides.values()])
    result = read_counted(place).result
    for part, rows in enumerate((~held, held)):
        for places, table in zip(SETS, result["tables"], strict=True):
            off = np.abs(table.numpy()[..., part] - crosstab(whole[rows], config, places)).max()
            assert off == 0 if opening == "exact" else 0 < off < 8 * result["noise"]
    assert all(Releases(tmp_path / silo).without("") for silo in silos) is (opening == "noised")


@pytest.mark.parametrize(
    ("rule", "policy", "config", "changes"),
    [
        ("algorithms", {"algorithms": ["silofuse"]}, EXACT, {}),
        ("open_tables", {"open_tables": "noised"}, EXACT, {}),
        ("open_figures", {"open_tables": "noised"}, FIGURES, {}),
        ("open_tables", {"open_tables": "no"}, NOISED, {}),
        ("open_tables", {}, replace(EXACT, three=True), {}),
        ("require_dealer", {"require_dealer": True}, EXACT, {}),
        ("largest_epsilon", {"largest_epsilon": 50.0}, EXACT, {"align": None}),
        ("largest_epsilon", {"largest_epsilon": 0.3}, NOISED, {"align": None}),
        ("exact_rows", {"largest_epsilon": 50.0}, NOISED, {"align": AlignConfig("psi")}),
        ("require_dp", {"require_dp": True}, EXACT, {}),
        ("require_alignment", {"require_alignment": True}, EXACT, {"align": None}),
        ("min_count", {"min_count": 40}, EXACT, {}),
        ("least_rows", {"least_rows": 60}, EXACT, {}),
        ("least_rows", {"least_rows": 20, "min_count": 1}, EXACT, {"holdout": 0.1}),
        ("messages", {"messages": ["alignment.*"]}, EXACT, {}),
        ("refused", {"refused": ["counting.SharesRevealed"]}, EXACT, {}),
        ("submitters", {"submitters": ["bob"]}, EXACT, {}),
    ],
)
def test_a_silo_refuses_what_its_policy_forbids(
    tmp_path: Path, rule: str, policy: dict[str, Any], config: JudgeConfig, changes: dict[str, Any]
) -> None:
    silos = two_silos(60)
    strict = JUDGED.model_copy(update=policy)
    with pytest.raises(PolicyError, match=f"Policy rule '{rule}'"):
        run(judging(silos, config, **changes), parties(silos, tmp_path, JUDGED, shop=strict), tmp_path)


def test_the_hold_out_of_options_and_job_must_agree(tmp_path: Path) -> None:
    silos = two_silos(60)
    one = replace(judging(silos), holdout=0.2)
    with pytest.raises(ProtocolError, match="whether there is a hold-out, as the job does"):
        run(one, parties(silos, tmp_path, JUDGED), tmp_path)


def test_default_policies_count_nothing() -> None:
    """What opens tables of its rows a silo's officer allows by name."""
    assert "judge" not in SiloPolicy().algorithms and SiloPolicy().open_tables == "noised"


def test_other_options_are_refused(tmp_path: Path) -> None:
    silos = two_silos(60)
    with pytest.raises((ConfigError, SilosynthError), match="options of its own"):
        run(replace(job(silos), algorithm="judge"), parties(silos, tmp_path, JUDGED), tmp_path)
