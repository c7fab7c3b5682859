"""VT-GAN driven by hand: the split network against the same in one piece; rows, secrets, and who learns what."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from tests.algorithms.customers import table
from tests.algorithms.vtgan_play import (
    CPU,
    SIZES,
    Play,
    a_round,
    compare_critic_step,
    compare_generator_step,
    stream,
    untouched,
)

import silosynth as ss
from silosynth.algorithms.vtgan import protocol as vtgan
from silosynth.algorithms.vtgan.networks import SiloSizes
from silosynth.algorithms.vtgan.options import PRESETS
from silosynth.algorithms.vtgan.silo import VTGANSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Turns
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.streams import Streams
from silosynth.privacy.agreement import OfferShares, agree
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import pack

PARTITIONS = [*itertools.product([(2, 0), (1, 1), (0, 2)], repeat=2)]
PRIVACY = {
    "full": {"index_privacy": "full", "bottom_gradients": "contributor"},
    "paper": {"index_privacy": "full", "bottom_gradients": "all", "shuffle": "round"},
    "decoys": {"index_privacy": "decoys", "bottom_gradients": "contributor", "decoys": 3},
    "none": {"index_privacy": "none", "bottom_gradients": "all"},
}
FIXED = {
    "index_privacy": "full",
    "bottom_gradients": "none",
}  # bottom critics without blocks, which no gradient reaches


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize(("critic", "generator"), PARTITIONS)
def test_a_critic_step_is_that_of_the_network_in_one_piece(critic, generator, privacy):
    play = Play(critic_blocks=list(critic), generator_blocks=list(generator), **PRIVACY[privacy])
    updated = compare_critic_step(play, 0, ["b", "a"])
    bottoms = {name: silo.bottoms for name, silo in play.silos.items()}
    assert untouched(*(part.critic.network for name, part in bottoms.items() if name not in updated))
    assert untouched(play.tops.generator.network, *(part.generator.network for part in bottoms.values()))


@pytest.mark.parametrize("generator", [(2, 0), (1, 1), (0, 2)])
def test_a_critic_step_that_updates_no_bottom_critic_is_that_of_one_piece(generator):
    play = Play(critic_blocks=[2, 0], generator_blocks=list(generator), **FIXED)
    assert compare_critic_step(play, 0, ["b", "a"]) == []
    assert untouched(*(silo.bottoms.critic.network for silo in play.silos.values()))


@pytest.mark.parametrize(("critic", "generator"), PARTITIONS)
def test_a_generator_step_is_that_of_the_network_in_one_piece(critic, generator):
    play = Play(critic_blocks=list(critic), generator_blocks=list(generator), bottom_gradients="contributor")
    compare_generator_step(play, 0, "a")
    assert untouched(*(silo.bottoms.critic.network for silo in play.silos.values()))


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("partition", [((2, 0), (0, 2)), ((1, 1), (1, 1))])
def test_steps_later_in_the_training_of_three_silos_are_those_of_one_piece(partition, privacy):
    silos = {"a": ["city", "income"], "b": ["debt", "sex"], "c": ["visits"]}
    critic, generator = map(list, partition)
    play = Play(silos, critic_blocks=critic, generator_blocks=generator, **PRIVACY[privacy])
    a_round(play)
    compare_critic_step(play, 6, ["b", "c"])
    compare_generator_step(play, 11, "a")


def reals_of(play: Play, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Bottom critics' features of the same people in every silo."""
    return {
        name: silo.bottoms.critic.network.of_codes(silo.rows.shape, silo.rows.levels[rows], silo.rows.scores[rows], [])
        for name, silo in play.silos.items()
    }


@pytest.mark.parametrize("privacy", PRIVACY)
def test_the_coordinator_selects_the_contributors_people_from_the_others_pushes(privacy):
    play = Play(dropout=0.0, **PRIVACY[privacy])
    for batch in play.batches(0, ["a", "b", "a", "a"])[:3]:
        rows = play.real_rows(batch)
        seen = []
        descend = play.tops.descend_critic
        play.tops.descend_critic = lambda fake, real, *more: seen.append(real) or descend(fake, real, *more)  # noqa: B023
        expected = torch.cat(list(reals_of(play, rows).values()), dim=1)
        play.drive(vtgan._critic_step(play.roster, play.config, play.tops, batch, stream()))
        play.tops.descend_critic = descend
        torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("privacy", ["full", "decoys"])
