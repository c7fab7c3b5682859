"""`appraise`: what silos' columns are worth to each other, by messages of a real federation, before any training."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch

from silosynth.core.conversation import COORDINATOR, Conversation, Progress
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.counting import appraise as counting, padded
from silosynth.counting.appraise import AppraiseConfig, AppraisingSilo
from silosynth.evaluation.appraisal import Appraisal, appraise_tables
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation
from silosynth.simulation.model import seed_number
from silosynth.simulation.silos import InProcess

_CPU = torch.device("cpu")


def appraise(
    federation: Federation,
    epsilon: float = 0.5,
    delta: float = 1e-6,
    *,
    groups: int = 5,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Appraisal:
    """Say what silos' columns are worth to each other, with differential privacy and before anything is trained.

    Silos and coordinator exchange what they would across organisations: each silo codes its columns into a few groups,
    tables of two columns in different silos are counted as shares, and open with noise. docs/guide/appraising.md says
    what figures mean, and who sees what.

    Args:
        federation: from `simulate`; silos hold different columns of the same rows.
        epsilon, delta: what all of it costs, for each row.
        groups: most groups of a column, from 2 to 20.
        seed: of the noise: the same seed gives the same appraisal, and whoever knows it knows the noise, so that no
            epsilon is stated. None for the operating system's randomness.
        ledger: records all messages, if given.
        progress: called with the name of a stage and the share of it that is done.

    Raises:
        ConfigError: there is one silo only, or silos hold different rows; epsilon, delta or groups are out of range.
        DataError: a silo holds nothing but identifiers and pseudonyms.

    >>> import numpy as np, pandas as pd, silosynth as ss
    >>> ages = np.arange(40_000) % 80
    >>> frame = pd.DataFrame({"age": ages, "retired": np.where(ages > 65, "yes", "no"), "shoe": ages % 7})
    >>> federation = ss.simulate(frame, {"bank": ["age"], "clinic": ["retired", "shoe"]}, schema={"shoe": "integer"})
    >>> appraisal = appraise(federation, seed=1)
    >>> appraisal.pair("age", "retired").low > 0.5, appraisal.pair("age", "shoe").high < 0.2
    (True, True)
    """
    check_federation(federation)
    seed = None if seed is None else seed_number(seed)
    if federation.horizontal or len(federation.silos) < 2:
        rule = "An appraisal is of silos that hold different columns of the same rows"
        value = "different rows" if federation.horizontal else "one silo"
        raise ConfigError(rule, value, 'Such as simulate(frame, {"bank": ["income"], "clinic": ["age"]}).')
    config = AppraiseConfig(Target(epsilon, delta), groups, most_rows=padded(federation.rows))
    found = _opened(federation, config, seed, Ledger() if ledger is None else ledger, progress)
    return appraise_tables(found, config.dp, config.groups, seeded=seed is not None)


def _opened(
    federation: Federation, config: AppraiseConfig, seed: int | None, ledger: Ledger,
    progress: Callable[[str, float], None] | None,
) -> dict[str, Any]:  # fmt: skip
    roster, seated = federation.roster, seats(federation.roster, Streams(0).child("appraisal"))
    streams = Streams(secrets.randbits(256) if seed is None else seed).child("appraisal")
    parties = {
        silo: AppraisingSilo(table, federation.schemas[silo], seated[silo], streams.child("silo", silo), _CPU, config)
        for silo, table in federation.tables.items()
    }

    def whole(_: object) -> Conversation[dict[str, Any]]:
        return (yield from counting.coordinate(roster, config, streams.child(COORDINATOR), _CPU))

    def watch(done: Progress) -> None:
        if progress is not None:
            progress(done.stage, done.done / max(1, done.total))

    with InProcess(parties) as link:
        return drive(whole, link, ledger, watch=watch)
