"""Rules across silos as structural zeros: which levels rows can hold, what silos tell of it, and what it costs."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.released import Record
from tests.algorithms.test_marginals import CPU, DP, SMALL

import silosynth as ss
from silosynth import catalog
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.rules import FixedCombination, Inequality, Rule, read_rules
from silosynth.core.streams import Streams
from silosynth.encoders import possible, table as private_encoders
from silosynth.encoders.attributes import values_of
from silosynth.models.graphical import GraphicalModel
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import seats

SILOS = {"clinic": ["sex", "begin"], "insurer": ["pregnant", "end"]}
BOUNDS = {"begin": {"low": 0, "high": 60}, "end": {"low": 0, "high": 60}}
RULES: list[dict[str, Any]] = [
    {"kind": "combination", "columns": ["sex", "pregnant"], "allowed": [["f", "yes"], ["f", "no"], ["m", "no"]]},
    {"kind": "inequality", "low": "begin", "high": "end"},
]


def stays(rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    sex = rng.choice(["f", "m"], rows)
    begin = rng.integers(0, 50, rows)
    pregnant = np.where((sex == "f") & (rng.random(rows) < 0.4), "yes", "no")
    return pd.DataFrame({"sex": sex, "begin": begin, "pregnant": pregnant, "end": begin + rng.integers(0, 9, rows)})


def fitted(name: str, seed: int | None = 5, **options: Any) -> ss.Model:
    federation = ss.simulate(stays(), silos=SILOS, schema=BOUNDS)
    return ss.fit(name, federation, "fast", seed, options={"dp": DP} | options, rules=RULES, progress=False)


class Play:
    """Silos and a coordinator that knows rules, driven by hand."""

    def __init__(self, rows: int = 300, rules: tuple[Rule, ...] = ()) -> None:
        federation = ss.simulate(stays().head(rows), silos=SILOS, schema=BOUNDS)
        self.config = catalog.algorithm("mst").configure("fast", SMALL | {"dp": DP})
        seated, self.said = seats(federation.roster, Streams(4)), list[Message]()
        self.silos = {
            name: MarginalsSilo(own, federation.schemas[name], seated[name], Streams(5).child(name), CPU, self.config)
            for name, own in federation.tables.items()
        }
        self.talk = marginals.coordinate(federation.roster, self.config, Streams(6), CPU, rules=rules)

    def drive(self) -> dict[str, Any]:
        got: dict[str, Message] | None = None
        while True:
            try:
                step = self.talk.send(got)  # type: ignore[arg-type]
            except StopIteration as end:
                return dict(end.value)
            got = {name: self.silos[name].answer(ask) for name, ask in getattr(step, "asks", {}).items()}
            self.said += got.values()

    def events(self) -> list[Event]:
        return [event for reply in self.said for event in getattr(reply, "events", ())]

    def told(self) -> list[Any]:
        return [reply for reply in self.said if isinstance(reply, marginals.PossibleTold)]


def bound() -> tuple[Rule, ...]:
    return tuple(read_rules(RULES))


@pytest.fixture(scope="module")
def ruled() -> tuple[Play, dict[str, Any]]:
    play = Play(rules=bound())
    return play, play.drive()


def test_levels_are_ruled_out_exactly_where_none_of_their_values_keep_the_rule(
    ruled: tuple[Play, dict[str, Any]],
) -> None:
    """Each pair of levels against all pairs of values that it stands for."""
    play, model = ruled
    values = dict[str, list[list[Any]]]()
    held: dict[str, list[possible.LevelsHeld]] = {}
    for silo in play.silos.values():
        for encoder, attribute in zip(silo.columns.encoders, silo.attributes, strict=True):
            column, parts = values_of(encoder, play.config.bins)
            plain = [column.levels[v] for v in column.values.tolist()] if column.levels else column.values.tolist()
            of_N = attribute.level_F.repeat_interleave(parts).tolist()
            of = [{v for v, one in zip(plain, of_N, strict=True) if one == level} for level in range(attribute.size)]
            values[encoder.name] = [list(one) for one in of]
        levels = [attribute.level_F for attribute in silo.attributes]
        own = possible.levels_held(bound(), silo.columns.encoders, levels, play.config.bins)
        for one in own:
            held.setdefault(one.column, []).append(one)
    keeps = {
        ("sex", "pregnant"): lambda a, b: (a, b) in {("f", "yes"), ("f", "no"), ("m", "no")},
        ("begin", "end"): lambda a, b: a <= b,
    }
    found = dict(possible.possible_pairs(bound(), held))
    assert set(found) == set(keeps)
    for names, flags in found.items():
        assert not flags.all() and flags.any()
        for a, b in np.ndindex(*flags.shape):
            pairs = itertools.product(values[names[0]][a], values[names[1]][b])
            assert flags[a, b] == any(keeps[names](x, y) for x, y in pairs)
    graph = GraphicalModel.restored(model["model"])
    for names, flags in found.items():
        place = tuple(model["names"].index(name) for name in names)
        assert (graph.marginal(place)[~flags] == 0).all() and (graph.marginal(place)[flags] > 0).all()


def test_the_guarantee_is_what_it_is_without_rules(ruled: tuple[Play, dict[str, Any]]) -> None:
    play, plain = ruled[0], Play()
    plain.drive()
    assert play.events() == plain.events()
    assert {reply.release for reply in play.told()} == {Release.DERIVED} and not plain.told()


def test_what_silos_tell_of_rules_follows_from_noised_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noised counts for a table with a row less: what is told is the same, to the byte."""
    record = Record()
    for name, at in (("gaussian_counts", 0), ("gaussian_levels", 1)):
        monkeypatch.setattr(private_encoders, name, record.wrap(getattr(private_encoders, name), at))
    told = []
    for rows in (300, 299):
        play, got = Play(rows, bound()), dict[str, Message]()
        while not play.told():
            begun = inspect.getgeneratorstate(play.talk) == inspect.GEN_SUSPENDED
            step = play.talk.send(got) if begun else next(play.talk)
            got = {name: play.silos[name].answer(ask) for name, ask in getattr(step, "asks", {}).items()}
            play.said += got.values()
        told.append([dataclasses.astuple(one) for reply in play.told() for one in reply.held])
        record.replay = True
    assert len(told[0]) == 4 and len(told[1]) == 4
    for one, other in zip(*told, strict=True):
        assert one[:2] == other[:2]
        for a, b in zip(one[2:], other[2:], strict=True):
            assert (a is None and b is None) or torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))


