"""The bucketed heads and the summed embedding against plain loops, and the flow against laws it must reproduce."""

from __future__ import annotations

from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from silosynth.core.streams import Streams
from silosynth.models.autoencoder import Buckets, TableAutoencoder
from silosynth.models.encoded import RowShape
from silosynth.models.flow import draw_times, flow_loss, last_time, sample_flow, start_noise, velocity
from silosynth.models.gaussian import gaussian_path
from silosynth.models.marginals import calibrate, level_shares
from silosynth.models.training import Learner, batches, build, dropout, held_out

widths = st.lists(st.integers(2, 40), min_size=1, max_size=8).map(tuple)


def generator(*path):
    return Streams(0).child(*path).torch()


def some(layout, rows=13):
    draw = generator("some", str(layout.widths))
    logits = torch.randn(rows, layout.levels, generator=draw)
    levels = torch.stack([torch.randint(width, (rows,), generator=draw) for width in layout.widths], dim=1)
    return logits, levels


def per_column(layout, logits):
    return list(logits.split(list(layout.widths), dim=1))


@settings(max_examples=40)
@given(widths)
def test_cross_entropy_equals_a_loop_over_columns(columns):
    layout = RowShape(columns)
    logits, levels = some(layout)
    slow = sum(F.cross_entropy(part, levels[:, c]) for c, part in enumerate(per_column(layout, logits)))
    assert float(Buckets(layout).cross_entropy(logits, levels)) == pytest.approx(float(slow), rel=1e-5)


@settings(max_examples=40)
@given(widths)
def test_probabilities_and_modes_equal_a_loop_over_columns(columns):
    layout = RowShape(columns)
    logits, _ = some(layout)
    slow = torch.cat([part.softmax(dim=1) for part in per_column(layout, logits)], dim=1)
    torch.testing.assert_close(Buckets(layout).probabilities(logits), slow)
    modes = torch.stack([part.argmax(dim=1) for part in per_column(layout, logits)], dim=1)
    assert torch.equal(Buckets(layout).draw(logits, None), modes)


def test_levels_are_drawn_with_the_heads_probabilities():
    layout = RowShape((3, 7))
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.0, 0.0, -3.0, 0.5, 0.1, 1.0]]).repeat(60_000, 1)
    drawn = Buckets(layout).draw(logits, generator("draw"))
    for c, part in enumerate(per_column(layout, logits[:1])):
        share = torch.bincount(drawn[:, c], minlength=layout.widths[c]) / 60_000
        torch.testing.assert_close(share, part.softmax(dim=1)[0], atol=0.01, rtol=0)


def test_the_summed_embedding_equals_one_hot_and_a_linear_layer():
    layout = RowShape((3, 5), (-1,))
    network = build(TableAutoencoder, layout, 4, (16, 8), "plain", False, generator=generator("weights"))
    _, levels = some(layout)
    scores = torch.randn(13, 1, generator=generator("scores"))
    one_hot = torch.cat([F.one_hot(levels[:, c], width).float() for c, width in enumerate(layout.widths)], dim=1)
    first = one_hot @ network.of_levels.weight + network.of_scores(scores)
    torch.testing.assert_close(network.encode(levels, scores)[0], network.encoder(F.gelu(first)))


def test_scores_that_are_off_do_not_enter_the_loss():
    layout = RowShape((2,), (0,))
    network = build(TableAutoencoder, layout, 3, (8, 8), "plain", False, generator=generator("weights"))
    z = torch.randn(2, 3, generator=generator("z"))
    levels = torch.tensor([[1], [0]])
    a = network.likelihood(z, levels, torch.tensor([[5.0], [1.0]]), 5.0)
    b = network.likelihood(z, levels, torch.tensor([[-9.0], [1.0]]), 5.0)
    c = network.likelihood(z, levels, torch.tensor([[5.0], [2.0]]), 5.0)
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_building_leaves_the_ambient_random_numbers_alone():
    before = torch.random.get_rng_state()
    first = build(TableAutoencoder, RowShape((3,)), 4, (16, 8), "plain", False, generator=generator("weights"))
    assert torch.equal(before, torch.random.get_rng_state())
    again = build(TableAutoencoder, RowShape((3,)), 4, (16, 8), "plain", False, generator=generator("weights"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_calibration_gives_generated_rows_the_training_marginals():
    layout = RowShape((4,), (-1,))
    draw = generator("rows")
    logits = torch.randn(20_000, 4, generator=draw) + torch.tensor([2.0, 0.0, 0.0, -1.0])
    scores = 0.5 * torch.randn(20_000, 1, generator=draw) + 1
    levels = torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4]), 5000, True, generator=draw)[:, None]
    real = torch.randn(5000, 1, generator=draw)
    buckets = Buckets(layout)
    share = level_shares(layout, levels)
    torch.testing.assert_close(share, torch.bincount(levels[:, 0], minlength=4) / 5000)
    fixed_logits, fixed_scores = calibrate(buckets, logits, scores, share, draw).apply(logits, scores)
    torch.testing.assert_close(buckets.probabilities(fixed_logits).mean(dim=0), share, atol=1e-3, rtol=0)
    for q in (0.02, 0.5, 0.98):
        assert float(fixed_scores.quantile(q)) == pytest.approx(float(real.quantile(q)), abs=0.05)


