"""Autoencoder, moments and flow of one table, trained in parts: what a part moves, and that copies can be averaged."""

from __future__ import annotations

import pytest
import torch

from silosynth.core.streams import Streams
from silosynth.models.encoded import EncodedRows, RowShape
from silosynth.models.latent import LatentConfig
from silosynth.models.latent_table import LatentTable, LatentTableConfig
from silosynth.models.training import flatten
from silosynth.runtime.wire import pack, unpack

CPU = torch.device("cpu")
LATENT = LatentConfig(
    accumulate=1, width=32, depth=2, steps=20, batch=64, sample_steps=4, held_out=0.0, fit_to_rows=False, wide_rate=0.0
)
TINY = LatentTableConfig(hidden=(16,), steps=16, batch=32, latent=LATENT)


def coded(rows: int = 200, seed: int = 1) -> EncodedRows:
    """A category, another that mostly equals it, and a score that follows it."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(2, (rows,), generator=draw)
    second = torch.where(torch.rand(rows, generator=draw) < 0.9, first, 1 - first)
    score = torch.randn(rows, generator=draw) * 0.4 + 1.8 * first - 0.9
    return EncodedRows(RowShape((2, 2), (-1,)), torch.stack([first, second], dim=1), score[:, None], (0, 1))


def make(data: EncodedRows, config: LatentTableConfig = TINY, streams: str = "a", counts: bool = True) -> LatentTable:
    counts_K = torch.tensor([100, 100, 100, 100]) if counts else None
    return LatentTable(data, config, Streams(0).child(streams), CPU, 200, counts_K)


def weights(model: LatentTable) -> dict[str, torch.Tensor]:
    return {
        "coder": flatten(model.coder.state_dict()),
        "moments": flatten(model.moments.state_dict()),
        "flow": flatten(model.flow.network.state_dict()),
    }


@pytest.mark.parametrize(("parts", "stages"), [(3, "abc"), (4, "abcc"), (8, "aabccccc"), (9, "aabcccccc")])
def test_a_part_trains_the_network_that_it_says_and_no_other(parts, stages):
    model = make(coded())
    for part, stage in enumerate(stages):
        name = {"a": "coder", "b": "moments", "c": "flow"}[stage]
        assert list(model.networks(part, parts)) == [name]
        assert list(model.given(part, parts)) == ["coder", "moments", "flow"][: "abc".index(stage) + 1]
        before = weights(model)
        model.train(part, parts)
        moved = [network for network, now in weights(model).items() if not torch.equal(before[network], now)]
        assert moved == [name]


@pytest.mark.parametrize("first", [0.01, 0.25, 0.99])
@pytest.mark.parametrize("parts", [3, 4, 10])
def test_every_network_has_a_part_however_parts_are_divided(first, parts):
    model = make(coded(), LatentTableConfig(hidden=(8,), steps=20, first=first, latent=LATENT))
    trained = [next(iter(model.networks(part, parts))) for part in range(parts)]
    assert set(trained) == {"coder", "moments", "flow"} and trained == sorted(trained, key=trained.index)


def test_parts_add_up_to_all_steps():
    model = make(coded())
    for part in range(7):
        model.train(part, 7)
    steps = [learner.optimizer.state_dict()["state"][0]["step"] for learner in (model.learner, model.flow.learner)]
    assert steps == [model.steps, TINY.latent.steps] == [model.learner.done, model.flow.learner.done]


def test_moments_are_those_of_the_latents():
    model = make(coded())
    model.train(0, 3)
    model.train(1, 3)
    z_NL = model._encoded().double()
    torch.testing.assert_close(model.moments.mean.double(), z_NL.mean(dim=0), rtol=1e-5, atol=1e-6)
    model._standardise()
    torch.testing.assert_close(model.flow.scale.double(), z_NL.std(dim=0, correction=0), rtol=1e-4, atol=1e-5)


def test_the_flow_is_standardised_by_the_moments_that_are_given():
    model = make(coded())
    model.train(0, 3)
    model.train(1, 3)
    model.moments.mean.fill_(3.0)
    model.moments.square.fill_(13.0)
    model.train(2, 3)
    assert model.flow.mean.unique().tolist() == [3.0] and model.flow.scale.unique().tolist() == [2.0]
    torch.testing.assert_close(model.x_NL, (model._encoded() - 3) / 2)


def test_a_model_goes_on_from_its_state_to_the_same_weights():
    parts = 6
    straight, points = make(coded()), []
    for part in range(parts):
        points.append(pack(straight.state(training=True)))
        straight.train(part, parts)
    for start, point in enumerate(points):
        resumed = make(coded())
        resumed.restore(unpack(point))
        for part in range(start, parts):
            resumed.train(part, parts)
        assert pack(resumed.state(training=True)) == pack(straight.state(training=True))


def test_a_model_without_rows_draws_what_the_trained_one_draws():
    model, empty = make(coded()), make(coded(0))
    for part in range(3):
        model.train(part, 3)
    empty.restore(model.state(training=False))
    for one, other in zip(model.sample(300, Streams(3)), empty.sample(300, Streams(3)), strict=True):
        assert torch.equal(one, other)


def test_models_start_alike_where_their_weights_streams_are_the_same():
    assert all(map(torch.equal, weights(make(coded())).values(), weights(make(coded(0))).values()))
    assert not torch.equal(weights(make(coded()))["coder"], weights(make(coded(), streams="b"))["coder"])


def dependency(levels: torch.Tensor, scores: torch.Tensor) -> tuple[float, float]:
    """How often both categories agree; the correlation of category and score."""
    agree = (levels[:, 0] == levels[:, 1]).float().mean()
    return float(agree), float(torch.corrcoef(torch.stack([levels[:, 0].float(), scores[:, 0]]))[0, 1])


LEARNS = LatentTableConfig(
    hidden=(16,), steps=200, batch=64,
    latent=LatentConfig(
        width=32, depth=2, steps=200, batch=128, sample_steps=8, held_out=0.0, fit_to_rows=False, wide_rate=0.0
    ),
)  # fmt: skip


@pytest.mark.slow
def test_it_learns_what_depends_on_what():
    model = make(coded(800), LEARNS)
    for part in range(4):
        model.train(part, 4)
    agree, follows = dependency(*model.sample(2000, Streams(5)))
    assert agree > 0.8 and follows > 0.75  # of independent columns: 0.5 and 0.0; of the training rows: 0.9 and 0.9


@pytest.mark.slow
def test_copies_trained_on_halves_and_averaged_learn_it_too():
    data = coded(800)
    halves = [
        EncodedRows(data.shape, data.levels[rows], data.scores[rows], data.categorical)
        for rows in (slice(0, 400), slice(400, 800))
    ]
    silos = [make(half, LEARNS, streams=name) for half, name in zip(halves, "ab", strict=True)]
    whole = make(coded(0), LEARNS)
    parts = 12
    for part in range(parts):
        for silo in silos:
            for name, network in silo.given(part, parts).items():
                network.load_state_dict(whole.given(part, parts)[name].state_dict())
            silo.train(part, parts)
        for name, network in whole.networks(part, parts).items():
            states = [silo.networks(part, parts)[name].state_dict() for silo in silos]
            network.load_state_dict({key: (states[0][key] + states[1][key]) / 2 for key in states[0]})
    agree, follows = dependency(*whole.sample(2000, Streams(5)))
    assert agree > 0.8 and follows > 0.75


@pytest.mark.parametrize(
    "shape", [RowShape((3,)), RowShape((), (-1, -1)), RowShape((2,), (0,))],
    ids=["no score", "no level", "a column of both"],
)  # fmt: skip
def test_tables_of_one_kind_of_column_are_learnt_and_drawn(shape):
    draw = torch.Generator().manual_seed(0)
    levels = [torch.randint(width, (50,), generator=draw) for width in shape.widths]
    stacked = torch.stack(levels, dim=1) if levels else torch.zeros(50, 0, dtype=torch.int64)
    data = EncodedRows(shape, stacked, torch.randn(50, shape.scores, generator=draw), ())
    model = LatentTable(data, TINY, Streams(0), CPU, 50, torch.full((shape.levels,), 10))
    for part in range(3):
        model.train(part, 3)
    levels, scores = model.sample(30, Streams(1))
    assert levels.shape == (30, len(shape.widths)) and scores.shape == (30, shape.scores)
    assert scores.isfinite().all()


@pytest.mark.slow
def test_levels_come_as_often_as_the_counts_say():
    """What is calibrated against are the counts of all silos, not those of the rows that a copy was trained on."""
    model = LatentTable(coded(400), LEARNS, Streams(0), CPU, 400, torch.tensor([90, 10, 50, 50]))
    for part in range(4):
        model.train(part, 4)
    levels, _ = model.sample(4000, Streams(2))
    assert float((levels[:, 0] == 0).float().mean()) == pytest.approx(0.9, abs=0.05)


def test_columns_without_counts_are_not_calibrated():
    model = make(coded(), counts=False)
    for part in range(3):
        model.train(part, 3)
    model.sample(20, Streams(0))
    assert model.calibration is None
