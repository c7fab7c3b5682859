"""A site in one file, and made from it again: the same draws, and no budget that was set back."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.deployment.common import OPEN
from tests.deployment.kill_jobs import prepare
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, trained_once
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ConfigError, PolicyError, StorageError
from silosynth.deployment.backup import RESTORED, Since, about_backup, back_up, restore
from silosynth.deployment.coordinator import Status, read_status
from silosynth.deployment.forgetting import mark_running
from silosynth.deployment.kits import read_kit
from silosynth.deployment.policy import Releases, charged

SITES = (COORDINATOR, *COLUMNS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of all sites, after a job "trial"; a site's backup beside its kit."""
    folder = tmp_path_factory.mktemp("made")
    prepare("vtgan", folder / "kits")
    trained_once(folder / "sites")
    for name in SITES:
        jobs = folder / "kits" / name / "work" / "jobs"
        shutil.copytree(folder / "sites" / name / "trial", jobs / "trial")
        (jobs / "trial" / "checkpoints").mkdir(exist_ok=True)
        (jobs / "trial" / "checkpoints" / "000001.ckpt").touch()
        back_up(read_kit(folder / "kits" / name), folder / f"{name}.backup")
    return folder


def test_rows_drawn_after_a_restore_of_every_site_are_the_same(made: Path, tmp_path: Path) -> None:
    for name in SITES:
        restored = restore(made / f"{name}.backup", tmp_path / "kits" / name, None)
        shutil.copytree(restored.jobs, tmp_path / "after" / name)
    drawn = {}
    for folder in (made / "sites", tmp_path / "after"):
        place = carry_out(more(folder, 70, 11, "later"), ABSENT, folder)
        drawn[folder] = (place / "synthetic.parquet").read_bytes()
    assert len(set(drawn.values())) == 1


def test_a_backup_holds_the_site_and_is_its_owners_alone(made: Path, tmp_path: Path) -> None:
    backup = made / "bank.backup"
    assert backup.stat().st_mode & 0o777 == 0o600
    about = about_backup(backup)
    assert (about["site"], about["federation"]) == ("bank", "trial")
    assert {"kit.json", "sealing.key", "silo.toml", "policy.toml", "work/jobs/trial/part.silosynth"} <= set(
        about["files"]
    )
    assert not any(name.endswith(".ckpt") for name in about["files"])
    kit = restore(backup, tmp_path / "bank", None)
    assert kit.seat().name == "bank"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "bank").rglob("*"))
    ledgers = [
        site / "work" / "jobs" / "trial" / "ledger.jsonl" for site in (made / "kits" / "bank", tmp_path / "bank")
    ]
    assert len({int(path.stat().st_mtime) for path in ledgers}) == 1  # a restore keeps nothing for longer
    assert json.loads((tmp_path / "bank" / "work" / RESTORED).read_text())["backup"] == about["at"]
    with pytest.raises(ConfigError, match="into a new folder"):
        restore(backup, tmp_path / "bank", None)


def test_budgets_are_not_set_back(made: Path, tmp_path: Path) -> None:
    kit = restore(made / "bank.backup", tmp_path / "bank", Since(3.0, 500))
    releases = Releases(kit.folder / "work")
    assert charged(releases.without("any"), 1e-5) == pytest.approx(3.0)
    assert releases.listed()[0].job.startswith("restored 20") and releases.listed()[0].at
    sites = Path(shutil.copytree(made / "sites", tmp_path / "sites"))
    shutil.copy(kit.jobs / "trial" / "drawn.jsonl", sites / "bank" / "trial" / "drawn.jsonl")
    few = OPEN.model_copy(update={"most_rows_drawn": 600})
    with pytest.raises(PolicyError, match="'most_rows_drawn'"):
        carry_out(more(sites, 70, 11, "late"), ABSENT, sites, bank=few)  # 50 and 500 were drawn before
    again = restore(made / "bank.backup", tmp_path / "again", None)
    assert charged(Releases(again.folder / "work").without("any"), 1e-5) == 0


def test_a_job_in_progress_does_not_begin_anew_by_itself(made: Path, tmp_path: Path) -> None:
    kits = Path(shutil.copytree(made / "kits", tmp_path / "kits"))
    place = kits / COORDINATOR / "work" / "jobs" / "trial"
    Status("running", attempts=1).write(place)
    back_up(read_kit(kits / COORDINATOR), tmp_path / "backup")
    restored = restore(tmp_path / "backup", tmp_path / "after", None)
    status = read_status(restored.jobs / "trial")
    assert status.state == "failed" and "submit the job anew" in status.error
    with mark_running(place), pytest.raises(ConfigError, match="while no job is at work"):
        back_up(read_kit(kits / COORDINATOR), tmp_path / "backup")


def test_a_damaged_backup_is_not_restored(made: Path, tmp_path: Path) -> None:
    whole = (made / "bank.backup").read_bytes()
    for number, blob in enumerate(
        (whole[: len(whole) // 2], whole[:200] + bytes([whole[200] ^ 255]) + whole[201:], b"", b"PK")
    ):
        (tmp_path / "cut").write_bytes(blob)
        with pytest.raises(StorageError, match="A backup can be read"):
            restore(tmp_path / "cut", tmp_path / f"site {number}", None)
        assert not (tmp_path / f"site {number}").exists()
    with pytest.raises(StorageError, match="read"):
        restore(tmp_path / "none", tmp_path / "bank", None)


def crafted(path: Path, files: dict[str, bytes]) -> Path:
    """A backup that lists whatever it holds."""
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    about = {"form": "silosynth backup 1", "site": "bank", "federation": "f", "version": "1", "at": "", "files": listed}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"about.json": json.dumps(about).encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "work/../../outside"])
def test_a_crafted_backup_writes_nothing_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="other files than it lists"):
        restore(crafted(tmp_path / "crafted", {"kit.json": b"{}", name: b""}), tmp_path / "a" / "site", None)
    assert not (tmp_path / "a").exists() and not (tmp_path / "outside").exists()


def test_the_commands_have_a_silo_say_what_it_released_since(made: Path, tmp_path: Path) -> None:
    def call(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
        return done.exit_code, done.output

    assert call("backup", "--kit", made / "kits" / "bank", "--out", tmp_path / "b")[0] == 0
    words = ("restore", tmp_path / "b", "--kit", tmp_path / "bank")
    for more_words in ((), ("--spent", 1), ("--nothing-since", "--spent", 1, "--drawn", 5)):
        code, said = call(*words, *more_words)
        assert code == 2 and "nothing was said of it" in said
    code, said = call(*words, "--spent", 1, "--drawn", 5)
    assert code == 0 and "Epsilon 1 and 5 rows of each job count" in said
    assert call("restore", made / "coordinator.backup", "--kit", tmp_path / "coordinator")[0] == 0
