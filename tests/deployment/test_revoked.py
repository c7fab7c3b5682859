"""Certificates revoked in a running federation whose sites have all drawn their own keys; and a silo that is added."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.deployment.abroad import SILOFUSE, Abroad, until
from tests.deployment.common import customers
from tests.deployment.flare.deployment import free_port
from tests.deployment.network import Host
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.core.conversation import COORDINATOR
from silosynth.deployment.presence import read_presence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SITES = (COORDINATOR, "dispatcher", "alice", "bank", "shop")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Host]]:
    hosts = {name: Host() for name in (COORDINATOR, "bank", "shop", "tax", "alice")}
    made = Abroad(tmp_path_factory.mktemp("here"), hosts, free_port())
    try:
        keys = made.folder / "keys"
        keys.mkdir()
        for name in SITES:
            call("certificate request --name", name, "--key", keys / f"{name}.key", "--out", keys / f"{name}.request")
        made.provision("--requests", str(keys))
        for name in SITES:
            site = COORDINATOR if name == "dispatcher" else name
            more = ["--dispatcher"] if name == "dispatcher" else []
            call("certificate install", keys / f"{name}.key", "--kit", made.kits / site, *more)
        made.everybody()
        yield made
    finally:
        for host in hosts.values():
            host.clear()


def call(command: str, *words: object) -> str:
    """A command that talks to nobody, in this process."""
    done = CliRunner().invoke(app, [*command.split(), *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def a_list(here: Abroad[Host], *whose: str) -> Path:
    """What whoever provisions hands out."""
    place = here.folder / "revoked.crl"
    call("certificate revoke", *whose, "--authority", here.kits / "authority", "--out", place)
    return place


def joined(here: Abroad[Host], name: str) -> int:
    """How often a site has connected."""
    return here.log(name).read_text().count(" connected\n")


def connected(here: Abroad[Host], silo: str) -> bool:
    """Whether the coordinator has heard of it lately."""
    return read_presence(here.kits / COORDINATOR / "work").connected(silo, time.time())


def test_sites_work_with_keys_that_they_alone_have(here: Abroad[Host]) -> None:
    here.submit("first", SILOFUSE, transport="stream")
    here.submit("hers", SILOFUSE, at="alice")
    here.done("first")
    here.done("hers")


def test_a_silo_is_added_and_the_others_go_on_untouched(here: Abroad[Host]) -> None:
    """Only its partners in a job need the new kit.json, and nobody is started anew."""
    plan, times = here.folder / "federation.toml", [joined(here, name) for name in ("bank", "shop")]
    plan.write_text(plan.read_text() + "[silos.tax]\n")
    files = {
        path: path.read_bytes()
        for name in ("bank", "shop")
        for path in (here.kits / name / "engine").rglob("*")
        if path.is_file()
    }
    before = {name: (here.kits / name / "kit.json").read_bytes() for name in (COORDINATOR, "bank", "shop")}
    call("provision", plan, "--out", here.kits)
    new = {name: (here.kits / name / "kit.json").read_bytes() for name in before}
    for name, content in before.items():
        (here.kits / name / "kit.json").write_bytes(content)
    kit = here.kits / "tax"
    customers(160)[["customer", "age"]].rename(columns={"age": "years"}).to_csv(kit / "customers.csv", index=False)
    (kit / "silo.toml").write_text('[data]\npath = "customers.csv"\nidentifiers = ["customer"]\n')
    (kit / "policy.toml").write_text("least_rows = 10\npublic_seed = true\nkeyed_hash = true\n")
    here.start("tax")
    here.says("tax", " connected\n")
    here.submit("without", SILOFUSE, silos=["bank", "shop"])
    here.done("without")
    for name, content in new.items():
        (here.kits / name / "kit.json").write_bytes(content)
    here.submit("with", SILOFUSE, silos=["bank", "shop", "tax"])
    here.done("with")
    assert all(path.read_bytes() == content for path, content in files.items())
    assert [joined(here, name) for name in ("bank", "shop")] == times


def test_a_silo_whose_certificate_is_revoked_is_cut_off_and_comes_back_with_another(here: Abroad[Host]) -> None:
    until(lambda: connected(here, "bank"), lambda: "the bank has not come")
    call("certificate install", a_list(here, "bank"), "--kit", here.kits / COORDINATOR)
    here.says(COORDINATOR, "closed a connection: The certificate of bank counts")
    here.says(COORDINATOR, "refused a connection: The certificate of bank counts")
    until(lambda: not connected(here, "bank"), lambda: "the bank stays")
    here.submit("shut", SILOFUSE)
    here.wait("shut", lambda now: now.stage == "waiting for bank")
    here.end("bank")
    shutil.copytree(here.kits / "bank", here.folder / "revoked bank", ignore=shutil.ignore_patterns("work"))
    call("provision", here.folder / "federation.toml", "--out", here.kits, "--again", "bank")
    here.start("bank")
    here.done("shut")  # the list has come to the shop with it
    assert "passed on revoked certificates: list" in (here.kits / "shop" / "work" / "log.txt").read_text()
    here.end("bank")
    here.running["revoked"] = here.hosts["bank"].start(
        here.words("party", "start", "--kit", str(here.folder / "revoked bank")), here.log("revoked")
    )
    here.says("revoked", "not connected yet")
    assert not connected(here, "bank")
    here.end("revoked")
    before = joined(here, "bank")
    here.start("bank")
    here.says("bank", " connected\n", times=before + 1)


def test_a_coordinator_whose_certificate_is_revoked_is_left(here: Abroad[Host]) -> None:
    list_ = a_list(here, COORDINATOR)
    for name in ("bank", "shop"):
        call("certificate install", list_, "--kit", here.kits / name)
        here.says(name, "The certificate of the coordinator counts")
        here.says(name, "not connected yet: the certificate of the coordinator at")
        assert here.log(name).read_text().count("the engine ended") == 1  # and then waits for another coordinator
    until(lambda: not connected(here, "bank") and not connected(here, "shop"), lambda: "silos stay")
    here.end(COORDINATOR)
    before = {name: joined(here, name) for name in ("bank", "shop")}
    call("provision", here.folder / "federation.toml", "--out", here.kits, "--again", COORDINATOR)
    here.start(COORDINATOR)
    for name in ("bank", "shop"):
        here.says(name, " connected\n", times=before[name] + 1)
    here.submit("last", SILOFUSE, silos=["bank", "shop"])
    here.done("last")
