"""Trainings in lockstep end with the weights that the conversation gives each of them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from tests.attacks.makers import table

from silosynth.algorithms.vflgan.silo import VFLGANSilo
from silosynth.attacks import lockstep
from silosynth.attacks.generators import Catalogued
from silosynth.catalog import algorithm

SMALL = {
    "epochs": 3, "batch": 16, "generator": [8, 16], "critic": [12, 8], "shared": [6], "noise": 4, "select": "last",
}  # fmt: skip
SILOS = {"a": ["age", "x1", "x2", "region"], "b": [f"x{i}" for i in range(3, 10)]}
WHOLE = table(60, 1)
TRAINS = [(WHOLE, 1), (WHOLE, 2), (WHOLE.drop(3).reset_index(drop=True), 3)]


def generator(**options: Any) -> Catalogued:
    return Catalogued("vflgan", "paper", SMALL | options, SILOS, rows=40)


def networks(run: Any) -> dict[str, torch.Tensor]:
    """All weights and statistics of a training's silos."""
    found = {}
    for name, party in run.parties.items():
        assert isinstance(party, VFLGANSilo) and party.training is not None
        local = party.training
        for part, network in (("critic", local.critic.network), ("generator", local.parts[0].network)):
            found |= {f"{name} {part} {key}": value for key, value in network.state_dict().items()}
        for average in local.averages:
            found |= {f"{name} averaged {key}": value for key, value in average.weights.items()}
    return found


@pytest.mark.parametrize(
    "options",
    [
        {}, {"slopes": "critic", "second": [5]}, {"local": False}, {"hard": False, "tau": 0.5, "decay": 0.01},
        {"average": 0.9}, {"slopes": "orthonormal"}, {"slopes": "orthonormal", "local": False},
        {"norm_epsilon": 0.0, "lambda1": 0.5, "lambda2": 2.0, "numbers": "quantile"},
    ],
)  # fmt: skip
def test_weights_are_those_of_the_conversation(options: dict[str, Any]) -> None:
    fit = generator(**options)
    together, alone = fit._runs(TRAINS), [fit._trained(train, seed) for train, seed in TRAINS]
    for one, other in zip(together, alone, strict=True):
        assert networks(one).keys() == networks(other).keys()
        for key, value in networks(one).items():
            # A bias in front of a normalisation has no gradient but rounding errors, which Adam makes as large as its
            # rate: it has no effect, but on running means, which follow it.
            moved = 3e-3 if ("linears" in key and key.endswith("bias")) or "running_mean" in key else 1e-4
            assert torch.allclose(value.float(), networks(other)[key].float(), atol=moved), key


def test_tables_and_features_are_those_of_the_conversation() -> None:
    fit = generator(norm_epsilon=0.0)
    for (made, inner), (train, seed) in zip(fit.with_features(TRAINS, WHOLE), TRAINS, strict=True):
        ((expected, features),) = fit.with_features([(train, seed)], WHOLE)
        pd.testing.assert_frame_equal(made, expected, rtol=1e-2, atol=1e-2)
        assert inner.shape == (len(WHOLE), 2 * 8)
        assert inner == pytest.approx(features, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [("vflgan", {"dp": {"epsilon": 5.0, "delta": 1e-3}}), ("vflgan", {"select": "frechet"}), ("wgan-gp", {})],
)
def test_other_trainings_go_one_by_one(name: str, options: dict[str, Any]) -> None:
    preset = "fast" if "dp" in options else "paper"
    assert not lockstep.fits(algorithm(name).configure(preset, options))
