"""The GANs' building blocks against loops, finite differences, and the laws they must have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare

from silosynth.core.streams import Streams
from silosynth.models.encoded import RowShape
from silosynth.models.gan import (
    Activation,
    BatchNorm,
    ConditionLaw,
    Conditions,
    gradient_penalty,
    make_critic,
    make_generator,
    nearer_orthonormal,
    norm_penalty,
    one_hot,
    orthonormalise,
    proportions,
)
from silosynth.models.training import Trainee
from silosynth.runtime.wire import pack, unpack

widths = st.lists(st.integers(2, 9), max_size=6).map(tuple)
shapes = st.builds(RowShape, widths, st.integers(0, 4).map(lambda scores: (-1,) * scores))


def generator(*path):
    return Streams(0).child(*path).torch()


def rows_of(shape, rows=7):
    draw = generator("rows", str(shape))
    levels = [torch.randint(width, (rows,), generator=draw) for width in shape.widths]
    stacked = torch.stack(levels, dim=1) if levels else torch.zeros(rows, 0, dtype=torch.int64)
    return stacked, torch.randn(rows, shape.scores, generator=draw)


def outputs_of(shape, rows=7):
    return torch.randn(rows, shape.size, generator=generator("outputs", str(shape))) * 3


@settings(max_examples=30)
@given(shapes)
def test_vectors_are_one_hot_levels_and_then_scores(shape):
    levels, scores = rows_of(shape)
    slow = [torch.nn.functional.one_hot(levels[:, c], width) for c, width in enumerate(shape.widths)]
    assert torch.equal(shape.vectors(levels, scores), torch.cat([*slow, scores], dim=1).float())


@settings(max_examples=30)
@given(shapes.filter(lambda shape: shape.size > 0), st.sampled_from([0.0, 0.5]))
def test_a_critic_reads_codes_as_it_reads_their_vectors(shape, dropout):
    critic = make_critic(shape.size, (6, 5), 2, dropout, generator("weights"))
    levels, scores = rows_of(shape)
    masks = critic.masks(len(levels), generator("masks"))
    assert len(masks) == (2 if dropout else 0)
    fast, slow = critic.of_codes(shape, levels, scores, masks), critic(shape.vectors(levels, scores), masks)
    torch.testing.assert_close(fast, slow)


@settings(max_examples=30)
@given(shapes)
def test_activation_equals_a_loop_over_columns(shape):
    """The same noise, then torch's softmax column by column, and tanh."""
    out, tau = outputs_of(shape), 0.7
    fast = Activation(shape)(out, tau, generator("noise"))
    uniform = torch.rand(len(out), shape.levels, generator=generator("noise")).clamp(1e-9, 1 - 1e-7)
    noisy = (out[:, : shape.levels] - torch.log(-torch.log(uniform))) / tau
    slow = [part.softmax(dim=1) for part in noisy.split(list(shape.widths), dim=1)] if shape.widths else []
    torch.testing.assert_close(fast, torch.cat([*slow, out[:, shape.levels :].tanh()], dim=1))


def test_normalised_rows_have_no_size_of_their_own():
    plain, normalised = (make_critic(4, (6, 5), 3, 0.0, generator("weights"), one) for one in (False, True))
    x = torch.randn(7, 4, generator=generator("x"))
    h = x
    for linear in normalised.linears[:-1]:
        linear.bias.data.zero_()
        h = torch.nn.functional.layer_norm(linear(h), (linear.out_features,), eps=1e-5)
        h = torch.where(h > 0, h, 0.2 * h)
    torch.testing.assert_close(normalised(x), normalised.linears[-1](h))
    torch.testing.assert_close(normalised(x), normalised(1000 * x), rtol=1e-3, atol=1e-3)
    assert not list(plain.norms)


