"""Over FLARE as it is deployed: processes of their own, mutual TLS on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare")

from tests.deployment.flare.deployment import Deployment, SiteProcess, certificate_of
from tests.deployment.flare.toy_flare import Task, outcome
from tests.runtime.toy import run

from silosynth.core.files import read
from silosynth.deployment.flare.console import FINISHED, Console
from silosynth.deployment.flare.daemon import target
from silosynth.runtime.tls import Certificates, dialled_certificate, fingerprint

PARTIES = ["bank", "clinic"]


@pytest.mark.live
def test_a_conversation_runs_over_the_relay_to_the_same_numbers(deployment: Deployment) -> None:
    place = deployment.coordinator.workspace
    with Console(deployment.folder / "alice") as console:
        console.wait_for_parties(PARTIES, 60)
        states: list[str] = []
        job = console.submit(Task(PARTIES, rounds=4).payload(), PARTIES, "toy")
        assert console.wait(job, 120, states.append) == FINISHED
        info = console.describe(job)
    assert (info.job, info.name, info.operator, info.details) == (job, "toy", "alice", ())
    assert states[-1] == FINISHED
    alone = run(deployment.folder / "alone", 4)
    assert torch.equal(torch.tensor(outcome(place, job)["result"]), alone)
    for party in deployment.parties.values():
        assert (party.workspace / f"pid-{job}").read_text().endswith(" alice")  # proved by the signature
        assert (party.workspace / "parts" / job / "000004.ckpt").exists()
    deployment.coordinator.says(f" ended (attempt {job})")
    assert "Traceback" not in (deployment.coordinator.workspace / "engine" / "console.txt").read_text()


@pytest.mark.live
def test_the_engines_port_shows_the_certificate_that_a_policy_may_name(deployment: Deployment) -> None:
    startup = deployment.folder / "bank" / "engine" / "startup"
    certificates = Certificates(*(read(startup / name) for name in ("rootCA.pem", "client.crt", "client.key")))
    port = int(target(startup).rpartition(":")[2])
    shown = fingerprint(dialled_certificate("127.0.0.1", port, certificates))
    assert shown == certificate_of(deployment.coordinator.kit)


@pytest.mark.live
def test_a_silo_connects_to_no_coordinator_that_is_not_named(deployment: Deployment, tmp_path: Path) -> None:
    """The coordinator's certificate is the authority's, and for its address, but the silo's policy names another."""
    kit = tmp_path / "bank"
    shutil.copytree(deployment.folder / "bank" / "engine", kit / "engine")
    (kit / "policy.toml").write_text(f'allow_coordinators = ["{"0" * 64}"]\n')
    site = SiteProcess("bank", kit).start()
    try:
        site.says(f"lists under allow_coordinators (got: {certificate_of(deployment.coordinator.kit)})")
    finally:
        site.end()
    assert "party bank" not in deployment.coordinator.said.partition("refused a second one")[2]
    assert "connected" not in site.said
