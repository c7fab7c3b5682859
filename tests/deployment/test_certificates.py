"""Certificates that sites renew with the key of the old one."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

pytest.importorskip("nvflare")

from tests.deployment.test_kits import FEDERATION

from silosynth.cli import app
from silosynth.core.errors import ConfigError, StorageError
from silosynth.deployment.certificates import install, issue, request, validity
from silosynth.deployment.kits import StartKit, read_kit, read_plan, write_kits

DAY = 86400.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits, and what the bank has asked for."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "federation.toml").write_text(FEDERATION)
    write_kits(read_plan(folder / "federation.toml"), folder / "kits")
    (folder / "kits" / "bank.request").write_bytes(request(read_kit(folder / "kits" / "bank")))
    return folder / "kits"


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(made, tmp_path / "kits"))


def keys_of(kit: StartKit) -> tuple[bytes, bytes]:
    own = kit.certificates()
    return own.certificate, own.key


def test_a_site_renews_its_certificate_and_hands_over_no_key(kits: Path) -> None:
    bank, others = read_kit(kits / "bank"), (kits / "shop" / "kit.json").read_bytes()
    before = keys_of(bank)
    asked = (kits / "bank.request").read_bytes()
    assert b"PRIVATE" not in asked
    now = time.time() + 300 * DAY
    name, pem = issue(asked, kits / "authority", now)
    known = install(bank, pem)
    after = keys_of(bank)
    assert name == "bank" and known.days_left(now) == pytest.approx(360, abs=0.01)
    assert before[0] != after[0] and before[1] != after[1] and (kits / "shop" / "kit.json").read_bytes() == others
    old, new = map(x509.load_pem_x509_certificate, (before[0], after[0]))
    assert old.subject == new.subject and new.public_key() != old.public_key()
    assert {extension.oid for extension in old.extensions} == {extension.oid for extension in new.extensions}
    new_key = (kits / "bank" / "engine" / "startup" / "client.key").read_bytes()
    assert all(new_key not in path.read_bytes() for path in (kits / "authority").rglob("*") if path.is_file())
    bank.check_private()
    with pytest.raises(StorageError):
        install(bank, pem)  # nothing is asked for any more


@pytest.mark.parametrize("name", ["coordinator", "dispatcher", "alice"])
def test_whoever_has_a_certificate_renews_it(kits: Path, name: str) -> None:
    kit = read_kit(kits / "coordinator").as_dispatcher() if name == "dispatcher" else read_kit(kits / name)
    before, now = keys_of(kit), time.time() + 10.0
    who, pem = issue(request(kit), kits / "authority", now)
    install(kit, pem)
    assert who.partition("@")[0] == name and all(old != new for old, new in zip(before, keys_of(kit), strict=True))
    with pytest.raises(ConfigError, match="has a dispatcher"):
        read_kit(kits / "bank").as_dispatcher()


def test_only_who_holds_a_valid_certificate_renews_it(kits: Path) -> None:
    asked = (kits / "bank.request").read_bytes()
    shop = (kits / "shop" / "engine" / "startup" / "client.crt").read_text()
    now = time.time() + 10.0
    issue(asked, kits / "authority", now)
    proof = json.loads(asked)
    shifted = proof["signature"][2:] + proof["signature"][:2]
    for wrong in ({"certificate": shop}, {"signature": shifted}, {"request": "-"}, {"certificate": "-"}):
        with pytest.raises(ConfigError, match="renewed for who holds"):
            issue(json.dumps(proof | wrong).encode(), kits / "authority", now)
    with pytest.raises(ConfigError, match="has expired"):
        issue(asked, kits / "authority", now + 361 * DAY)
    with pytest.raises(ConfigError):
        issue(b"[]", kits / "authority", now)
    with pytest.raises(StorageError):
        issue(asked, kits / "nowhere", now)


def test_a_certificate_of_another_site_is_not_installed(kits: Path) -> None:
    bank = read_kit(kits / "bank")
    before = keys_of(bank)
    for wrong in ((kits / "shop" / "engine" / "startup" / "client.crt").read_bytes(), before[0], b"-"):
        with pytest.raises(ConfigError):
            install(bank, wrong)
    assert keys_of(bank) == before


@pytest.mark.slow
def test_the_commands_say_what_to_do_next(kits: Path, tmp_path: Path) -> None:
    def call(*words: object) -> str:
        done = CliRunner().invoke(app, ["certificate", *map(str, words)])
        assert done.exit_code == 0, done.output
        return done.output

    kit, pem = ("--kit", kits / "bank"), tmp_path / "bank.crt"
    assert "ends on" in call("show", *kit)
    assert "install" in call("request", *kit, "--out", tmp_path / "asked")
    assert "bank" in call("sign", tmp_path / "asked", "--authority", kits / "authority", "--out", pem)
    assert "Start this site anew" in call("install", pem, *kit)
    assert validity(read_kit(kits / "bank")).whose == "this site"