def test_the_stream_of_conditions_does_not_reveal_that_of_rows(privacy):
    """The coordinator sees conditions, and can search their 32-bit seeds: rows must not come from that stream."""
    play = Play(**PRIVACY[privacy], batch=60)
    (batch,) = play.batches(0, ["a"])[:1]
    silo = play.silos["a"]
    draw = silo.streams.child("conditions", 0).torch()
    position_B, row_B = silo.batches[0]
    assert silo.conditions.draw(60, draw).equal(position_B)
    assert (silo.conditions.matching(position_B, draw) != row_B).float().mean() > 0.5
    assert play.real_rows(batch).equal(row_B)


def test_rows_fulfil_their_conditions():
    play = Play()
    for batch in play.batches(0, ["a", "b"] * 3)[:5]:
        silo = play.silos[batch.contributor]
        own = batch.position_B - play.sizes.among_all(play.roster.parties.index(batch.contributor), torch.tensor(0))
        column = next(c for c in silo.columns.table.columns if c.levels is not None)
        encoder = next(e for e in silo.columns.encoders if e.name == column.name)
        kept = [encoder.kept[p] for p in own.tolist()]
        assert [column.levels[code] for code in column.values[play.real_rows(batch)].tolist()] == kept


def sent_to(play: Play, name: str) -> list[object]:
    return [ask for silo, ask, _ in play.said if silo == name]


def test_every_part_of_the_generator_is_released_with_averaged_weights():
    play = Play(average=0.5)
    for number in range(3):
        a_round(play, number)
    bottoms = {name: silo.bottoms for name, silo in play.silos.items()}
    released = [(play.tops.state(training=False), play.tops.average, play.tops.generator)]
    released += [
        (silo.trained()["bottoms"], bottoms[name].average, bottoms[name].generator) for name, silo in play.silos.items()
    ]
    for state, average, trainee in released:
        found, now = state["generator"]["network"], trainee.network.state_dict()
        assert average.steps == 3 and all(torch.equal(found[name], average.weights[name]) for name in now)
        assert not torch.equal(found["last.weight"], now["last.weight"])


def test_silos_sample_with_averaged_weights():
    play = Play(average=0.5)
    for number in range(3):
        a_round(play, number)
    part = play.silos["a"].bottoms
    slice_GF = torch.randn(200, part.generator.network.last.in_features)[:, : play.tops.slices[0]]
    drawn = part.draw(slice_GF, [100, 100], stream())
    part.generator.network.load_state_dict(part.average.weights)
    part.average.restore(None)
    assert all(torch.equal(a, b) for a, b in zip(drawn, part.draw(slice_GF, [100, 100], stream()), strict=True))


@pytest.mark.parametrize("statistics", ["all", "contributor"])
def test_a_silo_is_told_who_contributes_only_where_its_statistics_depend_on_it(statistics):
    play = Play({"a": ["city", "income"], "b": ["debt", "sex"], "c": ["visits"]}, statistics=statistics)
    a_round(play)
    told = {
        name: {ask.contributor for ask in sent_to(play, name) if hasattr(ask, "contributor")} for name in play.silos
    }
    named = set(play.silos)
    assert set.union(*told.values()) <= named | {""}
    for name, heard in told.items():
        assert ("" in heard) == (statistics == "all") and (heard <= {"", name}) == (statistics == "all")
    if statistics == "contributor":
        with pytest.raises(ProtocolError, match="one of the silos"):
            play.silos["a"].answer(vtgan.GenerateRows(6, torch.zeros(16, play.tops.slices[0]), ""))