def test_the_exact_velocity_is_integrated_to_the_gaussian_it_belongs_to():
    mean, scale = 2.0, 0.5

    def wanted(x, t):  # E[noise - data | x_t] for data N(mean, scale²)
        variance = (1 - t) ** 2 * scale**2 + t**2
        return (t - (1 - t) * scale**2) / variance * (x - (1 - t) * mean) - mean

    def network(scaled, t, _=None):  # what `velocity` leaves to the network
        t = t[:, None]
        size = (t**2 + (1 - t) ** 2).sqrt()
        x = scaled * size
        return (wanted(x, t) - (2 * t - 1) / size**2 * x) * size

    noise = start_noise(20_000, 1, generator("noise"))
    for left, steps in ((0.0, 60), (0.4, 30)):
        x = sample_flow(network, noise, steps, left)
        assert float(x.mean()) == pytest.approx(mean, abs=0.02)
        assert float(x.std()) == pytest.approx((scale**2 + left**2) ** 0.5, abs=0.02)
    t = draw_times(20_000, 0.0, 1.0, 0.1, generator("times"))
    data = mean + scale * torch.randn(20_000, 1, generator=generator("data"))
    fresh = torch.randn(20_000, 1, generator=generator("fresh"))
    exact = float(flow_loss(network, data, t, fresh, None))
    assert exact < float(flow_loss(lambda x, t, g: network(x, t) + 0.3, data, t, fresh, None))


def _of_two_groups(own):
    """What `velocity` leaves to the network, for data about -1 and 1, each with deviation ``own``."""

    def network(scaled, t, _=None):
        t = t[:, None]
        size = (t**2 + (1 - t) ** 2).sqrt()
        x = scaled * size
        variance = (1 - t) ** 2 * own**2 + t**2
        group = torch.tanh((1 - t) * x / variance)  # E[group | x_t]
        data = group + (1 - t) * own**2 / variance * (x - (1 - t) * group)
        return ((x - data) / t - (2 * t - 1) / size**2 * x) * size

    return network


@pytest.mark.parametrize(("own", "steps"), [(0.4, 12), (0.2, 39), (0.0, 39)])
def test_noise_is_carried_as_exactly_as_by_heuns_method_with_forty_velocities(own, steps):
    """With a third of them for groups that touch, with as many for groups that a path must choose from."""
    network, calls = _of_two_groups(own), []

    def counted(*args):
        calls.append(1)
        return network(*args)

    noise = start_noise(500, 1, generator("noise")).double()
    exact = _heun(network, noise, 500)
    ours = sample_flow(counted, noise, steps, 0.15)
    assert len(calls) == steps + 1
    assert (ours - exact).square().mean() < (_heun(network, noise, 20) - exact).square().mean()


def _heun(network, noise, steps):
    """The oracle: two velocities for each of equal steps, until noise is 0.15."""
    x, at = noise, torch.linspace(0.9995, last_time(0.15), steps + 1).tolist()
    for now, then in pairwise(at):
        v = velocity(network, x, x.new_full((len(x),), now))
        ahead = velocity(network, x + (then - now) * v, x.new_full((len(x),), then))
        x = x + (then - now) * (v + ahead) / 2
    return x / (1 - at[-1])


def test_times_are_logit_normal_and_end_where_the_noise_is_left():
    t = draw_times(10_000, 0.0, 1.0, 0.25, generator("times"))
    assert float(t.min()) >= last_time(0.25) == 0.2
    assert float(t.median()) == pytest.approx(
        1 / (1 + np.exp(-NormalDist().inv_cdf(0.5 + NormalDist().cdf(np.log(0.25)) / 2))), abs=0.01
    )


