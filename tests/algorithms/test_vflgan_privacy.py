"""VFLGAN's differential privacy: what a row can change, what is charged; and an attack on the paper's mechanism."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.algorithms.customers import table
from tests.algorithms.vflgan_play import CPU, SIZES, SPLITS, Oracle, Play
from tests.bounds import bounds
from tests.oracles import vflgan_one_piece as one
from torch.func import functional_call

import silosynth as ss
from silosynth.algorithms.vflgan import protocol as vflgan
from silosynth.algorithms.vflgan.networks import CommonDraws, SharedCritic
from silosynth.algorithms.vflgan.options import VFLGANConfig
from silosynth.algorithms.vflgan.private import ChargedSteps
from silosynth.algorithms.vflgan.protocol import NOTHING, BackboneRound
from silosynth.algorithms.vflgan.silo import VFLGANPart
from silosynth.catalog import algorithm
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams, integers, uniforms
from silosynth.models.encoded import EncodedRows, RowShape
from silosynth.privacy.accounting import Charge
from silosynth.privacy.dpsgd import clipped_losses
from silosynth.privacy.events import SAMPLED_GAUSSIAN, UNSOUND, Event, gaussian_steps
from silosynth.privacy.statement import statement

TARGET = {"epsilon": 2.0, "delta": 1e-5, "encoders": 0.5}  # the noise of so little is found soon


def private(name: str = "vflgan", clip: float = 1.0, **more) -> Play:
    play = Play(name, dp=TARGET | {"clip": clip}, **more)
    play.begin()
    return play


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


# What a step is.


def steepness_of_rows(judge, between: torch.Tensor) -> torch.Tensor:
    between = between.clone().requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square()


@pytest.mark.parametrize("name", ["vflgan", "vflgan-base"])
def test_without_noise_and_clipping_a_step_is_that_of_the_network_in_one_piece(name):
    """Real rows are a Poisson sample, and their sum is divided by the expected batch size."""
    play = private(name, clip=1e6, slopes="critic")
    for party in play.silos.values():
        party.charged = replace(party.charged, noise=0.0)
    play.shared.charged = replace(play.shared.charged, noise=0.0)
    oracle = Oracle(play)
    replies = play.tell(vflgan.CriticiseBatch())
    whole, (sizes) = oracle.whole, {len(reply.real_RW) for reply in replies.values()}
    assert len(sizes) == 1
    real, fake, loss = {}, {}, torch.zeros(())
    for silo in play.silos:
        local = play.local(silo)
        real[silo], fake[silo], between = (x.double() for x in (local.real, local.fake, local.between))
        own = -whole.judge(silo, real[silo])
        if name == "vflgan":
            own = own + play.config.penalty * steepness_of_rows(lambda x: whole.judge(silo, x), between)  # noqa: B023
        else:
            own = own + play.config.penalty * steepness_of_rows(lambda x: whole.features(silo, x).sum(1), between)  # noqa: B023
        loss = loss + whole.judge(silo, fake[silo]).mean() + own.sum() / play.budget.expected
    draw = play.shared.streams.child("critic", 0).noise()
    f, r = whole.all_features(fake), whole.all_features(real)
    beside = f[integers(draw, len(f), len(r))]
    mix = uniforms(draw, len(r), 1).double()

    def judge(x):
        return one.part(whole.shared, "", x, last=True).squeeze(1)

    own = -judge(r) + play.config.penalty * steepness_of_rows(judge, (beside + mix * (r - beside)).detach())
    (loss + judge(f).mean() + own.sum() / play.budget.expected).backward()
    play.drive(vflgan._train_round(play.roster, replace(play.config, critic_steps=1), play.shared, 0, replies, False))
    for silo in play.silos:
        check(whole.critics[silo], play.local(silo).critic.network)
    check(whole.shared, play.shared.critic.network)


def check(expected: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    for key, weight in module.named_parameters():
        wanted = torch.zeros_like(expected[key]) if expected[key].grad is None else expected[key].grad
        torch.testing.assert_close(weight.grad.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"slopes": "critic"}, {"slopes": "parts"}, {"slopes": "orthonormal"}, {"slopes": "parts", "local": False}],
    ids=["critic", "parts", "orthonormal", "base"],
)
def test_gradients_per_row_are_those_of_a_loop_over_rows(options):
    play = private(clip=0.3, **options)
    play.tell(vflgan.CriticiseBatch())
    for silo in play.silos:
        local = play.local(silo)
        pull = torch.randn(len(local.real), 6, generator=torch.Generator().manual_seed(1))
        expected = {key: torch.zeros_like(weight) for key, weight in local.real_loss.named_parameters()}
        clip = 0.3 / 3**0.5  # of three blocks
        for i in range(len(local.real)):
            row = (local.real[i : i + 1], local.between[i : i + 1], pull[i : i + 1])
            weights = dict(local.real_loss.named_parameters())
            loss = functional_call(local.real_loss, weights, row).sum()
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            grads = [torch.zeros_like(w) if g is None else g for w, g in zip(weights.values(), found, strict=True)]
            length = torch.cat([g.flatten() for g in grads]).norm()
            for key, g in zip(weights, grads, strict=True):
                expected[key] += g * min(1.0, clip / float(length))
        for key, found in clipped_losses(local.real_loss, clip, local.real, local.between, pull).items():
            torch.testing.assert_close(found.float(), expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_row_changes_the_sums_of_all_blocks_by_at_most_the_clip(size):
    """However extreme the row is, and whatever gradients the coordinator sends for it."""
    play = private(clip=0.7)
    replies = play.tell(vflgan.CriticiseBatch())
    squares, clip = 0.0, 0.7 / 3**0.5
    for silo in play.silos:
        local = play.local(silo)
        pull = size * torch.randn(len(local.real), 6, generator=torch.Generator().manual_seed(1))
        local.real = torch.cat([local.real[:-1], size * torch.ones_like(local.real[:1])])
        whole = clipped_losses(local.real_loss, clip, local.real, local.between, pull)
        local.real, local.between = local.real[:-1], local.between[:-1]
        without = clipped_losses(local.real_loss, clip, local.real, local.between, pull[:-1])
        change = norm({key: whole[key] - without[key] for key in whole})
        assert 0 < change <= clip * (1 + 1e-4)
        squares += change**2
    real = size * torch.cat([reply.real_RW for reply in replies.values()], dim=1)
    whole, without = (clipped_losses(play.shared.real_loss, clip, x, 0.5 * x) for x in (real, real[:-1]))
    change = norm({key: whole[key] - without[key] for key in whole})
    assert 0 < change <= clip * (1 + 1e-4)
    assert squares + change**2 <= 0.7**2 * (1 + 1e-4)


def test_noise_is_on_every_block_and_of_the_whole_clips_size():
    play = private(clip=0.5, critic=[120, 60], shared=[60])
    quiet = private(clip=0.5, critic=[120, 60], shared=[60])
    for party in quiet.silos.values():
        party.charged = replace(party.charged, noise=0.0)
    quiet.shared.charged = replace(quiet.shared.charged, noise=0.0)
    for each in (play, quiet):
        replies = each.tell(vflgan.CriticiseBatch())
        talk = vflgan._train_round(each.roster, replace(each.config, critic_steps=1), each.shared, 0, replies, False)
        each.drive(talk)
    pairs = [(play.local(silo).critic.network, quiet.local(silo).critic.network) for silo in play.silos]
    for noisy, still in [*pairs, (play.shared.critic.network, quiet.shared.critic.network)]:
        noise = torch.cat(
            [(x.grad - y.grad).flatten() for x, y in zip(noisy.parameters(), still.parameters(), strict=True)]
        )
        wanted = play.budget.noise * 0.5 / play.budget.expected
        assert float(noise.std()) == pytest.approx(wanted, rel=0.1)
        assert all((x.grad != y.grad).any() for x, y in zip(noisy.parameters(), still.parameters(), strict=True))


def test_the_number_of_generated_rows_does_not_depend_on_that_of_real_ones():
    """Neither of a batch nor of the table; only the noised number counts, and it is the same here."""
    made = []
    for rows in (70, 61):
        play = private(frame=table(rows))
        budget = replace(play.budget, rate=0.2, expected=16.0)
        for party in play.silos.values():
            party.columns.encoders, party.charged = (), budget
        shape = RowShape((2,), (-1,))
        for silo, party in play.silos.items():
            coded = EncodedRows(shape, torch.zeros(rows, 1, dtype=torch.int64), torch.zeros(rows, 1), ())
            party.training = VFLGANPart(
                coded, play.config, CommonDraws(party.secret, rows, 16), budget, party.account, Streams(0).child(silo),
                CPU,
            )  # fmt: skip
            for _ in range(5):
                party.training.criticise()
                made.append((rows, play.local(silo).fake, len(play.local(silo).real)))
    pairs = list(zip(made[:10], made[10:], strict=True))
    assert all(torch.equal(x, y) for (_, x, _), (_, y, _) in pairs)
    assert any(many > fewer for (_, _, many), (_, _, fewer) in pairs)


def test_an_empty_batch_is_noise_alone():
    play = private()
    for party in play.silos.values():
        party.charged = replace(party.charged, rate=1e-12)
    replies = play.tell(vflgan.CriticiseBatch())
    assert all(len(reply.real_RW) == 0 for reply in replies.values())
    play.drive(vflgan._train_round(play.roster, replace(play.config, critic_steps=1), play.shared, 0, replies, False))
    assert all(weight.grad.isfinite().all() for weight in play.local("a").critic.network.parameters())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_real_row_that_is_not_finite_counts_as_nothing(bad):
    """Neither in the noised sums, nor in the gradients of generated rows, which get no noise."""
    local = private().silos["a"]._trainer()
    sampled = local.draws.sample_of(0, local.charged.rate)
    local.rows.scores[sampled[0]] = bad
    fake_BW, real_RW = local.criticise()
    assert fake_BW.isfinite().all() and not real_RW.isfinite().all()
    local.charged, pulls = replace(local.charged, noise=0.0), (torch.ones_like(fake_BW), torch.ones_like(real_RW))
    fine, clip = real_RW.isfinite().all(1), 1.0 / 3**0.5  # of three blocks
    real = clipped_losses(local.real_loss, clip, local.real[fine], local.between[fine], pulls[1][fine])
    made = clipped_losses(local.made_loss, clip, local.fake, pulls[0])
    wanted = {name: real[name] / local.charged.expected + made[name] / len(local.fake) for name in real}
    local.descend_critic(*pulls)
    for name, weight in local.real_loss.named_parameters():
        torch.testing.assert_close(weight.grad, wanted[name].float())


@pytest.mark.parametrize("options", [{"slopes": "critic"}, {"slopes": "orthonormal"}, {"local": False}])
def test_gradients_of_equal_real_and_generated_rows_cancel_at_every_clip(options):
    """Without penalty. If only real rows' gradients were clipped, critics would learn from the clipping."""
    play = private(clip=1e-3, penalty=0.0, **options)
    play.tell(vflgan.CriticiseBatch())
    for silo in play.silos:
        local = play.local(silo)
        local.charged = replace(local.charged, noise=0.0, expected=len(local.fake))
        local.real = local.between = local.fake
        pull = torch.randn(len(local.fake), 6, generator=torch.Generator().manual_seed(1))
        local.descend_critic(pull, -pull)
        made = clipped_losses(local.made_loss, 1.0, local.fake, pull)
        assert norm(made) > 0
        assert all(weight.grad.abs().max() < 1e-9 for weight in local.critic.network.parameters())
    shared = play.shared
    shared.charged = replace(shared.charged, noise=0.0, expected=16)
    features = torch.randn(16, 12, generator=torch.Generator().manual_seed(2))
    shared.descend(0, features, features)
    assert norm(clipped_losses(shared.made_loss, 1.0, features)) > 0
    assert all(weight.grad.abs().max() < 1e-9 for weight in shared.critic.network.parameters())