def test_with_full_pushes_a_silo_learns_nothing_about_the_steps_of_others():
    play = Play(**PRIVACY["full"])
    a_round(play)
    for name in play.silos:
        steps = {ask.step for ask in sent_to(play, name) if isinstance(ask, vtgan.PushRows) and ask.contributor == name}
        updates = [ask for ask in sent_to(play, name) if isinstance(ask, vtgan.DescendBottomCritic)]
        assert len(updates) == len(steps)
        assert not any(isinstance(ask, vtgan.PushListed | vtgan.DescendPicked) for ask in sent_to(play, name))


def test_the_papers_gradients_reveal_to_the_other_silo_which_rows_were_picked():
    """Why ``bottom_gradients`` = "contributor" exists."""
    play = Play(**PRIVACY["paper"])
    (batch, _) = play.batches(0, ["a", "a"])
    play.drive(vtgan._critic_step(play.roster, play.config, play.tops, batch, stream()))
    (update,) = [ask for ask in sent_to(play, "b") if isinstance(ask, vtgan.DescendPicked)]
    own_rows = play.silos["b"].numbers.order(batch.step)[update.picks_B.long()]
    assert torch.equal(own_rows.sort().values, play.real_rows(batch).sort().values)
    assert update.picks_B.equal(update.picks_B.sort().values)  # but not which row belongs to which condition


@pytest.mark.parametrize(("privacy", "many"), [("none", 1), ("decoys", 3)])
def test_lists_of_rows_are_sealed_and_as_long_as_agreed(privacy, many):
    play = Play(**PRIVACY[privacy])
    batch, _ = play.batches(0, ["a", "a"])
    listed = play.silos["b"].numbers.listed(batch.step, batch.sealed)
    assert len(listed) == many * play.config.batch
    assert many == 1 or len(listed.unique()) == len(listed)
    assert torch.equal(listed[batch.picks_B], play.real_rows(batch))
    assert listed.int().numpy().tobytes() not in batch.sealed
    changed = bytes([batch.sealed[0] ^ 1]) + batch.sealed[1:]
    with pytest.raises(ProtocolError):
        play.silos["b"].numbers.listed(batch.step, changed)
    with pytest.raises(ProtocolError):  # another step's list is not this step's
        play.silos["b"].numbers.listed(batch.step + 1, batch.sealed)


@pytest.mark.parametrize(("shuffle", "steps", "rounds"), [("off", 1, 1), ("round", 1, 3), ("step", 6, 18)])
def test_row_numbers_change_as_often_as_agreed_and_alike_in_all_silos(shuffle, steps, rounds):
    play = Play(index_privacy="full", shuffle=shuffle)
    orders = [tuple(play.silos["a"].numbers.order(step).tolist()) for step in range(18)]
    assert orders == [tuple(play.silos["b"].numbers.order(step).tolist()) for step in range(18)]
    assert len(set(orders[:6])) == steps and len(set(orders)) == rounds
    assert all(sorted(order) == list(range(70)) for order in orders)
    assert (orders[0] == tuple(range(70))) == (shuffle == "off")


def test_a_silo_insists_on_a_fresh_secret_for_row_numbers():
    silo = Play().silos["a"]
    for purpose, fresh in ((vtgan.ORDER, False), (vtgan.PUBLICATION + " x", True)):
        with pytest.raises(ProtocolError, match="fresh for row numbers"):
            silo._answer(OfferShares(purpose, fresh))


def test_a_silo_without_categories_contributes_rows_under_no_condition():
    play, before = (
        Play({"a": ["city", "sex"], "b": ["debt", "income", "visits"]}, bottom_gradients="contributor") for _ in "ab"
    )
    for number in range(3):
        a_round(play, number)
    drawn = [reply for name, _, reply in play.said if name == "b" and isinstance(reply, vtgan.DrawnConditions)]
    assert drawn and all((reply.positions_TB == -1).all() for reply in drawn)
    before, after = (one.silos["b"].bottoms.critic.network.linears[0].weight for one in (before, play))
    assert not torch.equal(before, after)


