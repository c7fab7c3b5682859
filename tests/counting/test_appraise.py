"""Appraising: groups are counted across silos and open for one target; a coordinator that wants more gets nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from tests.counting.talk import restore

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Roster
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CellNoise, appraise, opening, protocol
from silosynth.counting.appraise import AppraiseConfig, AppraisingSilo, DescribedColumn
from silosynth.privacy.accounting import affords
from silosynth.privacy.events import DISCRETE_GAUSSIAN, Event, Target
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import decode, encode, pack, unpack
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
SILOS, ROWS = ("bank", "clinic", "shop"), 400
RNG = np.random.default_rng(2)
HELD = {"bank income": RNG.normal(0, 1, ROWS), "clinic ill": RNG.integers(0, 3, ROWS), "shop age": np.arange(ROWS)}
CONFIG = AppraiseConfig(Target(20.0, 1e-5), groups=4, most_rows=1024)


def column(name: str, values: np.ndarray) -> tuple[Column, ColumnSchema]:
    number = not name.startswith("clinic")
    kind, dtype = ("continuous", "float64") if number else ("categorical", "str")
    levels = None if number else tuple(f"secret{i}" for i in range(3))
    held = torch.from_numpy(values.astype(np.float64) if number else values)
    missing = torch.zeros(len(values), dtype=torch.bool)
    return Column(name, dtype, held, missing, levels), ColumnSchema(name, kind, dtype)


def parties(config: AppraiseConfig = CONFIG, held: Mapping[str, np.ndarray] = HELD) -> dict[str, AppraisingSilo]:
    made, found = seats(SILOS, Streams(7).child("seats")), {}
    for number, silo in enumerate(SILOS):
        own = [column(name, values) for name, values in held.items() if name.startswith(silo)]
        table, schema = Table(tuple(one for one, _ in own)), Schema(tuple(one for _, one in own))
        found[silo] = AppraisingSilo(table, schema, made[silo], Streams(number), CPU, config)
    return found


def appraised(
    silos: Mapping[str, AppraisingSilo], config: AppraiseConfig = CONFIG, ledger: Ledger | None = None, seed: int = 9,
    state: Any = None,
) -> dict[str, Any]:  # fmt: skip
    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from appraise.coordinate(Roster(SILOS), config, Streams(seed), CPU, state))

    with InProcess(dict(silos)) as link:
        return drive(whole, link, Ledger() if ledger is None else ledger)


@pytest.fixture(scope="module")
def told() -> tuple[dict[str, AppraisingSilo], dict[str, Any], Ledger]:
    silos, ledger = parties(), Ledger()
    return silos, appraised(silos, ledger=ledger), ledger


def test_tables_are_of_groups_of_columns_in_different_silos(told: Any) -> None:
    silos, found, _ = told
    assert [(one["silo"], one["name"], one["number"]) for one in found["columns"]] == [
        ("bank", "bank income", True), ("clinic", "clinic ill", False), ("shop", "shop age", True),
    ]  # fmt: skip
    assert found["pairs"] == [[0, 1], [0, 2], [1, 2]] and found["noise"] < 6
    for (a, b), table in zip(found["pairs"], found["tables"], strict=True):
        codes = [silos[found["columns"][place]["silo"]]._groups[0].numpy() for place in (a, b)]
        counted = np.bincount(codes[0] * 4 + codes[1], minlength=16).reshape(4, 4)
        error = table.numpy() - counted
        assert table.dtype is torch.int64 and error.any() and np.abs(error).max() < 6 * found["noise"]


def test_all_silos_events_together_cost_at_most_the_target(told: Any) -> None:
    silos, found, ledger = told
    events = [event for entry in ledger.entries() for event in entry.get("events", ())]
    made = {Event(**event) if isinstance(event, dict) else event for event in events}
    tables = [event for event in made if event.joint]
    assert len(tables) == 3 and {event.mechanism for event in made} == {DISCRETE_GAUSSIAN}
    plan = appraise.plan_noise(CONFIG, silos["bank"]._columns)
    assert {event for event in made if not event.joint} == set(plan.events)
    assert affords(CONFIG.dp, [*plan.events, *tables])
    assert found["noise"] == pytest.approx(tables[0].noise * 1.5**0.5)
    for silo in silos.values():  # what a silo holds itself to, with what other silos' groups cost
        assert affords(CONFIG.dp, silo._counter.events) and set(plan.events) < set(silo._counter.events)


def test_noise_is_no_more_than_the_target_takes() -> None:
    config = replace(CONFIG, dp=Target(0.5, 1e-6))
    plan = appraise.plan_noise(config, (OWN, OTHER))
    tables = plan.tables.event("", True, 1e-6)
    assert affords(config.dp, [*plan.events, tables])
    assert not affords(config.dp, [*plan.events, replace(tables, noise=0.98 * tables.noise)])


def test_noise_of_tables_has_the_variance_of_their_events() -> None:
    """Errors of 1 200 cells: to the coordinator as the events say, passed on half more."""
    config = AppraiseConfig(Target(4.0, 1e-5), groups=20, most_rows=1024)
    errors, plan = [], appraise.plan_noise(config, tuple(one for silo in parties(config).values() for one in silo._own))
    silos = parties(config)
    found = appraised(silos, config)
    for (a, b), table in zip(found["pairs"], found["tables"], strict=True):
        codes = [list(silos.values())[place]._groups[0].numpy() for place in (a, b)]
        errors.append(table.numpy() - np.bincount(codes[0] * 20 + codes[1], minlength=400).reshape(20, 20))
    assert np.std(errors) == pytest.approx(plan.tables.deviation(3), rel=0.08)
    assert plan.tables.deviation(2) == plan.tables.event("", True, 1e-5).noise
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(1200)


@pytest.mark.slow
def test_who_knows_all_but_one_row_tells_whether_it_is_there_as_seldom_as_said() -> None:
    """Of 120 appraisals with and 120 without a row whose groups are known, by the cells that it would be in.

    The best that noise of the events allows is that of Gaussian noise on a shift of the row's length in all tables.
    """
    config, seen = AppraiseConfig(Target(6.0, 1e-5), groups=2, most_rows=1024), {True: [], False: []}
    half = np.arange(60) % 2 == 0
    held = {"bank income": np.where(half, -50.0, 50.0), "clinic ill": half * 1, "shop age": np.where(half, 1.0, 900.0)}
    for seed in range(120):
        for there, rows in ((True, held), (False, {name: values[1:] for name, values in held.items()})):
            silos = parties(config, rows)
            for number, silo in enumerate(silos.values()):
                silo._streams = Streams(10 * seed + 3 * there + number)
                silo._counter._streams = silo._streams.child("tables")
            found = appraised(silos, config, seed=2 * seed + there)
            codes = [silo._groups[0][2 - (not there)].item() for silo in silos.values()]  # of a row alike
            cells = [
                table[codes[a], codes[b]].item() for (a, b), table in zip(found["pairs"], found["tables"], strict=True)
            ]
            seen[there].append(sum(cells))
    area = (
        np.mean(np.subtract.outer(seen[True], seen[False]) > 0) + np.mean(np.equal.outer(seen[True], seen[False])) / 2
    )
    plan = appraise.plan_noise(config, tuple(one for silo in parties(config).values() for one in silo._own))
    told = norm.cdf(3**0.5 / plan.tables.deviation(2) / 2**0.5)  # with the noise that a silo or the coordinator faces
    assert 0.55 < area < told + 0.08


def test_nothing_leaves_a_silo_but_names_and_noise(told: Any) -> None:
    _, _, ledger = told
    known = {Release.NOTHING.value, Release.SCHEMA.value, Release.SEALED.value, Release.NOISED.value}
    assert {entry["privacy"] for entry in ledger.entries()} <= known


def test_no_level_is_in_any_message() -> None:
    silos, said = parties(), []
    talk(silos, said.append)
    assert len(said) > 20 and not any(b"secret" in encode(message) for message in said)


def talk(silos: Mapping[str, AppraisingSilo], heard: Callable[[Message], object] = bool, until: type = object) -> Any:
    """Drive by hand, up to a step of this kind."""
    conversation, got = appraise.coordinate(Roster(SILOS), CONFIG, Streams(9), CPU), None
    while True:
        try:
            step = conversation.send(got)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value
        got = {}
        if until is not object and isinstance(step, until):
            return step
        for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
            heard(ask)
            got[silo] = decode(encode(silos[silo].answer(decode(encode(ask)))))  # type: ignore[arg-type]
            heard(got[silo])
        if isinstance(step, Exchange) and step.rides:
            got = {}


def test_between_counting_and_opening_it_resumes() -> None:
    silos = parties()
    checkpoint = talk(silos, until=Checkpoint)
    again = parties()
    restore(again, silos)
    first, second = (appraised(own, state=unpack(pack(checkpoint.state))) for own in (silos, again))
    assert all(torch.equal(a, b) for a, b in zip(first["tables"], second["tables"], strict=True))
    left = unpack(pack(again["bank"].trained()))
    assert left["groups"] == [] and left["columns"] == []  # no row's group is kept with results
    with pytest.raises(ProtocolError, match="opens tables once"):
        appraised(again, state=unpack(pack(checkpoint.state)))


OWN = DescribedColumn("bank", "bank income", True)
OTHER = DescribedColumn("clinic", "clinic ill", False)


@pytest.mark.parametrize(
    ("asks", "error"),
    [
        ([appraise.MakeGroups((OWN, OTHER))] * 2, "makes groups once"),
        ([appraise.MakeGroups((replace(OWN, number=False), OTHER))], "columns that it holds"),
        ([appraise.MakeGroups((OTHER,))], "columns that it holds"),
        ([appraise.MakeGroups((OWN, replace(OTHER, silo="stranger")))], "silos of its roster"),
        ([opening.OpenTables((0,), (CellNoise(half_variance=8),))], "the noise that follows"),
        ([appraise.MakeGroups((OWN, OTHER)), opening.OpenTables((0,), (CellNoise(1.0),))], "the noise that follows"),
        ([opening.RevealTables((0,))], "exactly"),
    ],
)
def test_a_coordinator_that_asks_for_more_gets_nothing(asks: list[Message], error: str) -> None:
    silo = parties()["bank"]
    for ask in asks[:-1]:
        silo.answer(ask)
    with pytest.raises(ProtocolError, match=error):
        silo.answer(asks[-1])


@pytest.mark.parametrize("change", ["rows", "sets", "levels", "nothing made"])
def test_other_tables_are_not_counted(change: str) -> None:
    silo, columns = parties()["bank"], (OWN, OTHER)
    request = appraise.request_for(CONFIG, SILOS, columns)
    if change != "nothing made":
        silo.answer(appraise.MakeGroups(columns))
    finer = tuple(replace(one, levels=(*one.levels, 9)) for one in request.columns)
    others = {"rows": {"rows": 512}, "sets": {"sets": ((0, 1), (0,))}, "levels": {"columns": finer}}
    with pytest.raises(ProtocolError, match="counts the groups that it has made"):
        silo.answer(protocol.PrepareCount(replace(request, **others.get(change, {}))))


def test_silos_that_are_told_of_different_columns_do_not_count_together() -> None:
    """Each would draw noise for the tables that it was told of."""
    silos = parties()
    for silo in silos.values():
        silo.answer(appraise.DescribeColumns())
    third = DescribedColumn("shop", "shop age", True)
    silos["bank"].answer(appraise.MakeGroups((OWN, OTHER, third)))
    silos["clinic"].answer(appraise.MakeGroups((OWN, OTHER, replace(third, name="another"), third)))
    request = appraise.request_for(CONFIG, SILOS, (OWN, OTHER, third))
    with pytest.raises(ProtocolError, match="counts the groups that it has made"):
        silos["clinic"].answer(protocol.PrepareCount(request))


def test_what_cannot_be_appraised_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="a target"):
        AppraiseConfig(Target())
    with pytest.raises(ConfigError, match="most_rows"):
        parties(replace(CONFIG, most_rows=0))
    with pytest.raises(ConfigError, match="at least two silos"):
        appraise.plan_noise(CONFIG, (OWN,))
    with pytest.raises(DataError, match="neither identifiers nor pseudonyms"):
        parties(held={"bank income": HELD["bank income"]})


def test_many_columns_get_more_noise_and_the_same_target() -> None:
    few, many = ((OWN, *(replace(OTHER, name=f"{i}") for i in range(count))) for count in (2, 40))
    config = replace(CONFIG, dp=Target(0.5, 1e-6))
    plans = [appraise.plan_noise(config, columns) for columns in (few, many)]
    assert plans[1].tables.deviation(2) / plans[0].tables.deviation(2) == pytest.approx(20**0.5, rel=0.01)
    assert plans[0].names == pytest.approx(20 * plans[1].names)