def test_silos_draw_the_same_poisson_samples():
    draws = [party._trainer().draws for party in private().silos.values()]
    batches = [[each.sample_of(step, 0.2) for step in range(200)] for each in draws]
    assert all(torch.equal(x, y) for x, y in zip(*batches, strict=True))
    sizes = torch.tensor([len(rows) for rows in batches[0]]).double()
    assert 70 * 0.2 - 1 < sizes.mean() < 70 * 0.2 + 1
    assert 70 * 0.2 * 0.8 * 0.6 < sizes.var() < 70 * 0.2 * 0.8 * 1.6


# What is charged.


@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_no_step_is_taken_beyond_what_was_charged(name):
    play = private(name)
    more = play.entry.configure("fast", SIZES | {"dp": TARGET, "epochs": 30})
    last = play.budget.steps
    for party in play.silos.values():
        party.account.taken = last
    with pytest.raises(ProtocolError, match="no more private steps than were charged"):
        play.tell(BackboneRound(NOTHING, True) if name == "vertigan" else vflgan.CriticiseBatch())
    assert more.rounds(70) * more.critic_steps > last


def test_a_whole_training_takes_exactly_the_steps_that_it_charged():
    play = Play(dp=TARGET)
    play.whole()
    for silo, party in play.silos.items():
        assert play.local(silo).critic_steps == party.account.taken == party.charged.steps