def test_bottom_critics_without_gradients_stay_as_they_were_and_ask_for_none():
    play = Play(**FIXED)
    first = {name: silo.bottoms.critic.network.linears[0].weight.clone() for name, silo in play.silos.items()}
    a_round(play)
    assert not any(isinstance(ask, vtgan.DescendBottomCritic | vtgan.DescendPicked) for _, ask, _ in play.said)
    for name, silo in play.silos.items():
        assert torch.equal(first[name], silo.bottoms.critic.network.linears[0].weight)
    play.batches(6, ["a", "b"])
    play.silos["a"].answer(vtgan.PushRows(6, torch.zeros(16, play.tops.slices[0]), "a"))
    with pytest.raises(ProtocolError, match="bottom_gradients = 'none'"):
        play.silos["a"].answer(vtgan.DescendBottomCritic(torch.zeros(16, 4), torch.zeros(16, 4)))


def test_without_any_category_nothing_is_conditioned():
    play = Play(silos={"a": ["income"], "b": ["debt", "visits"]})
    assert play.tops.filter is None
    a_round(play)
    drawn = [reply for _, _, reply in play.said if isinstance(reply, vtgan.DrawnConditions)]
    assert drawn and all((reply.positions_TB == -1).all() for reply in drawn)


def test_widths_follow_the_ratio_of_columns():
    play = Play(width=11, generator_width=10)
    assert play.tops.widths == [4, 7] and play.tops.slices == [4, 6]
    assert [silo.bottoms.critic.network.outputs for silo in play.silos.values()] == [4, 7]


