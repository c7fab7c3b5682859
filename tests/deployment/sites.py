"""All sites of a federation in this process, with jobs one after the other in folders of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tests.deployment.common import OPEN, Rows, customers, job, seated

from silosynth.deployment.coordinator import Order, drawing_order, enqueue, run_order
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.simulation.silos import InProcess

COLUMNS = {"bank": ["age", "income"], "shop": ["visits", "paid"]}


class Gone:
    """A table that is not there any more."""

    def __init__(self) -> None:
        self.identifiers, self.declared = ["customer"], dict[str, Any]()

    def read(self) -> pd.DataFrame:
        """Nothing."""
        raise AssertionError("drawing reads no rows")


def same_rows(n: int = 120) -> dict[str, Rows]:
    """Silos with the same rows in the same order."""
    whole = customers(n)
    return {silo: Rows(whole[held]) for silo, held in COLUMNS.items()}


def sides(
    silos: Mapping[str, Any], folder: Path, name: str, policy: SiloPolicy = OPEN, **policies: SiloPolicy
) -> dict[str, DeploymentSilo]:
    """New processes of all silos, for a job of this name."""
    chairs = seated(silos)
    return {
        silo: DeploymentSilo(
            chairs[silo], rows, policies.get(silo, policy), folder / silo / name, Releases(folder / silo),
            torch.device("cpu"), book=SiloLedger(folder / silo / name, name, chairs[silo]),
        )
        for silo, rows in silos.items()
    }  # fmt: skip


def carry_out(asked: Order, silos: Mapping[str, Any], folder: Path, **policies: Any) -> Path:
    """Run a job at new processes of all sites, whose jobs lie below ``folder``; the coordinator's folder of it."""
    place = folder / "coordinator" / asked.job.name
    if not (place / "order").exists():
        enqueue(asked, place)
    with InProcess(sides(silos, folder, asked.job.name, **policies), folder / "parts" / asked.job.name) as link:
        run_order(asked, link, place)
    return place


def more(folder: Path, rows: int, seed: int | None, name: str) -> Order:
    """An order of more rows from the job "trial"."""
    return drawing_order(folder / "coordinator" / "trial", rows, seed, name, "coordinator")


def table(place: Path) -> pd.DataFrame:
    """A job's synthetic table."""
    return pd.read_parquet(place / "synthetic.parquet")


ABSENT = {"bank": Gone(), "shop": Gone()}


def trained_once(folder: Path) -> Path:
    """All sites, after a job "trial" with a public seed."""
    carry_out(Order(job(same_rows(), align=None)), same_rows(), folder)
    return folder
