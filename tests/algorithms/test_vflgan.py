"""VFLGAN and VertiGAN against the same networks in one piece; steps, secrets, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.algorithms.customers import table
from tests.algorithms.vflgan_play import CPU, SIZES, SPLITS, Oracle, Play

import silosynth as ss
from silosynth.algorithms.vflgan import protocol as vflgan
from silosynth.algorithms.vflgan.protocol import NOTHING, BackboneRound
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Turns
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done
from silosynth.core.streams import Streams
from silosynth.models.vflgan import frechet_distance
from silosynth.privacy.accounting import Charge
from silosynth.privacy.agreement import OfferShares
from silosynth.privacy.sealed import seats

SETTINGS = [
    {"slopes": "critic"},
    {"slopes": "parts", "lambda1": 0.5, "lambda2": 2.0},
    {"slopes": "critic", "second": [4], "hard": False, "tau": 0.3},
    {"slopes": "orthonormal", "second": [4], "norm_epsilon": 0.0},
]


def check(expected: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    """Gradients equal those of the network in one piece."""
    assert expected
    for name, weight in module.named_parameters():
        wanted = torch.zeros_like(expected[name]) if expected[name].grad is None else expected[name].grad
        found = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")  # noqa: B023


@pytest.mark.parametrize("options", SETTINGS, ids=["critic", "parts", "soft", "orthonormal"])
@pytest.mark.parametrize("silos", [2, 3])
@pytest.mark.parametrize("name", ["vflgan", "vflgan-base"])
def test_a_round_is_that_of_the_network_in_one_piece(name, silos, options):
    play = Play(name, silos, **options)
    play.begin()
    oracle = Oracle(play)
    talk = vflgan._train_round(play.roster, play.config, play.shared, 0, play.tell(vflgan.CriticiseBatch()), more=False)
    step = next(talk)
    for number in range(play.config.critic_steps):
        oracle.critic_step(number)
        replies = play.exchange(step)
        for silo, weights in oracle.whole.critics.items():
            check(weights, play.local(silo).critic.network)
        check(oracle.whole.shared, play.shared.critic.network)
        oracle.follow()
        step = talk.send(replies)
    oracle.generator_step(0)
    play.exchange(step)
    for silo, (weights,) in oracle.parts.items():
        check(weights, play.local(silo).parts[0].network)


@pytest.mark.parametrize(("name", "silos"), [("vertigan", 2), ("vertigan", 3), ("wgan-gp", 1)])
def test_a_round_of_vertigan_is_that_of_the_network_in_one_piece(name, silos):
    play = Play(name, silos)
    play.begin()
    oracle = Oracle(play)
    replies = play.tell(BackboneRound(NOTHING, True))
    for number in range(play.config.critic_steps):
        oracle.critic_step(number)
        oracle.of_critics.step()
    oracle.follow()
    oracle.generator_step(0)
    total = torch.stack([reply.gradient_P for reply in replies.values()]).sum(0)
    expected = next(iter(oracle.parts.values()))[0].values()  # autograd has summed over silos: one backbone
    expected = [torch.zeros_like(w) if w.grad is None else w.grad for w in expected]
    torch.testing.assert_close(total.double(), torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-5)
    told = next(vflgan._backbone_round(play.roster, 1, replies, more=True))
    assert all(torch.equal(ask.grad_sum_P, total) for ask in told.asks.values())
    for silo, (_, head) in oracle.parts.items():
        check(head, play.local(silo).parts[1].network)


@pytest.mark.parametrize("slopes", ["orthonormal", "parts"])
def test_first_parts_keep_distances_or_are_free(slopes):
    play = Play("vflgan", 2, slopes=slopes, rate=0.01)
    play.begin()
    replies = play.tell(vflgan.CriticiseBatch())
    for number in range(3):
        replies = play.drive(vflgan._train_round(play.roster, play.config, play.shared, number, replies, True))
    critics = [play.local(silo).critic.network for silo in play.silos]
    matrices = [layer.weight.detach() for critic in critics for layer in critic.first.linears]
    off = [float((torch.linalg.svdvals(matrix) - 1).abs().max()) for matrix in matrices]
    assert max(off) < 0.05 if slopes == "orthonormal" else min(off) > 0.05
    longest = []
    for silo, critic in zip(play.silos, critics, strict=True):
        x = play.local(silo).real.clone().requires_grad_()
        f = critic.features(x)
        pull = torch.randn(f.shape, generator=torch.Generator().manual_seed(1))
        (in_rows,) = torch.autograd.grad((f * pull).sum(), x)
        longest.append(float((in_rows.norm(dim=1) / pull.norm(dim=1)).max()))
    assert slopes == "parts" or max(longest) < 1.05


@pytest.mark.parametrize(
    ("name", "slopes"), [("vflgan", "parts"), ("vflgan", "critic"), ("vflgan-base", "parts"), ("vertigan", "critic")]
)
def test_a_few_rounds_end_at_the_weights_of_the_network_in_one_piece(name, slopes):
    play = Play(name, 3, rate=1e-3, slopes=slopes)
    play.begin()
    oracle = Oracle(play)
    replies = play.tell(BackboneRound(NOTHING, True) if name == "vertigan" else vflgan.CriticiseBatch())
    for number in range(3):
        for i in range(play.config.critic_steps):
            oracle.critic_step(number * play.config.critic_steps + i)
            oracle.of_critics.step()
        oracle.generator_step(number)
        oracle.of_makers.step()
        if name == "vertigan":
            total = torch.stack([reply.gradient_P for reply in replies.values()]).sum(0)
            replies = play.tell(BackboneRound(total, number < 2))
        else:
            talk = vflgan._train_round(play.roster, play.config, play.shared, number, replies, more=number < 2)
            replies = play.drive(talk)
    for silo in play.silos:
        close(oracle.whole.critics[silo], play.local(silo).critic.network, oracle.of_critics)
        for weights, part in zip(oracle.parts[silo], play.local(silo).parts, strict=True):
            close(weights, part.network, oracle.of_makers)


def close(expected: dict[str, torch.Tensor], module: torch.nn.Module, adam: torch.optim.Adam) -> None:
    """Weights are equal where they have a gradient: Adam turns a gradient of mere rounding errors into whole steps.

    Such are biases before a batch normalisation, the last of a critic, and here and there a weight in some step.
    """
    off = []
    for name, weight in module.named_parameters():
        real = adam.state[expected[name]]["exp_avg_sq"] > 1e-11
        off.append((weight.detach().double() - expected[name].detach())[real].abs())
    off = torch.cat(off)
    assert len(off) > 40
    assert (off < 2e-5).double().mean() > 0.95


@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_backbones_stay_equal_and_other_weights_do_not(name):
    play = Play(name)
    play.whole()
    first, second = (play.local(silo).parts[0].network.state_dict() for silo in ("a", "b"))
    equal = [torch.equal(first[key], second[key]) for key in first if not key.startswith("last")]
    assert all(equal) if name == "vertigan" else not all(equal)


@pytest.mark.slow
def test_there_is_one_exchange_per_step_and_one_more_with_each_report(monkeypatch):
    monkeypatch.setattr(vflgan, "REPORTS", 10)
    play = Play(epochs=50)  # 200 critic steps: 40 rounds of 6 steps, with a report before every fourth
    before = Play(epochs=50)
    before.begin()
    play.whole()
    rounds = play.config.rounds(70)
    assert rounds == 40
    assert play.exchanges - before.exchanges == rounds * (play.config.critic_steps + 1) + 10


@pytest.mark.slow
def test_vertigan_takes_one_exchange_per_round(monkeypatch):
    monkeypatch.setattr(vflgan, "REPORTS", 10)
    play, before = Play("vertigan", epochs=50), Play("vertigan")
    before.begin()
    play.whole()
    assert play.exchanges - before.exchanges == 40 + 10


def test_all_silos_take_the_same_rows_and_the_same_noise():
    play = Play(silos=3)
    play.whole()
    draws = [play.local(silo).draws for silo in play.silos]
    for step in (0, 3, 4, 9):
        rows = [each.batch_of(step) for each in draws]
        assert all(torch.equal(rows[0], other) for other in rows)
        z = [each.noise(4, 5, f"critic {step}") for each in draws]
        assert all(torch.equal(z[0], other) for other in z)
    epoch = torch.cat([draws[0].batch_of(step) for step in range(4, 8)])
    assert len(epoch.unique()) == 64
    assert not torch.equal(draws[0].batch_of(0), draws[0].batch_of(4))


def test_another_training_has_another_secret():
    plays = [Play(), Play(), Play(rate=1e-4)]
    for play in plays:
        play.whole()
    orders = [play.local("a").draws.batch_of(0) for play in plays]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def test_an_old_purpose_is_refused():
    """The coordinator cannot repeat the batches of an earlier training: each silo checks for its own nonce."""
    old, new = Play(), Play(rate=1e-4)
    old.begin()
    new.begin()
    purpose = next(ask.purpose for _, ask, _ in old.said if isinstance(ask, OfferShares))
    for silo in new.silos.values():
        with pytest.raises(ProtocolError, match="once"):
            silo.answer(OfferShares(purpose, False))
        for asked in (OfferShares(purpose, False), OfferShares(f"{vflgan.PUBLICATION} x", True)):
            with pytest.raises(ProtocolError, match="prepared for"):
                silo._answer(asked)


def test_features_are_those_that_the_coordinator_sees():
    play = Play()
    play.begin()
    replies = play.tell(vflgan.CriticiseBatch())
    for silo, party in play.silos.items():
        features = party.features()
        assert features.shape == (70, 6)
        rows = play.local(silo).draws.batch_of(0)
        if party.rows.shape.scores == len(party.rows.shape.level_of) and not party.rows.shape.level_of.count(-1):
            continue
        torch.testing.assert_close(features[rows], replies[silo].real_RW)


def test_messages_out_of_order_are_refused():
    play = Play()
    silo = play.silos["a"]
    with pytest.raises(ProtocolError, match="It awaits VFLGANPrepare"):
        silo.answer(vflgan.CriticiseBatch())
    silo.answer(vflgan.VFLGANPrepare())
    with pytest.raises(ProtocolError, match="It awaits OfferShares"):
        silo.answer(vflgan.CriticiseBatch())
    with pytest.raises(ProtocolError, match="agreed on a secret"):
        silo._answer(vflgan.CriticiseBatch())
    play = Play()
    play.begin()
    silo = play.silos["a"]
    nothing = torch.zeros(16, 6)
    with pytest.raises(ProtocolError, match="Gradients follow"):
        silo.answer(vflgan.DescendLocalCritic(nothing, nothing, True))
    silo.answer(vflgan.CriticiseBatch())
    with pytest.raises(ProtocolError, match="Gradients follow"):
        silo.answer(vflgan.DescendLocalGenerator(nothing, True))
    with pytest.raises(ProtocolError, match="before it"):
        silo._answer(vflgan.VFLGANSynthesise(3, "x"))
    for never in (vflgan.VFLGANSynthesise(3, "x"), Charge(16, (), ()), vflgan.VFLGANPrepare()):
        with pytest.raises(ProtocolError, match="in their turn"):
            silo.answer(never)
    with pytest.raises(ProtocolError, match="Done"):
        silo.answer(Done())


def test_vertigans_sums_follow_rounds():
    play = Play("vertigan")
    play.begin()
    with pytest.raises(ProtocolError, match="follows a round"):
        play.silos["a"].answer(BackboneRound(torch.zeros(3), True))
    play.tell(BackboneRound(NOTHING, True))
    with pytest.raises(ProtocolError, match="follows a round"):
        play.silos["a"].answer(BackboneRound(NOTHING, True))


@pytest.mark.parametrize(("name", "wanted"), [("vflgan", "BatchFeatures"), ("vertigan", "BackboneGradient")])
def test_the_coordinator_refuses_another_reply(name, wanted):
    play = Play(name)
    play.begin()
    replies = {silo: Done() for silo in play.silos}
    if name == "vflgan":
        talk = vflgan._train_round(play.roster, play.config, play.shared, 0, replies, True)
    else:
        talk = vflgan._backbone_round(play.roster, 0, replies, True)
    with pytest.raises(ProtocolError, match=f"Silo 'a' replies with {wanted}"):
        next(talk)


# Which weights are kept.


def test_frechet_distance_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), rng.normal(0.3, 1.4, size=(150, 5)) @ rng.normal(size=(5, 5))
    v, w = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(v + w - 2 * scipy.linalg.sqrtm(v @ w).real)
    assert frechet_distance(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(torch.from_numpy(x), torch.from_numpy(x)) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(torch.zeros(4, 1), torch.ones(3, 1)) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_the_nearest_weights_are_kept(name):
    play = Play(name, select="frechet", epochs=30, rate=0.02, penalty=0.0)
    play.whole()
    told = [reply.distance for _, ask, reply in play.said if isinstance(ask, vflgan.MeasureDistance)]
    sums = np.array(told).reshape(-1, 2).sum(1)
    kept = [i for i, (_, ask, _) in enumerate(play.said) if isinstance(ask, vflgan.KeepBestWeights)]
    asked = [i for i, (_, ask, _) in enumerate(play.said) if isinstance(ask, vflgan.MeasureDistance)]
    assert len(sums) == play.config.rounds(70)
    assert sum(i < kept[-1] for i in asked) == 2 * (int(sums.argmin()) + 1)  # the last ones kept are the nearest
    for silo, party in play.silos.items():
        parts = party.trained()["training"]["parts"]
        for part, best, now in zip(parts, play.local(silo).best, play.local(silo).parts, strict=True):
            assert all(torch.equal(part["network"][key], best[key]) for key in best)
            if sums.argmin() < len(sums) - 1:
                assert any(not torch.equal(best[key], value) for key, value in now.network.state_dict().items())


def test_the_kept_weights_are_what_is_drawn_from_whether_or_not_the_model_was_stored():
    play = Play(select="frechet", epochs=30, rate=0.02, penalty=0.0)
    model = play.whole()

    def drawn(silos) -> list:
        play.silos = silos
        tables = play.drive(vflgan.synthesise(play.roster, play.config, model, 20, Streams(1), CPU))
        return [column.values for held in tables.values() for column in held.columns]

    seat, empty = seats(play.roster, Streams(0).child("seats")), {}
    for name, party in play.silos.items():
        empty[name] = play.entry.party(
            play.federation.tables[name].take(slice(0, 0)), play.federation.schemas[name], seat[name],
            Streams(0).child(name), CPU, play.config,
        )  # fmt: skip
        empty[name].restore(party.trained())
    for party in play.silos.values():
        party._turns = Turns(*party._script(training=False))  # as it is, without being restored
    assert all(torch.equal(x, y) for x, y in zip(drawn(dict(play.silos)), drawn(empty), strict=True))


# Options and presets.


@pytest.mark.parametrize("name", ["vflgan", "vflgan-base", "vertigan", "wgan-gp"])
@pytest.mark.parametrize("preset", ["paper", "fast", "balanced", "best", "private"])
def test_presets_are_valid(name, preset):
    config = ALGORITHMS[name].configure(preset)
    assert getattr(config, "local", None) == {"vflgan": True, "vflgan-base": False}.get(name)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("vflgan", {"batch": 1}, "at least 2"),
        ("vflgan", {"shared": [0]}, "'shared'"),
        ("vflgan", {"second": [0]}, "'second'"),
        ("vflgan", {"lambda1": -1.0}, "'lambda1'"),
        ("vflgan", {"penalty": -1.0}, "'penalty'"),
        ("vertigan", {"backbone": 0}, "'backbone'"),
        ("vertigan", {"backbone": 4}, "The generator has 2"),
        ("vflgan", {"dp": {"epsilon": 1, "delta": 1e-5}, "select": "frechet"}, "select = 'last'"),
        ("vflgan", {"dp": {"epsilon": 1, "delta": 1e-5}, "numbers": "standard"}, "numbers = 'quantile'"),
    ],
)
def test_options_are_checked(name, options, match):
    with pytest.raises(ConfigError, match=match):
        ALGORITHMS[name].configure("fast", options)


def test_wide_rows_are_not_compared():
    frame = table(3000).assign(code=[f"c{i % 2500}" for i in range(3000)])
    federation = ss.simulate(frame, silos={"a": ["city", "code"], "b": ["debt"]})
    options = {"select": "frechet", "encoders.min_count": 1, "encoders.most_categories": 2500}
    with pytest.raises(ConfigError, match="select = 'last'"):
        ss.fit("vflgan", federation, preset="fast", options=options, progress=False)


def test_standardised_numbers_come_back_with_their_missing_ones_and_within_their_range():
    frame = table(300)
    frame.loc[:59, "income"] = np.nan
    federation = ss.simulate(frame, silos={"a": ["city", "income"], "b": ["debt", "sex", "visits"]})
    options = SIZES | {"numbers": "standard", "least_rounds": 20}
    drawn = ss.fit("vflgan", federation, preset="fast", options=options, progress=False).sample(300)
    assert drawn.dtypes.equals(frame.dtypes)
    assert 0 < drawn["income"].isna().mean() < 0.7
    assert drawn["debt"].between(frame["debt"].min(), frame["debt"].max()).all()


@pytest.mark.slow
def test_ten_thousand_levels_train():
    frame = table(20_000).assign(code=[f"c{i % 10_000}" for i in range(20_000)])
    federation = ss.simulate(frame, silos={"a": ["city", "code"], "b": ["debt"]})
    options = {**SIZES, "encoders.min_count": 1, "encoders.most_categories": 10_000, "epochs": 1, "batch": 1000}
    drawn = ss.fit("vflgan", federation, preset="fast", options=options, progress=False).sample(50)
    assert set(drawn["code"]) <= set(frame["code"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_averaged_weights_are_what_is_released(name):
    play = Play(name, average=0.9, epochs=30)
    play.whole()
    for silo, party in play.silos.items():
        parts = party.trained()["training"]["parts"]
        for part, average, now in zip(parts, play.local(silo).averages, play.local(silo).parts, strict=True):
            averaged = average.weights
            assert all(torch.equal(part["network"][key], averaged[key]) for key in averaged)
            found = torch.cat([part["network"][key].flatten() for key in averaged if "num" not in key])
            last = torch.cat([value.flatten() for key, value in now.network.state_dict().items() if "num" not in key])
            assert 0 < (found - last).abs().max() < 0.5


@pytest.mark.slow
def test_the_central_gan_learns_how_columns_depend_on_each_other():
    frame = table(1500)
    federation = ss.simulate(frame, silos=SPLITS[2]).central()
    options = {"epochs": 1, "least_rounds": 400, "rate": 1e-3, "batch": 64}
    made = ss.fit("wgan-gp", federation, preset="fast", seed=0, options=options, progress=False).sample(1500)
    assert made.city.value_counts(normalize=True)["Bern"] == pytest.approx(0.6, abs=0.12)
    incomes = made.groupby("city").income.mean()
    assert incomes["Oslo"] - incomes["Bern"] == pytest.approx(20, abs=7)


@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_generators_start_at_the_shares_of_levels_and_at_uncorrelated_scores(name):
    frame = table(400)
    federation = ss.simulate(frame, silos=SPLITS[2])
    options = {"epochs": 1, "least_rounds": 1, "critic_steps": 1, "batch": 100, "rate": 1e-6, "average": 0.0}
    options |= {"start": "shares", "generator": [64, 64], "noise": 32, "norm_epsilon": 0.0}
    made = ss.fit(name, federation, preset="fast", seed=0, options=options, progress=False).sample(4000)
    for column in ("city", "sex"):
        made_at, real = (data[column].value_counts(normalize=True) for data in (made, frame))
        assert (made_at - real).abs().max() < 0.06
    assert made.income.mean() == pytest.approx(frame.income.mean(), abs=2)
    assert made.income.std() == pytest.approx(frame.income.std(), rel=0.15)
    assert abs(np.corrcoef(made.debt.rank(), made.visits.rank())[0, 1]) < 0.1  # of one silo
