"""Canaries in MST and AIM, for whoever has the model: what many trainings show is no more than is charged.

Rates of right and wrong guesses alone bound epsilon by about the logarithm of a quarter of the trainings, so that no
affordable number of them refutes an epsilon of 10. All noise is Gaussian, or charged as such. With it, guesses that are
right and wrong at these rates need 1 / deviation of at least the distance of their normal quantiles (Nasr et al. 2023,
Tightly Auditing Differentially Private Machine Learning), and that is an epsilon. A canary is some equal rows: they
move what is seen by as many times what one row does.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtri
from statsmodels.stats.proportion import proportion_confint

import silosynth as ss
from silosynth.algorithms.marginals import protocol as marginals
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.catalog import algorithm
from silosynth.core.streams import Streams
from silosynth.counting import joint, opening
from silosynth.models.graphical import GraphicalModel
from silosynth.privacy import mechanisms
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import Event, gaussian_steps
from silosynth.privacy.sealed import seats

CPU = torch.device("cpu")
DELTA = 1e-5
NAMES = ("x", "y", "z")
SILOS = {"one": ["x", "z"], "two": ["y"]}
CANARY = (0, 1, 2)  # no two of its values are often together
BESIDE = 60  # of all other rows, in each cell of two columns that it is on
LEARNT, COUNTED = 30, 100  # trainings of each side: by which a threshold is chosen, and that are counted


def others() -> np.ndarray:
    """Rows whose columns are often equal, so that AIM opens all pairs in full."""
    cells = np.array(list(itertools.product(range(4), repeat=3)))
    alike = sum((cells[:, a] == cells[:, b]).astype(int) for a, b in itertools.combinations(range(3), 2))
    return np.repeat(cells, 6 * 4**alike, axis=0)


def trained(kind: str, epsilon: float, copies: int, seed: int) -> tuple[float, list[Event]]:
    """How many rows the model has beyond the other ones where the canary would be, and what was charged."""
    rows = np.concatenate([others(), np.repeat([CANARY], copies, axis=0)])
    federation = ss.simulate(pd.DataFrame(rows, columns=NAMES).map("level {}".format), silos=SILOS)
    config = algorithm(kind).configure("fast", {"dp": {"epsilon": epsilon, "delta": DELTA}})
    roster, streams = federation.roster, Streams(seed)
    seated = seats(roster, streams.child("seats"))
    silos = {
        name: MarginalsSilo(own, federation.schemas[name], seated[name], streams.child(name), CPU, config)
        for name, own in federation.tables.items()
    }
    talk, got, listed = marginals.coordinate(roster, config, streams.child("lead"), CPU), None, list[Event]()
    while True:
        try:
            step = talk.send(got)
        except StopIteration as end:
            model: dict[str, Any] = end.value
            break
        got = {name: silos[name].answer(ask) for name, ask in getattr(step, "asks", {}).items()}
        listed += [event for reply in got.values() for event in getattr(reply, "events", ())]
    level = dict[str, int]()
    for silo in silos.values():
        for encoder, attribute in zip(silo.columns.encoders, silo.attributes, strict=True):
            place = encoder.kept.index(f"level {CANARY[NAMES.index(encoder.name)]}")
            level[encoder.name] = int(attribute.level_F[place])
    graph, at = GraphicalModel.restored(model["model"]), [level[name] for name in model["names"]]
    pairs = [pair for pair, _ in graph.terms if len(pair) == 2]
    seen = sum(model["rows"] * float(graph.marginal((a, b))[at[a], at[b]]) - BESIDE for a, b in pairs)
    return seen, [*{event: None for event in listed if event.joint}, *(one for one in listed if not one.joint)]


def audit(kind: str, epsilon: float, copies: int) -> tuple[float, float]:
    """The epsilon of one row that is refuted, with a confidence of 95 %, and that which is charged."""
    trainings = LEARNT + COUNTED
    with_, without = ([trained(kind, epsilon, n, 2 * seed + (n > 0)) for seed in range(trainings)] for n in (copies, 0))
    seen = np.array([[one for one, _ in side] for side in (with_, without)])
    right, wrong = (seen[:, LEARNT:] > seen[:, :LEARNT].mean()).sum(axis=1)
    low, _ = proportion_confint(int(right), COUNTED, 0.05, method="beta")  # each of two bounds fails in 2.5 %
    _, high = proportion_confint(int(wrong), COUNTED, 0.05, method="beta")
    apart = (ndtri(low) - ndtri(high)) / copies
    charged = max(spent(events, DELTA).epsilon for _, events in with_ + without)
    return 0.0 if apart <= 0 else spent([gaussian_steps("a row", 1 / apart, 1.0, 1)], DELTA).epsilon, charged


def a_tenth_of_the_variance(patched: pytest.MonkeyPatch) -> None:
    """Everywhere: on tables of two silos, on those of one, and on columns."""
    many, drawn = joint.weights, mechanisms.discrete_gaussian
    patched.setattr(joint, "weights", lambda variance: many(math.ceil(variance / 10)))
    for module in (opening, mechanisms):
        patched.setattr(module, "discrete_gaussian", lambda variance, *given: drawn(math.ceil(variance / 10), *given))


CASES = [("mst", 1.0, 5), ("aim", 1.0, 5), ("mst", 10.0, 3), ("aim", 10.0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "epsilon", "copies"), CASES)
def test_no_more_is_found_than_is_charged_and_a_part_of_it(kind: str, epsilon: float, copies: int) -> None:
    found, charged = audit(kind, epsilon, copies)
    assert 0.1 * charged < found <= charged <= epsilon  # at 10 less is charged: each table has the least variance


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "epsilon", "copies"), CASES)
def test_a_tenth_of_the_variance_is_found_out(
    kind: str, epsilon: float, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tenth_of_the_variance(monkeypatch)
    found, charged = audit(kind, epsilon, copies)
    assert found > charged
