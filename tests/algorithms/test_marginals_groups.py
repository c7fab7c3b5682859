"""MST and AIM of groups of silos, each divided by columns and of other rows: what opens, its cost, who faces what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.algorithms.rows_play import (
    AT_EPSILONS,
    BEYOND_A_TREE,
    CAUGHT,
    DP,
    EVERYWHERE,
    TINY,
    RowsPlay,
    check_noise,
    check_sensitivity,
    with_small_sketches,
)
from tests.contracts.settings import BOUNDS, GROUPS, frame, grouped

import silosynth as ss
from silosynth.algorithms.marginals import private, protocol as marginals
from silosynth.algorithms.marginals.silo import RowsSilo
from silosynth.catalog import algorithm
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.schema import distinct_columns
from silosynth.counting import opening, protocol as counting
from silosynth.counting.plan import Plan, dealt_key, pad_name
from silosynth.counting.products import random_words
from silosynth.data.infer import ColumnWarning
from silosynth.models.graphical import GraphicalModel
from silosynth.privacy.statement import statement
from silosynth.runtime.wire import pack
from silosynth.simulation.federation import Federation

TWO = ("north", "south")
NAMES = ["city", "member", "note"]  # columns whose levels say all of them: no number falls into a bin by chance


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    with_small_sketches(monkeypatch)
    return monkeypatch


@pytest.fixture(scope="module")
def noised() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        with_small_sketches(patched)
        return RowsPlay(grouped(BOUNDS, frame(), TWO), {"dp": DP}).drive(patched)


@pytest.fixture(scope="module")
def exact() -> RowsPlay:
    with pytest.MonkeyPatch.context() as patched:
        return RowsPlay(grouped(None, frame())).drive(patched)


def pooled_table(play: RowsPlay, columns: Sequence[int]) -> np.ndarray:
    """The slow way: each group's rows, with all columns in one place, counted one by one in the cells they are on."""
    request, _ = play.opened[0]
    table = np.zeros([request.columns[place].size for place in columns], np.int64)
    for group in play.federation.groups:
        held = {column.name: column for silo in group for column in play.silos[silo].counter._table.columns}
        for cells in zip(*(held[request.columns[place].name].values.tolist() for place in columns), strict=True):
            table[cells] += 1
    return table


# Without noise.


def test_what_opens_are_the_tables_of_the_pooled_rows(exact: RowsPlay) -> None:
    assert [len(found) for _, found in exact.opened] == [15, 5]  # groups of all pairs, and the tree
    for request, found in exact.opened:
        for number, table in found.items():
            assert np.array_equal(table, pooled_table(exact, request.sets[number])) and table.sum() == 90


def divided(names: list[str]) -> Federation:
    """Three groups of silos, with some of the columns."""
    held = {
        group: {silo: [n for n in own if n in names] for silo, own in silos.items()} for group, silos in GROUPS.items()
    }
    held = {group: {silo: own for silo, own in silos.items() if own} for group, silos in held.items()}
    rows = {"north": range(40), "south": range(40, 65), "west": range(65, 90)}
    return ss.simulate(frame()[names], silos=held, rows=rows)


@pytest.mark.parametrize("name", ["mst", "aim"])
def test_the_model_is_that_of_silos_with_all_columns(name: str) -> None:
    """To the byte, if each group had put its columns into one silo."""
    rows = {"north": range(40), "south": range(40, 65), "west": range(65, 90)}
    whole = ss.simulate(frame()[NAMES], rows=rows)
    made = [ss.fit(name, one, "fast", 0, options=TINY, progress=False) for one in (divided(NAMES), whole)]
    assert pack(made[0].coordinator) == pack(made[1].coordinator)
    assert made[0].sample(30).equals(made[1].sample(30)) and made[0].rows == 90


def test_the_model_is_that_of_the_pooled_rows_in_silos_with_other_columns() -> None:
    """Every table of two columns that the model has is the one of the vertical model, fitted to the same tables."""
    options = TINY | {"encoders.dependencies": "ignore"}
    mixed = ss.fit("mst", divided(NAMES), "fast", 0, options=options, progress=False)
    columns = ss.simulate(frame()[NAMES], {"a": ["city"], "b": ["member", "note"]})
    vertical = ss.fit("mst", columns, "fast", 0, options=options, progress=False)
    models = [GraphicalModel.restored(model.coordinator["model"]) for model in (mixed, vertical)]
    kept = [{one["fields"]["name"]: one["fields"] for one in mixed.coordinator["encoders"]}]
    kept.append({one["fields"]["name"]: one["fields"] for part in vertical.parts.values() for one in part["encoders"]})
    assert all(kept[0][name]["kept"] == kept[1][name]["kept"] for name in NAMES)  # levels are in the same order
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert np.allclose(models[0].marginal(pair), models[1].marginal(pair), atol=1e-9)


