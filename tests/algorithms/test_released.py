"""Private releases of VFLGAN, VertiGAN, WGAN-GP and DPLT depend on a row only through noised quantities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.released import Record, talk
from torch import Tensor

import silosynth as ss
from silosynth.algorithms.dplt import private as dplt
from silosynth.algorithms.vflgan import networks
from silosynth.catalog import algorithm
from silosynth.core.streams import Streams
from silosynth.encoders import table as private_encoders
from silosynth.privacy import dpsgd
from silosynth.privacy.sealed import seats

CPU = torch.device("cpu")
ROWS = 200
CLIP = 1.0
SILOS = {"registry": ["job", "age"], "tax": ["pay", "rich"]}
BOUNDS = {"age": {"low": 18, "high": 70}, "pay": {"low": 0, "high": 150}}
DP = {"epsilon": 1.0, "delta": 1e-4}  # the noise of so little is found soon
SMALL = {
    "batch": 40,
    "epochs": 1,
    "least_rounds": 3,
    "critic_steps": 4,
    "noise": 8,
    "critic": [12, 8],
    "dp": {**DP, "clip": CLIP},
}
BLOCKS = {"vflgan": 3, "vflgan-base": 3, "vertigan": 2, "wgan-gp": 1}


def federation(central: bool, rows: int = ROWS) -> ss.Federation:
    rng = np.random.default_rng(3)
    job = rng.choice(["nurse", "smith", "judge"], ROWS, p=[0.5, 0.3, 0.2])
    pay = np.where(job == "judge", 90, 40) + rng.normal(0, 4, ROWS).round(1)
    data = pd.DataFrame({"job": job, "age": rng.integers(20, 65, ROWS), "pay": pay, "rich": pay > 60})
    if not central:
        return ss.simulate(data.head(rows), silos=SILOS, schema=BOUNDS)
    del data["age"]  # numbers of one column draw their ties after those of another, as many as there are rows
    return ss.simulate(data.head(rows), silos={"all": list(data)}, schema={"pay": BOUNDS["pay"]}).central()


def released(name: str, preset: str, options: dict[str, Any], rows: int = ROWS) -> bytes:
    entry = algorithm(name)
    held = federation(entry.central, rows)
    seated, config = seats(held.roster, Streams(4)), entry.configure(preset, options)
    parties = {
        silo: entry.party(table, held.schemas[silo], seated[silo], Streams(5).child(silo), CPU, config)
        for silo, table in held.tables.items()
    }
    return talk(entry.coordinate(held.roster, config, Streams(6), CPU), parties)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Of every mechanism of these algorithms."""
    record = Record()
    for module, name, at in (
        (private_encoders, "noised_counts", 0), (private_encoders, "noised_levels", 1), (dpsgd, "noised", 0),
        (dplt, "noised_counts", 0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, record.wrap(getattr(module, name), at))
    return record


@pytest.mark.parametrize("slopes", [pytest.param("critic", marks=pytest.mark.slow), "orthonormal"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", list(BLOCKS))
def test_a_gan_of_a_row_less_with_the_same_noised_quantities_is_the_same(
    name: str, sampled: bool, slopes: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each of its gradients changes by at most its block's clipping norm."""

    def mask(n: int, rate: float, rng: np.random.Generator) -> Tensor:
        numbers = torch.arange(ROWS)
        return ((numbers % 7 == 2) | (sampled & (numbers == ROWS - 1)))[:n]

    monkeypatch.setattr(dpsgd, "poisson_mask", mask)
    # Each row's own draws do not depend on those of other rows.
    monkeypatch.setattr(networks, "integers", lambda draw, below, rows, device: torch.arange(rows) % below)
    monkeypatch.setattr(networks, "uniforms", lambda draw, *shape, device: torch.full(shape, 0.25))
    options = SMALL | {"slopes": slopes}
    first = released(name, "private", options)
    record.replay = True
    second = released(name, "private", options, ROWS - 1)
    assert not record.recorded
    assert first == second
    steps = record.differences[-3 * 4 * BLOCKS[name] :]
    assert max(steps) <= CLIP / math.sqrt(BLOCKS[name]) * (1 + 1e-5)
    assert (max(steps) > 0) == sampled


def test_a_tree_of_a_row_less_with_the_same_noised_quantities_is_the_same(record: Record) -> None:
    first = released("dplt", "fast", {"dp": DP})
    record.replay = True
    second = released("dplt", "fast", {"dp": DP}, ROWS - 1)
    assert not record.recorded
    assert first == second
    assert max(record.differences) >= 1  # the row is counted
