"""Audits of MST and AIM with many canaries, by all noised tables that open.

    python -m tests.algorithms.one_run                      # both at epsilon 1 and 10, twelve trainings each, all WAYS
    python -m tests.algorithms.one_run --kinds mst --ways vertical --epsilons 3 --trainings 4

The attacker is whom the least noise protects from: the coordinator, where silos hold different columns of the same rows
("vertical") and draw noise together, all of which it faces; the coordinator together with one silo, which takes its
own part of the noise off, where silos hold different rows ("horizontal"), or are in "groups", each divided by columns
and of other rows. Canaries are in the first silo, or group; he works with the last one.

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

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import common

import silosynth as ss
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.attacks.canaries import epsilon_of_one_run
from silosynth.catalog import algorithm
from silosynth.core.files import make_folder
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.counting.silo import TableCounter
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import seats
from silosynth.simulation.federation import Federation
from silosynth.simulation.training import with_groups

WAYS = ("vertical", "horizontal", "groups")
SIDE, COLUMNS, OTHERS = 13, 12, 3000
SILOS = 4  # with different rows, or in two groups
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


def audit(kind: str, epsilon: float, trainings: int, way: str = "vertical") -> Audit:
    """Train so often, with fresh rows, canaries and noise."""
    coins, estimates, mu = list[Numbers](), list[Numbers](), 0.0
    for seed in range(trainings):
        coin_K, estimate_K, mu = _training(kind, epsilon, way, seed)
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


def _training(kind: str, epsilon: float, way: str, seed: int) -> tuple[Numbers, Numbers, float]:
    """Which canaries were in, the estimates, and 1 / deviation of one count's noise that costs what is charged."""
    rng = np.random.default_rng(seed)
    same, apart = rng.integers(SIDE, size=(OTHERS, 1)), rng.integers(SIDE, size=(OTHERS, COLUMNS))
    other_NA = np.where(rng.random(apart.shape) < 0.5, same, apart)  # columns hang together, so that AIM opens tables
    canary_KA = orthogonal()
    coin_K = rng.random(len(canary_KA)) < 0.5
    train_NA = np.concatenate([canary_KA[coin_K], other_NA])
    silos, opened, events = _trained(kind, epsilon, divided(train_NA, way), seed)
    levels = [_levels(silos, column, train_NA) for column in range(COLUMNS)]
    level_AV = [level_V for level_V, _ in levels] + [group_V for _, group_V in levels]
    precision_KK, pull_K = 4 * np.eye(len(coin_K)), np.full(len(coin_K), 4 * 0.5)
    for attributes, table, variance in opened:
        place_K, place_N = (
            tuple(level_AV[a][rows_NA[:, a % COLUMNS]] for a in attributes) for rows_NA in (canary_KA, other_NA)
        )
        others = np.zeros(table.shape)
        np.add.at(others, place_N, 1)
        cell_K = np.ravel_multi_index(place_K, table.shape)
        precision_KK += (cell_K[:, None] == cell_K) / variance
        pull_K += (table - others).ravel()[cell_K] / variance
    mu = math.sqrt(sum(event.times / event.noise**2 for event in events))
    return coin_K, np.linalg.solve(precision_KK, pull_K), mu


def orthogonal() -> Numbers:
    """Rows (SIDE², COLUMNS) of which no two are equal in two columns; SIDE is a prime number above COLUMNS - 2."""
    a, b = np.divmod(np.arange(SIDE**2), SIDE)
    return np.stack([a, *((b + factor * a) % SIDE for factor in range(COLUMNS - 1))], axis=1)


def divided(train_NA: Numbers, way: str) -> Federation:
    """Columns in twelve silos; or rows in several, canaries in the first; or rows and columns in two groups of two."""
    names = [f"c{a}" for a in range(COLUMNS)]
    frame = pd.DataFrame({name: [f"level {value}" for value in train_NA[:, a]] for a, name in enumerate(names)})
    if way == "vertical":
        return ss.simulate(frame, {f"s{a:02d}": [name] for a, name in enumerate(names)})
    first = len(train_NA) - OTHERS * (SILOS - 1) // SILOS if way == "horizontal" else len(train_NA) - OTHERS // 2
    ends = [0, *np.linspace(first, len(train_NA), SILOS if way == "horizontal" else 2).astype(int)]
    rows = {f"s{n}": slice(low, high) for n, (low, high) in enumerate(itertools.pairwise(ends))}
    if way == "horizontal":
        return ss.simulate(frame, rows=rows)
    half = COLUMNS // 2
    held = {"s0": (names[:half], names[half:]), "s1": (names[::2], names[1::2])}
    return ss.simulate(frame, {g: {f"{g}a": a, f"{g}b": b} for g, (a, b) in held.items()}, rows=rows)


