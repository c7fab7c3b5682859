"""What networks do: a federation of three hosts, whose plugs are pulled. Each host is a network namespace."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.deployment.abroad import SILOFUSE, VTGAN, Abroad, until
from tests.deployment.network import Namespace, available, network

from silosynth.core.conversation import COORDINATOR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="network namespaces need Linux, root, ip and ss"),
    pytest.mark.timeout(1200),
]
LONG = VTGAN.format(epochs=90)


@pytest.fixture(scope="module")
def abroad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Namespace]]:
    with network([COORDINATOR, "bank", "shop"]) as hosts:
        made = Abroad(tmp_path_factory.mktemp("abroad"), hosts)
        made.provision()
        made.everybody()
        yield made


@pytest.fixture(scope="module")
def uncut(abroad: Abroad[Namespace]) -> str:
    """The table of a run to which nothing happens."""
    abroad.submit("uncut", LONG)
    assert abroad.done("uncut").attempts == 1
    return abroad.table("bank", "uncut")


def test_three_hosts_train_and_both_silos_get_the_table(abroad: Abroad[Namespace]) -> None:
    pytest.importorskip("private_set_intersection")
    abroad.submit("happy", SILOFUSE, method="psi", transport="stream", at="bank")  # alice works at the bank
    abroad.done("happy")
    tables = {abroad.table(name, "happy") for name in (COORDINATOR, "bank", "shop")}
    assert len(tables) == 1
    report = abroad.folder / "report.html"
    fetched = abroad.command(
        "bank", "fetch", "happy", "--kit", str(abroad.kits / "bank"), "--out", str(abroad.folder / "made.csv"),
        "--report", str(report),
    )  # fmt: skip
    assert fetched.returncode == 0, fetched.stderr
    assert report.stat().st_size > 10_000 and len((abroad.folder / "made.csv").read_text().splitlines()) == 51


def test_nobody_can_call_a_silo(abroad: Abroad[Namespace]) -> None:
    assert any(place.endswith(f":{abroad.port}") for place in abroad.hosts[COORDINATOR].listening())
    for silo in ("bank", "shop"):
        assert abroad.hosts[silo].listening() == []


def cut(abroad: Abroad[Namespace], job: str, seconds: float) -> int:
    """Cut the shop off for some time, have the job end, and return how many attempts that took."""
    abroad.hosts["shop"].link("down")
    try:
        time.sleep(seconds)
        assert abroad.status(job).state != "done"
    finally:
        abroad.hosts["shop"].link("up")
    return abroad.done(job).attempts


def test_a_cut_that_lasts_is_gone_on_from_a_checkpoint(abroad: Abroad[Namespace], uncut: str) -> None:
    abroad.submit("cut", LONG)
    abroad.checkpoint("cut")
    assert cut(abroad, "cut", 75) == 2
    assert abroad.table("bank", "cut") == abroad.table("shop", "cut") == uncut
    assert "resumes from a checkpoint" in (abroad.kits / "bank/work/jobs/cut/log.txt").read_text()


@pytest.mark.parametrize(("job", "transport", "seconds"), [("short", "relay", 20), ("beside", "stream", 60)])
def test_a_short_cut_is_waited_for(
    abroad: Abroad[Namespace], uncut: str, job: str, transport: str, seconds: float
) -> None:
    abroad.submit(job, LONG, transport=transport)
    abroad.wait(job, lambda now: "training" in now.stage and now.done > 3)
    assert cut(abroad, job, seconds) <= 2  # on a busy machine the engine may take a silo for lost earlier
    assert abroad.table("bank", job) == abroad.table("shop", job) == uncut


def test_a_party_that_is_slow(abroad: Abroad[Namespace], uncut: str) -> None:
    abroad.submit("slow", LONG)
    for done in (3, 6):
        abroad.wait("slow", lambda now, done=done: "training" in now.stage and now.done > done)
        with abroad.hosts["bank"].stopped():
            time.sleep(12)
    ended = abroad.done("slow")
    assert ended.attempts == 1 and abroad.table("shop", "slow") == uncut


def test_strangers_and_twins_stay_outside(abroad: Abroad[Namespace], tmp_path: Path) -> None:
    other = Abroad(tmp_path, abroad.hosts)
    other.provision()
    other.start("shop")
    other.says("shop", "has a certificate from another provisioning")
    other.running["shop"].terminate()
    other.running["shop"].wait(60)
    shutil.copytree(abroad.kits / "bank", tmp_path / "twin", ignore=shutil.ignore_patterns("work"))
    twin = abroad.command("shop", "party", "start", "--kit", str(tmp_path / "twin"))
    assert twin.returncode == 3, twin.stderr
    assert "The coordinator accepts 'bank' (got: it refuses)" in twin.stderr
    abroad.says(COORDINATOR, "party bank is connected already: refused a second one")
    abroad.submit("after", SILOFUSE)
    abroad.done("after")


def test_everybody_leaves(abroad: Abroad[Namespace]) -> None:
    for name in ("bank", "shop", COORDINATOR):
        abroad.end(name)
    until(lambda: abroad.hosts[COORDINATOR].listening() == [], lambda: "somebody still listens")