def model(**options) -> ss.Model:
    silos = options.pop("silos", {"a": ["city", "income"], "b": ["debt", "sex"], "c": ["visits"]})
    federation = ss.simulate(table(), silos=silos)
    return ss.fit("vtgan", federation, preset="fast", options=SIZES | options, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("privacy", PRIVACY)
def test_every_setting_trains_any_number_of_silos(privacy):
    five = {name: [name] for name in table().columns}
    for silos in ({"a": ["city", "income", "debt", "sex", "visits"]}, five):
        made = model(silos=silos, **PRIVACY[privacy]).sample(20)
        assert list(made.columns) == list(table().columns) and len(made) == 20


@pytest.mark.parametrize(
    ("critic", "bottoms"),
    [((2, 0), "all"), ((0, 2), "contributor"),
     *(pytest.param(*setting, marks=pytest.mark.slow)
       for setting in [((2, 0), "contributor"), ((1, 1), "all"), ((1, 1), "contributor"), ((0, 2), "all")])],
)  # fmt: skip
def test_the_secret_order_does_not_change_what_is_learnt(critic, bottoms):
    """Row numbers are only references to rows; the secret that they are derived from differs from run to run."""
    options = {"index_privacy": "full", "critic_blocks": list(critic), "bottom_gradients": bottoms}
    first, again, plain = (model(shuffle=shuffle, **options) for shuffle in ("step", "step", "off"))
    assert pack(dict(first.parts)) == pack(dict(again.parts))
    assert first.sample(30).equals(plain.sample(30))


@pytest.mark.parametrize(
    ("critic", "setting"),
    [
        ((2, 0), PRIVACY["decoys"]),
        *(pytest.param((2, 0), setting, marks=pytest.mark.slow) for setting in (*PRIVACY.values(), FIXED)),
        *(pytest.param((0, 2), setting, marks=pytest.mark.slow) for setting in PRIVACY.values()),
    ],
)
def test_training_resumes_to_the_same_bytes_in_every_setting(tmp_path, critic, setting):
    class StopError(Exception):
        pass

    def stop(progress):
        if progress.done >= 3:
            raise StopError

    options = SIZES | setting | {"critic_blocks": list(critic)}
    federation = ss.simulate(table(), silos={"a": ["city", "income"], "b": ["debt", "sex", "visits"]})
    more = {"preset": "fast", "options": options, "folder": tmp_path, "checkpoint_every": 0}
    whole = ss.fit("vtgan", federation, preset="fast", options=options, progress=False)
    with pytest.raises(StopError):
        ss.fit("vtgan", federation, progress=stop, **more)
    again = ss.fit("vtgan", federation, progress=False, resume=True, **more)
    assert pack(dict(again.parts)) == pack(dict(whole.parts)) and pack(again.coordinator) == pack(whole.coordinator)


@pytest.mark.slow
def test_two_models_publish_in_different_orders():
    orders = []
    for seed in (0, 1):
        asked = []
        trained = ss.fit("vtgan", ss.simulate(table()), preset="fast", seed=seed, options=SIZES, progress=False)
        conversing = vtgan.synthesise(
            trained.roster, trained.config, trained.coordinator, 9, Streams(0).child("sample"), CPU
        )
        asked.append(next(conversing))
        (offer,) = asked[0].asks.values()
        orders.append(offer.purpose)
    assert orders[0] != orders[1] and all(purpose.startswith(vtgan.PUBLICATION) for purpose in orders)


def test_what_comes_too_early_or_out_of_turn_is_refused():
    play = Play(**PRIVACY["full"])
    silo, slice_BF = play.silos["a"], torch.zeros(16, play.tops.slices[0])
    fresh = VTGANSilo(
        silo.columns.table, silo.columns.schema, seats(play.roster, Streams(0).child("seats"))["a"], Streams(0), CPU,
        play.config,
    )  # fmt: skip
    for ask in (vtgan.BuildBottoms(4, 4), vtgan.DrawConditions((0,), ()), vtgan.GenerateRows(0, slice_BF, "b")):
        with pytest.raises(ProtocolError, match="It awaits EncodeRows"):
            fresh.answer(ask)
    with pytest.raises(ProtocolError, match="drawn conditions for"):
        silo.answer(vtgan.PushRows(7, slice_BF, "a"))
    with pytest.raises(ProtocolError, match="index_privacy = 'full'"):
        silo.answer(vtgan.PushListed(7, slice_BF, "b", b""))
    with pytest.raises(ProtocolError, match="index_privacy = 'none'"):
        Play(**PRIVACY["none"]).silos["a"].answer(vtgan.PushRows(7, slice_BF, "b"))
    silo.answer(vtgan.PushRows(7, slice_BF, "b"))
    with pytest.raises(ProtocolError, match="follow a step of the generator"):
        silo.answer(vtgan.DescendBottomGenerator(torch.zeros(16, 4)))
    with pytest.raises(ProtocolError, match="agree on the order"):
        silo._answer(vtgan.VTGANSynthesise(slice_BF, (len(slice_BF),), "x"))


def test_a_publication_does_not_touch_the_secret_of_row_numbers():
    play = Play(**PRIVACY["full"])
    before = play.silos["a"].numbers.order(3)
    for silo in play.silos.values():
        silo._turns = Turns(*silo._script(training=False))
    play.drive(agree(play.roster, vtgan.PUBLICATION + " x", fresh=False))
    play.silos["a"].numbers.order(4)
    assert torch.equal(play.silos["a"].numbers.order(3), before)


def test_synthetic_rows_are_published_in_an_order_that_the_silos_agree_on(monkeypatch):
    trained = model(synthesis="partitioned")
    monkeypatch.setattr("silosynth.privacy.agreement.Group.permutation", lambda self, n, context: torch.arange(n))
    plain = trained.sample_parts(40, seed=1)
    monkeypatch.undo()
    published = trained.sample_parts(40, seed=1)
    whole, shuffled = (pd.concat(parts.values(), axis=1) for parts in (plain, published))
    assert not whole.equals(shuffled)
    columns = list(whole.columns)
    assert whole.sort_values(columns, ignore_index=True).equals(shuffled.sort_values(columns, ignore_index=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 1}, "batch. is at least 2"),
        ({"critic_blocks": [2, -1]}, "critic_blocks"),
        ({"index_privacy": "decoys", "bottom_gradients": "all"}, "Decoys have no gradient"),
        ({"critic_blocks": [0, 2], "bottom_gradients": "none"}, "Critic blocks in silos must be trained"),
        ({"decoys": 0}, "decoys"),
        ({"dropout": 1.0}, "dropout"),
        ({"betas": [0.5, 2.0]}, "betas"),
        ({"penalty": -1.0}, "penalty"),
        ({"index_privacy": "some"}, "index_privacy"),
        ({"epocs": 3}, "'epochs'"),
    ],
)
def test_wrong_options_are_refused_by_name(options, words):
    with pytest.raises(ConfigError, match=words):
        ALGORITHMS["vtgan"].configure("fast", options)


