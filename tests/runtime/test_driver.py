from __future__ import annotations

import _thread
import contextlib
import gc
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.toy import LEDGER, ROSTER, STREAMS, Add, Prepare, adders, coordinate, interrupt_at, run

from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Party, Progress, State
from silosynth.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MessageError,
    PartyLostError,
    ProtocolError,
    StorageError,
)
from silosynth.core.lost import under
from silosynth.core.messages import Done, Message
from silosynth.runtime.checkpoint import CheckpointStore, CheckpointWarning
from silosynth.runtime.driver import PartyLostWarning, drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, Reached, TellSlow
from silosynth.simulation.silos import InProcess

ROUNDS = 8


def by_hand(rounds: int) -> torch.Tensor:
    """The oracle: the generator and the parties, connected directly."""
    parties = adders()
    conversation = coordinate(ROSTER, STREAMS, rounds)
    replies: Mapping[str, Message] = {}
    step = next(conversation)
    while True:
        if isinstance(step, Exchange):
            replies = {party: parties[party].answer(ask) for party, ask in step.asks.items()}
        try:
            step = conversation.send(replies)
        except StopIteration as end:
            return end.value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, ROUNDS), (folder / LEDGER).read_bytes()


def test_driven_in_process_equals_by_hand(whole: tuple[torch.Tensor, bytes]) -> None:
    assert torch.equal(whole[0], by_hand(ROUNDS))


@pytest.mark.parametrize("done", [1, 3, ROUNDS])
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, whole: tuple[torch.Tensor, bytes], done: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ROUNDS, watch=interrupt_at(done))
    assert torch.equal(run(tmp_path, ROUNDS, resume=True), whole[0])
    assert (tmp_path / LEDGER).read_bytes() == whole[1]


def test_resuming_a_finished_run_gives_the_same(tmp_path: Path, whole: tuple[torch.Tensor, bytes]) -> None:
    run(tmp_path, ROUNDS)
    assert torch.equal(run(tmp_path, ROUNDS, resume=True), whole[0])
    assert (tmp_path / LEDGER).read_bytes() == whole[1]


def test_a_run_without_resume_begins_anew(tmp_path: Path, whole: tuple[torch.Tensor, bytes]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ROUNDS, watch=interrupt_at(5))
    seen: list[Progress] = []
    assert torch.equal(run(tmp_path, ROUNDS, watch=seen.append), whole[0])
    assert [progress.done for progress in seen] == list(range(1, ROUNDS + 1))
    assert (tmp_path / LEDGER).read_bytes() == whole[1]


@pytest.mark.parametrize("where", ["coordinator", "parties/clinic"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, whole: tuple[torch.Tensor, bytes], where: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ROUNDS, watch=interrupt_at(5))
    newest = max((tmp_path / where).iterdir())
    newest.write_bytes(newest.read_bytes()[:40])
    with pytest.warns(CheckpointWarning, match=newest.name):
        result = run(tmp_path, ROUNDS, resume=True)
    assert torch.equal(result, whole[0])
    assert (tmp_path / LEDGER).read_bytes() == whole[1]


def test_without_any_usable_part_nothing_begins_anew_silently(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ROUNDS, watch=interrupt_at(5))
    for part in (tmp_path / "parties" / "bank").iterdir():
        part.unlink()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="bank"):
        run(tmp_path, ROUNDS, resume=True)


def test_another_experiment_is_neither_resumed_nor_removed(tmp_path: Path) -> None:
    run(tmp_path, 2)
    other = CheckpointStore(tmp_path, "other")
    for resume in (True, False):
        with pytest.raises(CheckpointError, match="'toy'"):
            drive(
                lambda state: coordinate(ROSTER, STREAMS, 2, state),
                InProcess(adders(), other.parties),
                Ledger(),
                other,
                resume=resume,
            )
    assert CheckpointStore(tmp_path, "toy").latest() is not None


def test_resuming_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="store"):
        drive(lambda state: coordinate(ROSTER, STREAMS, 2), InProcess(adders()), Ledger(), resume=True)


