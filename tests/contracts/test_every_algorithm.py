"""What every algorithm in the catalog must satisfy, whatever it does inside."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from tests.contracts.settings import BOUNDS, CENTRAL, HORIZONTAL, TINY, entry_of, federation, fit, fitted, frame

import silosynth as ss
from silosynth.catalog import ALGORITHMS, names
from silosynth.core.conversation import Checkpoint, Exchange, Party, Progress
from silosynth.core.errors import ConfigError, DataError, PartyLostError, ProtocolError
from silosynth.core.messages import Done, Message, Missing, Release, Struct
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.encoders.table import TableCoder
from silosynth.privacy.agreement import ASKS as AGREEMENT
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import budget_rows, cell, statement
from silosynth.runtime.wire import decode, encode, pack, unpack
from silosynth.simulation.training import with_groups

CPU = torch.device("cpu")
every = pytest.mark.parametrize("name", sorted(TINY))
public = pytest.mark.parametrize(  # noise is searched for in each training: of the private ones one is quick
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if "dp" in TINY[name] and name != "vertigan private" else ())
        for name in sorted(TINY)
    ],
)
FEW = ("silofuse", "vtgan", "vflgan", "gdts")
few = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in sorted(TINY)]
)
together = pytest.mark.parametrize("name", sorted(name for name in TINY if not entry_of(name).central))
GOING_ON = ("gdts", "gdts diffusion")  # without silos that are lost: see tests/algorithms/test_gdts.py
needing_all = pytest.mark.parametrize(
    "name", sorted(name for name in TINY if not entry_of(name).central and name not in GOING_ON)
)
vertical = pytest.mark.parametrize(
    "name", sorted(name for name in TINY if not (entry_of(name).central or entry_of(name).horizontal))
)
ROWS = "one un-noised value per training row"
LEVELS = "levels that rows hold, by number"
GRADIENTS = "un-noised gradients of training rows"
STATISTICS = ("un-noised statistics of a column", "noised statistics, by the events listed")
MADE = "what networks trained on the rows make: features of made rows, and gradients in what they were made from"
SUMS = "masked values; only their sum over silos can be opened"
MERGED = "what silos told of their columns, merged"
WEIGHTS = "un-noised weights of a network trained on the rows"
RELEASES = {  # what leaves silos on the way to a model, beyond the synthetic columns that it draws
    **dict.fromkeys(("silofuse", "latentdiff", "silofuse private"), (ROWS,)),
    **dict.fromkeys(("e2e", "e2edistr"), (ROWS, GRADIENTS)),
    "silofuse-joint": (ROWS, GRADIENTS, STATISTICS[0]),
    "silofuse upload": STATISTICS[1:],
    "vtgan": (ROWS, LEVELS, GRADIENTS, MADE),
    "vtgan private": (ROWS, GRADIENTS, MADE),
    "dplt": STATISTICS[:1],
    **dict.fromkeys(("mst", "aim"), ("exact tables of how many rows hold levels together",)),
    **dict.fromkeys(("mst private", "aim private"), STATISTICS[1:]),
    "mst public": (*STATISTICS[1:], "what follows from noised statistics that earlier messages have listed"),
    **dict.fromkeys(("mst rows", "mst groups"), ("exact tables of how many rows hold levels together", SUMS, MERGED)),
    **dict.fromkeys(("mst rows private", "aim rows private", "aim groups private"), (*STATISTICS[1:], SUMS)),
    **dict.fromkeys(("vflgan", "vflgan-base", "vflgan frechet", "vflgan private"), (ROWS, GRADIENTS, MADE)),
    **dict.fromkeys(("vertigan", "vertigan private", "wgan-gp", "wgan-gp private"), (GRADIENTS,)),
    **dict.fromkeys(("gdts", "gdts diffusion"), (*STATISTICS, WEIGHTS)),
    "gdts md": (*STATISTICS, GRADIENTS),
}


def alone(name: str, data: pd.DataFrame) -> ss.Federation:
    """A table in one silo; or, where silos hold rows, in each of three. Numbers have bounds where privacy asks."""
    rows = dict.fromkeys(("bank", "shop", "club"), range(len(data)))
    known = BOUNDS | {"x": {"low": 0, "high": 40}} if "dp" in TINY[name] else {}
    bounds = {column: known[column] for column in data if column in known}
    return ss.simulate(data, rows=rows if entry_of(name).horizontal else None, schema=bounds)


def whole_of(model: ss.Model) -> bytes:
    return pack({"coordinator": model.coordinator, "parts": dict(model.parts)})


def ambient() -> tuple[bytes, bytes]:
    """The states of the random numbers that anybody may draw from."""
    return torch.random.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes()


@cache
def _fitted(name: str) -> tuple[ss.Model, bool]:
    before = ambient()
    return fitted(name), ambient() == before


def model_of(name: str) -> ss.Model:
    """A copy of the model that all tests of a setting share: sampling changes a model."""
    return copy.deepcopy(_fitted(name)[0])


@cache
def talk_of(name: str) -> Talk:
    """A finished conversation with the streams that `fit` has. All tests of a setting share it and change nothing."""
    talk = Talk(name)
    talk.model = talk.run()
    return talk


def test_every_algorithm_is_here():
    assert {name.partition(" ")[0] for name in TINY} == set(names("generator"))
    assert {name for name, entry in ALGORITHMS.items() if entry.central} == set(CENTRAL)
    assert {name for name, entry in ALGORITHMS.items() if entry.horizontal} == set(HORIZONTAL)


class Talk:
    """A conversation driven by hand: parties as objects, every message through the wire form, everything noted."""

    def __init__(self, name: str, replies: Iterator[dict[str, Message]] | None = None) -> None:
        self.entry, self.federation = entry_of(name), federation(name)
        self.config = self.entry.configure("fast", with_groups(TINY[name], self.federation))
        self.model = b""  # what `run` returned
        self.messages: list[Message] = []
        self.replies: list[dict[str, Message]] = []
        self.riding: set[int] = set()  # places of replies that nobody waits for
        self.points: list[tuple[bytes, dict[str, bytes], int]] = []
        self.progress: list[Progress] = []
        self.journal = replies
        self.seats = seats(self.federation.roster, Streams(0).child("seats"))
        self.parties = {
            silo: self.party(silo, table, Streams(0).party(silo)) for silo, table in self.federation.tables.items()
        }

    def party(self, silo: str, table: Table, streams: Streams) -> Party:
        return self.entry.party(table, self.federation.schemas[silo], self.seats[silo], streams, CPU, self.config)

    def run(self, state=None) -> bytes:
        talk = self.entry.coordinate(self.federation.roster, self.config, Streams(0).child("coordinator"), CPU, state)
        got = None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return pack({"model": end.value, "parts": {s: p.trained() for s, p in self.parties.items()}})
            got = {}
            if isinstance(step, Exchange):
                got = self._ask(step) if self.journal is None else next(self.journal)
                self.riding |= {len(self.replies)} if step.rides else set()
                self.replies.append(got)
            elif isinstance(step, Checkpoint):
                parts = {silo: pack(party.state()) for silo, party in self.parties.items()}
                self.points.append((pack(step.state), parts, len(self.replies)))
            else:
                self.progress.append(step)

    def resume(self, point) -> bytes:
        state, parts, _ = point
        for silo, part in parts.items():
            self.parties[silo].restore(unpack(part))
        return self.run(unpack(state))

    def _ask(self, step: Exchange) -> dict[str, Message]:
        replies = {}
        for silo, ask in step.asks.items():
            replies[silo] = decode(encode(self.parties[silo].answer(decode(encode(ask)))))
            self.messages += [ask, replies[silo]]
        return replies


@few
def test_resuming_from_the_middle_and_the_last_checkpoint_gives_the_same_bytes(name):
    points = talk_of(name).points
    assert len(points) >= 3
    for point in (points[len(points) // 2], points[-1]):
        assert Talk(name).resume(point) == talk_of(name).model


@pytest.mark.slow
@every
def test_resuming_from_any_checkpoint_gives_the_same_bytes(name):
    for point in talk_of(name).points:
        assert Talk(name).resume(point) == talk_of(name).model


@few
def test_the_coordinator_is_a_function_of_the_replies(name):
    again = unpack(Talk(name, iter(talk_of(name).replies)).run())["model"]
    assert pack(again) == pack(unpack(talk_of(name).model)["model"])


@public
def test_a_reply_of_a_wrong_type_ends_the_training_and_names_its_silo(name):
    """One silo's first reply to each type of ask: `Done` for any other, another for `Done`.

    Replies to asks that ride are read by the driver, which has tests of its own.
    """
    straight, places = talk_of(name), {}
    asks = iter(straight.messages[::2])
    for place, replies in enumerate(straight.replies):
        for (silo, reply), ask in zip(replies.items(), asks, strict=False):
            if place not in straight.riding:
                places.setdefault((type(ask).__name__, type(reply)), (place, silo))
    assert places
    for (_, right), (place, silo) in places.items():
        wrong = Missing() if right is Done else Done()
        replies = [*straight.replies[:place], {**straight.replies[place], silo: wrong}]
        with pytest.raises(ProtocolError, match=f"Silo '{silo}'.*{type(wrong).__name__}"):
            Talk(name, iter(replies)).run()


@public
def test_no_message_carries_real_columns(name):
    """No table at all; and no reply with a column whose values are, in any order and number, those of a real column.

    Real are raw values, and the levels and scores that a silo's encoders make of them. A constant tells no column.
    Messages that say of themselves that they carry levels of a column, drawn to be conditions, may do so; those that
    carry statistics of a column may name its levels, and count them: never as many numbers as there are rows. Noised
    values of all rows are none of theirs.
    """
    talk = talk_of(name)
    assert not any(isinstance(part, Table) for message in talk.messages for part in parts_of(message))
    seen = 0
    for replies in talk.replies:
        for silo, reply in replies.items():
            if reply.release is Release.CONDITIONS:
                continue
            real, rows = real_columns(talk, silo), len(talk.federation.tables[silo])
            for sent in filter(varies, columns_of(reply)):
                seen += 1
                counts = reply.release in (Release.STATISTICS, Release.COUNTS)
                if counts or (reply.release is Release.NOISED and len(sent) < rows):
                    assert len(sent) < rows
                    continue
                for column, values in real.items():
                    assert not np.isin(sent, values).all(), f"{type(reply).__name__} of {silo} carries {column}"
    assert seen or name not in RELEASES


def parts_of(value) -> Iterator[object]:
    """A message, its fields, theirs, and so on."""
    yield value
    within = value if isinstance(value, tuple) else ()
    if isinstance(value, Struct):
        within = [getattr(value, field.name) for field in dataclasses.fields(value)]
    for part in within:
        yield from parts_of(part)


def columns_of(message: Message) -> Iterator[np.ndarray]:
    """Every column of every tensor, and every tuple of numbers, in single precision."""
    for part in parts_of(message):
        if isinstance(part, torch.Tensor) and part.numel():
            yield from part.detach().float().reshape(part.shape[0] if part.ndim else 1, -1).T.numpy()
        elif isinstance(part, tuple) and part and all(isinstance(item, int | float) for item in part):
            yield np.array(part, dtype=np.float32)


def real_columns(talk: Talk, silo: str) -> dict[str, np.ndarray]:
    """What the silo keeps to itself: raw values and what the encoders make of them, by name."""
    party = talk.parties[silo]
    encoded = getattr(party, "rows", getattr(party, "coder", party.columns))
    rows = party.model.coded if hasattr(party, "model") else encoded
    found = {column.name: column.values.float().numpy() for column in talk.federation.tables[silo].columns}
    levels, scores = rows.encode() if isinstance(rows, TableCoder) else (rows.levels, rows.scores)
    for what, codes in (("scores", scores), ("levels", levels)):
        found |= {f"{what} {i}": column.float().numpy() for i, column in enumerate(codes.T)}
    return found


def varies(column: np.ndarray) -> bool:
    return len(np.unique(column)) > 1


@public
def test_progress_ends_at_its_total(name):
    last = {p.stage: p for p in talk_of(name).progress}
    assert last and all(p.done == p.total for p in last.values())


@every
def test_a_party_refuses_what_it_does_not_understand(name):
    talk = Talk(name)
    with pytest.raises(ProtocolError, match="Done"):
        next(iter(talk.parties.values())).answer(Done())


@public
def test_what_sets_up_is_answered_once_and_in_its_turn(name):
    """A silo that has trained refuses what it was asked once; a fresh one refuses all but the first message."""
    talk, fresh = talk_of(name), Talk(name)
    silo = next(iter(talk.parties))
    asks, script = asks_to(talk, silo), talk.parties[silo]._script(training=True)
    set_up = tuple(kind for turn in script if not turn.often for kind in turn.asks)
    assert isinstance(asks[0], set_up)
    for ask in [ask for ask in asks if isinstance(ask, set_up)]:
        with pytest.raises(ProtocolError, match="in their turn"):
            talk.parties[silo].answer(ask)
    for ask in {type(ask): ask for ask in asks if type(ask) is not type(asks[0])}.values():
        with pytest.raises(ProtocolError, match="in their turn"):
            fresh.parties[silo].answer(ask)


@public
def test_a_party_of_sampling_trains_no_more(name):
    talk = talk_of(name)
    silo, table = next(iter(talk.federation.tables.items()))
    party = talk.party(silo, table, Streams(0).party(silo))
    party.restore(unpack(talk.model)["parts"][silo])
    for ask in {type(ask): ask for ask in asks_to(talk, silo) if not isinstance(ask, AGREEMENT)}.values():
        with pytest.raises(ProtocolError, match="in their turn"):
            party.answer(ask)


def asks_to(talk: Talk, silo: str) -> list[Message]:
    """All that a silo was asked, in order."""
    silos = [name for replies in talk.replies for name in replies]
    return [ask for name, ask in zip(silos, talk.messages[::2], strict=True) if name == silo]


@public
def test_samples_have_the_columns_order_and_dtypes_of_the_training_frame(name):
    model, real = model_of(name), frame()
    table = model.sample(40)
    assert list(table.columns) == list(real.columns)
    assert table.dtypes.astype(str).to_dict() == real.dtypes.astype(str).to_dict()
    assert len(table) == 40
    if "dp" in TINY[name]:  # levels and ranges are what noise has left of them
        return
    assert table.dtypes.to_dict() == real.dtypes.to_dict()
    assert (table["since"].dt.normalize() == table["since"]).all()
    assert table["age"].between(real["age"].min(), real["age"].max()).all()


@public
def test_a_saved_model_draws_the_same_rows(name, tmp_path):
    model = model_of(name)
    model.save(tmp_path / "m.silosynth")
    again = ss.load(tmp_path / "m.silosynth")
    first = model.sample(30)
    pd.testing.assert_frame_equal(again.sample(30), first)
    pd.testing.assert_frame_equal(again.sample(30, seed=4), model.sample(30, seed=4))
    assert not model.sample(30).equals(first)
    assert again.describe()["silos"] == {silo: list(t.names) for silo, t in federation(name).tables.items()}


@public
def test_the_same_seed_gives_the_same_bytes(name):
    again = unpack(talk_of(name).model)
    if not entry_of(name).parts:
        again["parts"] = {silo: {} for silo in again["parts"]}
    whole = whole_of(_fitted(name)[0])
    assert whole == pack({"coordinator": again["model"], "parts": again["parts"]})


@few
def test_another_seed_gives_other_bytes(name):
    assert whole_of(_fitted(name)[0]) != whole_of(fitted(name, seed=2))


@public
def test_fitting_and_sampling_leave_the_ambient_random_numbers_alone(name):
    assert _fitted(name)[1]
    before = ambient()
    model_of(name).sample(5)
    assert ambient() == before


@public
def test_every_release_of_training_rows_is_in_the_ledger(name):
    model = _fitted(name)[0]
    kinds = {record["privacy"] for record in model.ledger}
    assert kinds >= set(RELEASES.get(name, ()))
    assert kinds & {"exact row counts", STATISTICS[1]} or entry_of(name).horizontal
    if name not in RELEASES:
        assert kinds <= {"nothing about single rows", "exact row counts"}
    assert all(record["bytes"] > 0 for record in model.ledger) or "dp" in TINY[name]  # they tell numbers of rows
    silos = {record["from"] for record in model.ledger} - {"coordinator"}
    assert silos == set(model.roster)


@public
def test_one_row_of_the_budget_is_the_total_and_is_the_guarantee(name):
    model = _fitted(name)[0]
    stated = statement(model.ledger, horizontal=entry_of(name).horizontal, assume_secret=True)
    assert statement(model.ledger, assume_secret=True)["release"] == stated["release"]  # by the ledger alone
    rows = budget_rows(stated)
    assert bool(rows) == bool(stated["silos"])
    if not rows:
        assert stated["summary"].startswith("none")
        return
    *events, total = rows
    assert total["what"].startswith("total") and not any(row["what"].startswith("total") for row in events)
    guarantee = f"epsilon at most {cell(total['epsilon'])} at delta {cell(total['delta'])}"
    assert guarantee in stated["summary"]
    assert len([row for row in events if row["joint"]]) == len({row["what"] for row in events if row["joint"]})
    if "dp" in TINY[name]:
        target = TINY[name]["dp"]
        assert 0 < total["epsilon"] <= target["epsilon"] * (1 + 1e-9) and total["delta"] <= target["delta"] * (1 + 1e-9)
        assert stated["release"] is not None and "released model" in stated["summary"]


@vertical
def test_unequal_rows_are_refused(name):
    talk = Talk(name)
    silo = "shop"
    short = talk.federation.tables[silo].take(slice(0, 50))
    talk.parties[silo] = talk.party(silo, short, Streams(0))
    with pytest.raises(ProtocolError, match="same rows"):
        talk.run()


@every
def test_one_row_is_refused_by_rule_value_and_remedy(name):
    with pytest.raises(DataError, match=r"at least 2 rows \(got: 1\)"):
        fit(name, alone(name, frame().head(1)))


@public
@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1, 2]},
        {"x": [5] * 30, "y": [None] * 30},
        pytest.param({"x": [1.5] * 29 + [2.5], "y": ["a"] * 30}, marks=pytest.mark.slow),
        pytest.param(
            {"x": pd.Series([None] * 25 + [3.25] * 5, dtype="Float64"), "y": range(30)}, marks=pytest.mark.slow
        ),
    ],
    ids=["two rows", "constant and all missing", "one odd value", "mostly missing"],
)
def test_poor_tables_train_and_come_back(name, columns):
    data = pd.DataFrame(columns)
    model = fit(name, alone(name, data))
    table = model.sample(8)
    assert table.dtypes.to_dict() == data.dtypes.to_dict()
    for column in data:
        if "dp" in TINY[name]:  # noise makes a few values of any column
            continue
        if data[column].isna().all():
            assert table[column].isna().all()
        if data[column].nunique() == 1 and not data[column].isna().any():
            assert (table[column] == data[column].iloc[0]).all()


def test_a_central_baseline_asks_for_one_silo():
    with pytest.raises(ConfigError, match=r"federation.central\(\)"):
        ss.fit("latentdiff", federation("silofuse"), progress=False)


@pytest.mark.slow
@every
def test_one_process_per_silo_gives_the_same_bytes(name):
    here, apart = model_of(name), fitted(name, runtime="processes")
    assert whole_of(apart) == whole_of(here)
    assert apart.ledger == here.ledger
    pd.testing.assert_frame_equal(apart.sample(20), here.sample(20))


@pytest.mark.slow
@needing_all
def test_a_silo_killed_in_training_is_named_and_the_run_resumes_to_the_same_bytes(name, tmp_path):
    """kill -9 of one silo's process, once a checkpoint is there."""

    def kill(progress: Progress) -> None:
        children = [child for child in psutil.Process().children() if "silo-process" in child.cmdline()]
        if children and list((tmp_path / "coordinator").glob("[0-9]*.ckpt")):
            children[-1].kill()

    whole = _fitted(name)[0]
    with pytest.raises(PartyLostError, match=r"Silo '(bank|shop|club|mill)'"):
        fitted(name, runtime="processes", folder=tmp_path, checkpoint_every=0, progress=kill)
    again = fitted(name, runtime="processes", folder=tmp_path, resume=True)
    assert whole_of(again) == whole_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(name for name in TINY if not entry_of(name).horizontal and "dp" not in TINY[name])
)
def test_dependencies_within_a_silo_hold_in_synthetic_rows(name: str) -> None:
    """However little an algorithm learns: all of them publish by encoders that look up what depends on a column."""
    data = frame(1000)  # 16 of each age: no single rows draw the line between young and old
    data["land"] = data["city"].map({"Delft": "NL", "Bern": "CH", "Oslo": "NO"}).astype(str)
    data["dial"] = data["land"].map({"NL": 31, "CH": 41, "NO": 47})
    data["adult"] = np.where(data["age"] < 40, "young", "old")
    silos = {"bank": ["age", "city", "land", "dial", "adult"], "shop": ["spent", "member", "since", "note"]}
    whole = ss.simulate(data, silos=silos)
    for preset in ("fast", "balanced"):
        model = fit(name, whole.central() if entry_of(name).central else whole, preset=preset)
        made = model.sample(1000)
        for first, second in (("city", "land"), ("land", "dial"), ("dial", "city")):
            known = set(zip(data[first], data[second], strict=True))
            assert np.mean([pair in known for pair in zip(made[first], made[second], strict=True)]) >= 0.999
        assert ((made["age"] < 40) == (made["adult"] == "young")).mean() >= 0.999
