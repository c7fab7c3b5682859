"""Silos of a federation appraise each other: the same page everywhere, at one charge, as each silo's policy allows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deployment.common import Rows, customers, parties
from typer.testing import CliRunner

from silosynth.alignment import AlignConfig
from silosynth.cli import app
from silosynth.commands import jobs, startkit
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, PolicyError, StorageError
from silosynth.deployment import appraising, coordinator
from silosynth.deployment.appraising import appraising_order
from silosynth.deployment.counted import keep_counted, read_counted
from silosynth.deployment.judging import Terms
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.privacy.events import Target
from silosynth.simulation.silos import InProcess

HELD = {"bank": ["age", "income"], "shop": ["visits", "paid"]}
ROSTER, TERMS, TARGET = Roster(("bank", "shop")), Terms(("bank", "shop"), None), Target(3.0, 1e-6)
POLICY = SiloPolicy(algorithms=["appraise"], least_rows=10, require_alignment=False, largest_epsilon=3.0)


def job(name: str = "worth", terms: Terms = TERMS, rows: int | None = 1024) -> coordinator.Order:
    return appraising_order(terms, ROSTER, "coordinator", name, TARGET, 3, rows)


def carried_out(folder: Path, order: coordinator.Order, policy: SiloPolicy = POLICY) -> Path:
    """Appraise in silos in this process; the coordinator's folder."""
    whole = customers(400)
    silos = {name: Rows(whole[["customer", *held]], ["customer"]) for name, held in HELD.items()}
    place = folder / "coordinator"
    order.keep(place)
    with InProcess(parties(silos, folder, policy), folder / "checkpoints") as link:
        coordinator.run_order(order, link, place)
    return place


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return carried_out(tmp_path_factory.mktemp("done"), job())


def test_coordinator_and_silos_have_the_same_page(done: Path) -> None:
    found = appraising.appraised(done)
    assert found.silos == {silo: tuple(own) for silo, own in HELD.items()} and found.epsilon == 3
    assert (
        abs(found.rows - 400) < 5 * (found.rows_high - found.rows_low) / 2 and len(found.pairs) == 4
    )  # ten deviations
    for silo in HELD:
        assert appraising.appraised(done.parent / silo).to_dict() == found.to_dict()
    assert not (done / "model.silosynth").exists()


def test_it_is_charged_and_no_exact_count_leaves(done: Path) -> None:
    lines = [json.loads(line) for line in (done / "ledger.jsonl").read_text().splitlines()]
    told = {line["privacy"] for line in lines if line["from"] != "coordinator" and "privacy" in line}
    assert not any("exact" in one or "un-noised" in one for one in told)
    assert all(Releases(done.parent / silo).without("") for silo in HELD)
    assert "matched" not in json.loads((done / "result.json").read_text())


def test_what_linking_told_is_shown_to_each_and_is_not_on_the_page(done: Path, tmp_path: Path) -> None:
    linked = job(terms=Terms(("bank", "shop"), AlignConfig("keyed-hash")))
    policy = SiloPolicy(algorithms=["appraise"], least_rows=10, keyed_hash=True)
    place = carried_out(tmp_path, linked, policy)
    assert {appraising.in_common(folder) for folder in (place, tmp_path / "bank", tmp_path / "shop")} == {400}
    assert appraising.in_common(done) is None  # nothing was linked
    shown = appraising.appraised(place).to_dict()
    keep_counted(place, linked.job, read_counted(place).result, 123)
    assert appraising.appraised(place).to_dict() == shown


def test_a_second_one_needs_a_second_charge(done: Path, tmp_path: Path) -> None:
    for silo in HELD:
        shutil.copytree(done.parent / silo, tmp_path / silo)
    with pytest.raises(PolicyError, match="largest_epsilon"):
        carried_out(tmp_path, job("again"))


def test_a_silo_appraises_only_if_its_policy_names_it(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="Policy rule 'algorithms'"):
        carried_out(tmp_path, job(), POLICY.model_copy(update={"algorithms": ["judge"]}))
    with pytest.raises(PolicyError, match="Policy rule 'open_tables'"):
        carried_out(tmp_path / "closed", job(), POLICY.model_copy(update={"open_tables": "no"}))
    assert "appraise" not in SiloPolicy().algorithms


def test_orders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rows"):
        job(rows=None)
    with pytest.raises(ConfigError, match="at least two silos"):
        job(terms=Terms(("bank",), None))
    with pytest.raises(ConfigError, match="bank"):
        job(terms=Terms(("bnk", "shop"), None))
    with pytest.raises(StorageError, match="has counted"):
        appraising.appraised(tmp_path)
    assert appraising.appraising_name().startswith("appraisal-")


# The command.


@pytest.fixture
def kits(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kits with a job "worth"."""
    for name in ("coordinator", *HELD):
        shutil.copytree(done.parent / name, tmp_path / name / "work" / "jobs" / "worth")

    def kit(folder: Path) -> Any:
        return SimpleNamespace(
            name=folder.name, folder=folder, jobs=folder / "work" / "jobs", roster=ROSTER, stream_port=None
        )

    monkeypatch.setattr(startkit, "open_kit", kit)
    return tmp_path


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_a_silo_shows_a_job_again(kits: Path) -> None:
    page = kits / "page.html"
    shown = call("appraise", "--kit", kits / "shop", "--name", "worth", "--report", page, "--json")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["job"] == "worth" and page.exists()
    elsewhere = call("appraise", "--kit", kits / "shop", "--rows", 1024)
    assert elsewhere.exit_code == 2 and "start at the coordinator's machine" in elsewhere.stderr


def test_the_coordinator_submits_and_reports(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Any] = []

    def submit(ui: Any, kit: Any, order: Any, wait: bool) -> None:
        orders.append(order)
        shutil.copytree(kit.jobs / "worth", kit.jobs / order.job.name)

    monkeypatch.setattr(jobs, "submit_here", submit)
    words = ("appraise", "--kit", kits / "coordinator", "--epsilon", 0.4, "--align", "none", "--rows")
    shown = call(*words, 5000)
    assert shown.exit_code == 0 and "silosynth appraisal" in shown.stdout
    config = orders[0].job.config
    assert (config.dp, config.most_rows, orders[0].job.align) == (Target(0.4, 1e-6), 5000, None)
    assert orders[0].job.seed is None and orders[0].job.silos == ("bank", "shop")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "an experiment file's silos, or"),
        (("plan.toml", "--kit", "kits/bank"), "both"),
        (("plan.toml", "--rows", 5), "--rows is for silos of a federation"),
        (("plan.toml", "--name", "x"), "--name is for silos of a federation"),
        (("--kit", "coordinator", "--seed", 3), "their own secret noise"),
        (("--kit", "coordinator"), "public bound"),
        (("--kit", "coordinator", "--rows", 50, "--align", "pis"), "psi"),
    ],
)
def test_what_does_not_go_together_is_said(kits: Path, words: tuple[Any, ...], error: str) -> None:
    given = [kits / word if word == "coordinator" else word for word in words]
    result = call("appraise", *given)
    assert result.exit_code == 2 and error in result.stderr