def test_a_silo_is_told_of_its_own_columns_only(exact: RowsPlay) -> None:
    for name, ask, _ in exact.said:
        if isinstance(ask, marginals.TakeAttributes):
            assert {one.name for one in ask.encoders} == set(exact.federation.tables[name].names)


def test_words_of_a_sum_carry_nothing_but_the_table(exact: RowsPlay) -> None:
    """Shares modulo 2^k are upper bits of words: what is carried beyond would say something of single shares."""
    below = (1 << exact.unused_bits) - 1
    words = [own for (_, number), own in exact.words.items() if number > 2]
    assert exact.unused_bits == 48 and words and not any((own & below).any() for own in words)


# With noise.


def test_sums_are_noised_as_charged(noised: RowsPlay, small: pytest.MonkeyPatch) -> None:
    check_noise(noised)
    assert len(noised.asked(opening.OpenSums)) == 2


def test_what_opens_has_n_parts_of_noise_of_which_n_less_one_are_charged(noised: RowsPlay) -> None:
    """Of all five silos, whichever of them hold the columns of a table: 5/4 of the variance, and no more."""
    assert len(noised.silos) == 5
    for request, found in noised.opened:
        events = {event.what: event.noise for silo in noised.silos.values() for event in silo.counter.events}
        units = []
        for number, table in found.items():
            names = ", ".join(request.columns[place].name for place in request.sets[number])
            units.append((table - pooled_table(noised, request.sets[number])).ravel() / events[f"a table of {names}"])
        square = float(np.mean(np.concatenate(units) ** 2))
        assert square == pytest.approx(5 / 4, abs=5 * 5 / 4 * np.sqrt(2 / len(np.concatenate(units))))


def only_holders_add_noise(patched: pytest.MonkeyPatch) -> None:
    def with_parts(counts: Any, noises: Any, parts: int, draws: Any) -> list[np.ndarray]:
        each = zip(counts, noises, draws, strict=True)
        return [own + noise.part(parts, own.shape, rng) * own.any() for own, noise, rng in each]

    patched.setattr(opening, "with_parts", with_parts)


@pytest.mark.slow
@pytest.mark.parametrize("mutated", [*EVERYWHERE, only_holders_add_noise])
def test_weaker_mechanisms_are_caught(mutated: Any, small: pytest.MonkeyPatch) -> None:
    mutated(small)
    with pytest.raises((AssertionError, ValueError), match=r"noise below|the same noise|zip\(\)|affords"):
        check_noise(RowsPlay(grouped(BOUNDS, frame(), TWO), {"dp": DP}).drive(small))


def extended(patched: pytest.MonkeyPatch) -> RowsPlay:
    """AIM, which opens more tables than a tree's: its last ones get what is left of the budget."""
    data = pd.concat([frame()] * 200, ignore_index=True)
    rows = {"north": range(0, len(data), 2), "south": range(1, len(data), 2)}
    federation = ss.simulate(data, {group: GROUPS[group] for group in TWO}, BOUNDS, rows)
    play = RowsPlay(federation, {"dp": DP, "tables": 2.0, "rounds": 1}, kind="aim").drive(patched)
    assert len(play.asked(opening.OpenSums)) == 3, "groups of all pairs, the tree, and more"
    return play


@pytest.mark.slow
def test_further_tables_are_noised_as_charged(small: pytest.MonkeyPatch) -> None:
    check_noise(extended(small))


@pytest.mark.slow
@pytest.mark.parametrize("mutated", [*EVERYWHERE, *BEYOND_A_TREE, only_holders_add_noise])
def test_weaker_mechanisms_are_caught_beyond_a_tree(mutated: Any, small: pytest.MonkeyPatch) -> None:
    mutated(small)
    with pytest.raises((AssertionError, ValueError, ProtocolError), match=CAUGHT):
        check_noise(extended(small))