def test_checkpoints_are_thinned_by_time(tmp_path: Path, whole: tuple[torch.Tensor, bytes]) -> None:
    ticks = iter(range(1000))
    numbers: list[int] = []

    class Counting(InProcess):
        def save(self, number: int) -> None:
            numbers.append(number)
            super().save(number)

    store = CheckpointStore(tmp_path, "toy")
    result = drive(
        lambda state: coordinate(ROSTER, STREAMS, ROUNDS, state),
        Counting(adders(), store.parties),
        Ledger(tmp_path / LEDGER),
        store,
        seconds=3,
        clock=lambda: float(next(ticks)),
    )
    assert 0 < len(numbers) < ROUNDS
    assert numbers == list(range(1, len(numbers) + 1))
    assert torch.equal(result, whole[0])
    assert torch.equal(run(tmp_path, ROUNDS, resume=True), whole[0])
    assert (tmp_path / LEDGER).read_bytes() == whole[1]


def test_a_checkpoint_that_is_always_written_waits_for_no_time(tmp_path: Path) -> None:
    def always() -> Conversation[None]:
        talk, replies = coordinate(ROSTER, STREAMS, ROUNDS), None
        with contextlib.suppress(StopIteration):
            while True:
                step = talk.send(replies)
                replies = yield replace(step, always=True) if isinstance(step, Checkpoint) else step

    store = CheckpointStore(tmp_path, "toy")
    link = InProcess(adders(), store.parties)
    drive(lambda state: always(), link, Ledger(tmp_path / LEDGER), store, clock=lambda: 0.0)
    newest = store.latest()
    assert newest is not None and newest.number == ROUNDS


def test_the_ledger_matches_what_was_sent(tmp_path: Path) -> None:
    ledger = Ledger()
    drive(lambda state: coordinate(ROSTER, STREAMS, ROUNDS), InProcess(adders()), ledger)
    replies = [r for r in ledger.records if (r.sender, r.type) == ("bank", "tests.runtime.Total")]
    assert len(replies) == ROUNDS
    assert {record.step for record in ledger.records} == set(range(1, ROUNDS + 2))
    assert len(ledger.records) == 4 * (ROUNDS + 1)


def test_the_link_stays_open_on_success_and_may_be_driven_again(whole: tuple[torch.Tensor, bytes]) -> None:
    link = InProcess(adders())
    for _ in range(2):  # steps begin at 1 again; replies of the first conversation are not repeated
        result = drive(lambda state: coordinate(ROSTER, STREAMS, ROUNDS), link, Ledger())
        assert torch.equal(result, whole[0])
    link.close()
    with pytest.raises(ProtocolError, match="closed"):
        link.exchange(1, {"bank": Done()})


def test_a_repeated_step_is_answered_from_memory() -> None:
    parties = adders()
    link = InProcess(parties)
    link.begin()
    link.exchange(1, {"bank": Prepare(2)})
    first = link.exchange(2, {"bank": Add(0, torch.ones(2))})
    again = link.exchange(2, {"bank": Add(0, torch.ones(2))})
    assert torch.equal(first["bank"].reply.total, again["bank"].reply.total)  # type: ignore[attr-defined]
    assert parties["bank"].answered == [0]
    with pytest.raises(ProtocolError, match="go forward"):
        link.exchange(1, {"bank": Prepare(2)})


def test_a_wait_is_reported_once_until_the_party_replies_in_time() -> None:
    slow = {2: {"bank": "slow"}, 3: {"bank": "slow", "clinic": "slow"}, 4: {"bank": "slow"}, 6: {"bank": "slow"}}

    class Slowed(InProcess):
        def reach(self, step: int, exchange: Exchange, tell: TellSlow = lambda slow: None) -> Reached:
            assert exchange.wait
            tell(slow.get(step, {}))
            return super().reach(step, exchange, tell)

    with pytest.warns(PartyLostWarning) as told:
        drive(lambda state: under("wait", coordinate(ROSTER, STREAMS, ROUNDS)), Slowed(adders()), Ledger())
    waits = [
        f"Silo {name!r}, step {step}: slow. The run waits" for name, step in [("bank", 2), ("clinic", 3), ("bank", 6)]
    ]
    assert [str(one.message)[: len(text)] for one, text in zip(told, waits, strict=True)] == waits