def test_starting_points_are_standard_normal_and_more_even_than_independent_ones():
    noise = start_noise(4096, 6, generator("noise"))
    assert noise.mean(dim=0).abs().max() < 0.005
    torch.testing.assert_close(noise.T @ noise / 4096, torch.eye(6), atol=0.05, rtol=0)


@pytest.mark.parametrize("target", ["noise", "latent"])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_respaced_sampler_reproduces_a_gaussian(target, eta):
    path = gaussian_path(200, "linear", target)
    mean, scale = 1.0, 0.5

    def exact(x, t, _=None):  # E[z | x_t] for latents N(mean, scale²)
        a = path.alpha_bar[(t * 200).round().long() - 1][:, None]
        z = mean + a.sqrt() * scale**2 / (a * scale**2 + 1 - a) * (x - a.sqrt() * mean)
        return z if target == "latent" else (x - a.sqrt() * z) / (1 - a).sqrt()

    noise = torch.randn(20_000, 1, generator=generator("noise"))
    z = path.sample(exact, noise, 100, eta, generator("sampler"))
    assert float(z.mean()) == pytest.approx(mean, abs=0.04)
    assert float(z.std()) == pytest.approx(scale, abs=0.06)


def test_the_forward_process_ends_in_noise():
    for schedule in ("linear", "cosine"):
        assert float(gaussian_path(200, schedule, "noise").alpha_bar[-1]) < 0.01


def test_a_restored_learner_continues_to_the_same_bytes():
    def fresh():
        network = build(torch.nn.Linear, 3, 2, generator=generator("weights"))
        return Learner(network, rate=1e-2, steps=20, decay=1e-3, clip=1.0, average=0.9)

    def steps(learner, first, last):
        for i in range(first, last):
            x = torch.randn(8, 3, generator=generator("x", i))
            learner.descend(learner.network(x).square().mean())

    straight, halted = fresh(), fresh()
    steps(straight, 0, 20)
    steps(halted, 0, 9)
    resumed = fresh()
    resumed.restore(halted.state())
    steps(resumed, 9, 20)
    assert all(torch.equal(a, b) for a, b in zip(straight.weights, resumed.weights, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(straight.smooth, resumed.smooth, strict=True))


def test_batches_visit_every_row_once_per_pass():
    order = batches(10, 5, generator("order"))
    assert sorted(torch.cat([next(order), next(order)]).tolist()) == list(range(10))
    assert len(next(batches(3, 512, generator("small")))) == 3


def test_held_out_rows_are_not_trained_on():
    train, judge = held_out(1000, 0.1, 50, generator("split"))
    assert len(judge) == 50 and not set(train.tolist()) & set(judge.tolist())
    train, judge = held_out(5, 0.1, 50, generator("split"))
    assert len(train) == len(judge) == 5


def test_dropout_keeps_the_mean_and_is_off_without_a_generator():
    x = torch.ones(100_000)
    assert float(dropout(x, 0.3, generator("drop")).mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(dropout(x, 0.3, None), x)


def test_streams_do_not_depend_on_who_asks_first():
    a, b = Streams(3).child("a"), Streams(3).child("b")
    assert a.numpy().random() != b.numpy().random()
    assert np.array_equal(a.numpy().random(5), Streams(3).child("a").numpy().random(5))


def test_the_weights_that_are_used_are_the_ones_that_were_judged_buffers_included():
    layout = RowShape((3,), (-1,))
    network = build(TableAutoencoder, layout, 4, (16, 8), "noisy", False, generator=generator("weights"))
    learner = Learner(network, rate=0.5, steps=30)
    levels, scores = some(layout)[1], torch.randn(13, 1, generator=generator("scores"))

    def loss():
        return network.loss(levels, scores, torch.zeros(13, 4), sigma=0.0, kl=0.0, weight=5.0)

    losses = []
    for _ in range(6):
        network.train()
        for _ in range(5):
            learner.descend(loss())
        network.eval()
        losses.append(loss().item())
        learner.judge(losses[-1] if len(losses) != 3 else -1.0)  # let the third part win
    learner.settle()
    assert loss().item() == pytest.approx(losses[2])
    assert losses[2] != pytest.approx(losses[-1])
