"""One process per party: the same bytes as in process, whatever dies when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.runtime.toy import LEDGER, ROSTER, STREAMS, Prepare, command, coordinate, run

from silosynth.core.conversation import Progress, Roster
from silosynth.core.errors import ConfigError, DataError, PartyLostError, UnavailableError
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.silos import Processes

ROUNDS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, ROUNDS), (folder / LEDGER).read_bytes()


def processes(folder: Path, **options: Any) -> Processes:
    return Processes(ROSTER, command, CheckpointStore(folder, "toy").parties, **options)


def wait_until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.mark.live
def test_processes_give_the_bytes_of_one_process(tmp_path: Path, whole: tuple[torch.Tensor, bytes]) -> None:
    link = processes(tmp_path)
    place, pids = link._place, link.pids()
    assert list(pids) == list(ROSTER)
    assert place.stat().st_mode & 0o077 == 0
    assert not list(place.rglob("*.pem"))  # everybody has read theirs
    assert torch.equal(run(tmp_path, ROUNDS, link), whole[0])
    assert (tmp_path / LEDGER).read_bytes() == whole[1]
    assert sorted(path.name for path in (tmp_path / "parties").iterdir()) == ["bank", "clinic"]
    assert not place.exists()
    assert not any(map(psutil.pid_exists, pids.values()))
    link.close()  # twice does no harm


@pytest.mark.live
def test_a_killed_party_is_named_and_the_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole", ROUNDS, prepare=Prepare(8, "calm", 5))
    link = processes(tmp_path / "killed")
    begun = []

    def kill() -> None:
        begun.append(time.monotonic())
        os.kill(link.pids()["clinic"], signal.SIGKILL)

    def watch(progress: Progress) -> None:
        if progress.done == 5:  # in the next round both silos take a minute to answer
            threading.Timer(0.5, kill).start()

    with pytest.raises(PartyLostError, match=r"'clinic', step 7, on tests\.runtime\.Add.*SIGKILL.*Resume"):
        run(tmp_path / "killed", ROUNDS, link, Prepare(8, "slow", 5), watch=watch)
    assert time.monotonic() - begun[0] < 10
    assert not any(map(psutil.pid_exists, link.pids().values()))
    assert torch.equal(run(tmp_path / "killed", ROUNDS, processes(tmp_path / "killed"), resume=True), expected)
    assert (tmp_path / "killed" / LEDGER).read_bytes() == (tmp_path / "whole" / LEDGER).read_bytes()


@pytest.mark.live
@pytest.mark.parametrize(
    ("fail", "kind", "says"),
    [
        ("data", DataError, r"'bank', step 4, on .*Add: A toy has columns \(got: none\)\. Add one\."),
        ("crash", PartyLostError, r"'bank', step 4, on .*ValueError in toy\.py, line \d+"),
        ("die", PartyLostError, r"'bank', step 4, on .*SIGKILL"),
    ],
)
def test_what_goes_wrong_in_a_party_is_told(fail: str, kind: type[Exception], says: str) -> None:
    roster = Roster(("bank",))
    link = Processes(roster, command)
    with pytest.raises(kind, match=says):
        drive(lambda state: coordinate(roster, STREAMS, 9, None, Prepare(4, fail, 2)), link, Ledger())


@pytest.mark.live
def test_a_party_that_does_not_start_is_told_with_its_last_words() -> None:
    def broken(name: str, kit: Path) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('no such table: ' + sys.argv[1])", name]

    with pytest.raises(PartyLostError, match=r"'bank' starts.*exit code 1.*no such table: bank"):
        Processes(Roster(("bank",)), broken)
    with pytest.raises(UnavailableError, match="No such file"):
        Processes(Roster(("bank",)), lambda name, kit: ["/nowhere/python"])


@pytest.mark.live
def test_a_party_that_never_connects_is_told() -> None:
    def asleep(name: str, kit: Path) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    begun = time.monotonic()
    with pytest.raises(PartyLostError, match=r"did not connect within 0\.5 s"):
        Processes(Roster(("bank",)), asleep, start_within=0.5)
    assert time.monotonic() - begun < 10


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.silos import Processes
from tests.runtime.toy import ROSTER, command, run
folder = Path(sys.argv[2])
link = Processes(ROSTER, command, CheckpointStore(folder, "toy").parties)
print(*link.pids().values(), flush=True)
run(folder, 1_000_000, link, watch=lambda progress: print(progress.done, flush=True))
"""


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_leaves_no_children_and_resumes(
    tmp_path: Path, whole: tuple[torch.Tensor, bytes], number: signal.Signals
) -> None:
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RUN, root, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # a killed coordinator leaves its folder of logs behind
    )
    assert child.stdout is not None
    pids = [int(pid) for pid in child.stdout.readline().split()]
    while int(child.stdout.readline()) < 4:
        pass
    child.send_signal(number)
    _, told = child.communicate(timeout=20)
    assert child.returncode == -number
    assert ("KeyboardInterrupt" in told) == (number == signal.SIGINT)
    wait_until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))
    assert not list(tmp_path.rglob("*.pem"))
    latest = CheckpointStore(tmp_path, "toy").latest()
    assert latest is not None
    rounds = latest.state["round"] + 3
    (tmp_path / "whole").mkdir()
    expected = run(tmp_path / "whole", rounds)
    assert torch.equal(run(tmp_path, rounds, resume=True), expected)  # in process: any runtime continues
    assert (tmp_path / LEDGER).read_bytes() == (tmp_path / "whole" / LEDGER).read_bytes()


def test_a_bad_roster_is_refused() -> None:
    with pytest.raises(ConfigError):
        Processes(Roster(("a/b",)), command)
