"""One real silo behind its real desk and policy, and a coordinator that is honest up to the message where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.deployment.common import Rows, customers, job, parties

from silosynth.core.conversation import Exchange
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.deployment.conducting import conduct
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.events import Event
from silosynth.runtime.wire import decode, encode, pack, unpack

POLICY = SiloPolicy(
    least_rows=10, min_count=1, require_alignment=False,
    algorithms=["silofuse", "vtgan", "vflgan", "vertigan", "dplt", "gdts", "mst", "aim"],
)  # fmt: skip
BOUNDS = {"age": {"low": 18, "high": 80}, "income": {"low": 0, "high": 8000}, "visits": {"low": 0, "high": 40}}
SPLIT = {"bank": ["age", "income"], "shop": ["visits", "paid"]}


def columns_of_the_same_rows(n: int = 60) -> dict[str, Rows]:
    """A bank and a shop that hold the same customers in the same order."""
    frame = customers(n)
    return {
        name: Rows(frame[held], declared={column: BOUNDS[column] for column in held if column in BOUNDS})
        for name, held in SPLIT.items()
    }


def rows_of_the_same_columns(n: int = 60) -> dict[str, Rows]:
    """Two branches of one bank."""
    frame = customers(2 * n).drop(columns="customer")
    halves = frame[:n].reset_index(drop=True), frame[n:].reset_index(drop=True)
    return {name: Rows(half, declared=BOUNDS) for name, half in zip(("north", "south"), halves, strict=True)}


def secret_job(silos: Mapping[str, Rows], algorithm: str, **options: Any) -> Job:
    """A job without a seed."""
    return job(silos, algorithm=algorithm, align=None, seed=None, options=options)


def sides(silos: Mapping[str, Rows], folder: Path) -> dict[str, DeploymentSilo]:
    """The silos' sides, each with a folder of its own."""
    return parties(silos, folder, POLICY)


def across(silo: DeploymentSilo, ask: Message) -> Message:
    """Its reply, through the form that messages have on the wire."""
    return decode(encode(silo.answer(decode(encode(ask)))))  # type: ignore[arg-type, return-value]


def until(
    asked: Job, silos: Mapping[str, DeploymentSilo], here: Callable[[Message], bool]
) -> tuple[dict[str, Message], list[tuple[str, Message]]]:
    """Be honest up to an exchange with an ask for which ``here`` holds; its asks, not yet sent, and all before it."""
    talk, sent = conduct(asked, Streams(1), torch.device("cpu")), list[tuple[str, Message]]()
    step = next(talk)
    while True:
        replies: dict[str, Message] = {}
        if isinstance(step, Exchange):
            if any(here(ask) for ask in step.asks.values()):
                return dict(step.asks), sent
            replies = {name: across(silos[name], ask) for name, ask in step.asks.items()}
            sent += step.asks.items()
        step = talk.send(replies)


def killed(silo: DeploymentSilo, fresh: DeploymentSilo, state: bytes | None = None) -> DeploymentSilo:
    """The silo after kill -9, brought back in a new process to a checkpoint: ``state``, or where it is now."""
    fresh.restore(unpack(saved(silo) if state is None else state))
    return fresh


def saved(silo: DeploymentSilo) -> bytes:
    """A checkpoint of the silo, as on its disk."""
    return pack(silo.state())


def charged(folder: Path) -> list[Event]:
    """All that a silo has recorded as released with noise."""
    file = folder / "releases.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    latest = {json.dumps([line.get(key) for key in ("asked", "attempt", "number")]): line for line in lines}
    return [Event(**event) for line in latest.values() for event in line["events"]]
