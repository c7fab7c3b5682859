"""A report across silos: the job that counts what a public synthetic table says, and the report from what it opened.

All that is counted follows from the synthetic table (`silosynth.evaluation.joint`). What a job has opened lies at the
coordinator and at every silo, and each that has the synthetic table, too, can render the same report.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from silosynth.alignment import AlignConfig
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.files import read
from silosynth.core.schema import Schema
from silosynth.counting import padded
from silosynth.counting.judge import JudgeConfig
from silosynth.deployment.coordinator import ORDER, RESULT, Order, read_schemas, unpack_order
from silosynth.deployment.counted import COUNTED, read_counted
from silosynth.deployment.kept import kept_model
from silosynth.deployment.protocol import Job, check_name, horizontal, silo_groups
from silosynth.evaluation import joint, judged
from silosynth.evaluation.about import AnyModel
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import OnProgress
from silosynth.privacy.events import Target
from silosynth.simulation.model import all_columns

if TYPE_CHECKING:
    import pandas as pd

OPENINGS, _METHODS = ("noised", "exact", "figures"), ("psi", "keyed-hash")
JUDGED = "-judged"
"""What the name of a job ends in that judges the table of another."""


DEALER = "the coordinator, who together with one silo could read the rows that were counted"


@dataclass(frozen=True)
class JudgeOptions:
    """How a table is judged.

    Attributes:
        opening: "noised" by ``epsilon`` and ``delta``, "exact", or "figures": distances in place of tables.
        target: the column to predict.
        levels: most levels of a column; None for 20, and for 8 of tables with noise, of which each cell has its own.
        rows: a public bound of how many rows silos have in common.
    """

    opening: Literal["noised", "exact", "figures"] = "noised"
    epsilon: float = 1.0
    delta: float = 1e-6
    target: str | None = None
    levels: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Terms:
    """Who takes part in a judging, with which rows and columns, and how data travel.

    Attributes:
        silos, align, holdout, sample, transport, limit, patience: as of a job and its order.
        schemas: each silo's columns, if they are known.
        horizontal: whether silos, or groups of them, hold different rows of the same columns.
        groups: the silos of each group, if they are in groups.
        dealer: a silo that takes part without rows, and deals in place of the coordinator; empty for none.
    """

    silos: tuple[str, ...]
    align: AlignConfig | None
    holdout: float = 0.0
    transport: Literal["relay", "stream"] = "relay"
    limit: float | None = None
    patience: float = 3600.0
    schemas: Mapping[str, Schema] | None = None
    horizontal: bool = False
    groups: tuple[tuple[str, ...], ...] = ()
    dealer: str = ""
    sample: float = 1.0


def terms_of(folder: Path) -> Terms:
    """Those of an earlier job of the coordinator's, whose rows are held out, and whose columns have their kinds.

    Raises:
        StorageError: the job has not ended, or a file is damaged.
    """
    order, schemas = unpack_order(read(folder / ORDER)), read_schemas(folder)
    job = order.job
    how = order.transport, order.limit, order.patience
    alike = horizontal(job), silo_groups(job)
    return Terms(job.silos, job.align, job.holdout, *how, schemas, *alike, sample=job.sample)


def terms(silos: Sequence[str], stream_port: int | None) -> Terms:
    """Those of a table that no job here has drawn: all silos link their rows by private set intersection."""
    return Terms(tuple(silos), AlignConfig("psi"), transport="relay" if stream_port is None else "stream")


def changed(given: Terms, silos: Sequence[str], align: str | None, holdout: float | None, dealer: str = "") -> Terms:
    """Terms with what is named in their place.

    Raises:
        ConfigError: rows cannot be linked so; or silos are some of several groups, and not those of one.
    """
    if align not in (None, "none", *_METHODS):
        raise ConfigError("Rows are linked by psi or keyed-hash, or not at all (none)", align, nearest(align, _METHODS))
    if align is not None:
        given = replace(given, align=None if align == "none" else AlignConfig(align))  # type: ignore[arg-type]
    if holdout is not None:
        given = replace(given, holdout=holdout)
    named = tuple(silos) or given.silos
    if given.groups and set(named) != set(given.silos):
        if set(named) not in map(set, given.groups):
            groups = "; ".join(" and ".join(group) for group in given.groups)
            rule = "A table of groups of silos is judged by all of them, or by the silos of one group"
            raise ConfigError(rule, ", ".join(named), f"Groups are: {groups}.")
        own = None if given.schemas is None else {silo: given.schemas[silo] for silo in named}
        given = replace(given, groups=(), horizontal=False, schemas=own)
    return replace(given, silos=tuple(silo for silo in named if silo != dealer), dealer=dealer)


def options(
    opening: str, epsilon: float, delta: float, target: str | None, levels: int | None, rows: int | None
) -> JudgeOptions:
    """How a table is judged, from a command's words.

    Raises:
        ConfigError: tables open in other ways, or a number is out of its range.
    """
    if opening not in OPENINGS:
        raise ConfigError("Tables open noised, exact, or as figures", opening, nearest(opening, OPENINGS))
    for name, number in (("levels", levels), ("rows", rows)):
        if number is not None and number < 1 + (name == "levels"):
            raise ConfigError(f"--{name} is a number of at least {1 + (name == 'levels')}", number)
    return JudgeOptions(opening, epsilon, delta, target, levels, rows)  # type: ignore[arg-type]


def judging_order(
    synthetic: pd.DataFrame, options: JudgeOptions, terms: Terms, roster: Roster, submitter: str, name: str
) -> Order:
    """The job that counts what a report on this table needs.

    Raises:
        ConfigError: a silo is not of the federation, or options do not fit; such as figures with a target, which take
            tables.
        DataError: the table has nothing to count, or no such target.
    """
    taking_part = (*terms.silos, *filter(None, [terms.dealer]))
    for silo in taking_part:
        if silo not in roster.parties:
            raise ConfigError("A table is judged by silos of the federation", silo, nearest(silo, roster.parties))
    noised = options.opening == "noised"
    if options.opening == "figures" and options.target is not None:
        raise ConfigError(
            "What a column can be predicted by takes tables, not figures", options.target, "Leave the target out."
        )
    known, columns = None, None
    if terms.schemas is not None:
        known = all_columns(terms.schemas)
        apart = terms.groups or not terms.horizontal
        columns = {silo: list(own.names) for silo, own in terms.schemas.items()} if apart else None
    levels = options.levels or (joint.COARSE if noised else joint.LEVELS)
    made = joint.plan(synthetic, known, options.target, levels=levels, silos=columns, groups=terms.groups)
    public = map(torch.from_numpy, joint.references(made, synthetic) if options.opening == "figures" else ())
    config = JudgeConfig(
        made.columns, made.sets, options.opening, Target(options.epsilon, options.delta) if noised else Target(),
        tuple(public), bool(terms.holdout), options.rows or (padded(2 * len(synthetic)) if noised else 0),
        terms.horizontal, dealer=terms.dealer, silo_groups=terms.groups,
    )  # fmt: skip
    job = Job(
        check_name(name), "judge", "balanced", config, taking_part, None, terms.align, None, submitter, terms.holdout,
        sample=terms.sample if noised else 1.0,
    )  # fmt: skip
    return Order(job, terms.transport, terms.limit, terms.patience, "cpu")


def judging_name(table: Path) -> str:
    """A name for a job that judges the table of a file: of its own, and the time."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", table.stem).lstrip("-._")[:40] or "table"
    return f"{stem}{JUDGED}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def has_counted(folder: Path) -> bool:
    """Whether a job in this folder has left what it opened."""
    return (folder / COUNTED).exists()


