"""Jobs of groups of silos, each divided by columns and of other rows, with silos in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import OPEN, Rows, customers, job, parties, run, seated, shuffled
from tests.deployment.test_holdout import begun

import silosynth as ss
from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, DataError, PolicyError, ProtocolError
from silosynth.core.rules import read_rules
from silosynth.core.streams import Streams
from silosynth.deployment import judging, protocol
from silosynth.deployment.coordinator import Order, order, run_order
from silosynth.deployment.kept import guarantee_of
from silosynth.deployment.label import LABEL
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.silo_ledger import ALIKE, FILE, SiloLedger, public_key, verify_file
from silosynth.encoders import summed
from silosynth.evaluation import joint, judged
from silosynth.experiment import grammar
from silosynth.privacy.sealed import seats
from silosynth.simulation.silos import InProcess

GROUPS = (("bank", "shop"), ("club",), ("mill", "fund"))
BOUNDS = {"age": {"low": 0, "high": 120}, "income": {"low": 0, "high": 500_000}, "visits": {"low": 0, "high": 200}}
DP = {"dp": {"epsilon": 0.9, "delta": 1e-5}}
HELD = {"bank": ["age", "income"], "shop": ["visits"], "club": ["income", "visits", "age"], "mill": ["visits", "age"],
        "fund": ["income"]}  # fmt: skip
TWO = OPEN.model_copy(update={"algorithms": ["mst", "aim"], "open_tables": "exact"})


def grouped(n: int = 240) -> dict[str, Rows]:
    """Two silos that link 80 customers less those that one of them lacks, one with 80 others, two more."""
    whole, silos = customers(n), {}
    for part, group in enumerate(GROUPS):
        own = whole.iloc[part * n // 3 : (part + 1) * n // 3].assign(customer=[f"c{i}" for i in range(n // 3)])
        for number, silo in enumerate(group):
            frame = shuffled(own, HELD[silo], 10 * part + number, without=4 + number if len(group) > 1 else 0)
            identifiers = ["customer"] if len(group) > 1 else []
            frame = frame if identifiers else frame.drop(columns="customer")
            silos[silo] = Rows(frame, identifiers, {name: BOUNDS[name] for name in HELD[silo]})
    return silos


def asked(silos: dict[str, Rows], options: dict[str, Any] = {}, **changes: Any) -> protocol.Job:  # noqa: B006
    given = {"algorithm": "mst", "seed": None, "rows": 40, "options": {"silo_groups": GROUPS} | options} | changes
    return job(silos, **given)


@pytest.fixture(autouse=True)
def few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed, "BUCKETS", 256)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of all, and the coordinator's, of a job without noise."""
    folder, silos, chairs = tmp_path_factory.mktemp("trained"), grouped(), seated(grouped(12))
    books = {name: SiloLedger(folder / name, "trial", chairs[name]) for name in silos}
    sides = parties(silos, folder, TWO)
    with pytest.MonkeyPatch.context() as patched, InProcess(sides, folder / "checkpoints") as link:
        patched.setattr(summed, "BUCKETS", 256)
        for name, desk in link._desks.items():
            desk._book = sides[name]._book = books[name]
        run_order(Order(asked(silos)), link, folder / "coordinator")
    return folder, folder / "coordinator"


def test_each_group_links_its_own_rows(trained: tuple[Path, Path]) -> None:
    """The same names of customers in other groups are other people."""
    folder, place = trained
    silos = grouped()
    common = [
        set(silos[a].frame.customer) & set(silos[b].frame.customer) for a, b in (("bank", "shop"), ("mill", "fund"))
    ]
    model = ss.load(place / "model.silosynth")
    assert model.rows == len(common[0]) + len(common[1]) + 80
    assert model.describe()["partition"] == "mixed" and model.config.silo_groups == GROUPS
    for silo in silos:  # every silo keeps the table that is published
        pd.testing.assert_frame_equal(
            pd.read_parquet(folder / silo / "synthetic.parquet"), pd.read_parquet(place / "synthetic.parquet")
        )
    assert list(model.sample(6, given={"age": (0, 120)}).columns) == ["age", "income", "visits"]


def test_the_model_has_the_tables_of_the_linked_rows(trained: tuple[Path, Path]) -> None:
    """Ages below and above 50 stand in the model as often as in the rows that groups have in common."""
    silos, (_, place) = grouped(), trained
    linked = []
    for group in GROUPS:
        names = [silos[silo].frame.set_index("customer") for silo in group if len(group) > 1]
        linked.append(pd.concat(names, axis=1, join="inner") if names else silos[group[0]].frame)
    rows = pd.concat([frame[["age", "income", "visits"]] for frame in linked])
    model = ss.load(place / "model.silosynth")
    drawn = model.sample(4000)
    assert abs((drawn.age < 50).mean() - (rows.age < 50).mean()) < 0.05
    real, made = (frame[["age", "income"]].corr("spearman").iloc[0, 1] for frame in (rows, drawn))
    assert real > 0.9 and abs(real - made) < 0.05


