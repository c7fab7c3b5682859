"""Silos of a job with tables of their own, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core.conversation import Exchange, Roster
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.deployment.conducting import _begin
from silosynth.deployment.coordinator import Order, run_order
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.protocol import Job, PrepareRows
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.sealed import Seat, seats
from silosynth.simulation.silos import InProcess

SMALL = {
    "coder.steps": 30, "coder.hidden": (16,), "coder.batch": 32, "latent.steps": 40, "latent.width": 16,
    "latent.batch": 32,
}  # fmt: skip
OPEN = SiloPolicy(public_seed=True, least_rows=10, keyed_hash=True, require_alignment=False)


@dataclass(frozen=True)
class Rows:
    """A silo's rows, as `silosynth.deployment.rows.SiloFile` has them."""

    frame: pd.DataFrame
    identifiers: list[str] = field(default_factory=list)
    declared: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> pd.DataFrame:
        """All rows."""
        return self.frame


def customers(n: int = 160, seed: int = 0) -> pd.DataFrame:
    """Customers with a number, and what a bank and a shop know of them."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, n)
    return pd.DataFrame(
        {
            "customer": [f"C-{k:05d}" for k in rng.permutation(10 * n)[:n]],
            "age": age,
            "income": np.round(900 + 40 * age + rng.normal(0, 200, n), 2),
            "visits": rng.poisson(3 + age / 20),
            "paid": rng.choice(["card", "cash", "voucher"], n, p=[0.6, 0.3, 0.1]),
        }
    )


def shuffled(frame: pd.DataFrame, columns: list[str], seed: int, without: int = 0) -> pd.DataFrame:
    """Some columns of a table's rows in another order, some rows left out."""
    order = np.random.default_rng(seed).permutation(len(frame))[without:]
    return frame.iloc[order][["customer", *columns]].reset_index(drop=True)


def two_silos(n: int = 160) -> dict[str, Rows]:
    """A bank and a shop that link their rows by the customer's number."""
    whole = customers(n)
    return {
        "bank": Rows(shuffled(whole, ["age", "income"], 1, 10), ["customer"]),
        "shop": Rows(shuffled(whole, ["visits", "paid"], 2, 7), ["customer"]),
    }


def job(silos: Mapping[str, Rows], **changes: Any) -> Job:
    """A small one."""
    given: dict[str, Any] = {
        "name": "trial", "algorithm": "silofuse", "preset": "fast", "silos": tuple(silos), "seed": 7,
        "align": AlignConfig("keyed-hash"), "rows": 50, "submitter": "alice", "options": SMALL,
    } | changes  # fmt: skip
    options = given.pop("options")
    config = catalog.algorithm(given["algorithm"], kind=None).configure(given["preset"], options)
    return Job(config=config, **given)


def seated(silos: Mapping[str, Rows]) -> dict[str, Seat]:
    """Keys for silos."""
    return seats(silos, Streams(99))


def parties(
    silos: Mapping[str, Rows], folder: Path, policy: SiloPolicy = OPEN, **policies: SiloPolicy
) -> dict[str, DeploymentSilo]:
    """The silos' sides."""
    chairs = seated(silos)
    return {
        name: DeploymentSilo(
            chairs[name], rows, policies.get(name, policy), folder / name, Releases(folder / name), torch.device("cpu")
        )
        for name, rows in silos.items()
    }


def prepared(silos: Mapping[str, DeploymentSilo], job: Job) -> dict[str, Message]:
    """What silos reply to `PrepareRows`."""
    talk, replies = _begin(job, Roster(tuple(silos))), dict[str, Message]()
    step = next(talk)
    while True:
        if not isinstance(step, Exchange):
            step = talk.send(None)
            continue
        replies = {name: silos[name].answer(ask) for name, ask in step.asks.items()}
        if any(isinstance(ask, PrepareRows) for ask in step.asks.values()):
            return replies
        step = talk.send(replies)


def run(job: Job, silos: Mapping[str, DeploymentSilo], folder: Path, **order: Any) -> Path:
    """Carry out a job with silos in this process; returns the coordinator's folder."""
    place = folder / "coordinator"
    with InProcess(silos, folder / "checkpoints") as link:
        run_order(Order(job, **order), link, place)
    return place