def test_activation_has_the_gradient_of_a_loop_and_bears_large_outputs():
    shape = RowShape((3, 2), (-1,))
    out = (outputs_of(shape) * 100).requires_grad_()
    weight = torch.randn(7, 6, generator=generator("weight"))
    (fast,) = torch.autograd.grad((Activation(shape)(out, 0.2, generator("noise")) * weight).sum(), out)
    uniform = torch.rand(7, 5, generator=generator("noise")).clamp(1e-9, 1 - 1e-7)
    noisy = (out[:, :5] - torch.log(-torch.log(uniform))) / 0.2
    rows = torch.cat([noisy[:, :3].softmax(dim=1), noisy[:, 3:].softmax(dim=1), out[:, 5:].tanh()], dim=1)
    (slow,) = torch.autograd.grad((rows * weight).sum(), out)
    assert fast.isfinite().all()
    torch.testing.assert_close(fast, slow)


@settings(max_examples=30)
@given(shapes.filter(lambda shape: shape.levels > 0))
def test_log_likelihood_equals_a_loop_over_rows(shape):
    out = outputs_of(shape)
    level = torch.randint(shape.levels, (len(out),), generator=generator("level", str(shape)))
    laws = torch.cat([p.log_softmax(dim=1) for p in out[:, : shape.levels].split(list(shape.widths), dim=1)], dim=1)
    slow = torch.stack([laws[row, position] for row, position in enumerate(level.tolist())])
    torch.testing.assert_close(Activation(shape).log_likelihood(out, level), slow)


def test_levels_are_drawn_with_the_softmax_probabilities():
    shape, rows = RowShape((3, 2), (-1,)), 60_000
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.5])
    out = torch.cat([logits, torch.tensor([0.3])]).expand(rows, -1)
    levels, scores = Activation(shape).draw(out, generator("draw"))
    for c, law in enumerate(logits.split([3, 2])):
        shares = torch.bincount(levels[:, c], minlength=len(law)) / rows
        torch.testing.assert_close(shares, law.softmax(dim=0), atol=0.01, rtol=0)
    assert torch.equal(scores, out[:, 5:].tanh())
    modes, _ = Activation(shape).draw(out[:3], None)
    assert modes.tolist() == [[1, 0]] * 3


@pytest.mark.parametrize("pac", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_penalty_is_that_of_finite_differences(pac, dropout):
    """Slopes of the critic by central differences, in float64."""
    width, rows, step = 5, 12, 1e-6
    critic = make_critic(width * pac, (8, 6), 1, dropout, generator("weights")).double()
    masks = critic.masks(rows // pac, generator("masks"))
    shape = rows // pac, width * pac
    fake, real = (torch.randn(shape, generator=generator(name)).double() for name in ("fake", "real"))
    mix = torch.rand(rows // pac, 1, generator=generator("mix")).double()

    def judge(x):
        return critic(x, masks)

    packed = fake + mix * (real - fake)
    slopes = torch.zeros_like(packed)
    for i in range(packed.shape[1]):
        aside = torch.zeros_like(packed)
        aside[:, i] = step
        slopes[:, i] = ((judge(packed + aside) - judge(packed - aside)) / (2 * step)).squeeze(1).detach()
    wanted = float((slopes.norm(dim=1) - 1).square().mean())
    assert gradient_penalty(judge, fake, real, mix).item() == pytest.approx(wanted, rel=1e-6)
    assert norm_penalty(critic.input_gradient(packed, masks)).mean().item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("dropout", "normalised"), [(0.0, False), (0.5, False), (0.5, True)])
def test_the_penalty_written_out_has_the_gradients_of_the_one_by_autograd(dropout, normalised):
    critic = make_critic(4, (8, 6), 1, dropout, generator("weights"), normalised).double()
    masks = critic.masks(10, generator("masks"))
    x, nothing = torch.randn(10, 4, generator=generator("x")).double(), torch.zeros(10, 1).double()
    weights = [linear.weight for linear in critic.linears]
    slow = torch.autograd.grad(gradient_penalty(lambda at: critic(at, masks), x, x, nothing), weights)
    fast = torch.autograd.grad(norm_penalty(critic.input_gradient(x, masks)).mean(), weights)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)


def test_no_condition_is_a_vector_of_zeros():
    assert one_hot(torch.tensor([1, -1]), 3).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert one_hot(torch.tensor([-1]), 0).shape == (1, 0)


def test_a_trainee_goes_on_from_its_state_to_the_same_weights():
    def trainee():
        return Trainee(make_generator(3, (4,), 2, generator("weights")), rate=0.1, betas=(0.5, 0.9), decay=0.01)

    def step(one, name):
        one.clear()
        one.network(torch.randn(6, 3, generator=generator(name))).square().mean().backward()
        one.step()

    straight, resumed = trainee(), trainee()
    step(straight, "first")
    resumed.restore(unpack(pack(straight.state(training=True))))
    for one in (straight, resumed):
        step(one, "second")
    for name, tensor in straight.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name])