@pytest.mark.parametrize(("name", "silos"), [("vflgan", 2), ("vertigan", 2), ("wgan-gp", 1)])
def test_the_release_costs_at_most_the_target(name, silos):
    federation = ss.simulate(table(), silos=SPLITS[silos], schema=bounds(table()))
    model = ss.fit(name, federation, preset="fast", options=SIZES | {"dp": TARGET}, progress=False, seed=1)
    events = [(record["from"], event) for record in model.ledger for event in record.get("events", ())]
    steps = [(who, event) for who, event in events if event["mechanism"] == SAMPLED_GAUSSIAN and who != "coordinator"]
    assert [who for who, _ in steps] == list(SPLITS[silos])
    assert steps[0][1] == steps[-1][1] and steps[0][1]["joint"]
    assert steps[0][1]["scope"] == "release"
    release = statement(model.ledger, assume_secret=True)["release"]
    assert 0.9 * 2.0 < release["epsilon"] <= 2.0
    assert release["delta"] <= 1e-5 * (1 + 1e-9)
    assert model.coordinator["rows"] == pytest.approx(16 / steps[0][1]["rate"])


def test_no_silo_reveals_its_exact_row_count():
    play = Play(dp=TARGET)
    play.whole()
    kinds = {type(reply) for _, _, reply in play.said}
    assert vflgan.VFLGANPreparedPrivately in kinds and vflgan.VFLGANPrepared not in kinds