def test_silos_were_asked_the_same_but_for_what_is_of_their_group(trained: tuple[Path, Path]) -> None:
    """Ledgers fit together, although groups link rows, agree on secrets and count apart."""
    folder, chairs = trained[0], seated(grouped(12))
    for silo, chair in chairs.items():
        verdict = verify_file(folder / silo / FILE, key=public_key(chair), job="trial", silo=silo)
        assert verdict.faults == () and set(verdict.heads) == set(chairs) - {silo}
        lines = [json.loads(line) for line in (folder / silo / FILE).read_text().splitlines()]
        assert [line["verdict"] for line in lines if line.get("kind") == "compared"] == [ALIKE]
        linking = {line["type"] for line in lines if line.get("type", "").startswith("alignment.")}
        assert bool(linking) is (silo != "club") and "alignment.TagRows" not in linking


def test_a_record_of_what_groups_have_spent(tmp_path: Path) -> None:
    """All that a row of a group counts in is in the record of each of its silos, which ends further jobs."""
    silos = grouped()
    policy = TWO.model_copy(update={"largest_epsilon": 1.0, "open_tables": "noised", "exact_rows": True})
    sides = parties(silos, tmp_path, policy)
    place = run(asked(silos, DP, align=AlignConfig("psi")), sides, tmp_path)
    stated = ss.load(place / "model.silosynth").describe()["privacy"]["release"]
    assert 0.5 < stated["epsilon"] <= 0.9 and stated["rows"] == "one group's tables, all its silos together"
    label = json.loads((place / LABEL).read_text())
    assert label["facts"]["guarantee"].endswith("per row of one group's tables, all its silos together")
    with pytest.raises(PolicyError, match="largest_epsilon"):
        run(asked(silos, DP, align=AlignConfig("psi"), name="again"), sides, tmp_path / "again")


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, "the aligned table, all silos together"), ({"horizontal": True}, "one silo's table"),
        ({"silo_groups": GROUPS}, "one group's tables, all its silos together"),
    ],
)  # fmt: skip
def test_a_guarantee_says_of_what_a_row_is(options: dict[str, Any], rows: str) -> None:
    config = catalog.algorithm("mst").configure("fast", options | DP)
    assert str(guarantee_of("mst", config, None)).endswith(f"per row of {rows}")


@pytest.mark.parametrize("changed", ["lacking", "twice"])
def test_columns_are_compared_before_any_row_is_linked(tmp_path: Path, changed: str) -> None:
    silos = grouped()
    if changed == "lacking":
        silos["fund"].frame["wages"] = silos["fund"].frame.pop("income")
    else:
        silos["fund"].frame["age"] = 4
    sides = parties(silos, tmp_path, TWO)
    match = r"Every group.*bank and shop: without wages" if changed == "lacking" else "age: in mill and fund"
    with pytest.raises(ConfigError, match=match):
        run(asked(silos), sides, tmp_path)
    assert all(side._aligner is None or not side._aligner.asked for side in sides.values())


def test_what_such_jobs_do_not_do(tmp_path: Path) -> None:
    silos = grouped()
    with pytest.raises(ConfigError, match="name all silos of a job, each once"):
        asked(silos, {"silo_groups": GROUPS[:2]})
    for changes, rule in (
        ({"require_dealer": True}, "require_dealer"), ({"psi_queries": 0}, "psi_queries"),
        ({"largest_epsilon": 1.0}, "exact_rows"), ({"require_dp": True}, "require_dp"),
    ):  # fmt: skip
        policy = SiloPolicy.model_validate(TWO.model_dump() | changes)
        with pytest.raises(PolicyError, match=f"'{rule}'"):
            policy.check_job(asked(silos, DP if rule == "exact_rows" else {}, align=AlignConfig("psi")), "alice")
    policy = TWO.model_copy(update={"require_alignment": True})
    with pytest.raises(PolicyError, match="'require_alignment'"):
        policy.check_job(asked(silos, align=None), "alice")


# Rows that are held out, rules, and a report.


def persons(rows: Rows, side: DeploymentSilo) -> set[str]:
    """Whom a silo trains on."""
    assert side._order is not None
    return set(rows.frame["customer"].iloc[side._order.numpy()])


