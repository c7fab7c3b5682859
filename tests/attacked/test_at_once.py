"""A coordinator that sends frames on several ways at once, or opens a job again: each silo answers in one order."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.attacked.desk import Desk, a_job

from silosynth.core.conversation import COORDINATOR, Party, State
from silosynth.core.messages import Done, Message
from silosynth.deployment.protocol import Begin
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import ASK, REFUSED, REPLY, Frame
from silosynth.runtime.wire import encode


class Slow(Party):
    """Waits in its first answer until others have had the time to come in, and counts who is inside."""

    def __init__(self) -> None:
        self.inside, self.most, self.entered = 0, 0, threading.Event()
        self.others = threading.Event()

    def answer(self, ask: Message) -> Message:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        self.others.wait(0.2)  # nobody sets it: who waits outside gets the time to come in
        self.inside -= 1
        return Done()

    def _state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """It has none."""


def test_frames_that_come_at_once_are_answered_one_after_the_other() -> None:
    party = Slow()
    endpoint = PartyEndpoint("bank", party, None)
    replies = list[Frame]()

    def call(step: int) -> None:
        replies.append(endpoint.handle(Frame(ASK, "trial", step, COORDINATOR, encode(Done()))))

    first, second = (threading.Thread(target=call, args=(step,)) for step in (1, 2))
    first.start()
    assert party.entered.wait(10)
    second.start()
    first.join()
    second.join()
    assert party.most == 1 and [reply.kind for reply in replies] == [REPLY, REPLY]


def test_a_job_that_is_opened_again_is_answered_there_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "bank").open()
    earlier = desk.answer._endpoint
    assert earlier is not None
    desk.open().ask(Begin(a_job()))
    reply = earlier.handle(Frame(ASK, "trial", 99, COORDINATOR, encode(Begin(a_job()))))
    assert reply.kind == REFUSED and b"opened last" in bytes(reply.body)