def test_unequal_row_counts_are_refused_without_being_revealed():
    play = Play(dp=TARGET)
    party = play.silos["b"]
    party.columns.table = party.columns.table.take(slice(0, 69))
    with pytest.raises(ProtocolError, match="same rows") as caught:
        play.whole()
    assert "69" not in str(caught.value).split("got")[0]


def test_no_silo_releases_an_exact_distance_without_a_charge():
    with pytest.raises(ProtocolError, match=r"in their turn.*MeasureDistance"):
        private("vflgan").tell(vflgan.MeasureDistance())


def test_charges_are_checked():
    play = private()
    silo = play.silos["a"]
    ask = silo.account.charged
    silo.account.begin(silo.config.dp, silo.account.learnt)  # before the charge
    (steps,) = ask.events
    cheap = Event("discrete Laplace", 1e-3, 0.0, steps.what, times=steps.times)
    for wrong in ((), (cheap,), (replace(steps, joint=False),), (steps, steps)):
        with pytest.raises(ProtocolError, match="one event for all gradients of critics"):
            silo._answer(replace(ask, events=wrong))
    own = set(silo.account.learnt)
    with pytest.raises(ProtocolError, match="costs at most the target"):
        silo._answer(replace(ask, learnt=tuple(event for event in ask.learnt if event not in own)))
    with pytest.raises(ProtocolError, match="costs at most the target"):
        silo._answer(replace(ask, events=(replace(steps, noise=0.9 * steps.noise),)))
    silo._answer(ask)
    with pytest.raises(ProtocolError, match="at most the target, once"):
        silo._answer(ask)
    with pytest.raises(ProtocolError, match=r"charge once.*Charge"):
        silo.answer(ask)


def test_training_waits_for_the_charge():
    play = Play(dp=TARGET)
    for party in play.silos.values():
        party.answer(vflgan.VFLGANPrepare())
        with pytest.raises(ProtocolError, match="charged for all steps"):
            party._answer(vflgan.CriticiseBatch())


# The paper's mechanism, and why it protects nobody.

