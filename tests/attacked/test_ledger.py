"""A coordinator that tells two silos different things, and whoever wants that forgotten afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.deployment.common import OPEN, SMALL, job, seated, two_silos

from silosynth.core.conversation import Turns, once
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.deployment.coordinator import Order, read_status, run_order
from silosynth.deployment.policy import Releases
from silosynth.deployment.protocol import AskNonce, Publish, RelayedHeads, SealHead
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.silo_ledger import FILE, SiloLedger, cross_check, public_key, verify_file
from silosynth.runtime.wire import decode, encode
from silosynth.simulation.silos import InProcess

Deviate = Callable[[str, Message], Message]
TINY = {**SMALL, "coder.steps": 10, "latent.steps": 2, "latent.checks": 1, "latent.sample_steps": 2}


def conduct(folder: Path, deviate: Deviate = lambda silo, ask: ask) -> Path:
    """A small job whose coordinator alters asks on their way; every silo behind its desk, with its ledger."""
    silos, chairs = two_silos(60), seated(two_silos(1))
    books = {name: SiloLedger(folder / name, "trial", chairs[name]) for name in silos}
    cpu = torch.device("cpu")
    sides = {
        name: DeploymentSilo(chairs[name], rows, OPEN, folder / name, Releases(folder / name), cpu, book=books[name])
        for name, rows in silos.items()
    }
    with InProcess(sides, folder / "checkpoints") as link:
        for name, desk in link._desks.items():
            desk._book, desk.answer = books[name], altering(name, desk.answer, deviate)  # type: ignore[method-assign]
        run_order(Order(job(silos, options=TINY, rows=5)), link, folder / "coordinator")
    return folder


def altering(name: str, answer: Callable[..., bytes], deviate: Deviate) -> Callable[..., bytes]:
    return lambda job, step, blob: answer(job, step, encode(deviate(name, decode(blob))))  # type: ignore[arg-type]


def verified(folder: Path, silo: str):  # type: ignore[no-untyped-def]
    return verify_file(folder / silo / FILE, key=public_key(seated(two_silos(1))[silo]), job="trial", silo=silo)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conduct(tmp_path_factory.mktemp("honest"))


def test_after_an_honest_job_all_ledgers_fit_together(honest: Path) -> None:
    verdicts = {silo: verified(honest, silo) for silo in ("bank", "shop")}
    assert all(verdict.faults == () and verdict.heads.keys() == {other} for verdict, other in zip(
        verdicts.values(), ("shop", "bank"), strict=True
    ))  # fmt: skip
    texts = {silo: (honest / silo / FILE).read_bytes() for silo in verdicts}
    assert not list(cross_check([(verdicts[silo], texts[silo]) for silo in verdicts]))
    assert read_status(honest / "coordinator").state == "done"
    sent = [json.loads(line)["type"] for line in (honest / "coordinator" / FILE).read_text().splitlines()]
    kept = [json.loads(line).get("type") for line in texts["bank"].splitlines()]
    assert [kind for kind in kept if kind] == [
        json.loads(line)["type"]
        for line in (honest / "coordinator" / FILE).read_text().splitlines()
        if "bank" in (json.loads(line)["from"], json.loads(line)["to"])
    ]
    assert len(sent) > 20


def test_the_coordinator_cannot_tell_silos_different_things(tmp_path: Path) -> None:
    """Another synthetic table for the shop: both silos say so, and the job does not end as if nothing had been."""

    def deviate(silo: str, ask: Message) -> Message:
        if silo == "shop" and isinstance(ask, Publish):
            return replace(ask, table=ask.table.take(torch.arange(len(ask.table)).flip(0)))
        return ask

    with pytest.raises(ProtocolError, match="silos were asked different things at message"):
        conduct(tmp_path, deviate)
    assert read_status(tmp_path / "coordinator").state == "failed"
    assert "asked different things at message" in verified(tmp_path, "bank").faults[0]


@pytest.mark.slow
def test_it_cannot_relay_the_heads_of_an_earlier_job_either(tmp_path: Path, honest: Path) -> None:
    """Heads are sealed for this comparison alone; nor can a silo be left out, or told another number."""
    kept: list[RelayedHeads] = []

    def recording(silo: str, ask: Message) -> Message:
        kept.extend([ask] if silo == "shop" and isinstance(ask, RelayedHeads) else [])
        return ask

    conduct(tmp_path / "first", recording)
    with pytest.raises(ProtocolError, match="opens with the pinned keys"):
        conduct(tmp_path / "second", lambda silo, ask: kept[0] if silo == "shop" and type(ask) is RelayedHeads else ask)
    with pytest.raises(ProtocolError, match="head of each other silo's ledger"):
        conduct(tmp_path / "third", lambda silo, ask: RelayedHeads(()) if isinstance(ask, RelayedHeads) else ask)


@pytest.mark.parametrize("alter", [
    lambda ask: replace(ask, silos=ask.silos[:1], nonces=ask.nonces[:1]),
    lambda ask: replace(ask, nonces=(bytes(32), bytes(32))),
    lambda ask: replace(ask, nonces=()),
], ids=["left out", "other numbers", "none"])  # fmt: skip
def test_it_cannot_leave_silos_out_of_the_comparison(tmp_path: Path, alter: Callable[[SealHead], SealHead]) -> None:
    silos, chair = two_silos(60), seated(two_silos(1))["bank"]
    side = DeploymentSilo(
        chair, silos["bank"], OPEN, tmp_path, Releases(tmp_path), torch.device("cpu"),
        book=SiloLedger(tmp_path, "trial", chair),
    )  # fmt: skip
    side.job, side._turns = job(silos, options=TINY), Turns(*once(AskNonce, SealHead))
    nonce = side.answer(AskNonce()).nonce  # type: ignore[attr-defined]
    with pytest.raises(ProtocolError, match="Silos of a job compare ledgers"):
        side.answer(alter(SealHead(("bank", "shop"), (nonce, bytes(32)))))