@pytest.mark.parametrize(("kind", "epsilon"), AT_EPSILONS)
def test_a_row_of_a_group_changes_what_opens_by_its_sensitivity(
    kind: str, epsilon: float, small: pytest.MonkeyPatch
) -> None:
    """One row less in all silos of a group, with the same noise; of AIM further tables as well, in two rounds."""
    data = pd.concat([frame()] * (1 if kind == "mst" else 40), ignore_index=True)
    options = {"dp": DP | {"epsilon": epsilon}} | ({} if kind == "mst" else {"tables": 2.0, "rounds": 2})
    play = RowsPlay(grouped(BOUNDS, data, TWO), options, kind=kind)
    group = play.federation.groups[1]
    assert len(group) == 3
    check_sensitivity(play, group, small)
    assert (len(play.asked(opening.OpenSums)) > 2) == (kind == "aim")


def test_all_silos_list_all_that_a_row_counts_in(noised: RowsPlay) -> None:
    """So whoever adds up what one silo lists has what a row costs, in all silos of its group together."""
    model = ss.fit("aim", grouped(BOUNDS, frame()), "fast", options=TINY | {"dp": DP}, progress=False)
    said = model.describe()
    assert said["partition"] == "mixed" and said["privacy"]["release"]["rows"].startswith("one group's tables")
    spent = {silo: own["epsilon"] for silo, own in said["privacy"]["silos"].items()}
    assert len(spent) == 6 and set(spent.values()) == {said["privacy"]["release"]["epsilon"]}
    assert 0.9 * DP["epsilon"] < said["privacy"]["release"]["epsilon"] <= DP["epsilon"]  # type: ignore[operator]
    assert statement(model.ledger) == said["privacy"]  # which a ledger says without the model


# Who works together with the coordinator.


def hidden_flags(play: RowsPlay, of: str, reader: str) -> np.ndarray:
    """What the coordinator, which dealt, and another silo make of the first block that a silo has hidden."""
    said = [(ask, reply) for name, ask, reply in play.said if name == of]
    seed = next(ask.seed for ask, _ in said if isinstance(ask, counting.DealSeed))
    nonce = next(reply.nonce for _, reply in said if isinstance(reply, counting.CountPrepared))
    hidden = next(reply for _, reply in said if isinstance(reply, counting.HiddenBlock))
    counter = play.silos[reader].counter
    request = play.silos[of].counter.request
    assert request is not None
    context = f"counting {counter._group.key('one counting').hex()} {request.digest()} block 0"
    content = counter._seat.open(replace(hidden.envelopes[0], receiver=reader), context)
    words = np.frombuffer(content, np.uint16)
    plan = Plan(request)
    size = (plan.blocks[0].stop, plan.width(of))
    pad = random_words(dealt_key(seed, nonce, *pad_name(0)), *size, request.bits)
    return words[len(words) - pad.size :].reshape(size) - pad


def test_the_coordinator_reads_rows_of_a_group_together_with_a_silo_of_that_group(noised: RowsPlay) -> None:
    """The promise is no stronger than that of silos with different columns."""
    flags = hidden_flags(noised, of="shop", reader="bank")
    rows = len(noised.federation.tables["shop"])
    assert set(np.unique(flags)) == {0, 1} and not flags[rows:].any()
    own = noised.silos["shop"].counter._table.columns
    assert (flags[:rows].sum(axis=1) == len(own)).all()
    varied = [column.values.numpy() for column in own if len(column.values.unique()) > 1]
    assert varied
    for level_N in varied:
        assert any(np.array_equal(flags[:rows, place], level_N == level_N[0]) for place in range(flags.shape[1]))


def test_with_a_silo_of_another_group_it_opens_nothing(noised: RowsPlay) -> None:
    with pytest.raises(ProtocolError, match="other silos that its roster pins"):
        hidden_flags(noised, of="shop", reader="club")
    keys = {silo: noised.silos[silo].counter._group.key("one counting") for silo in ("bank", "shop", "club")}
    assert keys["bank"] == keys["shop"] != keys["club"]  # by which numbers of rows are compared, too
    whole = noised.silos["club"].seat  # in all sums it has a seat among all
    envelope = next(
        reply for name, _, reply in noised.said if name == "shop" and isinstance(reply, counting.HiddenBlock)
    )
    with pytest.raises(ProtocolError, match="opens with the pinned keys"):
        whole.open(replace(envelope.envelopes[0], receiver="club"), "counting")


# Who holds what.