UNPROTECTED = {"dp": {"mechanism": "paper-unsound", "noise": 50.0}, "numbers": "standard"}


@pytest.mark.parametrize("name", ["vflgan", "vertigan", "wgan-gp"])
def test_the_papers_mechanism_warns_and_states_no_epsilon(name):
    federation = ss.simulate(table(), silos={"a": ["city", "income"], "b": ["debt", "sex", "visits"]})
    held = federation.central() if algorithm(name).central else federation
    with pytest.warns(vflgan.PrivacyWarning, match="protects nobody"):
        model = ss.fit(name, held, preset="fast", options=SIZES | UNPROTECTED, progress=False)
    mechanisms = {event["mechanism"] for record in model.ledger for event in record.get("events", ())}
    assert mechanisms == {UNSOUND}
    assert statement(model.ledger)["release"] is None


def neighbours() -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen rows of zeros; and the same but for the first, which is one."""
    one_row = torch.zeros(16, 1)
    one_row[0] = 1.0
    return torch.zeros(16, 1), one_row


def moved(seed: int, scores: torch.Tensor, secrets: Play, config: VFLGANConfig, budget: ChargedSteps | None) -> bool:
    """One iteration of Algorithm 1, from D(x) = w2 w1 x with w2 = 0 and G(z) = 0: whether a generator has moved."""
    coded = EncodedRows(RowShape((), (-1,)), torch.zeros(16, 0, dtype=torch.int64), scores, ())
    streams = Streams(seed)
    for silo, party in secrets.silos.items():
        draws = CommonDraws(party.secret, 16, 16)
        party.account.paid, party.account.taken = Charge(16, (), (gaussian_steps("steps", 5.0, 0.5, 1),)), 0
        party.training = VFLGANPart(coded, config, draws, budget, party.account, streams.child(silo), CPU)
        local = party.training
        set_weights(local.critic.network.first, 1.0)
        set_weights(local.critic.network.second, 0.0)
        set_weights(local.parts[0].network.last, 0.0)
    shared = SharedCritic(2, config, budget, streams, CPU)
    set_weights(shared.critic.network, 0.0)
    before = [parameters(secrets.local(silo).parts[0].network) for silo in secrets.silos]
    replies = secrets.tell(vflgan.CriticiseBatch())
    secrets.drive(vflgan._train_round(secrets.roster, config, shared, 0, replies, more=False))
    after = [parameters(secrets.local(silo).parts[0].network) for silo in secrets.silos]
    return any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


def set_weights(module: torch.nn.Module, value: float) -> None:
    for name, weight in module.named_parameters():
        torch.nn.init.constant_(weight, 0.0 if name.endswith("bias") else value)


def parameters(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


SIMPLE = {"critic": [1], "shared": [], "critic_steps": 1, "batch": 16, "generator": [4]}


@pytest.mark.filterwarnings("ignore::silosynth.algorithms.vflgan.protocol.PrivacyWarning")
def test_the_papers_mechanism_is_broken_with_certainty():
    """The generator alone distinguishes two tables that differ by one row, whatever the noise.

    The first layer's gradient is zero, so noise alone moves it. The second layer and D_s move by the mean of the
    first layer's outputs, un-noised: by nothing for the table of zeros, and then no generator moves; by something for
    the other table, and then they do. Total variation is 1: no epsilon, and no delta below one, holds.
    """
    play = Play(**UNPROTECTED, **SIMPLE)
    play.begin()
    zeros, other = neighbours()
    for seed in range(25):
        assert not moved(seed, zeros, play, play.config, None)
        assert moved(seed, other, play, play.config, None)


@pytest.mark.filterwarnings("ignore::silosynth.algorithms.vflgan.protocol.PrivacyWarning")
def test_sound_noise_defeats_that_attack():
    play = Play(**UNPROTECTED, **SIMPLE)
    play.begin()
    config = play.entry.configure("fast", SIZES | SIMPLE | {"dp": TARGET})
    budget = ChargedSteps(steps=1, rate=0.5, expected=16.0, blocks=3, noise=5.0)
    times = [sum(moved(seed, scores, play, config, budget) for seed in range(12)) for scores in neighbours()]
    assert min(times) > 6  # not always: Adam's first two steps, which are similar, may cancel
