"""Jobs that are begun, interrupted, taken up again and stopped, by the commands that operators use, on loopback."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("nvflare")

from tests.deployment.abroad import SILOFUSE, VTGAN, Abroad
from tests.deployment.flare.deployment import free_port
from tests.deployment.network import Host

from silosynth.core.conversation import COORDINATOR
from silosynth.deployment import presence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LONG = VTGAN.format(epochs=90)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Host]]:
    """A federation on this machine. Each test leaves it running."""
    hosts = {name: Host() for name in (COORDINATOR, "bank", "shop", "alice")}
    made = Abroad(tmp_path_factory.mktemp("here"), hosts, free_port())
    try:
        made.provision()
        made.start(COORDINATOR)
        yield made
    finally:
        for host in hosts.values():
            host.clear()


@pytest.fixture(scope="module")
def whole(here: Abroad[Host]) -> str:
    """The table of a run that nobody interrupts."""
    here.submit("whole", LONG)
    assert here.done("whole").attempts == 1
    return here.table("bank", "whole")


def test_a_job_waits_for_its_silos(here: Abroad[Host]) -> None:
    here.submit("early", SILOFUSE)
    here.wait("early", lambda now: now.stage == "waiting for bank, shop")
    shown = here.command(COORDINATOR, "status", "--kit", str(here.kits / COORDINATOR))
    assert "early" in shown.stdout and "submitted" in shown.stdout
    assert "The coordinator is running." in shown.stdout and "bank is away." in shown.stdout
    here.start("bank")
    here.wait("early", lambda now: now.stage == "waiting for shop")
    known = here.command(COORDINATOR, "status", "--json", "--kit", str(here.kits / COORDINATOR))
    assert [one["connected"] for one in json.loads(known.stdout)["silos"]] == [True, False]
    here.start("shop")
    here.done("early")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_coordinator_that_is_ended_goes_on(here: Abroad[Host], whole: str, number: int) -> None:
    job = f"coordinator-{number}"
    here.submit(job, LONG)
    here.checkpoint(job)
    here.end(COORDINATOR, number)
    assert here.status(job).state in ("running", "interrupted")
    here.start(COORDINATOR)
    assert here.done(job).attempts == 2
    assert here.table("bank", job) == whole


def test_all_silos_that_are_killed_are_waited_for(here: Abroad[Host], whole: str) -> None:
    here.submit("silos", LONG)
    here.checkpoint("silos")
    for name in ("bank", "shop"):
        here.end(name, signal.SIGKILL)
    here.wait("silos", lambda now: now.state == "interrupted")
    for name in ("bank", "shop"):
        here.start(name)
    assert here.done("silos").attempts >= 2
    assert here.table("shop", "silos") == whole


def test_a_coordinators_job_that_is_killed_goes_on(here: Abroad[Host], whole: str) -> None:
    here.submit("process", LONG)
    here.checkpoint("process")
    family = psutil.Process(here.running[COORDINATOR].pid).children(recursive=True)
    (job,) = (one for one in family if any("runner_process" in word for word in one.cmdline()))
    job.kill()
    assert here.done("process").attempts == 2
    assert here.table("shop", "process") == whole


def test_operators_stop_jobs(here: Abroad[Host]) -> None:
    kit = str(here.kits / COORDINATOR)
    here.submit("mine", LONG)
    here.wait("mine", lambda now: "training" in now.stage)
    assert here.command(COORDINATOR, "stop", "mine", "--kit", kit).returncode == 0
    ended = here.wait("mine", lambda now: now.state == "failed")
    assert "The coordinator's operator has stopped it" in ended.error
    again = here.command(COORDINATOR, "stop", "mine", "--kit", kit)
    assert again.returncode == 2 and "mine is failed" in again.stderr
    here.submit("hers", LONG, at="alice")
    here.wait("hers", lambda now: "training" in now.stage)
    stopped = here.command("alice", "stop", "hers", "--kit", str(here.kits / "alice"))
    assert stopped.returncode == 0, stopped.stderr
    assert "An operator has stopped it" in here.wait("hers", lambda now: now.state == "failed").error
    here.submit("next", SILOFUSE)
    here.done("next")


def test_a_name_is_used_once(here: Abroad[Host]) -> None:
    for at, kit in ((COORDINATOR, COORDINATOR), ("alice", "alice")):
        again = here.command(at, "submit", str(here.folder / "early.toml"), "--kit", str(here.kits / kit))
        assert again.returncode == 2 and "A job's name is used only once" in again.stderr


def test_ends_of_jobs_and_lost_sites_are_told(here: Abroad[Host]) -> None:
    for name in (COORDINATOR, "bank", "shop"):
        here.says(name, "job early is done")
    here.says("bank", "job mine ")  # the coordinator's operator stopped it at once: nobody could say how it ended
    here.end("shop", signal.SIGKILL)
    begun = time.monotonic()
    here.says(COORDINATOR, "party shop has given no sign of life")
    assert time.monotonic() - begun < 30
    known = here.command(COORDINATOR, "status", "--kit", str(here.kits / COORDINATOR))
    assert "shop is away, last seen 20" in known.stdout and "bank is connected." in known.stdout
    here.submit("last", SILOFUSE)
    here.end(COORDINATOR, signal.SIGKILL)
    time.sleep(presence.STALE + 1)
    known = here.command(COORDINATOR, "status", "--json", "--kit", str(here.kits / COORDINATOR))
    facts = json.loads(known.stdout)
    assert not facts["running"] and not any(one["connected"] for one in facts["silos"])
    assert "running" not in {job["state"] for job in facts["jobs"]}


LONGER = {
    "autoencoders": SILOFUSE.replace("coder.steps = 30", "coder.steps = 400_000\ncoder.fit_to_rows = false"),
    "diffusion": SILOFUSE.replace(
        "latent.steps = 40", "latent.steps = 400_000\nlatent.checks = 8000\nlatent.fit_to_rows = false"
    ),
}
"""Stages in which silos compute for long, and in which the coordinator does and asks nobody."""


@pytest.mark.parametrize("stage", LONGER)
def test_a_silo_that_is_killed_is_named_in_seconds_whoever_computes(here: Abroad[Host], stage: str) -> None:
    for name in (COORDINATOR, "bank", "shop"):
        if name not in here.running:
            here.start(name)
    job, words = f"killed-{stage}", "party shop has given no sign of life"
    here.submit(job, LONGER[stage])
    here.wait(job, lambda now: now.stage == stage)
    said = here.log(COORDINATOR).read_text().count(words)
    here.end("shop", signal.SIGKILL)
    begun = time.monotonic()
    here.says(COORDINATOR, words, said + 1)
    assert time.monotonic() - begun < 30
    known = here.command(COORDINATOR, "status", "--json", "--kit", str(here.kits / COORDINATOR))
    assert [one["connected"] for one in json.loads(known.stdout)["silos"]] == [True, False]
    here.wait(job, lambda now: now.state == "interrupted")  # a cut network, which looks the same, may come back
    assert time.monotonic() - begun < 150
    assert here.command(COORDINATOR, "stop", job, "--kit", str(here.kits / COORDINATOR)).returncode == 0
