"""Audits of MST and AIM with many canaries, by what the coordinator sees: noised tables less its own noise.

    python -m tests.algorithms.one_run                      # AIM at epsilon 1 and 10, twelve trainings each
    python -m tests.algorithms.one_run --kind mst --epsilons 3 --trainings 4

Canaries are SIDE squared rows of SIDE levels per column, of which no two share a cell of any table of two columns (an
orthogonal array). Each is in with probability 1/2. All other rows are known to the attacker, and so are all levels: he
estimates from all tables, in full and of groups, whether each canary is in: by least squares with the weights of their
noise, each coin's variance of 1/4 included. Of those with the largest estimates he says that they are in, of those with
the smallest that they are out, and the number of right guesses bounds epsilon (`attacks.canaries.epsilon_of_one_run`).
Trainings are of different people: together they keep the (epsilon, delta) that each keeps, and guesses count together.

`attainable` is what the same guesses would bound if each canary were seen alone in Gaussian noise that costs as much as
all that is charged: an attack on tables finds less, as encoders have a share of that, and canaries hide each other.

Legend: K canaries, A columns, T tables, L and M levels of two.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.attacks.canaries import epsilon_of_one_run
from silosynth.catalog import algorithm
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import seats

SIDE, COLUMNS, OTHERS = 13, 12, 3000
GUESSED = 1 / 6  # of canaries are said to be in, and as many out
DELTA = 1e-5
CPU = torch.device("cpu")
Numbers = np.ndarray


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        epsilon: the largest that is refuted, with a confidence of 95 %.
        attainable: by guesses on each canary alone, in the noise of all that is charged.
        right, guesses: of the attacker.
    """

    epsilon: float
    attainable: float
    right: int
    guesses: int


def audit(kind: str, epsilon: float, trainings: int) -> Audit:
    """Train so often, with fresh rows, canaries and noise."""
    coins, estimates, mu = list[Numbers](), list[Numbers](), 0.0
    for seed in range(trainings):
        coin_K, estimate_K, mu = _training(kind, epsilon, seed)
        coins.append(coin_K)
        estimates.append(estimate_K)
    coin, rng = np.concatenate(coins), np.random.default_rng(0)
    right, guesses = guess(coin, np.concatenate(estimates))
    alone = [guess(coin, coin + rng.normal(0, 1 / mu, len(coin)))[0] for _ in range(21)]
    attainable = epsilon_of_one_run(int(np.median(alone)), guesses, len(coin), DELTA)
    return Audit(epsilon_of_one_run(right, guesses, len(coin), DELTA), attainable, right, guesses)


def guess(coin_K: Numbers, estimate_K: Numbers) -> tuple[int, int]:
    """How many guesses are right, and how many there are."""
    each, order = int(GUESSED * len(coin_K)), np.argsort(estimate_K, kind="stable")
    return int(coin_K[order[-each:]].sum() + (~coin_K[order[:each]]).sum()), 2 * each


def _training(kind: str, epsilon: float, seed: int) -> tuple[Numbers, Numbers, float]:
    """Which canaries were in, the estimates, and 1 / deviation of one count's noise that costs what is charged."""
    rng = np.random.default_rng(seed)
    same, apart = rng.integers(SIDE, size=(OTHERS, 1)), rng.integers(SIDE, size=(OTHERS, COLUMNS))
    other_NA = np.where(rng.random(apart.shape) < 0.5, same, apart)  # columns hang together, so that AIM opens tables
    canary_KA = orthogonal()
    coin_K = rng.random(len(canary_KA)) < 0.5
    train_NA = np.concatenate([other_NA, canary_KA[coin_K]])
    silos, opened, events = _trained(kind, epsilon, train_NA, seed)
    levels = [_levels(silo, train_N) for silo, train_N in zip(silos, train_NA.T, strict=True)]
    level_AV = [level_V for level_V, _ in levels] + [group_V for _, group_V in levels]
    precision_KK, pull_K = 4 * np.eye(len(coin_K)), np.full(len(coin_K), 4 * 0.5)
    for (a, b), (table_LM, variance) in opened.items():
        place_K, place_N = (
            (level_AV[a][rows_NA[:, a % COLUMNS]], level_AV[b][rows_NA[:, b % COLUMNS]])
            for rows_NA in (canary_KA, other_NA)
        )
        others_LM = np.zeros(table_LM.shape)
        np.add.at(others_LM, place_N, 1)
        cell_K = np.ravel_multi_index(place_K, table_LM.shape)
        precision_KK += (cell_K[:, None] == cell_K) / variance
        pull_K += (table_LM - others_LM).ravel()[cell_K] / variance
    mu = math.sqrt(sum(event.times / event.noise**2 for event in events))
    return coin_K, np.linalg.solve(precision_KK, pull_K), mu


