"""A coordinator submits jobs that end at a silo by what its noised counts say, and each time learns that they did.

The silo had recorded no release, so that no such job counted for `largest_epsilon`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacked.driving import BOUNDS, POLICY, across, charged, secret_job, until
from tests.deployment.common import Rows, customers, parties

from silosynth.algorithms.dplt.protocol import PrepareAttributes
from silosynth.algorithms.marginals.protocol import MakeAttributes
from silosynth.core.errors import DataError, PolicyError
from silosynth.core.messages import Message
from silosynth.deployment.kept import CLOSED

MOST = 200
DP = {"dp": {"epsilon": 1.0, "delta": 1e-5}}


@pytest.mark.parametrize(("algorithm", "kind"), [("mst", MakeAttributes), ("dplt", PrepareAttributes)])
def test_jobs_that_noised_counts_end_are_charged_until_the_budget_is_spent(
    algorithm: str, kind: type[Message], tmp_path: Path
) -> None:
    frame, found = customers(60), list[type[Exception]]()
    rows = {
        "bank": Rows(frame[["age"]], declared={"age": BOUNDS["age"]}),
        "shop": Rows(frame[["visits"]], declared={"visits": "categorical"}),  # no number is held by enough rows
    }
    while PolicyError not in found and len(found) < MOST:
        silos = parties(rows, tmp_path, POLICY.model_copy(update={"largest_epsilon": 1.0}))
        asks, _ = until(secret_job(rows, algorithm, **DP), silos, lambda ask: isinstance(ask, kind))
        before = len(charged(tmp_path / "shop"))
        with pytest.raises((DataError, PolicyError)) as error:
            across(silos["shop"], asks["shop"])
        found.append(error.type)
        new = charged(tmp_path / "shop")[before:]
        assert any("'visits'" in event.what for event in new) is (error.type is DataError)
        (tmp_path / "shop" / CLOSED).unlink()  # as a job of another name has a folder of its own
    assert found[0] is DataError and found[-1] is PolicyError
