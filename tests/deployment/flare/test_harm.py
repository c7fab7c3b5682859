"""What goes wrong over FLARE: processes that die, code that is pushed, kits of others, a party that comes twice."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

from tests.deployment.flare.deployment import Deployment, SiteProcess, free_port, until
from tests.deployment.flare.toy_flare import Task, outcome

from silosynth.deployment.flare.console import ABORTED, FAILED, FINISHED, Console, write_job
from silosynth.deployment.flare.daemon import target
from silosynth.deployment.flare.provisioning import Project, provision
from silosynth.deployment.flare.site import operator_mail

pytestmark = pytest.mark.slow
PARTIES = ["bank", "clinic"]
LONG = Task(PARTIES, rounds=100_000, pause=0.05)


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation to be harmed. Each test leaves it running."""
    made = Deployment(tmp_path_factory.mktemp("harmed"))
    try:
        yield made.start()
    finally:
        made.end()


@pytest.fixture
def console(harmed: Deployment) -> Iterator[Console]:
    with Console(harmed.folder / "alice") as made:
        made.wait_for_parties(PARTIES, 120)
        yield made


def begun(harmed: Deployment, console: Console, task: Task = LONG) -> tuple[str, dict[str, int]]:
    """A job that is under way, and the numbers of its processes."""
    job = console.submit(task.payload(), PARTIES, "long")
    place = harmed.coordinator.workspace
    until(lambda: (place / f"round-{job}").exists(), "no round was ever done")
    read = lambda site: int((site.workspace / f"pid-{job}").read_text().split()[0])  # noqa: E731
    return job, {site.name: read(site) for site in harmed.sites()}


def works(harmed: Deployment, console: Console) -> None:
    """The next job runs to its end."""
    console.wait_for_parties(PARTIES, 120)
    job = console.submit(Task(PARTIES).payload(), PARTIES, "next")
    assert console.wait(job, 200) == FINISHED
    assert "result" in outcome(harmed.coordinator.workspace, job)


def gone(*pids: int) -> None:
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), f"still there: {pids}", 60)


def test_a_partys_job_that_is_killed_is_lost(harmed: Deployment, console: Console) -> None:
    job, pids = begun(harmed, console)
    psutil.Process(pids["bank"]).kill()
    killed = time.time()
    assert console.wait(job, 120) == FAILED
    told = outcome(harmed.coordinator.workspace, job)
    assert told["error"] == "PartyLostError"
    assert "'bank'" in str(told["text"]) and "its part of the job has ended" in str(told["text"])
    print("lost after", float(str(told["seconds"])) - killed)
    gone(*pids.values())


def test_an_engine_that_is_killed_comes_back(harmed: Deployment, console: Console) -> None:
    bank = harmed.parties["bank"]
    job, pids = begun(harmed, console)
    times = bank.said.count("connected")
    bank.engine().kill()
    killed = time.time()
    gone(pids["bank"])
    bank.says("the engine ended (SIGKILL); starting it again")
    bank.says("connected", times + 1)
    assert console.wait(job, 200) == FAILED
    told = outcome(harmed.coordinator.workspace, job)
    assert "'bank'" in str(told["text"])
    print("lost after", float(str(told["seconds"])) - killed)
    works(harmed, console)


def test_a_party_that_is_killed_and_started_again_joins_the_next_job(harmed: Deployment, console: Console) -> None:
    clinic = harmed.parties["clinic"]
    job, pids = begun(harmed, console)
    assert clinic.end(signal.SIGKILL) == []  # nobody is left behind
    gone(pids["clinic"])
    assert console.wait(job, 200) == FAILED
    assert "'clinic'" in str(outcome(harmed.coordinator.workspace, job)["text"])
    clinic.start()
    works(harmed, console)


def test_a_coordinator_that_is_killed_comes_back(harmed: Deployment, console: Console) -> None:
    job, pids = begun(harmed, console)
    harmed.coordinator.engine().kill()
    gone(*pids.values())
    harmed.coordinator.says("the engine ended (SIGKILL); starting it again")
    until(
        lambda: harmed.coordinator.said.count("is back") + harmed.coordinator.said.count("joined") >= 4, "nobody came"
    )
    with Console(harmed.folder / "alice") as again:
        assert again.status(job) == FAILED
        works(harmed, again)


def test_an_operator_can_abort(harmed: Deployment, console: Console) -> None:
    job, pids = begun(harmed, console)
    console.abort(job)
    assert console.wait(job, 120) == ABORTED
    assert "aborted" in str(outcome(harmed.coordinator.workspace, job)["text"])
    gone(*pids.values())
    console.abort(job)  # has ended already


