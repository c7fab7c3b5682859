"""Silos that really are lost, in conversations that can continue without them and in those that cannot."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.toy import ROSTER, Add, Prepare, Total, command

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, State
from silosynth.core.errors import DataError, PartyLostError
from silosynth.core.lost import Policy, under
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import PartyLostWarning, drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.silos import Processes

pytestmark = pytest.mark.live

ROUNDS, AT = 8, 3  # a silo is lost before round 3
ADD, TOTAL, MISSING = "tests.runtime.Add", "tests.runtime.Total", "core.Missing"


def going_on(
    state: State | None = None, prepare: Prepare | None = None, missing: bool = True
) -> Conversation[list[list[str]]]:
    """Who replied, by round."""
    answered: list[list[str]] = []
    if state is None:
        yield ROSTER.everyone(prepare or Prepare(4))
    for t in range(state["round"] if state else 0, ROUNDS):
        yield Progress("saving", t, ROUNDS)
        yield Checkpoint({"round": t})
        yield Progress("asking", t, ROUNDS)
        replies = yield Exchange({party: Add(t, torch.ones(4)) for party in ROSTER}, missing)
        assert all(isinstance(reply, Total) for reply in replies.values())
        answered.append(list(replies))
    return answered


def wait_until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


Happens = Callable[[Processes, Progress], None]


class Run:
    """A run of the toy; ``happens`` is called with the link before each checkpoint and before each exchange."""

    def __init__(
        self, folder: Path, happens: Happens, policy: Policy = "omit", limit: float | None = None, **talk: Any
    ) -> None:
        self.store, self.ledger = CheckpointStore(folder, "toy"), Ledger(folder / "ledger.jsonl")
        self.happens, self.policy, self.limit, self.talk = happens, policy, limit, talk

    def drive(self, resume: bool = False) -> list[list[str]]:
        with Processes(ROSTER, command, self.store.parties, limit=self.limit) as link:
            return drive(
                lambda state: under(self.policy, going_on(state, **self.talk)),
                link,
                self.ledger,
                self.store,
                lambda progress: self.happens(link, progress),
                resume,
                seconds=0,
            )

    def said(self, party: str) -> list[str]:
        return [record.type for record in self.ledger.records if record.sender == party]


def kill_before(stage: str) -> Happens:
    def happens(link: Processes, progress: Progress) -> None:
        if (progress.stage, progress.done) == (stage, AT):
            os.kill(link.pids()["clinic"], signal.SIGKILL)

    return happens


def nothing(link: Processes, progress: Progress) -> None:
    pass


@pytest.mark.parametrize("stage", [pytest.param("saving", marks=pytest.mark.slow), "asking"])
def test_a_run_continues_without_a_killed_silo_and_resumes_with_all(tmp_path: Path, stage: str) -> None:
    """If a silo is dead when asked for its part of a checkpoint, there is none, and the previous one stays."""
    run = Run(tmp_path, kill_before(stage))
    with pytest.warns(PartyLostWarning) as warned:
        answered = run.drive()
    assert answered == [["bank", "clinic"]] * AT + [["bank"]] * (ROUNDS - AT)
    assert len(warned) == 1
    assert f"'clinic', step {AT + 2}: its process was ended by SIGKILL. The run goes on" in str(warned[0].message)
    assert run.said("bank").count(TOTAL) == ROUNDS
    asked = [record.type for record in run.ledger.records if record.receiver == "clinic"]
    last = stage == "asking"  # known lost silos are sent nothing
    assert asked[1:] == [ADD] * (AT + last)
    assert run.said("clinic")[1:] == [TOTAL] * AT + [MISSING] * last
    latest = run.store.latest()
    assert latest is not None and latest.state == {"round": AT - 1 + last}
    again = Run(tmp_path, nothing)
    assert again.drive(resume=True) == [["bank", "clinic"]] * (ROUNDS - AT + 1 - last)
    assert again.said("clinic")[1:] == [TOTAL] * ROUNDS


def test_a_silo_that_was_stopped_beyond_the_limit_takes_part_again(tmp_path: Path) -> None:
    def happens(link: Processes, progress: Progress) -> None:
        if (progress.stage, progress.done) == ("asking", AT):
            os.kill(link.pids()["clinic"], signal.SIGSTOP)
            link._limit = 5.0  # plenty for the other silo, however busy the machine
        if (progress.stage, progress.done) == ("saving", AT + 1):
            link._limit = None
            assert list(link.lost()) == ["clinic"]
        if (progress.stage, progress.done) == ("saving", AT + 2):
            os.kill(link.pids()["clinic"], signal.SIGCONT)
            wait_until(lambda: not link.lost())
        if progress.stage == "asking":
            saved.append(run.store.latest())

    saved: list[Any] = []
    run = Run(tmp_path, happens)
    with pytest.warns(PartyLostWarning) as warned:
        answered = run.drive()
    assert answered == [["bank", "clinic"]] * AT + [["bank"]] * 2 + [["bank", "clinic"]] * (ROUNDS - AT - 2)
    texts = [str(warning.message) for warning in warned]
    assert len(texts) == 2
    assert "did not answer within 5 s" in texts[0] and "takes part again" in texts[1]
    steps = [(record.step, record.type) for record in run.ledger.records if record.sender == "clinic"][1:]
    assert steps[: AT + 1] == [(2, TOTAL), (3, TOTAL), (4, TOTAL), (5, MISSING)]
    assert steps[AT + 1 :] == [(5, TOTAL), (7, TOTAL), (8, TOTAL), (9, TOTAL)]  # late replies were sent, too
    assert [one.state["round"] for one in saved] == [0, 1, 2, 3, 3, 5, 6, 7]


def test_a_coordinator_that_computes_alone_stops_when_a_silo_is_gone(tmp_path: Path) -> None:
    """It would compute on, perhaps for hours and without a checkpoint, towards an exchange that cannot be."""

    def alone(state: State | None = None) -> Conversation[None]:
        yield ROSTER.everyone(Prepare(4))
        for t in range(ROUNDS):
            yield Progress("saving", t, ROUNDS)
            yield Checkpoint({"round": t})
        yield ROSTER.everyone(Add(0, torch.ones(4)))

    def happens(link: Processes, progress: Progress) -> None:
        seen.append(progress.done)
        kill_before("saving")(link, progress)

    seen, store = list[int](), CheckpointStore(tmp_path, "toy")
    with Processes(ROSTER, command, store.parties) as link:
        watch = lambda progress: happens(link, progress)  # noqa: E731
        with pytest.raises(PartyLostError, match=r"'clinic'.*SIGKILL") as error:
            drive(alone, link, Ledger(tmp_path / "ledger.jsonl"), store, watch, seconds=0)
    assert error.value.gone and seen[-1] == AT
    latest = store.latest()
    assert latest is not None and latest.state == {"round": AT - 1}


def test_an_exchange_that_needs_all_names_the_silo_that_was_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, kill_before("asking"), missing=False)
    with pytest.raises(PartyLostError, match=r"Silo 'clinic', step 5, on tests\.runtime\.Add.*SIGKILL.*Resume"):
        run.drive()


@pytest.mark.parametrize("policy", ["fail", pytest.param("wait", marks=pytest.mark.slow)])
def test_a_policy_that_needs_all_names_the_silo_that_was_killed(tmp_path: Path, policy: Policy) -> None:
    """The exchange could continue without it, so no warning says that it is waited for."""
    with pytest.raises(PartyLostError, match=r"Silo 'clinic', step 5, on tests\.runtime\.Add.*SIGKILL.*Resume"):
        Run(tmp_path, kill_before("asking"), policy).drive()


@pytest.mark.parametrize(("policy", "missing"), [("wait", True), pytest.param("omit", False, marks=pytest.mark.slow)])
def test_a_silo_that_was_stopped_beyond_the_limit_is_waited_for(tmp_path: Path, policy: Policy, missing: bool) -> None:
    """By the policy, or because the exchange needs it. The result is the same to the byte."""

    def happens(link: Processes, progress: Progress) -> None:
        if (progress.stage, progress.done) == ("asking", AT):
            os.kill(link.pids()["clinic"], signal.SIGSTOP)
            waiting = threading.Thread(target=continue_once_told, args=(link.pids()["clinic"],))
            waiting.start()
            threads.append(waiting)

    def continue_once_told(pid: int) -> None:
        try:
            wait_until(lambda: warned.list)
        finally:
            os.kill(pid, signal.SIGCONT)

    threads: list[threading.Thread] = []
    run = Run(tmp_path / "run", happens, policy, limit=3.0, missing=missing)
    with pytest.warns(PartyLostWarning) as warned:
        answered = run.drive()
    threads[0].join()
    (text,) = [str(warning.message) for warning in warned if "'clinic', step 5" in str(warning.message)]
    assert "it did not answer within 3 s. The run waits for it" in text
    assert answered == [["bank", "clinic"]] * ROUNDS
    undisturbed = Run(tmp_path / "undisturbed", nothing)
    assert undisturbed.drive() == answered
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("run", "undisturbed")]
    assert ledgers[0] == ledgers[1]
    latest = run.store.latest()
    assert latest is not None and latest.state == {"round": ROUNDS - 1}


@pytest.mark.slow
def test_a_silo_that_was_stopped_beyond_the_limit_ends_a_run_that_fails(tmp_path: Path) -> None:
    def happens(link: Processes, progress: Progress) -> None:
        if (progress.stage, progress.done) == ("asking", AT):
            os.kill(link.pids()["clinic"], signal.SIGSTOP)

    with pytest.raises(PartyLostError, match=r"Silo 'clinic', step 5, .*did not answer within 6 s.*Resume"):
        Run(tmp_path, happens, "fail", limit=6.0).drive()
    assert Run(tmp_path, nothing, "fail").drive(resume=True) == [["bank", "clinic"]] * (ROUNDS - AT)


@pytest.mark.parametrize(("fail", "kind"), [("data", DataError), ("crash", PartyLostError)])
def test_an_error_of_a_silo_ends_the_run(tmp_path: Path, fail: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"'(bank|clinic)', step 4, on tests\.runtime\.Add"):
        Run(tmp_path, nothing, prepare=Prepare(4, fail, 2)).drive()
