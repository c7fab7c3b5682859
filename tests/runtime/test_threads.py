"""The trial of numbers of threads: on machines whose times are made up, for time and load decide on real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from silosynth import catalog
from silosynth.core.errors import ConfigError, StorageError
from silosynth.runtime import threads
from silosynth.runtime.threads import FILE, check_threads, fastest, settle_threads

CPU = torch.device("cpu")
SILOFUSE = catalog.algorithm("silofuse").configure("fast", {})


class Machine:
    """A step takes ``seconds(threads)``; every step is noted."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds, self.now, self.steps = seconds, 0.0, list[int]()

    def step(self) -> None:
        self.steps.append(torch.get_num_threads())
        self.now += self.seconds(self.steps[-1])

    def best(self, most: int) -> int:
        return fastest(self.step, most, lambda: self.now)


@pytest.mark.parametrize(
    ("seconds", "cores", "best"),
    [
        (lambda n: 1 / n, 8, 8),  # all idle
        (lambda n: 1 / n, 6, 4),
        (lambda n: 1 / min(n, 4), 16, 4),  # half of them busy, or hyperthreads
        (lambda n: 1.0, 8, 1),  # a busy machine
        (lambda n: 1 / n**0.3, 8, 1),  # hardly worth it
        (lambda n: 1.0, 1, 1),
    ],
)
def test_twice_as_many_threads_are_taken_while_they_are_worth_it(
    seconds: Callable[[int], float], cores: int, best: int
) -> None:
    assert Machine(seconds).best(cores) == best


def test_threads_that_spin_on_a_shared_core_are_given_up_at_once() -> None:
    machine = Machine(lambda n: 0.05 if n == 1 else 1.0)
    assert machine.best(8) == 1
    assert machine.steps.count(2) == 1 and max(machine.steps) == 2


def test_the_trial_leaves_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    Machine(lambda n: 1 / n).best(4)
    assert torch.get_num_threads() == before


def test_a_number_is_taken_as_it_is_and_not_tried(tmp_path: Path) -> None:
    assert settle_threads(3, tmp_path, False, CPU, SILOFUSE) == 3
    assert not list(tmp_path.iterdir())


def test_what_was_found_is_kept_for_resuming_and_found_anew_by_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([4, 2])
    monkeypatch.setattr(threads, "fastest", lambda step, most: next(found))
    monkeypatch.setattr(threads, "some_steps", lambda: None)  # it is large
    tried = [settle_threads("auto", tmp_path, again, CPU, SILOFUSE) for again in (True, True, False, True)]
    assert tried == [4, 4, 2, 2]


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("many")
    with pytest.raises(StorageError, match=r"holds the number of threads.*many"):
        settle_threads("auto", tmp_path, True, CPU, SILOFUSE)


def test_other_devices_need_no_trial(tmp_path: Path) -> None:
    assert settle_threads("auto", tmp_path, False, torch.device("meta"), SILOFUSE) == 1


@pytest.mark.parametrize("wrong", [0, -1, 65, 1.0, "two", True, None])
def test_numbers_of_threads_are_checked(wrong: object) -> None:
    with pytest.raises(ConfigError, match="1 to 64 threads"):
        check_threads(wrong)  # type: ignore[arg-type]


def test_the_trial_s_steps_renew_no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[object] = []
    monkeypatch.setattr("silosynth.models.shampoo._renew", lambda root, factor: renewed.append(root))
    steps = threads.some_steps()
    for _ in range(13):  # of four steps each; every fiftieth renews roots
        steps()
    assert not renewed


@pytest.mark.parametrize("name", ["vtgan", "ctgan", "mst", "gdts"])
def test_a_coordinator_without_a_generator_of_latents_has_one_thread_and_no_trial(name: str, tmp_path: Path) -> None:
    config = catalog.algorithm(name).configure("fast", {})
    assert settle_threads("auto", tmp_path, False, CPU, config) == 1
    assert not list(tmp_path.iterdir())
