"""DPLT: tables across two silos against the pooled table, the tree against all trees, and what the budget covers."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.bounds import bounds_if_private

import silosynth as ss
from silosynth.algorithms.dplt import networks, private, protocol as dplt
from silosynth.algorithms.dplt.silo import DPLTSilo
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release
from silosynth.core.streams import Streams
from silosynth.counting.products import product, random_words
from silosynth.encoders import attributes
from silosynth.privacy.accounting import spent
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode, pack, unpack

CPU = torch.device("cpu")
COLUMNS = {"bank": ["income", "city", "ill"], "clinic": ["visits", "sick"], "shop": ["spent", "note"]}
PRIVATE = {"dp": {"epsilon": 8.0, "delta": 1e-4}}


def table(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    income = rng.normal(50, 9, rows)
    sick = rng.random(rows) < 0.3
    return pd.DataFrame(
        {
            "income": income,
            "city": rng.choice(["Bern", "Oslo", "Rome"], rows, p=[0.5, 0.3, 0.2]),
            "ill": sick,
            "visits": rng.poisson(np.where(sick, 90, 40), rows),
            "sick": sick,
            "spent": income + rng.normal(0, 1, rows),
            "note": pd.Series(rng.choice(["a", "b"], rows)).where(rng.random(rows) < 0.8),
        }
    )


class Play:
    """Silos and a coordinator, driven by hand; every message passes through the wire format, and is recorded."""

    def __init__(self, silos: int = 3, data: pd.DataFrame | None = None, **options: Any) -> None:
        held = dict(list(COLUMNS.items())[:silos])
        data, names = table() if data is None else data, [name for own in held.values() for name in own]
        self.federation = ss.simulate(data, silos=held, schema=bounds_if_private(data[names], options))
        self.roster, self.config = self.federation.roster, algorithm("dplt").configure("fast", options)
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            name: DPLTSilo(own, self.federation.schemas[name], seat[name], Streams(0).party(name), CPU, self.config)
            for name, own in self.federation.tables.items()
        }
        self.said: list[tuple[str, Message, Message]] = []

    def drive(self) -> dict[str, Any]:
        talk = dplt.coordinate(self.roster, self.config, Streams(0).child("coordinator"), CPU)
        got = None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return end.value
            got = {}
            for name, ask in step.asks.items() if isinstance(step, Exchange) else ():
                got[name] = decode(encode(self.silos[name].answer(decode(encode(ask)))))
                self.said.append((name, ask, got[name]))

    def again(self, name: str) -> DPLTSilo:
        """A silo that continues from what another process has stored."""
        old = self.silos[name]
        silo = DPLTSilo(old.columns.table, old.columns.schema, old.seat, old.streams, CPU, self.config)
        silo.restore(unpack(pack(old.state())))
        return silo

    def replies(self, kind: type[Message]) -> dict[str, Any]:
        return {name: reply for name, _, reply in self.said if isinstance(reply, kind)}

    def states(self) -> torch.Tensor:
        """The states of all silos' latent attributes in one array, which no party ever sees."""
        return torch.cat([silo._states() for silo in self.silos.values()], dim=1)


@pytest.mark.parametrize("silos", [1, 2, 3])
def test_the_tree_is_that_of_the_pooled_table(silos: int):
    play = Play(silos)
    model = play.drive()
    pooled, sizes = play.states(), [size for states in model["states"] for size in states]
    joint = {
        (a, b): networks.table(pooled[:, [a, b]], [sizes[a], sizes[b]]).double() / len(pooled)
        for a, b in itertools.combinations(range(len(sizes)), 2)
    }
    first = torch.bincount(pooled[:, 0], minlength=sizes[0]).double() / len(pooled)
    found, expected = networks.Tree.restored(model["tree"]), networks.learn_tree(first, joint)
    torch.testing.assert_close(found.first_S, expected.first_S)
    assert [(e.parent, e.child) for e in found.edges] == [(e.parent, e.child) for e in expected.edges]
    for one, other in zip(found.edges, expected.edges, strict=True):
        torch.testing.assert_close(one.joint_ST, other.joint_ST)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_no_tree_has_more_mutual_information(seed: int, size: int):
    draw = torch.Generator().manual_seed(seed)
    joint = {}
    for pair in itertools.combinations(range(size), 2):
        counts = torch.rand(3, 3, generator=draw, dtype=torch.float64) ** 4
        joint[pair] = counts / counts.sum()
    worth = {pair: networks.mutual_information(one) for pair, one in joint.items()}
    found = sum(
        worth[min(e.parent, e.child), max(e.parent, e.child)] for e in networks.learn_tree(torch.ones(1), joint).edges
    )
    trees = (edges for edges in itertools.combinations(joint, size - 1) if spans(edges, size))
    assert found == pytest.approx(max(sum(worth[pair] for pair in edges) for edges in trees))


