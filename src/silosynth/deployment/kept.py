"""What a silo keeps of a job in the job's folder, read again after the job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from silosynth import catalog
from silosynth.core.conversation import Roster, State
from silosynth.core.errors import ProtocolError
from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.core.messages import from_state, to_state
from silosynth.core.schema import Schema
from silosynth.deployment import protocol
from silosynth.privacy.events import Target
from silosynth.privacy.statement import known_noise, of_one_silo, rows_of, statement
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.model import Model
from silosynth.simulation.ruling import Ruling

PART, JOB, CLOSED, REFERENCE = "part.silosynth", "job", "closed", "reference.silosynth"
FORGOTTEN = "forgotten.json"


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
    rows = rows_of(*protocol.divided(algorithm, config))
    return f"epsilon at most {target.epsilon:g} at delta {target.delta:g} for {what}, per row of {rows}"


def statement_of(job: protocol.Job, ledger: Sequence[Mapping[str, Any]], own: bool) -> dict[str, Any]:
    """The `statement` of a job's ledger; ``own`` is a silo's own, of which the guarantee is the whole job's."""
    if own:
        ledger = _own(job, ledger)
    if job.training_seed is not None:
        ledger = known_noise(ledger)
    alike, grouped = protocol.divided(job.algorithm, job.config)
    stated = statement(ledger, horizontal=alike, grouped=grouped)
    whole = guarantee_of(job.algorithm, job.config, job.training_seed)
    if whole and stated["release"] is None:  # tables that open are all that such a job releases
        return stated | {"summary": whole, "rest": ""}
    return stated | {"summary": whole} if whole and own else stated


def _own(job: protocol.Job, ledger: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    dp = getattr(job.config, "dp", Target())
    return of_one_silo(ledger, dp) if dp.private else [*map(dict, ledger)]


def kept_job(folder: Path) -> protocol.Job | None:
    """The job of a folder; None of an earlier version.

    Raises:
        StorageError: the file is damaged, or of another version.
    """
    return from_state(protocol.Job, unpack(read(folder / JOB))) if (folder / JOB).exists() else None


def trained_folder(folder: Path) -> Path:
    """The folder of the job that trained what the job in ``folder`` has drawn: this one, unless it drew from another.

    Raises:
        StorageError: the file is damaged, or of another version.
    """
    job = kept_job(folder)
    return folder if job is None or job.drawing is None else folder.parent / job.drawing.job


@dataclass(frozen=True)
class KeptPart:
    """What rows are drawn from again.

    Attributes:
        part: the silo's part of the model.
        schema: of its columns.
        rows: that it trained on.
        charged: whether all that the model has from them was charged.
        ruling: the rules about these columns, as `Ruling.to_state` stores them; empty without any.
    """

    part: State
    schema: Schema
    rows: int
    charged: bool
    ruling: State = field(default_factory=dict)


def keep_part(folder: Path, job: protocol.Job, kept: KeptPart) -> None:
    """Write what rows can be drawn from again into the folder of the job that trained.

    Raises:
        StorageError: it cannot be written.
    """
    content = {
        "job": to_state(replace(job, seed=None)),  # nor do files of models keep it
        "part": kept.part, "schema": to_state(kept.schema), "rows": kept.rows, "charged": kept.charged,
        "ruling": kept.ruling,
    }  # fmt: skip
    write_atomic(make_folder(folder) / PART, pack(content), PRIVATE)


def part_to_draw_from(folder: Path, job: protocol.Job) -> KeptPart:
    """What a job that draws draws from, of the folder of the job that trained.

    Raises:
        ProtocolError: that job has not trained here, was forgotten, ended with a refusal, or was another than is said.
        StorageError: a file is damaged, or of another version.
    """
    assert job.drawing is not None
    check_kept(folder)
    name, trained = job.drawing.job, kept_job(folder)
    if (folder / CLOSED).exists():
        raise ProtocolError("Rows are drawn from no job that a silo has refused to go on with", name)
    if trained is None:
        raise ProtocolError("Rows are drawn from a job that this silo has trained in", name, "Compare names.")
    if _terms(trained) != _terms(job) or trained.seed != job.drawing.seed or trained.drawing is not None:
        raise ProtocolError(
            "Rows are drawn from a job as it was trained: by the same algorithm, options, silos, rules and seed", name,
            "Do not trust this coordinator; or has a later job of this name been begun?",
        )  # fmt: skip
    if not catalog.of_config(job.algorithm, job.config).parts:
        return KeptPart({}, Schema(()), 0, charged=False)
    content = unpack(read(folder / PART)) if (folder / PART).exists() else {}
    if "schema" not in content or from_state(protocol.Job, content["job"]) != replace(trained, seed=None):
        raise ProtocolError(
            "Rows are drawn from a job whose training has ended, by this version of silosynth", name, "Train again."
        )
    schema = from_state(Schema, content["schema"])
    return KeptPart(content["part"], schema, content["rows"], content["charged"], content["ruling"])


def check_kept(folder: Path) -> None:
    """Refuse to work with a job that was forgotten here.

    Raises:
        ProtocolError: it was.
    """
    if os.path.exists(f"{folder}/{FORGOTTEN}"):  # before each reply: a path that is joined takes ten times as long
        raise ProtocolError(
            "This silo has forgotten the job, and everything that was trained or drawn in it", folder.name,
            "Train again, under another name.",
        )  # fmt: skip


def _terms(job: protocol.Job) -> tuple[object, ...]:
    """What a job that draws has in common with the one that trained."""
    return job.algorithm, job.preset, job.config, job.silos, job.rules


def kept_model(folder: Path, silo: str, schema: Schema, ledger: list[dict[str, Any]]) -> KeptModel | None:
    """What a silo keeps of a job's model in the job's folder; None of a job of an earlier version.

    ``schema`` is that of the silo's columns, ``ledger`` what it recorded.

    Raises:
        StorageError: a file is damaged, or of another version.
    """
    if (job := kept_job(folder)) is None:
        return None
    place = trained_folder(folder)
    content = unpack(read(place / PART)) if (place / PART).exists() else {}
    part, ruling = content.get("part", {}), content.get("ruling")
    seed = -1 if job.training_seed is None else job.training_seed
    return KeptModel(
        algorithm=job.algorithm, preset=job.preset, seed=seed, config=job.config,
        roster=Roster(job.silos), columns=schema.names, flavour="pandas", coordinator={}, rows=0,
        schemas={name: schema if name == silo else Schema(()) for name in job.silos},
        parts={name: part if name == silo else {} for name in job.silos},
        ledger=_own(job, ledger), ruling=Ruling.from_state(ruling) if ruling else Ruling(),
    )  # fmt: skip
