"""The generator of latents in training: what a step takes in, and that threads change no byte of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.streams import Streams
from silosynth.core.threads import Threads, computing_on
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.models.training import Learner, batches, build

CPU = torch.device("cpu")


def rows(n: int = 60) -> torch.Tensor:
    return torch.randn(n, 3, generator=Streams(0).child("rows").torch())


def generator(**options: object) -> LatentGenerator:
    small = {"width": 8, "depth": 1, "batch": 12, "fit_to_rows": False, "precision": "float32", "steps": 40}
    return LatentGenerator(60, 3, LatentConfig(**{**small, **options}), Streams(1), CPU)  # type: ignore[arg-type]


def weights(made: LatentGenerator | Learner) -> torch.Tensor:
    learner = made.learner if isinstance(made, LatentGenerator) else made
    return torch.cat([weight.detach().flatten() for weight in learner.weights])


def linear(rate: float) -> Learner:
    network = build(torch.nn.Linear, 3, 2, generator=Streams(2).torch()).double()
    return Learner(network, rate=rate, steps=50, schedule="constant", decay=0.1, clip=0.5, average=0.4)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**31))
def test_a_step_is_one_against_the_mean_gradient_and_as_long_as_one_for_each_batch(sizes: list[int], seed: int) -> None:
    draw, made, slow = Streams(seed).torch(), linear(0.01), linear(0.01)
    optimizer = torch.optim.AdamW(slow.weights, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    smooth, done = [weight.detach().clone() for weight in slow.weights], 0
    for size in sizes:
        x_KBD = torch.randn(size, 6, 3, generator=draw, dtype=torch.float64)
        losses = [made.network(x).square().mean() for x in x_KBD]
        made.follow(torch.autograd.grad(loss, made.weights) for loss in losses)
        optimizer.zero_grad()
        torch.stack([slow.network(x).square().mean() for x in x_KBD]).mean().backward()
        torch.nn.utils.clip_grad_norm_(slow.weights, 0.5)
        optimizer.param_groups[0].update(lr=size * 0.01, betas=(0.9**size, 0.99**size))
        optimizer.step()
        done += size
        kept = min((1 - 1 / 20) ** size, done / (done + 20))
        for mean, weight in zip(smooth, slow.weights, strict=True):
            mean.lerp_(weight.detach(), 1 - kept)
    assert made.done == done
    torch.testing.assert_close(weights(made), weights(slow))
    torch.testing.assert_close(made.smooth, smooth)


def slowly(made: LatentGenerator, x_NL: torch.Tensor, steps: int, streams: Streams) -> None:
    """`descend`, one batch after the other, by the gradient of the mean loss."""
    accumulate = made.config.accumulate
    draws = [streams.torch(), *(streams.child("batch", i).torch() for i in range(1, accumulate))]
    order = batches(len(x_NL), made.config.batch, draws[0])
    for first in range(0, steps, accumulate):
        together = [(x_NL[next(order)], own) for own in draws[: steps - first]]
        losses = [made._loss(x_BL, own, own, x_NL) for x_BL, own in together]
        made.learner.clear()
        torch.stack(losses).mean().backward()
        made.learner.step(len(losses))


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from([0.0, 0.02]), st.sampled_from(["flow", "gaussian"]))
def test_weights_move_once_for_so_many_batches_and_for_the_rest(
    accumulate: int, steps: int, wide_rate: float, path: str
) -> None:
    made, slow = (generator(accumulate=accumulate, wide_rate=wide_rate, path=path) for _ in range(2))
    made.descend(rows(), torch.arange(60), steps, Streams(3))
    slowly(slow, rows(), steps, Streams(3))
    assert made.learner.done == slow.learner.done == steps
    torch.testing.assert_close(weights(made), weights(slow), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("accumulate", "threads"), [(4, 2), (4, 3), (4, 4), (2, 5), (4, 9), (2, "auto")])
def test_the_number_of_threads_changes_no_byte(accumulate: int, threads: Threads, precision: str) -> None:
    ways: tuple[Threads, Threads] = (1, threads)
    found = []
    for number in ways:
        made = generator(precision=precision, accumulate=accumulate, checks=4)
        loss, seen = made._loss, set[str]()

        def noted(*given: object, loss: Any = loss, seen: set[str] = seen) -> torch.Tensor:
            seen.add(threading.current_thread().name)
            return loss(*given)  # type: ignore[no-any-return]

        made._loss = noted  # type: ignore[method-assign]
        with computing_on(number):
            x_NL = made.standardise(rows())
            losses = [made.train(x_NL) for _ in range(5)]
        assert made.finished
        assert number == "auto" or (len(seen) > 1) == (number > 1)
        found.append((losses, weights(made)))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("steps", "checks", "part"), [(40, 4, 8), (40, 25, 4), (43, 5, 8), (3, 1, 4)])
def test_parts_are_whole_steps(steps: int, checks: int, part: int) -> None:
    assert generator(steps=steps, checks=checks, accumulate=4).part == part
