"""What silos and operators are told of a job's end, and of silos that have gone. `test_taken_up` has real processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.deployment.common import job, two_silos
from tests.deployment.kill_jobs import prepare

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ProtocolError
from silosynth.deployment import coordinator, endings, entry, presence
from silosynth.deployment.entry import JobAnswerer
from silosynth.deployment.kits import read_kit
from silosynth.deployment.policy import read_policy
from silosynth.runtime.hub import ENDED, OPEN, Frame, Gathered, Hub, Lost, Outbox


def test_a_silo_is_told_how_a_job_ended(tmp_path: Path) -> None:
    prepare("silofuse", tmp_path)
    kit = read_kit(tmp_path / "bank")
    answerer, folder = JobAnswerer(kit, read_policy(kit.folder), "alice"), kit.jobs / "trial"

    def hand(kind: str, **fields: object) -> None:
        answerer(Frame(kind, "trial", 0, COORDINATOR, json.dumps(fields).encode()).to_bytes())

    with pytest.raises(ProtocolError, match="opened first"):
        hand(ENDED, state="done")
    hand(OPEN, job="trial", attempt="17", stream=None)
    assert endings.said_of(kit.jobs, "17") == "job trial ended, and the coordinator has not said how"
    assert endings.said_of(kit.jobs, "18") == "job 18 ended"
    for fields in ({"state": "splendid"}, {}):
        with pytest.raises(ProtocolError):
            hand(ENDED, **fields)
    hand(ENDED, state="suspended")
    assert endings.how_it_ended(folder) == "suspended"
    assert endings.said_of(kit.jobs, "17") == "job trial is suspended: the coordinator knows what is missing"
    assert "the coordinator says: the job is suspended" in (folder / "log.txt").read_text()
    answerer._endpoint = None
    hand(OPEN, job="trial", attempt="19", stream=None)
    assert endings.how_it_ended(folder) == ""


class Telling(Hub):
    """Silos that take any frame."""

    def __init__(self, *names: str) -> None:
        super().__init__(names, patience=1.0)
        self.outbox = Outbox()
        for name in names:
            self._slots[name].outbox = self.outbox

    def stop(self) -> None:
        """Nothing to stop."""

    def gather(self, frames: Mapping[str, Frame], *_: object, **__: object) -> Gathered:
        self.told = {silo: (frame.kind, bytes(frame.body)) for silo, frame in frames.items()}
        raise Lost("shop", "it is gone")


@pytest.mark.parametrize("state", ["done", "failed", "interrupted", "running"])
def test_the_coordinator_tells_all_silos_that_it_can_reach(state: str) -> None:
    hub, told = Telling("bank", "shop"), state != "running"
    entry._tell_end(coordinator.Order(job(two_silos())), hub, state)
    assert hasattr(hub, "told") == told
    if told:
        assert hub.told == dict.fromkeys(("bank", "shop"), (ENDED, json.dumps({"state": state}).encode()))


def test_silos_that_have_gone_without_a_word_are_found() -> None:
    heard = {"bank": 100.0, "shop": 80.0, "tax": 10.0}
    assert presence.silent({"bank", "shop", "new"}, heard, 101.0) == ["shop"]
    assert presence.STALE + presence.EVERY < 30