weights = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@given(st.integers(1, 300), weights)
def test_proportions_add_up_and_leave_nobody_out(total, shares):
    parts = proportions(total, shares)
    assert sum(parts) == max(total, len(shares))
    assert min(parts) >= 1


@given(st.integers(1, 300), weights)
def test_proportions_are_within_one_of_exact_where_all_shares_reach_one(total, shares):
    exact = [total * share / sum(shares) for share in shares]
    if min(exact) >= 1:
        assert all(abs(part - wanted) < 1 for part, wanted in zip(proportions(total, shares), exact, strict=True))


def test_proportions_of_a_tenth_do_not_round_to_nothing():
    assert proportions(256, [9, 1]) == [230, 26]
    assert proportions(3, [1000, 1, 1]) == [1, 1, 1]
    assert proportions(256, [1, 1, 1]) == [86, 85, 85]


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9))
def test_orthonormal_layers_have_singular_values_of_one_and_return_to_them_after_a_step(wide, narrow):
    part = make_critic(wide, (), narrow, 0.0, generator("weights", wide, narrow))
    (linear,) = part.linears
    orthonormalise(part, exactly=True)
    assert torch.allclose(torch.linalg.svdvals(linear.weight), torch.ones(min(wide, narrow)), atol=1e-5)
    with torch.no_grad():
        linear.weight += 0.01 * torch.randn(linear.weight.shape, generator=generator("step"))
    before = (torch.linalg.svdvals(linear.weight) - 1).abs().max()
    orthonormalise(part)
    assert (torch.linalg.svdvals(linear.weight) - 1).abs().max() <= 2 * before**2 + 1e-6


@pytest.mark.parametrize("far", [1.0, 1.75, 2.1, 3.0, 1e3])
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (4, 5, 9)])
def test_matrices_come_back_to_orthonormal_ones_however_far_a_step_took_them(shape, far):
    weight = torch.randn(shape, generator=generator("far", *shape)).double()
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    s = torch.ones_like(s)
    s[..., 0] = far
    weight = ((u * s[..., None, :]) @ v).float()
    for _ in range(60):
        weight = nearer_orthonormal(weight)
    assert torch.allclose(torch.linalg.svdvals(weight), torch.ones(1), atol=1e-4)


def test_below_an_orthonormal_layer_slopes_in_rows_are_as_long_as_slopes_in_features():
    bottom, top = make_critic(12, (), 5, 0.0, generator("bottom")), make_critic(5, (8,), 1, 0.0, generator("top"))
    orthonormalise(bottom, exactly=True)
    x = torch.randn(20, 12, generator=generator("x")).requires_grad_()
    (in_rows,) = torch.autograd.grad(top(bottom(x, ()), ()).sum(), x)
    in_features = top.input_gradient(bottom(x, ()).detach(), ())
    assert torch.allclose(in_rows.norm(dim=1), in_features.norm(dim=1), atol=1e-5)


def test_batches_of_each_kind_have_running_statistics_of_their_own():
    norm, draw = BatchNorm(3, kinds=2), generator("batches")
    for _ in range(200):
        norm(5 + 2 * torch.randn(64, 3, generator=draw), 0)
        norm(-5 + torch.randn(64, 3, generator=draw), 1)
    norm.eval()
    for kind, middle, spread in ((0, 5.0, 2.0), (1, -5.0, 1.0)):
        out = norm(middle + spread * torch.randn(2000, 3, generator=draw), kind)
        assert out.mean().abs() < 0.2 and (out.std() - 1).abs() < 0.1


def test_with_one_kind_it_is_pytorchs_batch_normalisation():
    ours, theirs, x = BatchNorm(4, kinds=1), torch.nn.BatchNorm1d(4), torch.randn(30, 4, generator=generator("x"))
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


