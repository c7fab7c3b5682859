"""The hub and the inbox, with threads in place of FLARE: lines that break, are slow, or end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.runtime.toy import ROSTER, STREAMS, Adder, Prepare, coordinate

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.errors import DataError, PartyLostError, ProtocolError
from silosynth.core.messages import Done
from silosynth.deployment.flare import relay
from silosynth.deployment.flare.relay import Answer, FlareHub, Inbox, Line
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.hub import REPLY, Frame, frame_from_bytes
from silosynth.runtime.link import Remote
from silosynth.simulation.silos import InProcess


class Party(Inbox):
    """A line straight to an inbox; ``broken`` calls from now on fail."""

    def __init__(self, name: str, begin: Callable[[], Answer]) -> None:
        super().__init__(name, begin)
        self.broken = 0
        self.lose_replies = False

    def answer(self, number: int, frame: bytes) -> bytes | None:
        self._break()
        reply = super().answer(number, frame)
        if self.lose_replies:
            self.lose_replies = False
            raise ConnectionError("the reply got lost")
        return reply

    def collect(self, number: int) -> bytes | None:
        self._break()
        return super().collect(number)

    def _break(self) -> None:
        if self.broken:
            self.broken -= 1
            raise ConnectionError("out of reach")


class Clerk:
    """Answers frames as an adder; counts them, and waits for permission to."""

    def __init__(self, name: str) -> None:
        self.desk, self.answered, self.go_on = PartyEndpoint(name, Adder(name, STREAMS), None), 0, threading.Event()
        self.go_on.set()

    def __call__(self, data: bytes) -> bytes:
        frame = frame_from_bytes(data)
        assert self.go_on.wait(20)
        self.answered += 1
        body = self.desk.answer(frame.job, frame.step, frame.body)
        return Frame(REPLY, frame.job, frame.step, self.desk.name, body).to_bytes()


@pytest.fixture
def clerks() -> dict[str, Clerk]:
    return {name: Clerk(name) for name in ROSTER}


@pytest.fixture
def lines(clerks: dict[str, Clerk]) -> dict[str, Party]:
    return {name: Party(name, lambda clerk=clerk: clerk) for name, clerk in clerks.items()}  # type: ignore[misc]


@pytest.fixture
def open_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FlareHub]]:
    monkeypatch.setattr(relay, "_PAUSE", 0.01)
    made: list[FlareHub] = []

    def open_it(lines: dict[str, Line], **options: float) -> FlareHub:
        made.append(FlareHub(lines, **options))  # type: ignore[arg-type]
        return made[-1]

    yield open_it
    for hub in made:
        hub.stop()
        hub.stop()  # may be called twice


def talk(link: Remote | InProcess, rounds: int = 3) -> torch.Tensor:
    link.begin()
    conversation, step, replies = coordinate(ROSTER, STREAMS, rounds, prepare=Prepare(8)), 0, None
    while True:
        try:
            said = conversation.send(replies) if replies is not None else next(conversation)
        except StopIteration as end:
            return end.value
        replies = {}
        if hasattr(said, "asks"):
            step += 1
            replies = {party: got.reply for party, got in link.exchange(step, said.asks).items()}


def test_it_is_a_hub_as_any_other(lines: dict[str, Party], open_hub: Callable[..., FlareHub]) -> None:
    alone = talk(InProcess({name: Adder(name, STREAMS) for name in ROSTER}, None))
    assert torch.equal(talk(Remote(ROSTER, open_hub(lines))), alone)


def test_what_breaks_is_called_again_and_nothing_is_computed_twice(
    lines: dict[str, Party], clerks: dict[str, Clerk], open_hub: Callable[..., FlareHub]
) -> None:
    link = Remote(ROSTER, open_hub(lines))
    lines["bank"].broken, lines["clinic"].lose_replies = 5, True
    link.exchange(1, {name: Prepare(4) for name in ROSTER})
    assert {name: clerk.answered for name, clerk in clerks.items()} == {"bank": 1, "clinic": 1}
    assert list(link.lost()) == []


def test_a_frame_that_never_arrived_is_sent_again(lines: dict[str, Party], open_hub: Callable[..., FlareHub]) -> None:
    line = lines["bank"]
    assert line.collect(3) == b""  # it knows no such frame
    link = Remote(Roster(("bank",)), open_hub({"bank": line}))
    link.exchange(1, {"bank": Prepare(4)})


def test_a_long_computation_is_waited_for(
    lines: dict[str, Party],
    clerks: dict[str, Clerk],
    open_hub: Callable[..., FlareHub],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("silosynth.deployment.flare.relay.HOLD", 0.02)
    clerks["bank"].go_on.clear()
    threading.Timer(0.3, clerks["bank"].go_on.set).start()
    link = Remote(ROSTER, open_hub(lines))
    link.exchange(1, {"bank": Prepare(4)})
    assert clerks["bank"].answered == 1


def test_out_of_reach_for_too_long_is_lost(lines: dict[str, Party], open_hub: Callable[..., FlareHub]) -> None:
    lines["bank"].broken = 10**9
    with pytest.raises(PartyLostError, match=r"'bank', step 1.*did not come back within 0.2 s") as caught:
        Remote(ROSTER, open_hub(lines, patience=0.2)).exchange(1, {name: Prepare(4) for name in ROSTER})
    assert caught.value.gone


def test_a_party_that_has_ended_is_lost_and_the_others_go_on(
    lines: dict[str, Party], clerks: dict[str, Clerk], open_hub: Callable[..., FlareHub]
) -> None:
    hub = open_hub(lines)
    clerks["bank"].go_on.clear()
    hub.gone("bank", "its part of the job has ended")
    hub.gone("stranger", "never heard of")
    link = Remote(ROSTER, hub)
    reached = link.reach(1, Exchange({name: Prepare(4) for name in ROSTER}, missing=True))
    assert reached.unanswered["bank"].reason == "its part of the job has ended"
    assert isinstance(reached.received["clinic"].reply, Done)
    clerks["bank"].go_on.set()


def test_an_aborted_job_is_nobodys_loss(
    lines: dict[str, Party], clerks: dict[str, Clerk], open_hub: Callable[..., FlareHub]
) -> None:
    hub = open_hub(lines)
    clerks["bank"].go_on.clear()
    threading.Timer(0.2, hub.abort, ("it is aborted",)).start()
    with pytest.raises(ProtocolError, match=r"A job runs to its end.*it is aborted") as caught:
        Remote(ROSTER, hub).exchange(1, {"bank": Prepare(4)})
    assert not isinstance(caught.value, PartyLostError)
    clerks["bank"].go_on.set()


def test_a_party_that_cannot_begin_says_why(open_hub: Callable[..., FlareHub]) -> None:
    def refuse() -> Answer:
        raise DataError("This silo allows silofuse", "toy", "Ask its operator.")

    link = Remote(Roster(("bank",)), open_hub({"bank": Party("bank", refuse)}))
    with pytest.raises(DataError, match=r"'bank', step 1.*This silo allows silofuse \(got: toy\). Ask its operator."):
        link.exchange(1, {"bank": Done()})


def test_what_nobody_foresaw_stays_at_home(
    open_hub: Callable[..., FlareHub], capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Answer:
        raise ValueError("secret of the bank")

    link = Remote(Roster(("bank",)), open_hub({"bank": Party("bank", fail)}))
    with pytest.raises(PartyLostError, match="ValueError") as caught:
        link.exchange(1, {"bank": Done()})
    assert "secret" not in str(caught.value)
    assert "secret of the bank" in capfd.readouterr().err


def test_garbage_is_told(open_hub: Callable[..., FlareHub]) -> None:
    link = Remote(Roster(("bank",)), open_hub({"bank": Party("bank", lambda: lambda data: b"garbage")}))
    with pytest.raises(Exception, match="A frame begins with a mark"):
        link.exchange(1, {"bank": Done()})