def orthogonal() -> Numbers:
    """Rows (SIDE², COLUMNS) of which no two are equal in two columns; SIDE is a prime number above COLUMNS - 2."""
    a, b = np.divmod(np.arange(SIDE**2), SIDE)
    return np.stack([a, *((b + factor * a) % SIDE for factor in range(COLUMNS - 1))], axis=1)


def _levels(silo: MarginalsSilo, value_N: Numbers) -> tuple[Numbers, Numbers]:
    """The level, and the group, of each value of a silo's column."""
    (attribute,), (cell_N,) = silo.attributes, silo._cells().T
    level_V = np.zeros(SIDE, np.int64)
    level_V[value_N] = attribute.level_F[cell_N]
    return level_V, attribute.group_L.numpy()[level_V]


def _trained(
    kind: str, epsilon: float, train_NA: Numbers, seed: int
) -> tuple[list[MarginalsSilo], dict[tuple[int, int], tuple[Numbers, float]], list[Event]]:
    """Silos of one column each; all tables less the coordinator's noise, with the variance that is left; all events."""
    frame = pd.DataFrame({f"c{a}": [f"level {value}" for value in train_NA[:, a]] for a in range(COLUMNS)})
    federation = ss.simulate(frame, silos={f"s{a:02d}": [f"c{a}"] for a in range(COLUMNS)})
    dp = {"epsilon": epsilon, "delta": DELTA}
    config, roster = algorithm(kind).configure("balanced", {"dp": dp}), federation.roster
    seated, streams = seats(roster, Streams(seed).child("seats")), Streams(seed)
    silos = {
        name: MarginalsSilo(own, federation.schemas[name], seated[name], streams.child(name), CPU, config)
        for name, own in federation.tables.items()
    }
    talk, opened = marginals.coordinate(roster, config, streams.child("lead"), CPU), {}
    joint, own = dict[Event, None](), list[Event]()
    real = opening.open_tables

    def open_tables(roster: Any, request: Any, noises: Any, *more: Any) -> Any:
        found = yield from real(roster, request, noises, *more)
        opened.update({request.sets[n]: (found.own[n], noise.deviation(2) ** 2) for n, noise in noises.items()})
        return found

    got: Any = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "open_tables", open_tables)
        while True:
            try:
                step = talk.send(got)
            except StopIteration:
                return list(silos.values()), opened, [*joint, *own]
            got = {name: silos[name].answer(ask) for name, ask in getattr(step, "asks", {}).items()}
            for event in (event for reply in got.values() for event in getattr(reply, "events", ())):
                if event.joint:
                    joint[event] = None
                else:
                    own.append(event)


def main() -> None:
    """Print what is found."""
    parser = argparse.ArgumentParser(
        "python -m tests.algorithms.one_run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", default="aim", choices=["mst", "aim"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--trainings", type=int, default=12)
    given = parser.parse_args()
    for epsilon in given.epsilons:
        print(f"epsilon {epsilon:g}: {audit(given.kind, epsilon, given.trainings)}", flush=True)


if __name__ == "__main__":
    main()