def of_groups(silos: dict[str, Rows], folder: Path, **changes: Any) -> dict[str, set[str]]:
    """Whom silos that link rows train on."""
    begun(asked(silos, **changes), sides := parties(silos, folder, TWO))
    return {silo: persons(silos[silo], sides[silo]) for silo in silos if "customer" in silos[silo].frame}


def test_silos_of_a_group_hold_out_the_same_persons_by_a_key_of_their_own(tmp_path: Path) -> None:
    everybody = of_groups(grouped(), tmp_path / "all")
    first, later = of_groups(grouped(), tmp_path, holdout=0.25), of_groups(grouped(), tmp_path, holdout=0.25, name="b")
    assert first == later and first["bank"] == first["shop"] < everybody["bank"] and first["mill"] == first["fund"]
    assert all(0.55 < len(first[silo]) / len(everybody[silo]) < 0.95 for silo in first)
    keys = {silo: (tmp_path / silo / "holdout.key").read_bytes() for silo in first}
    assert keys["bank"] == keys["shop"] != keys["mill"] == keys["fund"]
    assert not (tmp_path / "club" / "holdout.key").exists()  # alone, it goes by its own
    half = of_groups(grouped(), tmp_path, sample=0.5, name="half")
    assert half["bank"] == half["shop"] < everybody["bank"] and half["mill"] == half["fund"] < everybody["mill"]


def test_no_silo_of_another_group_opens_the_key(tmp_path: Path) -> None:
    """Even if the coordinator hands it on: it is sealed by a secret of the group."""
    silos, taken = grouped(), list[Any]()

    def change(silo: str, ask: Any) -> Any:
        if isinstance(ask, protocol.RelayedGroupKeys):
            taken.append(ask)
            return taken[0]  # those of bank and shop
        return ask

    with pytest.raises(ProtocolError, match=r"is told what every silo keeps|opens with its secret"):
        begun(asked(silos, holdout=0.25), parties(silos, tmp_path, TWO), change)
    assert len(taken) > 1


def test_a_silo_that_holds_out_others_than_its_group_is_found(tmp_path: Path) -> None:
    silos = grouped()
    sides = parties(silos, tmp_path, TWO)

    def change(silo: str, ask: Any) -> Any:
        if silo == "fund" and isinstance(ask, protocol.AskHoldoutTag):
            sides[silo]._held = ~sides[silo]._held
        return ask

    with pytest.raises(ProtocolError, match=r"hold out the same ones.*not fund"):
        begun(asked(silos, holdout=0.25), sides, change)


