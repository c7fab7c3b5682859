"""Tables of silos that hold different rows: sums over all silos open, exactly or with noise in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.counting.talk import crosstab, levels, restore, until_checkpoint

from silosynth.core.conversation import Conversation, Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountedColumn, judge, opening
from silosynth.counting.judge import HOLDOUT, JudgeConfig, JudgingSilo
from silosynth.privacy import aggregation
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.silos import InProcess

CPU = torch.device("cpu")
SIZES = {"a": 3, "b": 2}
SETS = ((0, 1), (1,))
COLUMNS = tuple(CountedColumn("", name, levels(size)) for name, size in SIZES.items())
EXACT = JudgeConfig(COLUMNS, SETS, "exact", horizontal=True)
NOISED = replace(EXACT, opening="noised", dp=Target(1.0, 1e-6), most_rows=50)


def held(silo: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(silo)
    return {name: rng.integers(0, size, rows) for name, size in SIZES.items()}


def silos(config: JudgeConfig, count: int = 3) -> dict[str, JudgingSilo]:
    names = [f"silo{i}" for i in range(count)]
    made, found = seats(names, Streams(7).child("seats")), {}
    for number, silo in enumerate(names):
        columns = [
            Column(name, "str", torch.from_numpy(np.where(codes == SIZES[name] - 1, 0, codes)),
                   torch.from_numpy(codes == SIZES[name] - 1), levels(SIZES[name]))
            for name, codes in held(number, 9 + number).items()
        ]  # fmt: skip
        schema = Schema(tuple(ColumnSchema(column.name, "categorical", "str") for column in columns))
        out = torch.arange(9 + number) % 3 == 0
        flag = Column(HOLDOUT, "bool", out.long(), torch.zeros(9 + number).bool(), (False, True))
        table = Table((*columns, flag) if config.holdout else tuple(columns))
        found[silo] = JudgingSilo(table, schema, made[silo], Streams(number), CPU, config)
    return found


def pooled(count: int, chosen: Any = lambda rows: rows >= 0) -> dict[str, np.ndarray]:
    own = [held(number, 9 + number) for number in range(count)]
    return {name: np.concatenate([one[name][chosen(np.arange(len(one[name])))] for one in own]) for name in SIZES}


def judged(
    config: JudgeConfig, parties: Mapping[str, Any] | None = None, state: Any = None, ledger: Ledger | None = None
) -> dict[str, Any]:
    parties = dict(parties or silos(config))

    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from judge.coordinate(Roster(tuple(parties)), config, Streams(9), CPU, state))

    with InProcess(parties) as link:
        return drive(whole, link, Ledger() if ledger is None else ledger)


def names(places: tuple[int, ...]) -> list[str]:
    return [list(SIZES)[place] for place in places]


@pytest.mark.parametrize("count", [3, 5])
def test_exact_sums_are_tables_of_the_pooled_rows(count: int) -> None:
    found = judged(EXACT, silos(EXACT, count), ledger=(ledger := Ledger()))
    assert found["owners"] == ["", ""] and found["rows"] == 1024
    for places, table in zip(SETS, found["tables"], strict=True):
        assert np.array_equal(table, crosstab(pooled(count), SIZES, names(places)))
    told = {entry["privacy"] for entry in ledger.entries() if entry["to"] == "coordinator"}
    kinds = Release.NOTHING, Release.SCHEMA, Release.SEALED, Release.COUNTS, Release.TABLES, Release.MASKED
    assert told == {kind.value for kind in kinds}


def test_the_hold_out_is_the_last_axis() -> None:
    for places, table in zip(SETS, judged(replace(EXACT, holdout=True))["tables"], strict=True):
        for axis, chosen in enumerate((lambda rows: rows % 3 > 0, lambda rows: rows % 3 == 0)):
            assert np.array_equal(table[..., axis], crosstab(pooled(3, chosen), SIZES, names(places)))


@pytest.mark.parametrize("count", [2, 4])
def test_noised_sums_have_a_part_more_than_the_noise_of_the_target(count: int) -> None:
    parties = silos(NOISED, count)
    found = judged(NOISED, parties)
    noise = judge.noise_of(NOISED)
    assert noise is not None
    assert found["noise"] == pytest.approx(noise.deviation(2) * (count / (count - 1)) ** 0.5, rel=0.02)
    for places, table in zip(SETS, found["tables"], strict=True):
        error = table.numpy() - crosstab(pooled(count), SIZES, names(places))
        assert 0 < np.abs(error).max() < 6 * found["noise"]
    for party in parties.values():
        assert len(party._counter.events) == 2 and not any(event.joint for event in party._counter.events)


def test_what_one_silo_takes_off_leaves_all_of_the_noise() -> None:
    """The sum is the table, and a part of each silo, as it draws it."""
    parties = silos(NOISED)
    table = judged(NOISED, parties)["tables"][1].numpy()
    noise = judge.noise_of(NOISED)
    assert noise is not None and 2 * noise.part_variance(2) == 2 * noise.half_variance
    parts = []
    for number in range(3):
        rng = Streams(number).child("opening", 0, 1, repr(noise)).noise()
        parts.append(noise.part(2, (2,), rng))
    assert np.array_equal(table, crosstab(pooled(3), SIZES, ["b"]) + np.sum(parts, axis=0))


def test_laplace_parts_too() -> None:
    parties, asked = silos(NOISED), judge.request_for(NOISED, ("silo0", "silo1", "silo2"), ("", ""), 50)
    judged(NOISED, parties)
    counters = {silo: party._counter for silo, party in parties.items()}
    for counter in counters.values():
        counter.events.clear()
        counter._target = Target(20.0, 1e-6)

    def whole(_: object) -> Conversation[opening.OpenedTables]:
        noises = {0: opening.CellNoise(5.0), 1: opening.CellNoise(5.0)}
        return (yield from opening.open_tables(Roster(tuple(parties)), asked, noises, Streams(0).noise(), 1))

    with InProcess(counters) as link:  # type: ignore[arg-type]
        found = drive(whole, link, Ledger())
    assert np.abs(found.own[0] - crosstab(pooled(3), SIZES, ["a", "b"])).max() < 8
    assert found.own[0] is found.passed_on[0]


def test_too_few_silos() -> None:
    with pytest.raises(ConfigError, match="over 3 or more"):
        judged(EXACT, silos(EXACT, 2))
    with pytest.raises(ConfigError, match="Figures are of silos with different columns"):
        replace(EXACT, opening="figures")


def test_all_silos_hold_all_columns() -> None:
    parties = silos(EXACT)
    parties["silo1"]._held = (0,)
    with pytest.raises(ConfigError, match="are in every silo"):
        judged(EXACT, parties)


def test_a_coordinator_cannot_take_sums_for_shares_or_leave_silos_out() -> None:
    """Told that its columns are of one silo alone, it would open its own table."""
    vertical = replace(EXACT, horizontal=False)
    asked = judge.request_for(vertical, ("silo0", "silo1", "silo2"), ("silo0", "silo0"), 1024)
    parties = silos(EXACT)
    with pytest.raises(ProtocolError, match="columns that it holds"):
        parties["silo0"]._check_request(asked)
    judged(EXACT, parties)
    silo = parties["silo0"]
    with pytest.raises(ProtocolError, match="if these hold different rows"):
        silo.answer(opening.RevealTables((0,)))
    with pytest.raises(ProtocolError, match="round"):
        silo.answer(opening.OpenSums(0, (0,), ()))  # in a round that has ended
    silo.answer(aggregation.Offer(5))
    deal = aggregation.Deal(5, ("silo0", "silo1"), (bytes(32), bytes([1]) * 32), 2)
    with pytest.raises(ProtocolError, match=r"takes part, with its key|sums over"):
        silo.answer(deal)


def test_a_set_opens_once_with_noise_and_as_the_job_says() -> None:
    parties = silos(NOISED)
    judged(NOISED, parties)
    noise = judge.noise_of(NOISED)
    assert noise is not None
    for ask, error in (
        (opening.OpenSums(1, (0,), (noise,)), "once"),
        (opening.OpenSums(1, (0,), (opening.CellNoise(1.0),)), "noise that follows"),
        (opening.OpenSums(1, (0,), ()), "exactly if it was made to|once"),
        (opening.OpenTables((0,), (noise,)), "once"),
    ):
        with pytest.raises(ProtocolError, match=error):
            parties["silo0"].answer(ask)


def test_it_resumes_between_counting_and_opening() -> None:
    parties, again = silos(NOISED), silos(NOISED)
    state = until_checkpoint(judge.coordinate(Roster(tuple(parties)), NOISED, Streams(9), CPU), parties)
    restore(again, parties)
    first, second = judged(NOISED, parties, state), judged(NOISED, again, unpack(pack(state)))
    assert all(torch.equal(a, b) for a, b in zip(first["tables"], second["tables"], strict=True))


def test_a_single_masked_table_says_nothing() -> None:
    parties = silos(EXACT)
    words = list[torch.Tensor]()

    def listening(answer: Callable[[Message], Message]) -> Callable[[Message], Message]:
        def heard(ask: Message) -> Message:
            reply = answer(ask)
            words.extend([reply.words] if isinstance(reply, opening.ExactSum) else [])
            return reply

        return heard

    for party in parties.values():
        party.answer = listening(party.answer)  # type: ignore[method-assign]
    judged(EXACT, parties)
    assert len(words) == 3 and all(int(one.abs().min()) > 2**40 for one in words)