class Closing(InProcess):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


def failing(prepare: Prepare, **options: Any) -> tuple[Closing, BaseException]:
    link = Closing(adders())
    with pytest.raises(Exception, match="step") as caught:
        drive(lambda state: coordinate(ROSTER, STREAMS, ROUNDS, state, prepare), link, Ledger(), **options)
    return link, caught.value


def test_a_partys_own_error_keeps_its_type_and_names_the_party() -> None:
    link, error = failing(Prepare(4, "data", 3))
    assert type(error) is DataError
    for part in ("Silo 'bank', step 5, on tests.runtime.Add", "A toy has columns", "Add one."):
        assert part in str(error)
    assert error.remedy == "Add one."
    assert link.closed


def test_a_party_that_crashes_is_lost_and_its_error_is_the_cause() -> None:
    link, error = failing(Prepare(4, "crash", 3))
    assert type(error) is PartyLostError
    assert "Silo 'bank', step 5, on tests.runtime.Add" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert link.closed


class Mute(Party):
    def __init__(self, reply: object) -> None:
        self.reply = reply

    def answer(self, ask: Message) -> Message:
        return self.reply  # type: ignore[return-value]

    def _state(self, training: bool) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


def ask_once(conversation: Conversation[Any], reply: object = None, link: Link | None = None) -> Any:
    return drive(lambda state: conversation, link or InProcess({"bank": Mute(reply)}), Ledger())


def one(step: Any) -> Conversation[Any]:
    return (yield step)


@pytest.mark.parametrize("reply", [None, {"rows": 3}, torch.ones(2)])
def test_a_reply_that_is_no_message_is_refused(reply: object) -> None:
    with pytest.raises(ProtocolError, match=r"'bank', step 1.*answers with a message"):
        ask_once(one(Exchange({"bank": Done()})), reply)


def test_a_reply_that_cannot_travel_is_refused() -> None:
    answer = Add(1, torch.eye(2).to_sparse())
    with pytest.raises(MessageError, match=r"'bank', step 1.*amount: Tensors are dense"):
        ask_once(one(Exchange({"bank": Done()})), answer)


def test_an_ask_that_cannot_travel_is_the_coordinators_fault() -> None:
    with pytest.raises(MessageError, match=r"coordinator, step 1, on Add"):
        ask_once(one(Exchange({"bank": Add(1, torch.eye(2).to_sparse())})), Done())


def test_a_stranger_cannot_be_asked() -> None:
    with pytest.raises(ProtocolError, match=r"bnak.*Did you mean 'bank'"):
        ask_once(one(Exchange({"bnak": Done()})), Done())


def test_a_conversation_yields_steps_only() -> None:
    with pytest.raises(ProtocolError, match="yields"):
        ask_once(one("hello"))


def test_nobody_may_be_asked() -> None:
    assert ask_once(one(Exchange({}))) == {}


def test_the_conversation_is_closed_when_something_breaks() -> None:
    cleaned = []

    def conversation() -> Conversation[None]:
        try:
            yield Exchange({"bank": Done()})
        finally:
            cleaned.append(True)

    with pytest.raises(ProtocolError):
        ask_once(conversation(), None)
    assert cleaned == [True]