def test_what_a_party_raises_is_told(harmed: Deployment, console: Console) -> None:
    refuse = harmed.parties["bank"].workspace / "refuse"
    refuse.touch()
    job = console.submit(Task(PARTIES).payload(), PARTIES, "refused")
    assert console.wait(job, 120) == FAILED
    refuse.unlink()
    told = outcome(harmed.coordinator.workspace, job)
    assert told["error"] == "DataError" and "This silo takes part in jobs that its policy allows" in str(told["text"])


def raw(harmed: Deployment, folder: Path) -> str:
    root = folder.parent / "operator"
    shutil.copytree(harmed.folder / "alice" / "engine", root)
    argv = [
        sys.executable,
        str(Path(__file__).with_name("submit_raw.py")),
        operator_mail("alice"),
        str(root),
        str(folder),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert "job " in done.stdout, done
    return done.stdout.split("job ")[1].split()[0]


@pytest.mark.parametrize("app", ["party", "coordinator"])
def test_nobody_brings_code(harmed: Deployment, console: Console, tmp_path: Path, app: str) -> None:
    folder = write_job(tmp_path / "jobs", Task(PARTIES).payload(), PARTIES, "code")
    (folder / app / "custom").mkdir()
    (folder / app / "custom" / "evil.py").write_text("")
    job = raw(harmed, folder)
    assert console.wait(job, 200) == FAILED
    info = console.describe(job)
    assert any("BYOC not permitted" in line for line in info.details), info


@pytest.mark.parametrize(("app", "side"), [("party", "client"), ("coordinator", "server")])
def test_nobody_names_other_classes(harmed: Deployment, console: Console, tmp_path: Path, app: str, side: str) -> None:
    folder = write_job(tmp_path / "jobs", Task(PARTIES).payload(), PARTIES, "classes")
    path = folder / app / "config" / f"config_fed_{side}.json"
    config = json.loads(path.read_text())
    config["components"].append({"id": "other", "path": "pathlib.Path", "args": {}})
    path.write_text(json.dumps(config))
    job = raw(harmed, folder)
    assert console.wait(job, 200) == FAILED
    assert not (harmed.coordinator.workspace / f"round-{job}").exists()
    if side == "client":
        log = harmed.parties["bank"].workspace / "engine" / job / "log.txt"
        assert "'pathlib.Path' at config path" in log.read_text() and "is not in allow_list" in log.read_text()
    works(harmed, console)


def test_a_kit_of_another_provisioning_stays_outside(harmed: Deployment, tmp_path: Path) -> None:
    port = int(target(harmed.folder / "bank" / "engine" / "startup").split(":")[1])
    provision(Project("toys", "127.0.0.1", port, PARTIES, ["alice"]), tmp_path)
    stranger = SiteProcess("bank", tmp_path / "bank").start()
    stranger.says("not connected yet: the coordinator at 127.0.0.1:")
    assert "certificate" in stranger.said
    assert stranger.end() == []
    assert "\nconnected" not in stranger.said


def test_nobody_there_is_told(tmp_path: Path) -> None:
    provision(Project("toys", "127.0.0.1", free_port(), PARTIES, ["alice"]), tmp_path)
    lonely = SiteProcess("bank", tmp_path / "bank").start()
    lonely.says("not connected yet: nobody listens at 127.0.0.1:")
    assert lonely.end() == []


def test_a_party_that_comes_twice(harmed: Deployment, console: Console, tmp_path: Path) -> None:
    bank = harmed.parties["bank"]
    twin = SiteProcess("bank", bank.kit).start()
    twin.says("The site is running already: stop it first")
    assert twin.process is not None and twin.process.wait(30) == 4
    other = SiteProcess("bank", bank.kit, tmp_path / "elsewhere" / "work").start()
    other.says("The coordinator accepts 'bank' (got: it refuses)")
    assert other.process is not None and other.process.wait(30) == 3
    harmed.coordinator.says("party bank is connected already: refused a second one")
    assert " connected\n" not in other.said
    works(harmed, console)


def test_sites_leave_nobody_behind(tmp_path: Path) -> None:
    made = Deployment(tmp_path).start()
    with Console(tmp_path / "alice") as console:
        begun(made, console)
    for site, number in zip(made.sites(), (signal.SIGINT, signal.SIGTERM, signal.SIGTERM), strict=True):
        assert len(site.family()) == 3  # the daemon, its engine, its job
        assert site.end(number) == []
        site.says("goodbye")