def _levels(silos: Sequence[MarginalsSilo], column: int, train_NA: Numbers) -> tuple[Numbers, Numbers]:
    """The level, and the group, of each value of a column: as in the first silo that holds it, and the first rows."""
    held = ((silo, [encoder.name for encoder in silo.columns.encoders]) for silo in silos)
    silo, place = next((silo, names.index(f"c{column}")) for silo, names in held if f"c{column}" in names)
    cell_N, attribute = silo._cells()[:, place], silo.attributes[place]
    level_V = np.full(SIDE, -1)
    level_V[train_NA[: len(cell_N), column]] = attribute.level_F[cell_N]
    assert (level_V >= 0).all()
    return level_V, attribute.group_L.numpy()[level_V]


def _trained(
    kind: str, epsilon: float, federation: Federation, seed: int
) -> tuple[list[MarginalsSilo], list[tuple[tuple[int, ...], Numbers, float]], list[Event]]:
    """Silos; all tables less the noise of the attacker, with the variance that is left; what a canary is charged.

    A table of one attribute may open twice.
    """
    entry, dp = algorithm(kind).divided(federation.horizontal), {"epsilon": epsilon, "delta": DELTA}
    config, roster = entry.configure("balanced", with_groups({"dp": dp}, federation)), federation.roster
    seated, streams = seats(roster, Streams(seed).child("seats")), Streams(seed)
    silos = {
        name: entry.party(own, federation.schemas[name], seated[name], streams.child(name), CPU, config)
        for name, own in federation.tables.items()
    }
    talk, opened = entry.coordinate(roster, config, streams.child("lead"), CPU, None), list[Any]()
    joint, own = dict[Event, None](), list[Event]()
    parts = len(roster) - 1
    last, taken_off, drawn = roster.parties[-1], dict[int, Numbers](), list[Numbers]()
    opens, adds, sums = opening.open_tables, opening.with_parts, TableCounter._sum

    def open_tables(roster: Any, request: Any, noises: Any, *more: Any) -> Any:
        found = yield from opens(roster, request, noises, *more)
        for n, noise in noises.items():
            table, left = found.own[n], noise.deviation(parts, parts) if federation.horizontal else noise.deviation(2)
            table = table - taken_off[n].reshape(table.shape) if n in taken_off else table
            opened.append((request.sets[n], table, left**2))
        return found

    def with_parts(counts: Any, *more: Any) -> list[Numbers]:
        exact = list(counts)
        made = adds(exact, *more)
        drawn[:] = [noised - one for noised, one in zip(made, exact, strict=True)]
        return made

    def add_noise(counter: Any, ask: Any) -> Any:
        reply = sums(counter, ask)
        if counter._masker._seat.name == last:
            taken_off.update(zip(ask.sets, drawn, strict=True))
        return reply

    got: Any = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "open_tables", open_tables)
        patched.setattr(opening, "with_parts", with_parts)
        patched.setattr(TableCounter, "_sum", add_noise)
        while True:
            try:
                step = talk.send(got)
            except StopIteration:
                return list(silos.values()), opened, [*joint, *own]
            got = {name: silos[name].answer(ask) for name, ask in getattr(step, "asks", {}).items()}
            for name, reply in got.items():
                for event in getattr(reply, "events", ()):
                    if event.joint:
                        joint[event] = None
                    elif not federation.horizontal or name == roster.parties[0]:  # where all silos list the same
                        own.append(event)


def measured(kind: str, way: str, epsilon: float, trainings: int) -> dict[str, Any]:
    """A row of the kept results."""
    found = audit(kind, epsilon, trainings, way)
    row = {"algorithm": kind, "silos": way, "epsilon": epsilon, "trainings": trainings}
    row |= {"right": found.right, "guesses": found.guesses}
    return row | {"no epsilon below": found.epsilon, "attainable": found.attainable}


def main() -> None:
    """Print what is found, and keep it if that is asked for."""
    parser = common.parser(__doc__)
    parser.add_argument("--kinds", nargs="+", default=["mst", "aim"], choices=["mst", "aim"])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--trainings", type=int, default=12)
    parser.add_argument("--folder", type=make_folder, help="where each audit's figures are kept for another run")
    parser.add_argument("--name", help="of the results in benchmarks/results; without one nothing is kept")
    given = parser.parse_args()
    rows = []
    for one in itertools.product(given.kinds, given.ways, given.epsilons, [given.trainings]):
        rows.append(common.once(given.folder, measured, *one))
        print(rows[-1], flush=True)
    if given.name:
        common.keep(given.name, rows)


if __name__ == "__main__":
    main()
