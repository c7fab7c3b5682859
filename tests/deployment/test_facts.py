"""What sites say of a job afterwards, and what a silo checks before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deployment.common import SMALL
from tests.deployment.sites import ABSENT, carry_out, more, trained_once
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import federation
from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError
from silosynth.core.version import VERSION
from silosynth.deployment import coordinator, forgetting
from silosynth.deployment.coordinator import Status, read_status
from silosynth.deployment.entry import journal
from silosynth.deployment.facts import KnownSite
from silosynth.deployment.kits import KEY, SILO_TEMPLATE, StartKit
from silosynth.deployment.rows import check_rows, read_silo


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job and a draw from it."""
    folder = trained_once(tmp_path_factory.mktemp("here"))
    carry_out(more(folder, 20, 1, "late"), ABSENT, folder)
    return folder


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_the_result_says_who_when_and_how(here: Path) -> None:
    result = json.loads((here / "coordinator" / "trial" / "result.json").read_text())
    assert (result["name"], result["submitter"], result["version"]) == ("trial", "alice", VERSION)
    assert result["options"]["latent"]["steps"] == SMALL["latent.steps"] and result["preset"] == "fast"
    assert "2020" < result["begun"] <= result["ended"]
    status = read_status(here / "coordinator" / "trial")
    assert 0 < status.begun <= status.since
    (here / "old").mkdir()
    (here / "old" / "status.json").write_text('{"state": "done"}')  # of an earlier version
    assert read_status(here / "old") == Status("done")


@pytest.mark.parametrize(("site", "job", "state"), [
    ("coordinator", "trial", "done"), ("bank", "trial", "trained"), ("shop", "late", "drawn"),
])  # fmt: skip
def test_inspect_says_what_a_job_was(here: Path, site: str, job: str, state: str) -> None:
    done = call("inspect", here / site / job, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["state"] == f"job {job}, {state}" and facts["seed"] == "public"
    assert facts["options"]["latent"]["steps"] == SMALL["latent.steps"]
    shown = call("inspect", here / site / job).stdout
    assert "options.latent.steps = 40" in shown and "--resume" not in shown


def test_status_shows_times(here: Path) -> None:
    kit: Any = SimpleNamespace(name="coordinator", folder=here, jobs=here / "coordinator")
    row = KnownSite(kit).job("trial")
    assert row is not None and row["state"] == "done" and row["kind"] == "train" and row["messages"] > 9
    assert row["begun"][:2] == row["since"][:2] == "20"


def test_a_silo_knows_how_its_jobs_ended(here: Path) -> None:
    kit: Any = SimpleNamespace(name="bank", folder=here, jobs=here / "bank")
    assert {(job or {})["state"] for job in map(KnownSite(kit).job, ("trial", "late"))} == {"done"}
    late = KnownSite(kit).job("late")
    assert late is not None and late["kind"] == "draw from trial" and late["silos"] == ["bank", "shop"]


def test_the_last_event_of_a_log_is_shown_by_its_first_line(tmp_path: Path) -> None:
    journal(tmp_path / "trial")(
        "refused: numbers need declared bounds. Fill in:\n\n[schema]\nage = { low = …, high = … }"
    )
    told = KnownSite(SimpleNamespace(name="bank", folder=tmp_path, jobs=tmp_path)).job("trial")  # type: ignore[arg-type]
    assert told is not None and told["last"].endswith("refused: numbers need declared bounds. Fill in:")


def test_a_kits_private_keys_are_its_owners(tmp_path: Path) -> None:
    kit = StartKit(tmp_path, "bank", "trial", "localhost", 1, None, None)  # type: ignore[arg-type]
    (tmp_path / "engine" / "startup").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"A kit holds the key of its certificate.*install bank\.key"):
        kit.check_private()
    keys = tmp_path / KEY, tmp_path / "engine" / "startup" / "client.key"
    for path in keys:
        path.touch(0o600)
    for path in keys:
        kit.check_private()
        path.chmod(0o604)
        with pytest.raises(ConfigError, match=f"chmod 600 .*{path.name}"):
            kit.check_private()
        path.chmod(0o640)  # of a group, as Kubernetes hands them out


def test_rows_are_looked_at_before_a_silo_starts(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text('[data]\npath = "rows.csv"\nidentifiers = ["customer"]\n')
    with pytest.raises(StorageError, match="must exist"):
        check_rows(read_silo(tmp_path))
    (tmp_path / "rows.csv").write_text("customr,age\n1,2\n")
    with pytest.raises(DataError, match=r"customer.*Did you mean 'customr'"):
        check_rows(read_silo(tmp_path))
    (tmp_path / "rows.csv").write_text("customer,age\n1,2\n")
    check_rows(read_silo(tmp_path))
    said: list[str] = []
    ui: Any = SimpleNamespace(note=said.append)
    kit: Any = SimpleNamespace(folder=tmp_path)
    federation._check_rows(ui, kit, read_silo(tmp_path))
    (tmp_path / "silo.toml").write_text(SILO_TEMPLATE)
    with pytest.raises(ConfigError, match="the template, unchanged"):
        federation._check_rows(ui, kit, read_silo(tmp_path))
    (tmp_path / "silo.toml").write_text('[data]\ndatabase = "sqlite:///none.db"\ntable = "a"\n')
    try:
        federation._check_rows(ui, kit, read_silo(tmp_path))
    except SilosynthError:
        pytest.fail("a database that is away is only warned of")
    assert said and said[0].startswith("warning: ")


def test_inspect_of_a_forgotten_job(here: Path) -> None:
    forgetting.forget(here / "coordinator", "late", "coordinator", None)
    assert "forgotten, 20" in call("inspect", here / "coordinator" / "late").stdout
    assert coordinator.RESULT not in {path.name for path in (here / "coordinator" / "late").iterdir()}