def spans(edges: tuple[tuple[int, int], ...], size: int) -> bool:
    """Whether all nodes are reachable from node 0."""
    there = {0}
    for _ in range(size):
        there |= {b for edge in edges for a, b in (edge, edge[::-1]) if a in there}
    return len(there) == size


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-30, 60), min_size=1, max_size=12))
def test_noised_counts_become_the_nearest_distribution(counts: list[int]):
    found = attributes.proper(torch.tensor(counts)).numpy()
    total = max(1.0, float(sum(counts)))
    low, high = min(counts) - total, float(max(counts))
    for _ in range(200):  # the number to subtract, by bisection
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(0, np.array(counts) - middle).sum() > total else (low, middle)
    np.testing.assert_allclose(found, np.maximum(0, np.array(counts) - low) / total, atol=1e-9)


def test_codes_come_back_from_attributes_within_their_bin():
    play = Play(1, data=table().assign(spare=table()["visits"].where(np.arange(400) % 5 > 0)))
    play.drive()
    silo = play.silos["bank"]
    levels, scores = silo.columns.encode()
    drawn_levels, drawn_scores = attributes.codes(
        silo.attributes_NA, silo.columns.encoders, silo.config.bins, torch.Generator()
    )
    assert torch.equal(drawn_levels, levels)
    again = attributes.attributes(drawn_levels, drawn_scores, silo.columns.encoders, silo.config.bins)
    assert torch.equal(again, silo.attributes_NA)
    assert (drawn_scores - scores).abs().median() < 0.3


def test_groups_hold_what_belongs_together_and_are_as_many_as_columns_tell():
    information = [[0.0, 0.1, 0.9, 0.0], [0.1, 0.0, 0.1, 0.8], [0.9, 0.1, 0.0, 0.2], [0.0, 0.8, 0.2, 0.0]]
    assert networks.grouped(information, [4, 4, 4, 4], 2, 16) == [[0, 2], [1, 3]]
    assert networks.grouped(information, [4, 4, 4, 4], 1, 16) == [[0], [1], [2], [3]]
    assert networks.grouped(information, [4, 4, 4, 4], 4, 16) == [[0, 1, 2, 3]]  # more cells than allowed
    assert networks.grouped(information, [40, 4, 4, 4], 3, 64) == [[0], [1, 2, 3]]
    with pytest.raises(ConfigError, match="cells"):
        networks.grouped(information, [1000] * 4, 3, 64)


def test_rows_depend_on_each_other_within_a_silo_and_across():
    data = table(3000)
    options = {"most": 1}  # latent attributes are the attributes themselves, if these have few levels
    model = ss.fit("dplt", ss.simulate(data, silos=COLUMNS), options=options, progress=False, seed=1)
    drawn = model.sample(3000, seed=2)
    assert drawn.dtypes.to_dict() == data.dtypes.to_dict()
    assert (drawn["ill"] == drawn["sick"]).mean() > 0.95  # in two silos
    assert drawn["income"].corr(drawn["spent"]) > 0.8
    assert drawn.loc[drawn["sick"], "visits"].mean() > 1.7 * drawn.loc[~drawn["sick"], "visits"].mean()
    shares = [frame["city"].value_counts(normalize=True).sort_index() for frame in (data, drawn)]
    np.testing.assert_allclose(*shares, atol=0.03)
    assert drawn["note"].isna().mean() == pytest.approx(data["note"].isna().mean(), abs=0.03)


# What the other parties see.


def test_one_silos_share_of_a_pair_reveals_nothing_without_the_others():
    play = Play(2)
    play.drive()
    shares = [reply.shares[0] for reply in play.replies(dplt.Related).values()]
    assert (shares[0] + shares[1]).sum() == 400 * len(play.silos["bank"].latents) * len(play.silos["clinic"].latents)
    for share in shares:  # words of 64 bits: none is a count
        assert (share.abs() > 400).all()
    assert {reply.release for reply in play.replies(dplt.Hidden).values()} == {Release.SEALED}


