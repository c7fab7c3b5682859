"""`judge`: a report on a synthetic table by joint tables across silos, by the messages of a real federation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch

from silosynth.core.conversation import COORDINATOR, Conversation, Roster
from silosynth.core.errors import ConfigError, DataError
from silosynth.core.schema import Column, Schema, Table, below, common_levels
from silosynth.core.streams import Streams
from silosynth.counting import judge as counting, padded
from silosynth.counting.judge import HOLDOUT, JudgeConfig, JudgingSilo
from silosynth.data.frames import to_pandas, to_table
from silosynth.evaluation import joint, judged
from silosynth.evaluation.coding import unmarked
from silosynth.evaluation.joint import JointPlan, JointTables, Opening
from silosynth.evaluation.report import Report
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import seats
from silosynth.privacy.statement import known_noise
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation
from silosynth.simulation.model import Model, seed_number
from silosynth.simulation.silos import InProcess

_CPU = torch.device("cpu")


def judge(
    federation: Federation,
    synthetic: Any,
    *,
    holdout: Any | None = None,
    target: str | None = None,
    opening: Opening | None = None,
    epsilon: float | None = None,
    delta: float = 1e-6,
    levels: int | None = None,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: Callable[[str, float], None] | None = None,
    model: Model | None = None,
    data: str | None = None,
    dealer: str | None = None,
) -> Report:
    """Measure how faithful and useful a synthetic table is, by joint tables that silos count together.

    Silos and coordinator exchange what they would across organisations, where nobody holds the real rows side by side:
    each silo gets shares of all tables, which open as was agreed. docs/guide/judging.md says what the figures are, what
    each way to open shows, and what none can show. `silosynth.evaluate` is for tables that one party holds.

    Args:
        federation: the training rows, from `simulate`. Silos with different rows of the same columns open sums over all
            of them, exactly if they are three or more; so do groups of silos, each divided by columns.
        synthetic: the table to judge, whatever made it. Levels and bins that are counted are its own.
        holdout: real rows that the generator has not seen, of the same columns; silos hold them as they hold the
            training rows. Silos with different rows have them in turn, or their own: ``{silo: table}``; groups in turn.
            Floors are then those of real rows, unless tables have noise; and there is a utility.
        target: the column to predict.
        opening: "exact" counts; "noised", with discrete Gaussian noise by ``epsilon`` and ``delta``; "figures", for
            each pair of columns three exact distances and no table, so that there are few figures and no utility.
            None for "noised" if there is an ``epsilon``, else "exact".
        epsilon, delta: what all tables together cost, for each row.
        levels: most levels of a column, besides those of rare and of missing values; None for 20, and for 8 of tables
            with noise, of which each cell has its own.
        seed: of the noise, and of the draws for floors and intervals: the same seed gives the same report, and whoever
            knows it knows the noise, so that the report states no epsilon. None for the operating system's randomness,
            and 0 for draws.
        ledger: records all messages, if given.
        progress: called with the name of a stage and the share of the work done.
        model: what drew the synthetic rows, for the head of the report.
        data: the name of the data, for the head of the report.
        dealer: the name of another organisation, which deals in place of the coordinator and holds no rows.

    Raises:
        ConfigError: the options do not go together, or not with this federation.
        DataError: the synthetic table or the hold-out lacks a column, or holds something else in it.

    >>> import numpy as np, pandas as pd, silosynth as ss
    >>> rng = np.random.default_rng(0)
    >>> age = rng.integers(18, 90, 900)
    >>> frame = pd.DataFrame({"age": age, "ill": np.where(rng.random(900) < age / 120, "yes", "no")})
    >>> train, holdout, synthetic = frame[:400], frame[400:600], frame[600:]
    >>> federation = ss.simulate(train, {"bank": ["age"], "clinic": ["ill"]}, schema={"age": "integer"})
    >>> report = judge(federation, synthetic, holdout=holdout, target="ill")
    >>> [score.name for score in report.scores][:2]
    ['column_shape_error', 'pair_trend_error']
    """
    check_federation(federation, grouped=True)
    seed = None if seed is None else seed_number(seed)
    how: Opening = opening or ("exact" if epsilon is None else "noised")
    if (how == "noised") is (epsilon is None):
        raise ConfigError("Tables that open with noise have an epsilon, and no others", how, "Leave one of them out.")
    most = levels if levels is not None else (joint.COARSE if how == "noised" else joint.LEVELS)
    if progress is not None:
        progress("planning", 0.0)
    predicted = None if how == "figures" else target
    groups = federation.groups
    apart = None if federation.horizontal and not groups else federation.silos
    made = joint.plan(synthetic, federation.schema, predicted, levels=most, silos=apart, groups=groups)
    tables = _with_holdout(federation, holdout, made)
    rows = padded(max(map(len, tables.values())))
    public = map(torch.from_numpy, joint.references(made, synthetic) if how == "figures" else ())
    config = JudgeConfig(
        made.columns, made.sets, how, Target() if epsilon is None else Target(epsilon, delta), tuple(public),
        holdout is not None, rows, federation.horizontal, dealer or "", silo_groups=groups,
    )  # fmt: skip
    records = Ledger() if ledger is None else ledger
    if progress is not None:
        progress("counting", 0.01)
    found = _opened(federation, tables, config, seed, records)
    entries = records.entries() if seed is None else known_noise(records.entries())
    shared = federation.roster.parties if federation.horizontal else ()
    real = JointTables.opened(made, found, holdout is not None, config.dp, dealer or "", shared, groups)
    return judged.judge_tables(
        real, synthetic, seed=seed or 0, ledger=entries, progress=progress, model=model, data=data
    )  # fmt: skip


def _opened(
    federation: Federation, tables: dict[str, Table], config: JudgeConfig, seed: int | None, ledger: Ledger
) -> dict[str, Any]:
    """What `silosynth.counting.judge` finds."""
    if config.dealer in tables:
        raise ConfigError("Who deals is no silo of the federation", config.dealer, "Name another organisation.")
    roster = Roster((*tables, config.dealer)) if config.dealer else federation.roster
    seated, schemas = seats(roster, Streams(0).child("judging")), {config.dealer: Schema(())} | dict(federation.schemas)
    streams = Streams(secrets.randbits(256) if seed is None else seed).child("judging")
    parties = {
        silo: JudgingSilo(
            tables.get(silo, Table(())), schemas[silo], seated[silo], streams.child("silo", silo), _CPU, config
        )
        for silo in roster
    }

    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from counting.coordinate(roster, config, streams.child(COORDINATOR), _CPU))

    with InProcess(parties) as link:
        return drive(whole, link, ledger)


def _with_holdout(federation: Federation, holdout: Any | None, made: JointPlan) -> dict[str, Table]:
    """Each silo's columns that are counted; hold-out rows come last, and a column says which they are."""
    counted = {
        silo: Schema(tuple(column for column in schema.columns if column.name in made.names))
        for silo, schema in federation.schemas.items()
    }
    tables = {silo: federation.tables[silo].select(kinds.names) for silo, kinds in counted.items()}
    if holdout is None:
        return tables
    found = {}
    for silo, frame in _dealt(federation, holdout).items():
        frame, own = unmarked(frame, federation.schema), tables[silo]
        if lacking := [name for name in own.names if name not in frame.columns]:
            rule = "The hold-out table has all columns of the training table"
            raise DataError(rule, lacking, "Split one table in two.")
        both = below(common_levels([own, to_table(frame, counted[silo])])) if own.columns else own
        found[silo] = Table((*both.columns, _flags(len(federation.tables[silo]), len(frame))))
    return found


def _dealt(federation: Federation, holdout: Any) -> dict[str, Any]:
    """Each silo's hold-out rows: the same ones; of silos with different rows their own, or some in turn; as of groups.

    Raises:
        DataError: silos' own tables are not one for each silo; or there are fewer rows than silos.
    """
    if not isinstance(holdout, Mapping):
        if not federation.horizontal:
            return dict.fromkeys(federation.tables, holdout)
        frame, groups = to_pandas(holdout), federation.groups or tuple((silo,) for silo in federation.tables)
        return {silo: frame[k :: len(groups)] for k, group in enumerate(groups) for silo in group}
    if set(holdout) != set(federation.tables) or not federation.horizontal or federation.groups:
        rule = "Hold-out rows are one table; or, of silos with different rows, one for each silo"
        raise DataError(rule, sorted(holdout), "Split with silosynth.split.")
    return {silo: holdout[silo] for silo in federation.tables}


def _flags(training: int, held: int) -> Column:
    """Which rows were held out."""
    flags = torch.arange(training + held) >= training
    return Column(HOLDOUT, "bool", flags.long(), torch.zeros_like(flags), (False, True))