@pytest.mark.parametrize(("names", "options"), [(TWO, {}), (("north",), {"dp": DP})])
def test_too_few_groups(names: tuple[str, ...], options: dict[str, Any]) -> None:
    least = 2 if options else 3
    match = rf"groups of silos with different rows are over {least} or more" if len(names) > 1 else "two or more"
    with pytest.raises(ConfigError, match=match):
        ss.fit("mst", grouped(BOUNDS, frame(), names), "fast", options=options, progress=False)


def test_a_silo_refuses_too_few_groups_itself() -> None:
    play = RowsPlay(grouped(None, frame(), TWO))
    with pytest.raises(ConfigError, match="over 3 or more, of which each knows its own"):
        play.silos["bank"].answer(marginals.DescribeRows())


def test_every_group_holds_each_column_once() -> None:
    rows = {"north": slice(45), "south": slice(45, 90)}
    whole = {"clinic": ["age", "city"], "fund": ["member"]}
    lacking = {"north": whole, "south": {"hospital": ["age"], "insurer": ["member"]}}
    with pytest.raises(
        ConfigError, match=r"Every group of silos holds all columns.*hospital and insurer: without city"
    ):
        ss.simulate(frame(), silos=lacking, rows=rows)
    twice = {"north": whole, "south": {"hospital": ["age", "city"], "insurer": ["member", "city"]}}
    with pytest.raises(DataError, match="'city' is in 'hospital' and in 'insurer'"):
        ss.simulate(frame(), silos=twice, rows=rows)
    with pytest.raises(ConfigError, match=r"names of their own, also in different groups.*clinic, fund in 'south'"):
        ss.simulate(frame(), silos={"north": whole, "south": whole}, rows=rows)
    with pytest.raises(ConfigError, match="each group's rows, and who holds its columns"):
        ss.simulate(frame(), silos={"north": whole}, rows=rows)


def test_tables_of_their_own_are_linked_within_each_group() -> None:
    data = frame().assign(patient=[f"p{n}" for n in range(90)])
    north, south = data.iloc[:40], data.iloc[40:].assign(patient=[f"p{n}" for n in range(50)])  # names that both have
    tables = {
        "north": {"bank": north[["patient", "age", "city"]], "shop": north[["patient", "member"]].iloc[::-1]},
        "south": {"club": south[["patient", "city", "member"]].iloc[5:], "fund": south[["age", "patient"]]},
    }
    federation = ss.simulate(tables, identifier="patient", schema={"age": BOUNDS["age"]})
    assert federation.groups == (("bank", "shop"), ("club", "fund")) and federation.columns == ("age", "city", "member")
    assert federation.rows == 85 and [len(table) for table in federation.tables.values()] == [40, 40, 45, 45]
    pooled = federation.central().tables["central"]
    joined = pd.concat([north, south.iloc[5:]])
    assert pooled["age"].values.tolist() == joined["age"].tolist()
    assert [pooled["city"].levels[code] for code in pooled["city"].values.tolist()] == joined["city"].tolist()
    with pytest.raises(ConfigError, match="linked within each"):
        ss.simulate(tables)
    with pytest.raises(DataError, match="Group 'south': The table of silo 'fund' has the columns by which"):
        ss.simulate({**tables, "south": {**tables["south"], "fund": south[["age"]]}}, identifier="patient")


def test_pooled_rows_of_a_federation_are_those_of_the_frame() -> None:
    federation, data = grouped(None, frame()), frame()
    pooled = federation.central().tables["central"]
    assert pooled.names == tuple(data.columns) == federation.columns and federation.rows == 90
    assert pooled["age"].values.tolist() == data["age"].tolist()
    assert "mns) and shop (40 rows, 3 columns), club (25 " in repr(federation)
    assert distinct_columns([federation.tables[silo] for silo in ("club", "fund", "gym")])["member"].values.shape == (
        25,
    )


def test_what_groups_of_silos_do_not_do() -> None:
    federation = grouped(None, frame())
    with pytest.raises(ConfigError, match=r"not for groups of silos.*For these there are: mst, aim"):
        ss.fit("silofuse", federation, progress=False)
    with pytest.raises(ConfigError, match=r"not for groups of silos.*For these there are: mst, aim"):
        ss.fit("gdts", federation, progress=False)
    for refused in (lambda: ss.appraise(federation), lambda: ss.count(federation, [["city"]])):
        with pytest.raises(ConfigError, match="train mst or aim, and judge a table"):
            refused()
    with pytest.raises(ConfigError, match="Groups of silos are those of the federation"):
        ss.fit("mst", federation, options={"silo_groups": [["bank"], ["shop"]]}, progress=False)
    with pytest.raises(ConfigError, match="A silo is in one group"):
        algorithm("mst").configure("fast", {"silo_groups": [["a"], ["a", "b"]]})
    assert algorithm("mst").of(algorithm("mst").configure("fast", {"silo_groups": [["a"], ["b"]]})).grouped


