"""What a silo's policy says of conditions on drawn rows: which columns, and how many people at least stand behind one.

A condition asks a model for rows of some kind only. If one person is of that kind, the model's rows of that kind may be
hers. So a silo keeps the training rows of the columns that its policy allows conditions on (`ROWS_BEHIND`, in the job's
folder; forgotten with the job), and refuses conditions that too few of these fulfil.

Each silo knows how many of its rows fulfil the conditions on its own columns, and none knows how many fulfil all. A
silo holds its own to that share of rows which, if each silo that may have conditions had no more, would be expected to
leave ``least_condition_rows`` of all, were columns of different silos independent. That may err: two conditions that
many people fulfil each may be fulfilled by one together.

Whoever draws again and again learns at which ends of a range there are enough. So numbers that fewer than ``min_count``
rows share are compared as means of so many (`without_lone_values`), as an encoder's ends are: no end tells one row's.

Where all that a model has of rows was charged, noise protects everybody already, and whatever is made of the model
is as protected. There no row is kept and none is counted: an answer that depended on rows would cost epsilon itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from silosynth.core.conditions import Condition, fulfils
from silosynth.core.files import PRIVATE, make_folder, read, write_atomic
from silosynth.core.messages import from_state, to_state
from silosynth.core.schema import Column, Schema, Table
from silosynth.deployment.policy import SiloPolicy, refusal
from silosynth.deployment.protocol import Job
from silosynth.deployment.tallies import AskedConditions
from silosynth.encoders.column import without_dominance
from silosynth.runtime.wire import pack, unpack

ROWS_BEHIND = "rows-behind.silosynth"


def rows_behind(policy: SiloPolicy, schema: Schema, table: Table) -> Table | None:
    """The columns of a silo's rows that conditions may be on; None if there are none."""
    names = [name for name in schema.modelled if policy.allows_condition(name)]
    return table.select(names) if names else None


def keep_rows_behind(folder: Path, rows: Table | None) -> None:
    """Write them into the folder of the job that trains.

    Raises:
        StorageError: they cannot be written.
    """
    if rows is not None:
        write_atomic(make_folder(folder) / ROWS_BEHIND, pack(to_state(rows)), PRIVATE)


def check_columns(policy: SiloPolicy, job: Job, own: Sequence[str] | None) -> None:
    """Refuse conditions on columns, and other shares of their levels, that the policy does not name.

    ``own`` are the silo's columns; None if it holds all.

    Raises:
        PolicyError: names the rule.
    """
    for column in job.asked_columns:
        if (own is None or column in own) and not policy.allows_condition(column):
            allowed = ", ".join(policy.conditions) or "none"
            raise refusal("conditions", f"rows are drawn under conditions on these columns: {allowed}", column)


def check_rows_behind(
    policy: SiloPolicy, job: Job, own: Sequence[str], wanted: Sequence[Sequence[Condition]], folder: Path,
    before: AskedConditions,
) -> None:  # fmt: skip
    """Refuse conditions on a silo's own columns that too few of its training rows fulfil.

    People are counted behind all, whatever was found of others, and a refusal does not say behind which there are too
    few: a frame of conditions gets one yes or no. Each of them counts as asked, as one of a draw of its own does, so
    that a search by frames is no cheaper than one by single conditions.

    Args:
        policy: its rules.
        job: that draws.
        own: names of the silo's columns.
        wanted: conditions on these, of each group of rows.
        folder: of the job that trained.
        before: what was asked already.

    Raises:
        PolicyError: names the rule, and no number.
    """
    columns = dict.fromkeys(one.column for conditions in wanted for one in conditions)
    if not columns:
        return
    path = folder / ROWS_BEHIND
    rows = from_state(Table, unpack(read(path))) if path.exists() else Table(())
    for column in columns:
        if column not in rows.names:
            raise refusal(
                "conditions", "it allowed the column when the job trained, so that the rows behind can be counted",
                column, "Train again.",
            )  # fmt: skip
    counted = Table(tuple(without_lone_values(rows[name], policy.min_count) for name in columns))
    asked = {pair for pair in zip(map(tuple, wanted), _others(job, own, len(wanted)), strict=True) if pair[0]}
    digests = {hashlib.sha256(repr((folder.name, pair)).encode()).hexdigest() for pair in asked}
    if not before.with_these(digests, most := policy.conditions_per_day):
        rule = f"at most {most:,} different conditions on this silo's columns within 24 hours"
        raise refusal("conditions_per_day", rule, "more", "Wait, or ask for fewer kinds of rows.")
    enough = {
        int(fulfils(counted, conditions).sum()) >= least_rows(policy, len(rows), min(len(job.silos) - 1, others))
        for conditions, others in asked
    }
    if not all(enough):
        raise refusal(
            "least_condition_rows", f"at least {policy.least_condition_rows} people are expected behind conditions",
            "fewer", "Ask for something more frequent.",
        )  # fmt: skip


def _others(job: Job, own: Sequence[str], groups: int) -> list[int]:
    """How many columns of other silos have conditions, in each group of rows."""
    if job.frame is None:
        return [sum(column not in own for column in job.asked_columns)] * groups
    return [sum(one.column not in own for one in kind) for kind in job.frame.kinds]


def without_lone_values(column: Column, least: int) -> Column:
    """The column with means of at least ``least`` neighbours in place of numbers that fewer rows share.

    None of them is a lone extreme (`without_dominance`). Where fewer rows than that are left, they have no value.
    """
    if column.levels is not None:
        return column
    present_N = ~column.missing.numpy()
    own = column.values.numpy()[present_N]
    _, place, counts = np.unique(own, return_inverse=True, return_counts=True)
    shared = counts[place] >= least
    own = without_dominance(own, least, shared)
    lone = np.flatnonzero(~shared)
    lone = lone[np.argsort(own[lone], kind="stable")]
    values, missing = column.values.numpy().copy(), ~present_N
    if len(lone) < least:
        missing[np.flatnonzero(present_N)[lone]] = True
    else:
        for group in np.array_split(lone, len(lone) // least):
            own[group] = own[group].mean()
        values[present_N] = own
    return replace(column, values=torch.from_numpy(values), missing=torch.from_numpy(missing))


def least_rows(policy: SiloPolicy, rows: int, others: int) -> int:
    """How many of its rows fulfil a silo's own conditions at least, if so many other silos may have conditions too."""
    share = min(1.0, policy.least_condition_rows / max(1, rows))
    return max(policy.least_condition_rows, math.ceil(rows * math.pow(share, 1 / (1 + others)) - 1e-9))