def test_the_papers_preset_is_the_papers():
    paper = PRESETS["paper"]
    assert (paper.critic_blocks, paper.generator_blocks) == ((2, 0), (0, 2))
    assert (paper.width, paper.generator_width, paper.epochs, paper.critic_steps) == (256, 256, 300, 5)
    assert (paper.least_rounds, paper.betas, paper.average) == (0, (0.5, 0.9), 0.0)
    assert (paper.index_privacy, paper.bottom_gradients, paper.shuffle) == ("full", "all", "round")
    assert paper.contributors == "independent"
    assert (paper.penalty, paper.tau, paper.noise, paper.batch, paper.rate) == (10.0, 0.2, 128, 500, 2e-4)


@pytest.mark.parametrize("bottoms", ["all", "contributor", pytest.param("none", marks=pytest.mark.slow)])
def test_how_rows_are_pushed_does_not_change_what_is_learnt(bottoms):
    pushed = ["full", "none"] + (["decoys"] if bottoms != "all" else [])
    tables = [model(index_privacy=privacy, bottom_gradients=bottoms).sample(30) for privacy in pushed]
    assert all(made.equals(tables[0]) for made in tables)


@pytest.mark.parametrize("spread", [True, False])
def test_contributors_are_drawn_by_the_ratio_of_columns_and_spread_evenly_or_not(spread):
    sizes = SiloSizes(70, [2, 3, 7], [3, 2, 1])
    drawn = torch.stack([sizes.contributors(6, spread, stream(i)) for i in range(3000)])
    for i, share in enumerate((2 / 12, 3 / 12, 7 / 12)):
        counts = (drawn == i).sum(dim=1)
        if spread:
            assert counts.min() >= int(6 * share) and counts.max() <= int(6 * share) + 1
        else:  # binomial
            expected = scipy.stats.binom(6, share).pmf(np.arange(7)) * len(counts)
            observed = np.bincount(counts.numpy(), minlength=7)
            assert scipy.stats.chisquare(observed, expected).pvalue > 1e-4
        at_each = (drawn == i).double().mean(dim=0)
        assert (at_each - share).abs().max() < 5 * (share * (1 - share) / len(drawn)) ** 0.5


@pytest.mark.parametrize("kept", ["orthonormal", "free"])
def test_bottom_critics_keep_distances_or_are_free(kept):
    play = Play(**PRIVACY["none"], bottom_critics=kept, rate=0.01)
    for number in range(3):
        a_round(play, number)
    off = [
        float((torch.linalg.svdvals(linear.weight.detach()) - 1).abs().max())
        for part in [*(silo.bottoms.critic.network for silo in play.silos.values()), play.tops.filter]
        for linear in part.linears
    ]
    assert max(off) < 0.05 if kept == "orthonormal" else min(off) > 0.05


@pytest.mark.parametrize(("statistics", "kinds"), [("contributor", 2), ("all", 1)])
def test_running_statistics_are_each_contributors_or_everybodys(statistics, kinds):
    play = Play(**PRIVACY["none"], statistics=statistics, generator_blocks=[1, 1])
    (batch,) = play.batches(0, ["b"])
    norms = [play.tops.generator.network.norms[0], play.silos["a"].bottoms.generator.network.norms[0]]
    play.drive(vtgan._generator_step(play.roster, play.config, play.tops, batch, stream()))
    for norm in norms:
        assert len(norm.running_mean) == kinds
        assert [bool(mean.any()) for mean in norm.running_mean] == [False, True][-kinds:]
