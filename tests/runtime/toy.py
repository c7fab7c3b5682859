"""A toy protocol with all features of a real one: random state on both sides, rounds, checkpoints, progress.

In every round the coordinator sends a number; each silo adds it and a random draw to what it holds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from silosynth.core.conversation import Checkpoint, Conversation, Party, Progress, Roster, State
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Streams
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link
from silosynth.simulation.silos import InProcess

ROSTER = Roster(("bank", "clinic"))
STREAMS = Streams(7)
LEDGER = "ledger.jsonl"


class Prepare(Message):
    width: int
    fail: str = ""  # "data" or "crash": raise in round `fail_at`; "die": exit the process; "slow": reply late
    fail_at: int = -1


class Add(Message):
    round: int
    amount: torch.Tensor


class Total(Message, release=Release.ROWS):
    total: torch.Tensor


class Adder(Party):
    def __init__(self, name: str, streams: Streams) -> None:
        self.name, self.streams = name, streams.party(name)
        self.fail, self.fail_at = "", -1
        self.held = torch.zeros(0)
        self.weights = torch.zeros(0)
        self.answered: list[int] = []

    def answer(self, ask: Message) -> Message:
        if isinstance(ask, Prepare):
            self.fail, self.fail_at = ask.fail, ask.fail_at
            self.held = torch.zeros(ask.width)
            self.weights = torch.randn(ask.width, ask.width, generator=self.streams.child("weights").torch())
            return Done()
        if isinstance(ask, Add):
            self.answered.append(ask.round)
            self._misbehave(ask)
            noise = torch.randn(len(self.held), generator=self.streams.child("round", ask.round).torch())
            self.held = torch.tanh(self.weights @ (self.held + ask.amount)) + noise
            return Total(total=self.held)
        raise ProtocolError("An adder adds", type(ask).__name__)

    def _misbehave(self, ask: Add) -> None:
        if ask.round != self.fail_at:
            return
        if self.fail == "data":
            raise DataError("A toy has columns", "none", "Add one.")
        if self.fail == "crash":
            raise ValueError(f"secret of {self.name}")
        if self.fail == "die":
            os.kill(os.getpid(), 9)
        if self.fail == "slow":
            time.sleep(60)

    def _state(self, training: bool) -> State:
        return {"held": self.held, "weights": self.weights}

    def restore(self, state: State) -> None:
        self.held, self.weights = state["held"], state["weights"]


def coordinate(
    roster: Roster, streams: Streams, rounds: int, state: State | None = None, prepare: Prepare | None = None
) -> Conversation[torch.Tensor]:
    prepare = prepare or Prepare(8)
    if state is None:
        yield roster.everyone(prepare)
        state = {"round": 0, "sum": torch.zeros(prepare.width)}
    total = state["sum"]
    for t in range(state["round"], rounds):
        noise = torch.randn(prepare.width, generator=streams.child("coordinator", t).torch())
        replies = yield roster.everyone(Add(t, total + noise))
        total = total / 2 + sum(replies[p].total for p in roster) / len(roster)  # type: ignore[attr-defined]
        yield Progress("adding", t + 1, rounds, {"mean": float(total.mean())})
        yield Checkpoint({"round": t + 1, "sum": total})
    return total


def adders(roster: Roster = ROSTER) -> dict[str, Adder]:
    return {name: Adder(name, STREAMS) for name in roster}


def command(name: str, kit: Path) -> Sequence[str]:
    """Starts an adder as a separate process."""
    return [sys.executable, "-W", "error", str(Path(__file__).with_name("toy_party.py")), str(kit), str(STREAMS.seed)]


def run(
    folder: Path, rounds: int, link: Link | None = None, prepare: Prepare | None = None, **options: Any
) -> torch.Tensor:
    """Drive the toy with its ledger and checkpoints in ``folder``; by default in process."""
    store = CheckpointStore(folder, "toy")
    with link or InProcess(adders(), store.parties) as link:
        options = {"seconds": 0, **options}
        start = lambda state: coordinate(ROSTER, STREAMS, rounds, state, prepare)  # noqa: E731
        return drive(start, link, Ledger(folder / LEDGER), store, **options)


def interrupt_at(done: int) -> Any:
    """A watch that presses Ctrl-C."""

    def watch(progress: Progress) -> None:
        if progress.done == done:
            raise KeyboardInterrupt

    return watch