@dataclass
class MadeBy:
    """What drew a job's table, as it says of itself: `silosynth.evaluation.about.AnyModel`."""

    facts: dict[str, Any]
    schema: Schema = field(default_factory=lambda: Schema(()))
    ledger: list[dict[str, Any]] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """As `Model.describe`."""
        return self.facts


def made_by(folder: Path, silo: str | None) -> AnyModel | None:
    """What drew the table of a job that trained, as far as the coordinator (None) or a silo knows; None if nothing."""
    if silo is not None:
        return kept_model(folder, silo, Schema(()), [])
    path = folder / RESULT
    facts = json.loads(read(path)) if path.exists() else {}
    return MadeBy(facts) if "guarantee" in facts else None


def judged_report(
    folder: Path, synthetic: pd.DataFrame, *, target: str | None = None, ledger: Sequence[Mapping[str, Any]] = (),
    progress: OnProgress | None = None, model: AnyModel | None = None, data: str | None = None,
) -> Report:  # fmt: skip
    """The report of a job that has judged a table.

    Args:
        folder: the job's.
        synthetic: the table that was judged.
        target: the column that was to be predicted, if that does not follow from what was counted.
        ledger: of the job, as it is recorded here.
        progress, model, data: as in `silosynth.evaluation.judged.judge_tables`.

    Raises:
        StorageError: the job has opened nothing, or the file is damaged.
        ConfigError: the job was another than a judging.
        DataError: this is not the table that was judged.
    """
    counted = read_counted(folder)
    config = counted.job.config
    if not isinstance(config, JudgeConfig):
        raise ConfigError("A report is of a job that judged a table", counted.job.algorithm, "Name another job.")
    made = joint.planned(synthetic, config.columns, config.sets, target)
    shared = counted.job.silos if config.horizontal else ()
    dealer = f"{config.dealer}, who together with another silo could read rows" if config.dealer else DEALER
    groups, held = config.silo_groups, bool(counted.job.holdout)
    real = joint.JointTables.opened(made, counted.result, held, config.dp, dealer, shared, groups)
    return judged.judge_tables(real, synthetic, ledger=list(ledger), progress=progress, model=model, data=data)