def test_an_error_of_the_coordinator_is_raised() -> None:
    def conversation() -> Conversation[None]:
        yield Progress("x", 1, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask_once(conversation())


def test_a_checkpoint_that_cannot_be_written_keeps_the_one_before(tmp_path: Path) -> None:
    def conversation(state: State | None) -> Conversation[None]:
        yield Checkpoint({"good": 1})
        yield Checkpoint({"bad": object()})

    store = CheckpointStore(tmp_path, "x")
    link = InProcess({"bank": Mute(None)}, store.parties)
    with pytest.raises(StorageError, match=r"state\.bad"):
        drive(conversation, link, Ledger(), store, seconds=0)
    latest = store.latest()
    assert latest is not None
    assert latest.state == {"good": 1}


def test_checkpoints_need_a_folder_for_the_parties(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'bank' has a folder"):
        drive(
            lambda state: one(Checkpoint({})),
            InProcess({"bank": Mute(None)}),
            Ledger(),
            CheckpointStore(tmp_path, "x"),
            seconds=0,
        )


def test_ctrl_c_stops_silos_in_the_middle_of_an_answer() -> None:
    ended = threading.Event()

    class Endless(Mute):
        def answer(self, ask: Message) -> Message:
            try:
                while True:
                    time.sleep(0.001)
            finally:
                ended.set()

    link = InProcess({"bank": Endless(None)})
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        ask_once(one(Exchange({"bank": Done()})), link=link)
    assert ended.wait(5)
    link.close()


def test_silos_of_one_exchange_reply_in_parallel_on_one_thread_each() -> None:
    together = threading.Barrier(2)

    class Meeting(Mute):
        def answer(self, ask: Message) -> Message:
            together.wait(20)
            assert torch.get_num_threads() == 1 and torch.is_grad_enabled()
            return Done()

    torch.set_num_threads(2)
    with InProcess({"bank": Meeting(None), "clinic": Meeting(None)}) as link, torch.no_grad():
        link.begin()
        assert list(link.exchange(1, {"bank": Done(), "clinic": Done()})) == ["bank", "clinic"]
        assert torch.get_num_threads() == 2 and not torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("slow_thread", "slow_here", "tried", "last"),
    [
        (0.1, 0.0, 2, "in turn"),
        (0.0, 0.1, 2, "side by side"),
        (0.3, 0.0, 1, "in turn"),
        (0.3, 0.4, 1, "side by side"),
        (2.1, 0.0, 0, "side by side"),
    ],
)
def test_silos_answer_in_turn_where_that_is_faster(slow_thread: float, slow_here: float, tried: int, last: str) -> None:
    """Long answers are tried each way once, very long ones never in turn: of those there are few."""
    now, used = [0.0], []

    class Timed(Mute):
        def answer(self, ask: Message) -> Message:
            here = threading.current_thread() is threading.main_thread()
            used.append("in turn" if here else "side by side")
            now[0] += slow_here if here else slow_thread
            return Done()

    with InProcess({"bank": Timed(None), "clinic": Mute(Done())}, clock=lambda: now[0]) as link:
        link.begin()
        for step in range(1, 101):
            link.exchange(step, {"bank": Done(), "clinic": Done()})
    assert used[: 2 * tried] == ["side by side"] * tried + ["in turn"] * tried and set(used[2 * tried : -1]) == {last}
    assert (used[-1] == last) == (not tried)  # the slower way is tried again


def test_a_slow_silo_has_one_thread_whatever_the_coordinator_sets_meanwhile() -> None:
    seen: list[int] = []

    class TellSlow(Mute):
        def answer(self, ask: Message) -> Message:
            time.sleep(0.1)  # the other one, in the coordinator's thread, is done by now
            seen.append(torch.get_num_threads())
            return Done()

    torch.set_num_threads(2)
    with InProcess({"bank": TellSlow(None), "clinic": Mute(Done())}) as link:
        link.begin()
        for step in (1, 2):
            link.exchange(step, {"bank": Done(), "clinic": Done()})
    assert seen == [1, 1]


@pytest.mark.parametrize("exits", ["bank", "clinic"])
def test_a_silo_that_exits_is_noticed_and_can_be_asked_again(exits: str) -> None:
    class Exiting(Mute):
        def answer(self, ask: Message) -> Message:
            if not torch.is_inference_mode_enabled():
                raise SystemExit(3)
            return Done()

    parties = {name: Exiting(None) if name == exits else Mute(Done()) for name in ("bank", "clinic")}
    with InProcess(parties) as link, torch.inference_mode():
        link.begin()
        for step in (1, 2):
            with pytest.raises(SystemExit):
                link.exchange(step, {"bank": Done(), "clinic": Done()})


def test_threads_are_gone_when_the_link_is() -> None:
    link = InProcess({"bank": Mute(Done()), "clinic": Mute(Done())})
    ask_once(one(Exchange({"bank": Done(), "clinic": Done()})), link=link)
    assert any(thread.name == "silosynth-bank" for thread in threading.enumerate())
    del link
    gc.collect()
    assert not any(thread.name == "silosynth-bank" for thread in threading.enumerate())
