"""What a silo keeps of a job in the job's folder, read again after the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from silosynth import catalog
from silosynth.core.conversation import Roster
from silosynth.core.files import read
from silosynth.core.messages import from_state
from silosynth.core.schema import Schema
from silosynth.deployment import protocol
from silosynth.privacy.events import Target
from silosynth.runtime.wire import unpack
from silosynth.simulation.model import Model

PART, JOB = "part.silosynth", "job"


class KeptModel(Model):
    """What one silo knows of the model of a job: its own part, if it has one, and what it sent."""

    def describe(self) -> dict[str, Any]:
        """As `Model.describe`; None for what the silo does not know. The guarantee is that of the whole job."""
        facts = super().describe()
        whole = guarantee_of(self.algorithm, self.config, None if self.seed < 0 else self.seed)
        if whole is not None:
            facts["guarantee"] = whole
        return facts if any(self.parts.values()) else facts | {"ranges": None}


def guarantee_of(algorithm: str, config: Any, seed: int | None) -> str | None:
    """What a private job guarantees as a whole, by its config; None of others, and where a seed tells the noise.

    A silo's own ledger does not tell: it lists this silo's events, each of which checks the sum over all silos.
    """
    target = getattr(config, "dp", Target())
    if not target.private or seed is not None:
        return None
    counts = catalog.algorithm(algorithm, kind=None).kind == "counting"
    what = "all tables that opened" if counts else "the released model and its synthetic tables"
    return (
        f"epsilon at most {target.epsilon:g} at delta {target.delta:g} for {what}, "
        "per row of the aligned table, all silos together"
    )


def kept_job(folder: Path) -> protocol.Job | None:
    """The job of a folder; None of an earlier version.

    Raises:
        StorageError: the file is damaged, or of another version.
    """
    return from_state(protocol.Job, unpack(read(folder / JOB))) if (folder / JOB).exists() else None


def kept_model(folder: Path, silo: str, schema: Schema, ledger: list[dict[str, Any]]) -> KeptModel | None:
    """What a silo keeps of a job's model in the job's folder; None of a job of an earlier version.

    ``schema`` is that of the silo's columns, ``ledger`` what it recorded.

    Raises:
        StorageError: a file is damaged, or of another version.
    """
    if (job := kept_job(folder)) is None:
        return None
    part = unpack(read(folder / PART))["part"] if (folder / PART).exists() else {}
    return KeptModel(
        algorithm=job.algorithm, preset=job.preset, seed=-1 if job.seed is None else job.seed, config=job.config,
        roster=Roster(job.silos), columns=schema.names, flavour="pandas", coordinator={}, rows=0,
        schemas={name: schema if name == silo else Schema(()) for name in job.silos},
        parts={name: part if name == silo else {} for name in job.silos},
        ledger=ledger,
    )  # fmt: skip