def test_a_mask_of_both_hides_shares_from_the_dealer():
    """The dealer knows V and W: from unmasked shares it would learn A'V."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2, (50, 3)).astype(np.uint64) for _ in range(2))
    u, v, w = (random_words(bytes([i]) * 32, 50 if i < 2 else 3, 3, 64) for i in range(3))
    tells = {
        mask: (
            private.masked_share(a, b - v, w, bytes([mask]) * 32, 1),
            private.masked_share(a - u, v, product(u, v) - w, bytes([mask]) * 32, -1),
        )
        for mask in (7, 8)
    }
    for first, second in tells.values():
        assert np.array_equal(first + second, product(a, b))
        assert not np.array_equal(first - w, product(a, b - v))
    assert not np.array_equal(tells[7][0], tells[8][0])


def test_all_silos_together_spend_the_target_and_release_no_exact_figure():
    play = Play(3, data=table(1000), **PRIVATE)
    play.drive()
    noised = (dplt.NoisedAttributesPrepared, dplt.NoisedGrouped, dplt.NoisedRelated)
    events = Counter(event for kind in noised for reply in play.replies(kind).values() for event in reply.events)
    assert all(event.scope == "all" and event.target == 1e-4 for event in events)
    once = [event for event, times in events.items() for _ in range(times // 2 if event.joint else times)]
    own = spent(once, 0.0).own_delta
    assert 0 < own <= 0.1 * 1e-4 * (1 + 1e-9)
    assert 7.9 < spent(once, 1e-4 - own).epsilon <= 8.0
    pairs = sum(event.what.startswith("tables of two latent") for event in once)
    count = sum(len(silo.latents) for silo in play.silos.values())
    assert pairs == count * (count - 1) / 2
    assert all(ask.rows > 1000 + 100 for _, ask, _ in play.said if isinstance(ask, dplt.Hide))
    exact = {dplt.AttributesPrepared, dplt.Grouped, dplt.Related}
    assert not exact & {type(reply) for _, _, reply in play.said}
    assert {type(reply).release for _, _, reply in play.said} == {Release.NOISED, Release.SEALED}


def test_both_silos_noise_their_shares():
    """The noise of either silo is enough: subtracting its own noise gains a silo nothing."""
    play = Play(2, data=table(1000), dp=PRIVATE["dp"] | {"epsilon": 1.0})
    play.drive()
    sizes = [[one.states for one in silo.latents] for silo in play.silos.values()]
    flags = torch.nn.functional.one_hot(play.states(), max(map(max, sizes)))
    parts = [flags[:, i, :size] for i, size in enumerate(itertools.chain(*sizes))]
    true = torch.cat(parts[: len(sizes[0])], 1).T @ torch.cat(parts[len(sizes[0]) :], 1)
    told = play.replies(dplt.NoisedRelated)
    error = (told["bank"].shares[0] + told["clinic"].shares[0] - true).double()
    event = next(event for event in told["bank"].events if event.joint)
    assert event in told["clinic"].events  # once for both
    q = np.exp(-event.epsilon)
    assert 1.4 < float(error.var() / (2 * q / (1 - q) ** 2)) < 2.8  # the variance of two draws, not of one


@pytest.mark.parametrize("options", [{}, PRIVATE])
def test_silos_of_other_rows_are_refused(options: dict[str, Any]):
    play = Play(2, **options)
    short = play.federation.tables["clinic"].take(slice(0, 390))
    play.silos["clinic"].columns.table = short
    with pytest.raises(ProtocolError, match="same rows"):
        play.drive()


def test_more_rows_than_the_noised_number_are_left_out_of_pairs():
    play = Play(2)
    play.drive()
    silo = play.silos["bank"]
    silo.hidden = replace(silo.hidden, rows=100)
    assert silo._flags().sum() == 100 * len(silo.latents)


def test_the_mechanism_for_gradients_is_refused():
    with pytest.raises(ConfigError, match="DPLT has none"):
        algorithm("dplt").configure("fast", {"dp": "paper-unsound"})


@pytest.mark.parametrize("epsilon", [float("inf"), 100.0])
def test_a_silo_releases_no_table_that_costs_more_than_its_target(epsilon):
    play = Play(2, **PRIVATE)
    silo = play.silos["bank"]
    silo.answer(dplt.PrepareAttributes())
    with pytest.raises(ProtocolError, match="target"):
        silo.answer(dplt.GroupAttributes(epsilon, epsilon))
    assert not silo.latents  # nothing to draw rows from


def test_earlier_releases_count_towards_a_silos_target():
    """Encoders have cost 0.4 of epsilon 8: tables of 7.8 would be within it by themselves."""
    play = Play(2, dp={"epsilon": 8.0, "delta": 1e-4, "encoders": 0.1})
    silo = play.silos["clinic"]  # two columns: one table of two attributes, one of a group
    silo.answer(dplt.PrepareAttributes())
    ask = dplt.GroupAttributes(0.001, 7.8)
    with pytest.raises(ProtocolError, match="all that it has released"):
        silo.answer(ask)
    again = play.again("clinic")
    with pytest.raises(ProtocolError, match="all that it has released"):
        again.answer(ask)
    again.answer(dplt.GroupAttributes(0.001, 7.0))


def test_other_hidden_flags_have_another_mask():
    """With the same one, a silo that is brought back would reveal its flags times what the coordinator has changed."""
    words = np.arange(6, dtype=np.uint64).reshape(2, 3)
    masks = {private.mask_of(bytes(32), d, e) for d in (words, words + 1) for e in (words, words + 1)}
    assert len(masks | {bytes(32)}) == 5
    assert private.mask_of(bytes(32), words, words) == private.mask_of(bytes(32), words.copy(), words.copy())


@pytest.mark.parametrize("options", [{}, PRIVATE])
def test_no_noise_is_drawn_twice(options: dict[str, Any]):
    play = Play(2, **options)
    play.drive()
    asks = [ask for name, ask, _ in play.said if name == "bank" and not isinstance(ask, dplt.Hide)]
    assert [type(ask) for ask in asks] == [dplt.PrepareAttributes, dplt.GroupAttributes, dplt.Relate]
    for silo in (play.silos["bank"], play.again("bank")):
        for ask in [*asks, dplt.GroupAttributes(1e-3, 1e-3), replace(asks[2], epsilon=1e-3, others=())]:
            with pytest.raises(ProtocolError, match="once"):
                silo.answer(ask)