@pytest.mark.parametrize("name", ["mst", "aim"])
def test_no_row_breaks_a_rule_and_few_are_thrown_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(name)
    made = model.sample(400, seed=1)
    assert not ((made["sex"] == "m") & (made["pregnant"] == "yes")).any() and (made["begin"] <= made["end"]).all()
    entry = dataclasses.replace(catalog.ALGORITHMS[name], ruled=False)
    monkeypatch.setattr(catalog, "ALGORITHMS", {**catalog.ALGORITHMS, name: entry})
    without = fitted(name)
    without.sample(400, seed=1)
    assert model.acceptance is not None and without.acceptance is not None
    assert 1 - model.acceptance < 0.7 * (1 - without.acceptance)


@pytest.mark.parametrize(("name", "options", "groups"), [("mst", {}, False), ("aim", {"tables": 1.1}, True)])
def test_the_models_file_has_the_zeros(name: str, options: dict[str, Any], groups: bool, tmp_path: Path) -> None:
    """Also beside tables of groups of levels, of pairs for which no table opens in full."""
    model = fitted(name, synthesis="public", **options)
    assert bool(model.coordinator["model"]["ends"]) == groups
    model.save(tmp_path / "m.silosynth")
    alone = ss.load(tmp_path / "m.silosynth")
    pd.testing.assert_frame_equal(alone.sample(60, seed=3), model.sample(60, seed=3))
    men = alone.sample(40, seed=2, given={"sex": "m"})
    assert set(men["pregnant"]) == {"no"}


def test_without_noise_nobody_tells_what_levels_stand_for() -> None:
    federation = ss.simulate(stays(), silos=SILOS)
    model = ss.fit("mst", federation, "fast", rules=RULES, progress=False)
    assert not any(record["type"].endswith("AskPossible") for record in model.ledger)
    made = model.sample(50)
    assert (made["begin"] <= made["end"]).all()
    play = Play()
    play.silos["clinic"].config = dataclasses.replace(play.config, dp=type(play.config.dp)())
    play.silos["clinic"]._turns._at = 3
    with pytest.raises(ProtocolError, match="where noise has made them"):
        play.silos["clinic"].answer(marginals.AskPossible(bound()))


def test_strict_and_missing_values_and_rules_of_other_kinds() -> None:
    low = torch.tensor([[0.0, 5.0], [4.0, 5.0], [0.0, 0.0]])
    high = torch.tensor([[0.0, 6.0, torch.nan], [0.0, 9.0, torch.nan], [0.0, 0.0, 1.0]])
    for strict, first in ((False, True), (True, False)):
        rule = Inequality("a", "b", strict=strict)
        held = {"a": [possible.LevelsHeld(0, "a", None, low)], "b": [possible.LevelsHeld(0, "b", None, high)]}
        ((names, flags),) = possible.possible_pairs([rule], held)
        assert names == ("a", "b")
        assert flags.tolist() == [[first, True, True], [False, True, True]]  # what is missing breaks none
    kinds = [FixedCombination(("a", "b"), learn=True), *read_rules([{"kind": "unique", "columns": ["a"]}])]
    assert possible.modelled(kinds) == ()
