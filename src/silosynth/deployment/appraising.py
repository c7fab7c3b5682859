"""What silos of a federation are worth to each other: the job that appraises, and what follows from what it opened.

What a job has opened lies at the coordinator and at every silo, and each can render the same page. How many rows silos
have in common is taken from the noised tables there. Linking has told coordinator and silos the exact number, which no
epsilon covers: it is shown to whoever renders the page (`in_common`), and is not on it.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, nearest
from silosynth.counting.appraise import AppraiseConfig
from silosynth.deployment.coordinator import Order
from silosynth.deployment.counted import read_counted
from silosynth.deployment.judging import Terms
from silosynth.deployment.protocol import Job, check_name
from silosynth.evaluation.appraisal import Appraisal, appraise_tables
from silosynth.privacy.events import Target

_ROWS = "Give --rows, a number of which it is no secret that no silo holds more: so many rows are hidden and counted."


def appraising_order(
    terms: Terms, roster: Roster, submitter: str, name: str, target: Target, groups: int, rows: int | None
) -> Order:
    """The job that appraises.

    Args:
        terms: who takes part, and how rows are linked.
        roster: of the federation.
        submitter: who starts it.
        name: of the job.
        target: what it costs.
        groups: most groups of a column.
        rows: a public bound of how many rows silos hold.

    Raises:
        ConfigError: a silo is not of the federation, there are fewer than two, or options do not fit.
    """
    for silo in terms.silos:
        if silo not in roster.parties:
            raise ConfigError("Silos of the federation are appraised", silo, nearest(silo, roster.parties))
    if len(set(terms.silos)) < 2:
        raise ConfigError("An appraisal is of columns in at least two silos", terms.silos, "Name another one.")
    if not rows or rows < 1:
        raise ConfigError("An appraisal has a public bound of the number of rows", rows or "none", _ROWS)
    config = AppraiseConfig(target, groups, most_rows=rows)
    job = Job(check_name(name), "appraise", "balanced", config, terms.silos, None, terms.align, None, submitter)
    return Order(job, terms.transport, terms.limit, terms.patience, "cpu")


def appraising_name() -> str:
    """A name for a job that appraises."""
    return f"appraisal-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def in_common(folder: Path) -> int | None:
    """How many rows all silos have in common, exactly; None if they were not linked.

    Raises:
        StorageError: as `appraised`.
    """
    return read_counted(folder).common


def appraised(folder: Path) -> Appraisal:
    """What follows from what a job has opened, in its folder at the coordinator or at a silo.

    Raises:
        StorageError: the job has opened nothing, or the file is damaged.
        ConfigError: the job was no appraisal.
    """
    counted = read_counted(folder)
    config = counted.job.config
    if not isinstance(config, AppraiseConfig):
        raise ConfigError("An appraisal is of a job that appraised", counted.job.algorithm, "Name another job.")
    return appraise_tables(counted.result, config.dp, config.groups)
