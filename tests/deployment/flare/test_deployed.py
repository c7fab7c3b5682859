"""Over FLARE as it is deployed: processes of their own, mutual TLS on loopback."""

from __future__ import annotations

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

pytest.importorskip("nvflare")

from tests.deployment.flare.deployment import Deployment
from tests.deployment.flare.toy_flare import Task, outcome
from tests.runtime.toy import run

from silosynth.core.files import read
from silosynth.deployment.flare.console import FINISHED, Console
from silosynth.deployment.flare.daemon import target
from silosynth.runtime.tls import Certificates, dialled_fingerprint, fingerprint

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
    deployment.coordinator.says(f"job {job} ended")
    assert "Traceback" not in (deployment.coordinator.workspace / "engine" / "console.txt").read_text()


@pytest.mark.live
def test_the_engines_port_shows_the_certificate_that_a_policy_may_name(deployment: Deployment) -> None:
    startup, own = (deployment.folder / name / "engine" / "startup" for name in ("bank", "coordinator"))
    certificates = Certificates(*(read(startup / name) for name in ("rootCA.pem", "client.crt", "client.key")))
    shown = x509.load_pem_x509_certificate(read(own / "server.crt")).public_bytes(Encoding.DER)
    port = int(target(startup).rpartition(":")[2])
    assert dialled_fingerprint("127.0.0.1", port, certificates) == fingerprint(shown)
