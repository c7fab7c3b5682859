"""What an operator submits: ``experiment.toml`` of a federation, which says nothing of tables or columns."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from typing_extensions import Self

from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.roster import Roster
from silosynth.deployment.coordinator import Order
from silosynth.deployment.protocol import Job
from silosynth.experiment.explain import explained
from silosynth.experiment.grammar import Section, parse_toml

Text = Annotated[str, Field(min_length=1)]


class AlgorithmPlan(Section):
    """``[algorithm]``: what is fitted, and how."""

    name: Text = "silofuse"
    preset: Text = "balanced"
    seed: Annotated[int, Field(ge=0)] | None = None
    """Of all randomness, silos' own included; they refuse it unless their policy allows it. Leave it out."""
    device: Text = "auto"
    """Where the coordinator computes; silos choose theirs."""
    options: dict[str, Any] = Field(default_factory=dict)


class AlignPlan(Section):
    """``[align]``: how rows of silos with different columns are linked."""

    method: Literal["psi", "keyed-hash", "none"] = "psi"
    """"none": silos hold the same rows in the same order."""
    least: Annotated[int, Field(ge=1)] = 1
    """Fewest rows in common."""


class SamplePlan(Section):
    """``[sample]``: the synthetic table."""

    rows: Annotated[int, Field(ge=1)] | None = None
    """As many as there are to train on when left out."""


class RunPlan(Section):
    """``[run]``: who takes part, and how."""

    name: Text | None = None
    """Of the job; the file's, and the time, when left out."""
    silos: Annotated[list[Text], Field(min_length=1)] | None = None
    """All of the federation when left out."""
    transport: Literal["relay", "stream"] = "relay"
    """How data go: through the engine, or over the coordinator's second port, which is many times faster."""
    limit: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a silo has for an answer; as long as it is there when left out."""
    missing: Text | None = None
    """What becomes of silos that get lost: see `silosynth.fit`."""
    patience: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds that a lost silo has to come back before the job fails."""


class Submission(Section):
    """A checked experiment file of a federation."""

    algorithm: AlgorithmPlan = AlgorithmPlan()
    align: AlignPlan = AlignPlan()
    sample: SamplePlan = SamplePlan()
    run: RunPlan = RunPlan()
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if catalog.algorithm(self.algorithm.name).central:
            raise ValueError(f"algorithm {self.algorithm.name!r} is a baseline that pools all data in one place")
        return self

    def order(self, roster: Roster, submitter: str) -> Order:
        """What is submitted to a federation of these silos.

        Raises:
            ConfigError: a preset, an option or a silo is not known.
        """
        how, entry = self.algorithm, catalog.algorithm(self.algorithm.name)
        silos = roster.parties if self.run.silos is None else tuple(self.run.silos)
        for silo in silos:
            if silo not in roster.parties:
                raise ConfigError("run.silos names silos of the federation", silo, nearest(silo, roster.parties))
        align = (
            None
            if entry.horizontal or self.align.method == "none"
            else AlignConfig(self.align.method, self.align.least)
        )
        job = Job(
            self.run.name or f"{self._source.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
            how.name, how.preset, entry.configure(how.preset, how.options), silos, how.seed, align, self.sample.rows,
            submitter,
        )  # fmt: skip
        entry.under(self.run.missing)  # refuses what is not supported
        return Order(job, self.run.transport, self.run.limit, self.run.patience, how.device, self.run.missing)


def read_submission(path: str | Path) -> Submission:
    """Read and check an experiment file of a federation.

    Raises:
        StorageError: no such file.
        ConfigError: a key or a value does not fit; names it, and the remedy.
    """
    path = Path(path)
    try:
        found = Submission.model_validate(parse_toml(path))
    except ValidationError as error:
        raise explained(path.name, error, Submission) from None
    found._source = path
    return found
