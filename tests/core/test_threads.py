"""Threads that share work: on machines whose times are made up, for time and load decide on real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st

from silosynth.core import threads
from silosynth.core.errors import ConfigError
from silosynth.core.threads import SharedWork, Threads, check_threads, computing_on


class Machine:
    """Four calls take ``seconds(threads)``; how many threads made them is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int, seconds: Callable[[int], float]) -> None:
        self.seconds, self.now, self.numbers = seconds, 0.0, list[int]()
        self.work = SharedWork(4, lambda: self.now)
        monkeypatch.setattr(threads, "usable_cores", lambda: cores)
        monkeypatch.setattr(threads, "_in_lanes", self.made)

    def made(self, pool: object, workers: int, call: Callable[[int], int], given: list[tuple[int]]) -> list[int]:
        self.numbers.append(workers)
        self.now += self.seconds(workers)
        return [call(*one) for one in given]

    def run(self, times: int) -> list[int]:
        """How many threads made the calls of so many times."""
        before = len(self.numbers)
        with computing_on("auto"), self.work.shared() as share:
            for _ in range(times):
                share(int, [(number,) for number in range(4)])
        return self.numbers[before:]


@pytest.mark.parametrize(
    ("seconds", "cores", "best"),
    [
        (lambda n: 1 / n, 8, 4),  # all idle, and no more than four calls
        (lambda n: 1 / n, 3, 2),
        (lambda n: 1 / min(n, 2), 16, 2),  # most of them busy, or hyperthreads
        (lambda n: 1.0, 8, 1),  # a busy machine
        (lambda n: 1 / n**0.3, 8, 1),  # hardly worth it
    ],
)
def test_twice_as_many_threads_are_taken_while_they_are_worth_it(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float], cores: int, best: int
) -> None:
    machine = Machine(monkeypatch, cores, seconds)
    assert machine.run(40)[6:] == [best] * 34
    assert max(machine.numbers) <= cores


def test_threads_that_wait_for_each_other_are_tried_twice_and_then_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 8, lambda n: 0.1 if n == 1 else 1.0)
    assert machine.run(49) == [1, 1, 2, 2] + [1] * 45
    assert machine.run(50).count(2) <= 1


@pytest.mark.parametrize(("before", "after", "best"), [(1.0, 0.5, 2), (0.5, 1.0, 1)])
def test_a_machine_that_gets_idle_or_busy_is_noticed(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, best: int
) -> None:
    now = {2: before}
    machine = Machine(monkeypatch, 2, lambda n: now.get(n, 1.0))
    assert machine.run(30)[-1] != best
    now[2] = after
    assert machine.run(400)[-40:].count(best) >= 39


def test_each_function_has_the_number_that_is_fastest_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2, lambda n: 1.0)
    with computing_on("auto"), machine.work.shared() as share:
        for call in [int] * 40 + [float] * 40:
            machine.seconds = (lambda n: 1 / n) if call is float else (lambda n: 1.0)
            share(call, [(number,) for number in range(4)])
    assert machine.numbers[20:40] == [1] * 20 and machine.numbers[60:] == [2] * 20


def test_a_processor_with_one_core_has_one_thread_and_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(monkeypatch, 1, lambda n: 1.0).run(9) == []


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 7))
def test_results_come_in_the_order_of_the_calls(number: int, calls: int, made: int) -> None:
    with computing_on(number), SharedWork(calls).shared() as share:
        given = [(i, 10) for i in range(min(made, calls))]
        assert share(lambda i, factor: factor * i, given) == [10 * i for i, _ in given]


@pytest.mark.parametrize(
    ("number", "calls", "workers", "each"), [(1, 4, 1, 1), (2, 4, 2, 1), (4, 2, 2, 1), (3, 1, 1, 3)]
)
def test_threads_that_share_have_one_of_torchs_each(number: int, calls: int, workers: int, each: int) -> None:
    together = threading.Barrier(workers)

    def seen() -> tuple[int, int]:
        together.wait(60)
        return threading.get_ident(), torch.get_num_threads()

    before = torch.get_num_threads()
    with computing_on(number):
        with SharedWork(calls).shared() as share:
            said = share(seen, [()] * workers)
            assert torch.get_num_threads() == each
        assert torch.get_num_threads() == number
    assert torch.get_num_threads() == before
    assert len({ident for ident, _ in said}) == workers
    assert {own for _, own in said} == {each}


def test_auto_leaves_single_operations_to_one_thread() -> None:
    with computing_on("auto"):
        assert torch.get_num_threads() == 1


def test_who_computes_within_on_one_thread_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2, lambda n: 1.0)
    with computing_on("auto"), computing_on(1), machine.work.shared() as share:
        assert share(lambda number: -number, [(1,), (2,)]) == [-1, -2]
    assert not machine.numbers


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_call_raises_is_raised_and_threads_are_as_before(failing: int) -> None:
    before, alive = torch.get_num_threads(), set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), computing_on(2), SharedWork(2).shared() as share:
        share(lambda number: 1 // number, [(int(number != failing),) for number in range(2)])
    assert torch.get_num_threads() == before
    assert not any("silosynth-shared" in thread.name for thread in set(threading.enumerate()) - alive)


@pytest.mark.parametrize("number", [1, 64, "auto"])
def test_numbers_of_threads_and_auto_are_taken(number: Threads) -> None:
    assert check_threads(number) == number


@pytest.mark.parametrize("wrong", [0, -1, 65, 1.0, "two", True, None])
def test_other_numbers_of_threads_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="1 to 64 threads"):
        check_threads(wrong)  # type: ignore[arg-type]
