"""Sites of different versions: what they do together, and what a job in progress does when one is upgraded."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import silosynth
from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import VersionError
from silosynth.deployment import endings, protocol, upgrades


def test_a_job_in_progress_is_said_to_be_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, parts = tmp_path / "trial", tmp_path / "trial" / "checkpoints"
    parts.mkdir(parents=True)
    upgrades.note(folder)
    (parts / "000001.ckpt").touch()
    upgrades.check(folder, "this silo")
    monkeypatch.setattr(protocol, "VERSION", "9.9.9")
    upgrades.check(folder, "this silo")  # of another number, but the same
    assert list(upgrades.left_behind(tmp_path)) == []
    monkeypatch.setattr(protocol, "sources", lambda: "f" * 64)
    with pytest.raises(VersionError, match=r"f{64} at this silo, silosynth 9\.9\.9"):
        upgrades.check(folder, "this silo")
    assert [line.partition(",")[0] for line in upgrades.left_behind(tmp_path)] == [
        f"job trial began with silosynth {silosynth.__version__}"
    ]
    endings.note_attempt(folder, "1")
    endings.note_end(folder, "1", "done")
    assert list(upgrades.left_behind(tmp_path)) == []
    endings.tidy(tmp_path)
    assert not any(parts.iterdir())


pytest.importorskip("nvflare")

from tests.deployment.abroad import VTGAN, Abroad, until  # noqa: E402
from tests.deployment.flare.deployment import free_port  # noqa: E402
from tests.deployment.network import Host  # noqa: E402

LONG = VTGAN.format(epochs=90)


def release(folder: Path, version: str, changed: str, line: str) -> str:
    """Another release of silosynth, as its number and one of its files differ; what puts it on Python's path."""
    tree = Path(silosynth.__file__).parent
    made = Path(shutil.copytree(tree, folder / version / "silosynth", ignore=shutil.ignore_patterns("__pycache__")))
    (made / "core" / "version.py").write_text(f'VERSION = "{version}"\n')
    with open(made / changed, "a", encoding="utf-8") as file:
        file.write(line)
    return str(made.parent)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Host]]:
    hosts = {name: Host() for name in (COORDINATOR, "bank", "shop")}
    made = Abroad(tmp_path_factory.mktemp("here"), hosts, free_port())
    try:
        made.provision()
        yield made
    finally:
        for host in hosts.values():
            host.clear()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_survives_upgrades_that_leave_its_sources_alone_and_is_suspended_by_others(here: Abroad[Host]) -> None:
    patch = release(here.folder, "0.1.7", "commands/inspect.py", "# no job imports this\n")
    other = release(here.folder, "0.2.0", "models/training.py", "# every job imports this\n")
    here.start(COORDINATOR)
    here.start("bank")
    here.start("shop", path=patch)  # two patch versions in one job
    here.submit("whole", LONG)
    assert here.done("whole").attempts == 1
    whole, label = here.table("bank", "whole"), here.kits / "bank/work/jobs/whole/label.json"
    signed = json.loads(label.read_text())["silos"]
    assert {silo: one["statement"]["version"] for silo, one in signed.items()} == {
        "bank": silosynth.__version__, "shop": "0.1.7",
    }  # fmt: skip
    parts = [
        f"{COORDINATOR}/work/jobs/whole/coordinator",
        *(f"{silo}/work/jobs/whole/checkpoints" for silo in ("bank", "shop")),
    ]
    until(lambda: not any(any((here.kits / part).glob("*.ckpt")) for part in parts), lambda: "checkpoints stay")

    here.submit("upgraded", LONG)
    here.checkpoint("upgraded")
    for name in (COORDINATOR, "bank", "shop"):
        here.end(name, signal.SIGKILL)
    for name in (COORDINATOR, "bank"):
        here.start(name, path=patch)
    here.start("shop", path=other)
    here.says("shop", "job upgraded began with silosynth 0.1.7")
    ended = here.wait("upgraded", lambda now: now.state == "suspended")
    assert "silosynth 0.2.0" in ended.error and "Install the same release" in ended.error
    here.end("shop")
    here.start("shop")
    assert here.command(COORDINATOR, "resume", "upgraded", "--kit", str(here.kits / COORDINATOR)).returncode == 0
    here.done("upgraded")
    assert here.table("bank", "upgraded") == here.table("shop", "upgraded") == whole

    here.submit("again", LONG)
    here.checkpoint("again")
    here.end(COORDINATOR, signal.SIGKILL)
    here.start(COORDINATOR, path=other)
    here.says(COORDINATOR, "job again began with silosynth 0.1.7")
    ended = here.wait("again", lambda now: now.state == "suspended")
    assert "at this coordinator, silosynth 0.2.0" in ended.error
    here.end(COORDINATOR)
    here.start(COORDINATOR, path=patch)
    assert here.command(COORDINATOR, "resume", "again", "--kit", str(here.kits / COORDINATOR)).returncode == 0
    here.done("again")
    assert here.table("bank", "again") == whole