def test_rules_are_kept_by_drawing_again_and_sums_are_added_up() -> None:
    """Whichever silos hold their columns: no silo describes rows in a way that another could not."""
    rng = np.random.default_rng(2)
    rent, heating = rng.integers(200, 900, 240), rng.integers(20, 400, 240)
    data = pd.DataFrame({"rent": rent, "heating": heating, "cost": rent + heating})
    silos = {
        "north": {"bank": ["rent", "heating"], "shop": ["cost"]},
        "south": {"club": ["rent"], "gym": ["heating", "cost"]},
        "west": {"mill": ["rent", "heating", "cost"]},
    }
    rows = {"north": range(80), "south": range(80, 160), "west": range(160, 240)}
    federation = ss.simulate(data, silos=silos, rows=rows)
    rules = [ss.rules.Sum(["rent", "heating"], "cost"), ss.rules.Inequality("heating", "rent", on_break="ignore")]
    with pytest.warns(ColumnWarning, match=r"'(bank|mill)': .* rows break the rule"):
        model = ss.fit("mst", federation, "fast", 0, options=TINY, rules=rules, progress=False)
    drawn = model.sample(60)
    assert (drawn.rent + drawn.heating == drawn.cost).all() and (drawn.heating <= drawn.rent).all()
    assert 0.5 < model.acceptance < 1
    with pytest.raises(DataError, match=r"'bank': every row keeps the rule.*rows break it"):  # it holds both columns
        ss.fit("mst", federation, "fast", rules=[ss.rules.Inequality("heating", "rent")], progress=False)


# What a silo refuses.


def counted(play: RowsPlay, name: str) -> tuple[RowsSilo, counting.PrepareCount]:
    """A silo that has made its attributes, and the ask to count tables of its group that it got next."""
    silo = play.silos[name]
    return silo, next(ask for who, ask, _ in play.said if who == name and isinstance(ask, counting.PrepareCount))


def test_a_silo_counts_with_its_group_what_it_holds(noised: RowsPlay) -> None:
    silo, ask = counted(noised, "bank")
    request = ask.request
    assert request.silos == ("bank", "shop")
    silo._check_request(request)
    columns = list(request.columns)
    for place, owner in ((0, "shop"), (3, "bank"), (3, "club")):  # another's, its own, one of another group
        changed = tuple(replace(one, silo=owner) if n == place else one for n, one in enumerate(columns))
        silos = ("bank", "shop", "club") if owner == "club" else request.silos
        with pytest.raises(ProtocolError, match="counts what its options say"):
            silo._check_request(replace(request, columns=changed, silos=silos))
    with pytest.raises(ProtocolError, match="counts what its options say"):
        silo._check_request(replace(request, rows=2 * request.rows))


def test_a_silo_of_a_group_opens_sums_over_all_silos_only(noised: RowsPlay) -> None:
    silo = noised.silos["shop"]
    ask = noised.asked(opening.OpenSums)[0]
    with pytest.raises(ProtocolError, match="opens sums over silos"):
        silo.counter.answer(opening.OpenTables(ask.sets, ask.noises))
    with pytest.raises(ProtocolError, match="in their turn"):
        silo.answer(opening.OpenTables(ask.sets, ask.noises))
    assert silo.counter._masker._least == silo._masker._least == 5  # all silos, or none


def test_noise_does_not_hang_on_how_groups_are_divided() -> None:
    """The plan is that of silos with all columns: each row counts once in each column, and in each table."""
    schema = grouped(BOUNDS, frame()).schema
    plans = []
    for groups in ((("a", "b"), ("c", "d")), (("a",), ("b", "c", "d"))):
        config = algorithm("aim").configure("fast", TINY | {"dp": DP, "silo_groups": groups})
        plans.append(private.plan_noise(config, (private.held_of(config, schema),)))
    config = algorithm("aim").configure("fast", TINY | {"dp": DP, "horizontal": True})
    assert plans == [private.plan_noise(config, (private.held_of(config, schema),))] * 2
