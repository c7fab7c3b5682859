"""Jobs that stop beside a good checkpoint, for a cause that can be mended; and names of forgotten jobs, used again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, job, parties, two_silos
from tests.deployment.kill_jobs import prepare

from silosynth.algorithms.silofuse.protocol import TrainAutoencoder
from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import (
    CheckpointError,
    ConfigError,
    ProtocolError,
    SilosynthError,
    StorageError,
    VersionError,
)
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.deployment import forgetting, protocol
from silosynth.deployment.coordinator import Order, read_status, resume, run_order
from silosynth.deployment.entry import JobAnswerer
from silosynth.deployment.kits import read_kit
from silosynth.deployment.policy import Releases, read_policy
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.mechanisms import noised_counts
from silosynth.runtime.checkpoint import CheckpointWarning
from silosynth.runtime.hub import OPEN as OPENING, Frame
from silosynth.simulation.silos import InProcess


def attempt(folder: Path, silos: dict[str, DeploymentSilo]) -> None:
    """One of a job, with a checkpoint at each safe point."""
    with InProcess(silos, folder / "checkpoints") as link:
        run_order(Order(job(silos)), link, folder / COORDINATOR, every=0.0)


def full(silo: DeploymentSilo, error: SilosynthError, part: int = 3) -> None:
    """Have a silo fail in training."""
    honest = silo._answer

    def answer(ask: Message) -> Message:
        if isinstance(ask, TrainAutoencoder) and ask.part == part:
            raise error
        return honest(ask)

    silo._answer = answer  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_full_disk_suspends_a_job_which_ends_with_the_same_bytes(tmp_path: Path) -> None:
    rows = two_silos()
    attempt(tmp_path / "whole", parties(rows, tmp_path / "whole"))
    place = tmp_path / "cut"
    sides = parties(rows, place)
    full(sides["shop"], StorageError("The file cannot be written: the disk is full", "x", "Free space."))
    with pytest.raises(StorageError):
        attempt(place, sides)
    suspended = read_status(place / COORDINATOR)
    assert suspended.state == "suspended" and "shop" in suspended.error and "the disk is full" in suspended.error
    bank = rows["bank"].frame
    income = bank.loc[3, "income"]
    bank.loc[3, "income"] = 0.0  # one cell of a table has changed as well
    resume(place / COORDINATOR)
    changed = "the one that the job began with"
    with pytest.warns(CheckpointWarning, match=changed), pytest.raises(CheckpointError, match=changed):
        attempt(place, parties(rows, place))
    assert read_status(place / COORDINATOR).state == "suspended"
    bank.loc[3, "income"] = income
    resume(place / COORDINATOR)
    attempt(place, parties(rows, place))
    assert read_status(place / COORDINATOR).state == "done"
    tables = [pd.read_parquet(tmp_path / name / COORDINATOR / "synthetic.parquet") for name in ("whole", "cut")]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize(
    ("error", "part", "state"),
    [
        (VersionError("All of a federation run the same silosynth"), 3, "suspended"),
        (ProtocolError("Something else"), 3, "failed"),
        (StorageError("The file cannot be written: the disk is full"), -1, "failed"),  # before the first checkpoint
    ],
)
def test_what_can_be_mended_beside_a_checkpoint_is_suspended(
    error: SilosynthError, part: int, state: str, tmp_path: Path
) -> None:
    sides = parties(two_silos(), tmp_path)
    full(sides["bank"], error, part)
    if part < 0:
        sides["bank"]._prepare = lambda: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        attempt(tmp_path, sides)
    assert read_status(tmp_path / COORDINATOR).state == state
    if state == "failed":
        with pytest.raises(ConfigError, match="A job is resumed that is suspended"):
            resume(tmp_path / COORDINATOR)


def test_a_name_is_used_again_at_a_silo_once_its_job_is_forgotten(tmp_path: Path) -> None:
    prepare("silofuse", tmp_path)
    kit = read_kit(tmp_path / "bank")
    answerer = JobAnswerer(kit, read_policy(kit.folder), "alice")
    folder = kit.jobs / "trial"

    def opens(fresh: bool) -> None:
        body = json.dumps({"job": "trial", "attempt": "1", "stream": None, "fresh": fresh}).encode()
        answerer(Frame(OPENING, "trial", 0, COORDINATOR, body).to_bytes())

    opens(fresh=True)
    assert answerer._endpoint is not None
    asked = job(two_silos())
    silo = answerer._endpoint.party
    silo.answer(protocol.Greet(asked.algorithm, "alice", *protocol.installed()))
    answerer._endpoint = None
    del silo
    forgetting.forget(kit.jobs, "trial", "bank", kit.seat())
    opens(fresh=False)  # as a coordinator does that goes on with it
    party = answerer._endpoint.party  # type: ignore[union-attr]
    with pytest.raises(ProtocolError, match="has forgotten the job"):
        party.answer(protocol.Greet(asked.algorithm, "alice", *protocol.installed()))
    opens(fresh=True)
    assert forgetting.when_forgotten(folder) is None and forgetting.uses_before(folder) == 1
    assert forgetting.when_forgotten(kit.jobs / "trial~1") is not None


def test_what_an_earlier_job_of_the_name_cost_counts_in_the_sum_alone(tmp_path: Path) -> None:
    silos = two_silos()
    side = parties(silos, tmp_path, OPEN)["bank"]
    side.job = job(silos)
    (tmp_path / "bank~1").mkdir()
    _, event = noised_counts(torch.tensor([5]), 1.0, "counts", Streams(0).noise())
    assert event is not None
    side._charge((event,))
    releases = Releases(tmp_path / "bank")
    assert releases.without("other", "trial") == [] and releases.without("other", "trial~1") == [event]
