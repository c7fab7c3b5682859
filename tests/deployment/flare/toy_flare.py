"""What the sites of the tests run in place of silosynth's entry: the toy protocol, over FLARE."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.runtime.toy import STREAMS, Adder, Prepare, coordinate

from silosynth.core.conversation import Roster
from silosynth.core.errors import DataError, SilosynthError
from silosynth.deployment.flare.relay import FlareHub
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import ASK, DONE, REPLY, RESTORE, SAVE, Frame, frame_from_bytes
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Remote

OUTCOME = "outcome-{job}.json"
PIDS = "pid-{job}"


@dataclass(frozen=True)
class Task:
    """What is submitted."""

    parties: list[str]
    rounds: int = 3
    fail: str = ""
    fail_at: int = -1
    pause: float = 0.0  # seconds between rounds
    limit: float | None = None

    def payload(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def coordinator(payload: bytes, hub: FlareHub, workspace: Path, job: str) -> None:
    """Drive the toy; leave its result, or what went wrong, in a file."""
    task = Task(**json.loads(payload))
    _leave(workspace / PIDS.format(job=job), str(os.getpid()))
    roster, store = Roster(tuple(task.parties)), CheckpointStore(workspace / job, "toy")
    prepare = Prepare(8, task.fail, task.fail_at)
    told: dict[str, object] = {}
    try:
        with Remote(roster, hub, limit=task.limit) as link:
            start = lambda state: coordinate(roster, STREAMS, task.rounds, state, prepare)  # noqa: E731
            watch = lambda progress: _pause(workspace, job, progress.done, task.pause)  # noqa: E731
            result = drive(start, link, Ledger(workspace / job / "ledger.jsonl"), store, watch, seconds=0)
        told = {"result": result.tolist()}
    except SilosynthError as error:
        told = {"error": type(error).__name__, "text": str(error)}
        raise
    finally:
        _leave(workspace / OUTCOME.format(job=job), json.dumps({**told, "seconds": time.time()}))


def answerer(job: str, kit: Path, workspace: Path, submitter: str) -> Callable[[bytes], bytes]:
    """An adder; its checkpoints go to its own workspace."""
    name = kit.name
    _leave(workspace / PIDS.format(job=job), f"{os.getpid()} {submitter}")
    if (workspace / "refuse").exists():
        raise DataError("This silo takes part in jobs that its policy allows", "toy", "Ask its operator.")
    (workspace / "parts" / job).mkdir(parents=True)
    endpoint = PartyEndpoint(name, Adder(name, STREAMS), workspace / "parts" / job)

    def answer(data: bytes) -> bytes:
        frame = frame_from_bytes(data)
        body = b""
        if frame.kind == ASK:
            body = endpoint.answer(frame.job, frame.step, frame.body)
        elif frame.kind == SAVE:
            endpoint.save(frame.step)
        elif frame.kind == RESTORE:
            endpoint.restore(frame.step)
        return Frame(REPLY if frame.kind == ASK else DONE, frame.job, frame.step, name, body).to_bytes()

    return answer


def outcome(workspace: Path, job: str) -> Mapping[str, object]:
    told: Mapping[str, object] = json.loads((workspace / OUTCOME.format(job=job)).read_text())
    return told


def _pause(workspace: Path, job: str, done: int, seconds: float) -> None:
    _leave(workspace / f"round-{job}", str(done))
    time.sleep(seconds)


def _leave(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
