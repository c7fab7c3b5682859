"""The central baselines' models: losses against slow versions, and each one's peculiarities."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from silosynth.core.streams import Streams
from silosynth.models.autoencoder import TVAE, TVAEConfig
from silosynth.models.conv_gan import (
    ConvolutionalGAN,
    CTABGANConfig,
    ImageCritic,
    ImageGenerator,
    _drawn,
    information_loss,
)
from silosynth.models.ctgan import ConditionalGAN, CTGANConfig, levels_of
from silosynth.models.encoded import EncodedRows, RowShape, chunks, span
from silosynth.models.gan import gradient_penalty
from silosynth.models.tabddpm import RowDiffusion, TabDDPMConfig

CPU = torch.device("cpu")
SHAPE = RowShape((3, 2, 4), (2, -1), (2, 1))
MODELS = [
    (ConditionalGAN, CTGANConfig(epochs=2, batch=20, generator=(8,), critic=(8,), noise=4)),
    (ConditionalGAN, CTGANConfig(epochs=2, batch=20, generator=(8,), critic=(8,), noise=4, pac=10)),
    (partial(ConditionalGAN, normalised=True), CTGANConfig(epochs=2, batch=20, generator=(8,), critic=(8,), noise=4)),
    (ConvolutionalGAN, CTABGANConfig(epochs=2, batch=20, channels=2, noise=4, adversary="original", classifier=(8,))),
    (ConvolutionalGAN, CTABGANConfig(epochs=2, batch=20, channels=2, noise=4, information=0, normalised=True)),
    (TVAE, TVAEConfig(epochs=2, batch=20, encoder=(8,), decoder=(8,), embedding=3)),
    (RowDiffusion, TabDDPMConfig(steps=4, batch=20, layers=(8,), time=4, diffusion_steps=6, sample_steps=6)),
]


def generator(*path):
    return Streams(0).child(*path).torch()


def coded(rows=60, shape=SHAPE, target=1):
    """Two categorical columns, a score with modes 0 and 1 of the third, and a score that is always on."""
    draw = generator("coded")
    levels = [torch.randint(width, (rows,), generator=draw) for width in shape.widths]
    scores = torch.rand(rows, shape.scores, generator=draw) * 2 - 1
    scores[:, 0] = torch.where(levels[2] < 2, scores[:, 0], 0.0)
    return EncodedRows(shape, torch.stack(levels, dim=1), scores, (0, 1), target)


def make(kind, config, rows=60):
    return kind(coded(rows), config, Streams(0).child("model"), CPU)


def test_tvae_loss_equals_a_loop_over_rows_and_columns():
    model, rows = make(TVAE, TVAEConfig(encoder=(8,), decoder=(7,), embedding=3, factor=2.0)), coded()
    noise = torch.randn(60, 3, generator=generator("noise"))
    with torch.no_grad():
        model.network.log_spread.weight.copy_(torch.tensor([[-1.0, -9.0]]))  # the second is below the least
        fast = float(model.loss(rows.levels, rows.scores, noise))
        mean, logvar = model.network.encode(SHAPE.vectors(rows.levels, rows.scores))
        out = model.network.decoder(mean + (0.5 * logvar).exp() * noise)
    spreads, total = (np.exp(-1.0), 0.01), 0.0
    for i in range(60):
        likelihood = 0.0
        for c, logits in enumerate(out[i, :9].split([3, 2, 4])):
            likelihood += float(logits.log_softmax(dim=0)[rows.levels[i, c]])
        for s, on in enumerate((rows.levels[i, 2] < 2, True)):
            law = torch.distributions.Normal(out[i, 9 + s].tanh(), torch.tensor(spreads[s]).float())
            if on:  # up to the constant that no weight moves
                likelihood += float(law.log_prob(rows.scores[i, s])) + 0.5 * np.log(2 * np.pi)
        posterior = torch.distributions.Normal(mean[i], (0.5 * logvar[i]).exp())
        prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        total += float(torch.distributions.kl_divergence(posterior, prior).sum()) - 2.0 * likelihood
    assert fast == pytest.approx(total / 60, rel=1e-4)


def test_tabddpm_loss_is_the_squared_error_plus_the_mean_bound():
    model, rows = make(RowDiffusion, TabDDPMConfig(layers=(8,), time=4, diffusion_steps=6)), coded()
    with torch.no_grad():
        fast = float(model.loss(rows.levels, rows.scores, generator("loss")))
        draw = generator("loss")
        t = torch.randint(6, (60,), generator=draw)
        noise = torch.randn(60, 2, generator=draw)
        noisy = model.multinomial.noised(rows.levels, t, draw)
        a = model.gaussian.alpha_bar[t][:, None]
        x = torch.cat(
            [F.one_hot(noisy[:, c], width) for c, width in enumerate(SHAPE.widths)]
            + [a.sqrt() * rows.scores + (1 - a).sqrt() * noise],
            dim=1,
        )
        out = model.network(x, (t + 1) / 6)
        bound = 6 * model.multinomial.divergence(out[:, :9], rows.levels, noisy, t).mean() / 3
    assert fast == pytest.approx(float((out[:, 9:] - noise).square().mean() + bound), rel=1e-5)


def test_scores_that_say_nothing_are_noise():
    rows = coded(rows=4000)
    _, scores = rows.batch(torch.arange(4000), generator("batch"))
    on = rows.levels[:, 2] < 2
    assert torch.equal(scores[on, 0], rows.scores[on, 0]) and torch.equal(scores[:, 1], rows.scores[:, 1])
    assert float(scores[~on, 0].std()) == pytest.approx(1.0, abs=0.1)


def test_information_loss_compares_means_and_standard_deviations():
    fake, real = (torch.randn(50, 4, generator=generator(name)) for name in ("fake", "real"))
    means = np.linalg.norm(fake.numpy().mean(axis=0) - real.numpy().mean(axis=0))
    spreads = np.linalg.norm(fake.numpy().std(axis=0) - real.numpy().std(axis=0))
    assert float(information_loss(fake, real)) == pytest.approx(means + spreads, rel=1e-5)
    assert float(information_loss(fake, fake)) == 0.0


@pytest.mark.parametrize("size", [64, 65, 300])
def test_initial_weights_keep_the_size_of_what_passes(size):
    """Outputs that start far smaller take most of a short training to grow."""
    model = make(ConvolutionalGAN, CTABGANConfig(channels=8))
    made = _drawn(ImageGenerator(30, size, 8), generator("generator"))
    critic = _drawn(ImageCritic(size, 8, False), generator("critic"))
    with torch.no_grad():
        rows = made(torch.randn(200, 30, generator=generator("noise")))
        judged = critic(torch.randn(200, size, generator=generator("rows")))
        outputs = model.outputs(torch.zeros(200, dtype=torch.int64), generator("outputs"))
    assert 0.3 < float(rows.std()) < 3 and 0.02 < float(judged.std()) < 3
    assert 0.3 < float(outputs.std()) < 3


@pytest.mark.parametrize("size", [17, 65, 300])
def test_images_pass_through_four_by_four_pixels(size):
    made, critic = ImageGenerator(3, size, 2), ImageCritic(size, 2, True)
    assert made.second.out_features == 16 * made.convolutions[0].in_channels
    assert critic.whole.in_features == 16 * critic.convolutions[-1].out_channels
    assert critic.features(torch.zeros(5, size)).shape == (5, critic.last.in_features)


def test_the_critic_sees_what_pixels_far_apart_say_together():
    """A sum over patches would judge both ends of a row as it judges each of them by itself."""
    critic = _drawn(ImageCritic(64, 8, False), generator("critic"))
    rows = torch.zeros(4, 64)
    rows[[1, 3], 0], rows[[2, 3], 63] = 1.0, 1.0
    with torch.no_grad():
        none, first, last, both = critic(rows).flatten()
    assert abs(float(both - first - last + none)) > 1e-3


def test_without_a_target_there_is_no_classifier():
    config = CTABGANConfig(channels=2, batch=20)
    assert ConvolutionalGAN(coded(target=-1), config, Streams(0), CPU).state(training=True)["classifier"] is None
    assert ConvolutionalGAN(coded(), config, Streams(0), CPU).state(training=True)["classifier"] is not None


@pytest.mark.parametrize(("least", "steps"), [(0, 4), (9, 9)])
def test_small_tables_get_a_least_number_of_rounds(least, steps):
    config = CTGANConfig(epochs=4, batch=60, generator=(8,), critic=(8,), critic_steps=1, least_rounds=least)
    model = make(ConditionalGAN, config)
    for part in range(3):
        model.train(part, 3)
    assert model.generator.optimizer.state_dict()["state"][0]["step"] == steps


@pytest.mark.parametrize("size", [1, 16, 17, 64, 65, 300])
def test_images_hold_rows_of_any_length(size):
    x = torch.randn(5, size, generator=generator("x", size))
    critic, made = ImageCritic(size, 2, True), ImageGenerator(3, size, 2)
    for network in (critic, made):
        for weight in network.parameters():
            torch.nn.init.normal_(weight, 0.0, 0.1, generator=generator("weights"))
    assert critic(x).shape == (5, 1) and made(x[:, :1].expand(-1, 3)).shape == (5, size)
    assert gradient_penalty(critic, x, x + 1, torch.rand(5, 1, generator=generator("mix"))).isfinite()


def test_the_class_loss_does_not_look_at_the_target():
    model, rows = make(*MODELS[3]), coded()
    x = SHAPE.vectors(rows.levels, rows.scores)
    other = x.clone()
    other[:, 3:5] = 1 - x[:, 3:5]
    judge = model.classifier.network
    both = [model._class_loss(judge, row, generator("masks")).detach() for row in (x, other)]
    masks = judge.masks(60, generator("masks"))
    blind = x.clone()
    blind[:, 3:5] = 0
    laws = judge(blind, masks).log_softmax(dim=1).detach()
    for loss, levels in zip(both, (rows.levels[:, 1], 1 - rows.levels[:, 1]), strict=True):
        assert float(loss) == pytest.approx(float(F.nll_loss(laws, levels)), rel=1e-5)


@pytest.mark.parametrize(("pac", "share"), [(1, 1.0), (5, 1.0), (1, 0.25)])
def test_slopes_gathered_are_the_gradient_of_the_whole_loss(pac, share):
    """A critic elsewhere says how rows would please it; the generator's gradient is that of one graph all the same."""
    config = CTGANConfig(batch=20, generator=(8,), critic=(8, 6), noise=4, pac=pac)
    split, whole = make(ConditionalGAN, config), make(ConditionalGAN, config)
    given = split.conditions.draw(20, generator("conditions"))
    out, made = split.made(given, generator("noise"))
    split.set_generator_gradient(out, made, split.generator_gradient(made, given, generator("masks")), given, share)
    out, made = whole.made(given, generator("noise"))
    critic = whole.critic.network
    seen = torch.cat([made, F.one_hot(given, whole.width)], dim=1).reshape(20 // pac, -1)
    pleased = critic(seen, critic.masks(20 // pac, generator("masks"))).mean()
    laws = torch.cat(
        [part.log_softmax(dim=1) for part in out[:, : SHAPE.levels].split(list(SHAPE.widths), dim=1)], dim=1
    )
    obeyed = laws[torch.arange(20), given].mean()  # the two categorical columns come first
    (-share * (pleased + obeyed)).backward()
    for one, other in zip(split.generator.network.parameters(), whole.generator.network.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)
    assert all(weight.grad is None for weight in split.critic.network.parameters())


def test_gradients_of_several_batches_add_up():
    model = make(*MODELS[0])
    given, grads = model.conditions.draw(20, generator("conditions")), []
    for many in (1, 2):
        model.generator.clear()
        for _ in range(many):
            out, made = model.made(given, generator("noise"))
            model.set_generator_gradient(
                out, made, model.generator_gradient(made, given, generator("masks")), given, 1 / many
            )
        grads.append([weight.grad.clone() for weight in model.generator.network.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_critic_learns_on_rows_that_were_made_elsewhere():
    one, other = make(*MODELS[0]), make(*MODELS[0])
    one._critic_step(generator("noise"), generator("rows"))
    pick, draw = generator("rows"), generator("noise")
    given = other.conditions.draw(20, pick)
    with torch.no_grad():
        made = other.made(given, draw)[1].clone()
    other.critic_step(made, given, draw, pick)
    assert all(map(torch.equal, one.critic.network.state_dict().values(), other.critic.network.state_dict().values()))


def test_conditions_follow_counts_that_are_given_and_columns_without_any_have_all_levels_alike():
    model = make(*MODELS[0])
    law = model.law_of(torch.tensor([0, 0, 0, 3, 9, 7, 7, 7, 7]))
    assert law.counts.tolist() == [1, 1, 1, 3, 9] and law.widths == (3, 2)
    drawn = torch.bincount(law.draw(60_000, generator("law"), "frequency"), minlength=5) / 60_000
    torch.testing.assert_close(drawn, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 8, 3 / 8]), atol=0.01, rtol=0)


def test_without_categories_there_is_a_law_of_no_condition():
    rows = EncodedRows(RowShape((4,), (0,), (2,)), torch.zeros(20, 1, dtype=torch.int64), torch.zeros(20, 1), ())
    model = ConditionalGAN(rows, MODELS[0][1], Streams(0), CPU)
    assert model.law_of(torch.tensor([1, 2, 3, 4])).draw(5, generator("law")).tolist() == [-1] * 5
    model.train(0, 1)
    assert model.sample(7, Streams(1))[0].shape == (7, 1)


def test_what_is_averaged_are_both_networks_in_every_part():
    model = make(*MODELS[0])
    assert list(model.networks(3, 9)) == list(model.given(3, 9)) == ["generator", "critic"]


def test_positions_are_told_apart_from_levels():
    assert levels_of(SHAPE, (0, 2)).tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert levels_of(SHAPE, ()).tolist() == []


@pytest.mark.parametrize(("kind", "config"), MODELS)
def test_parts_change_the_weights_and_samples_are_rows(kind, config):
    model = make(kind, config)
    before = {name: tensor.clone() for name, tensor in _weights(model).items()}
    for part in range(2):
        model.train(part, 2)
    assert any(not torch.equal(before[name], tensor) for name, tensor in _weights(model).items())
    levels, scores = model.sample(130, Streams(0).child("sample"))
    assert levels.shape == (130, 3) and scores.shape == (130, 2) and scores.isfinite().all()
    assert (levels >= 0).all() and (levels < torch.tensor(SHAPE.widths)).all()


@pytest.mark.parametrize(("kind", "config"), MODELS)
def test_a_model_without_rows_draws_what_the_trained_one_draws(kind, config):
    model, empty = make(kind, config), make(kind, config, rows=0)
    model.train(0, 1)
    empty.restore(model.state(training=False))
    for one, other in zip(model.sample(50, Streams(3)), empty.sample(50, Streams(3)), strict=True):
        assert torch.equal(one, other)


def test_a_part_of_all_steps():
    assert [span(10, part, 4) for part in range(4)] == [2, 3, 2, 3]
    assert sum(span(3, part, 20) for part in range(20)) == 3
    assert sum(chunks(20_001, 300)) == 20_001 and list(chunks(0, 300)) == []
    assert max(chunks(5000, 10_000)) <= 2**24 // 10_000


def _weights(model):
    network = model.network if hasattr(model, "network") else model.generator.network
    return dict(network.named_parameters())