RULES = [{"kind": "inequality", "low": "visits", "high": "age"}, {"kind": "range", "column": "age", "high": 70}]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, DeploymentSilo]]:
    """The folder of a job without noise that holds rows out and has rules, and its silos."""
    folder, silos = tmp_path_factory.mktemp("held"), grouped()
    sides, rules = parties(silos, folder, TWO), read_rules(RULES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(summed, "BUCKETS", 256)
        place = run(job := asked(silos, holdout=0.25, rules=rules), sides, folder)
    Order(job).keep(place)
    return folder, sides


def test_rules_are_kept_whichever_silos_have_their_columns(held: tuple[Path, dict[str, DeploymentSilo]]) -> None:
    folder, _ = held
    silos, made = grouped(), pd.read_parquet(folder / "coordinator" / "synthetic.parquet")
    assert (made["visits"] <= made["age"]).all() and made["age"].max() <= 70 and len(made) == 40
    assert max(own.frame["age"].max() for own in silos.values() if "age" in own.frame) > 70  # which real rows break
    model = ss.load(folder / "coordinator" / "model.silosynth")
    drawn = model.sample(200)
    assert (drawn["visits"] <= drawn["age"]).all() and drawn["age"].max() <= 70 and model.acceptance < 1


def test_combinations_are_not_learnt(tmp_path: Path) -> None:
    silos = grouped()
    rules = read_rules([{"kind": "combination", "columns": ["age", "visits"], "learn": True}])
    with pytest.raises(ConfigError, match="List those that are allowed"):
        begun(asked(silos, rules=rules), parties(silos, tmp_path, TWO))


def test_the_table_is_judged_by_all_groups_and_rows_that_were_held_out(
    held: tuple[Path, dict[str, DeploymentSilo]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every silo has the report of the pooled rows, although nobody has seen one group's table."""
    monkeypatch.setattr(judged, "DRAWS", 5)
    folder, trained_sides = held
    place, silos = folder / "coordinator", grouped()
    synthetic = pd.read_parquet(place / "synthetic.parquet")
    terms = judging.terms_of(place)
    assert terms.groups == GROUPS and terms.holdout == 0.25
    options = judging.JudgeOptions("exact", levels=4, target="visits")
    order = judging.judging_order(synthetic, options, terms, Roster(tuple(silos)), "coordinator", "trial-judged")
    policy = TWO.model_copy(update={"algorithms": ["judge"], "min_count": 1, "least_rows": 1})  # chance holds rows out
    sides = parties(silos, folder, policy)
    with InProcess(sides, tmp_path / "checkpoints") as link:
        run_order(order, link, tmp_path / "coordinator")
    pooled = []
    for group in GROUPS:
        columns = {name: (silo, name) for silo in group for name in HELD[silo]}
        orders = {silo: sides[silo]._order for silo in group}
        rows = {
            s: silos[s].frame if order is None else silos[s].frame.iloc[order.numpy()] for s, order in orders.items()
        }
        joined = pd.DataFrame({name: rows[silo][name].to_numpy() for name, (silo, _) in sorted(columns.items())})
        assert len({tuple(sides[silo]._held.tolist()) for silo in group}) == 1
        pooled.append(joined.assign(out=sides[group[0]]._held.numpy()))
        assert int((~sides[group[0]]._held).sum()) == trained_sides[group[0]]._n_rows  # the rows that it trained on
    whole = pd.concat(pooled)
    made = joint.planned(synthetic, order.job.config.columns, order.job.config.sets, "visits")  # type: ignore[attr-defined]
    parts = [whole[flags].drop(columns="out") for flags in (~whole["out"], whole["out"])]
    expected = judged.judge_tables(joint.count_pooled(made, *parts), synthetic)
    for where in (tmp_path / "coordinator", folder / "club", folder / "fund"):
        found = judging.judged_report(where, synthetic)
        assert found.to_frame().equals(expected.to_frame()) and found.rows == expected.rows
        assert found.about.counted is not None and found.about.counted["groups"] == "bank and shop; club; mill and fund"


def test_who_judges_a_table_of_groups(held: tuple[Path, dict[str, DeploymentSilo]]) -> None:
    terms = judging.terms_of(held[0] / "coordinator")
    one = judging.changed(terms, ["mill", "fund"], None, None)
    assert one.groups == () and not one.horizontal and set(one.schemas or ()) == {"mill", "fund"}
    with pytest.raises(ConfigError, match=r"by all of them, or by the silos of one group.*bank and shop; club"):
        judging.changed(terms, ["bank", "fund"], None, None)
    synthetic, roster = grouped()["club"].frame, Roster(tuple(grouped()))
    job = judging.judging_order(synthetic, judging.JudgeOptions(), terms, roster, "coordinator", "x").job
    policy = TWO.model_copy(update={"algorithms": ["judge"], "open_tables": "noised", "require_dealer": True})
    with pytest.raises(PolicyError, match=r"'require_dealer'.*Name the silos of one group, and a dealer"):
        policy.check_job(job, "alice")


EXPERIMENT = "".join(f'[silos.{silo}]\ngroup = "{n}"\npath = "x.csv"\n' for n, g in enumerate(GROUPS) for silo in g)


def test_an_experiment_names_groups(tmp_path: Path) -> None:
    roster = next(iter(seats([silo for group in GROUPS for silo in group], Streams(1)).values())).roster
    (tmp_path / "plan.toml").write_text(EXPERIMENT + '[algorithm]\nname = "aim"\n')
    made = order(grammar.read(tmp_path / "plan.toml"), roster, "alice").job
    assert protocol.silo_groups(made) == GROUPS and made.align == AlignConfig("psi") and protocol.horizontal(made)
    assert [protocol.links(made, silo) for silo in ("shop", "club", "fund")] == [True, False, True]
    (tmp_path / "plan.toml").write_text(EXPERIMENT + '[algorithm]\nname = "silofuse"\n')
    with pytest.raises(ConfigError, match="For these there are: mst, aim"):
        order(grammar.read(tmp_path / "plan.toml"), roster, "alice")
    more = '[algorithm]\nname = "aim"\n[split]\nholdout = 0.2\n[judge]\nepsilon = 1.0\n'
    (tmp_path / "plan.toml").write_text(EXPERIMENT + more)
    assert order(grammar.read(tmp_path / "plan.toml"), roster, "alice").job.holdout == 0.2


def test_silos_without_identifiers_cannot_link(tmp_path: Path) -> None:
    silos = grouped()
    silos["mill"] = Rows(silos["mill"].frame.drop(columns="customer"), [], BOUNDS)
    with pytest.raises(DataError, match=r"columns that each silo's silo.toml names as identifiers"):
        run(asked(silos), parties(silos, tmp_path, TWO), tmp_path)