# Conditions and matching rows against the laws they must have, by chi-square.

DRAWS = 60_000
RAGGED = (2, 7, 3)


def table(widths=RAGGED, rows=500):
    """Skewed levels; the last one of every column of more than two is never used."""
    draw = np.random.default_rng(1)
    columns = []
    for width in widths:
        used = width - (width > 2)
        columns.append(draw.choice(used, rows, p=np.arange(1, used + 1) / np.arange(1, used + 1).sum()))
    return torch.from_numpy(np.stack(columns, axis=1))


def wanted_law(levels, widths, weigh):
    """Probability of each position, by a loop over columns."""
    laws = []
    for c, width in enumerate(widths):
        weight = weigh(np.bincount(levels[:, c], minlength=width).astype(float))
        laws.append(weight / weight.sum() / len(widths))
    return np.concatenate(laws)


def check(positions, law):
    counts = np.bincount(positions, minlength=len(law))
    assert counts[law == 0].sum() == 0
    assert chisquare(counts[law > 0], law[law > 0] * len(positions)).pvalue > 1e-4


@pytest.mark.parametrize(("law", "weigh"), [("log", np.log1p), ("frequency", np.asarray)])
@pytest.mark.parametrize("widths", [RAGGED, (5,), (2, 2, 2, 40)])
def test_conditions_have_their_law(widths, law, weigh):
    levels = table(widths)
    positions = Conditions(levels, widths).draw(DRAWS, generator("draw"), law)
    check(positions.numpy(), wanted_law(levels, widths, weigh))


def test_matching_rows_are_uniform_among_those_that_fit():
    levels = table(rows=60)
    conditions = Conditions(levels, RAGGED)
    fixed = 2 + 4  # level 4 of the second column
    rows = conditions.matching(torch.full((DRAWS,), fixed), generator("rows")).numpy()
    fits = (levels[:, 1] == 4).numpy()
    check(rows, fits / fits.sum())


def test_every_matching_row_has_its_level():
    levels = table()
    conditions = Conditions(levels, RAGGED)
    positions = conditions.draw(5000, generator("draw"))
    rows = conditions.matching(positions, generator("rows"))
    starts = np.cumsum((0, *RAGGED))
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        column = int(np.searchsorted(starts, position, side="right")) - 1
        assert levels[row, column] == position - starts[column]


def test_where_no_row_has_the_level_any_row_matches():
    """A silo is asked for levels that only others hold; in the last place of all, too."""
    levels = table(rows=40)
    levels[:, 2] = 0
    conditions = Conditions(levels, RAGGED)
    for position in (2 + 6, 2 + 7 + 1, 2 + 7 + 2):
        assert conditions.law.counts[position] == 0
        check(conditions.matching(torch.full((DRAWS,), position), generator("rows")).numpy(), np.full(40, 1 / 40))
    mixed = conditions.matching(torch.tensor([2 + 6, 2 + 4] * 500), generator("rows"))
    assert (levels[mixed[1::2], 1] == 4).all() and not (levels[mixed[::2], 1] == 4).all()


def test_without_a_column_there_is_no_condition_and_every_row_fits():
    conditions = Conditions(torch.zeros(12, 0, dtype=torch.int64), ())
    positions = conditions.draw(DRAWS, generator("draw"))
    assert (positions == -1).all()
    check(conditions.matching(positions, generator("rows")).numpy(), np.full(12, 1 / 12))


def test_the_law_alone_draws_the_same():
    """A model that is restored to sample has the counts, and no rows."""
    conditions = Conditions(table(), RAGGED)
    law = ConditionLaw(conditions.law.counts, RAGGED)
    for kind in ("log", "frequency"):
        drawn = conditions.draw(1000, generator("draw"), kind)
        assert torch.equal(law.draw(1000, generator("draw"), kind), drawn)


def test_a_thousand_columns_leave_no_gap_to_fall_into():
    """Shares are sums of many rounded numbers: the very last level must still be reached, and no unused one."""
    levels = table((3,) * 1000, rows=7)
    positions = Conditions(levels, (3,) * 1000).draw(200_000, generator("draw"))
    assert int(positions.min()) >= 0 and (positions % 3 < 2).all()
