"""Keys that sites draw themselves, certificates that they renew with the key of the old one, lists of revoked ones."""

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
from silosynth.deployment import revoked
from silosynth.deployment.certificates import first_request, install, put_key, put_list, request, validity
from silosynth.deployment.flare.authority import issued_by, renew, revoke
from silosynth.deployment.kits import DISPATCHER, StartKit, read_kit, read_plan, write_kits

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


def test_certificates_last_as_long_as_the_guide_says(made: Path) -> None:
    own = read_kit(made / "bank").certificates()
    site, authority = (x509.load_pem_x509_certificate(pem) for pem in (own.certificate, own.authority))
    lasts = [(one.not_valid_after_utc - one.not_valid_before_utc).days for one in (site, authority)]
    guide = (Path(__file__).parents[2] / "docs/guide/federation.md").read_text("utf-8")
    assert "valid for 360 days" in guide and "that of the authority for ten years" in guide
    assert lasts[0] == 360 and 3650 <= lasts[1] <= 3653


def keys_of(kit: StartKit) -> tuple[bytes, bytes]:
    own = kit.certificates()
    return own.certificate, own.key


def test_a_site_renews_its_certificate_and_hands_over_no_key(kits: Path) -> None:
    bank, others = read_kit(kits / "bank"), (kits / "shop" / "kit.json").read_bytes()
    before = keys_of(bank)
    asked = (kits / "bank.request").read_bytes()
    assert b"PRIVATE" not in asked
    now = time.time() + 300 * DAY
    name, pem = renew(asked, kits / "authority", now)
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
    who, pem = renew(request(kit), kits / "authority", now)
    install(kit, pem)
    assert who.partition("@")[0] == name and all(old != new for old, new in zip(before, keys_of(kit), strict=True))
    with pytest.raises(ConfigError, match="has a dispatcher"):
        read_kit(kits / "bank").as_dispatcher()


def test_only_who_holds_a_valid_certificate_renews_it(kits: Path) -> None:
    asked = (kits / "bank.request").read_bytes()
    shop = (kits / "shop" / "engine" / "startup" / "client.crt").read_text()
    now = time.time() + 10.0
    renew(asked, kits / "authority", now)
    proof = json.loads(asked)
    shifted = proof["signature"][2:] + proof["signature"][:2]
    for wrong in ({"certificate": shop}, {"signature": shifted}, {"request": "-"}, {"certificate": "-"}):
        with pytest.raises(ConfigError, match="renewed for who holds"):
            renew(json.dumps(proof | wrong).encode(), kits / "authority", now)
    with pytest.raises(ConfigError, match="has expired"):
        renew(asked, kits / "authority", now + 361 * DAY)
    with pytest.raises(ConfigError):
        renew(b"[]", kits / "authority", now)
    with pytest.raises(StorageError):
        renew(asked, kits / "nowhere", now)


def test_a_certificate_of_another_site_is_not_installed(kits: Path) -> None:
    bank = read_kit(kits / "bank")
    before = keys_of(bank)
    for wrong in ((kits / "shop" / "engine" / "startup" / "client.crt").read_bytes(), before[0], b"-"):
        with pytest.raises(ConfigError):
            install(bank, wrong)
    assert keys_of(bank) == before


SITES = ("bank", "shop", "coordinator", DISPATCHER, "alice")


def keys_below(folder: Path) -> list[Path]:
    """Files that hold the private key of somebody's certificate."""
    return [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sites have drawn, NAME.key and NAME.request, and kits that were made for it."""
    folder = tmp_path_factory.mktemp("own")
    asked = {name: first_request(name, folder / f"{name}.key")[0] for name in SITES}
    (folder / "federation.toml").write_text(FEDERATION)
    write_kits(read_plan(folder / "federation.toml"), folder / "kits", asked)
    return folder


def test_whoever_provisions_never_has_a_sites_key(own: Path, tmp_path: Path) -> None:
    (authority,) = keys_below(own / "kits")  # the authority's own key
    assert authority.parts[-3:-1] == ("riverbank", "state") and list(json.loads(authority.read_text())) == [
        "root_cert", "root_pri_key",
    ]  # fmt: skip
    kits = Path(shutil.copytree(own / "kits", tmp_path / "kits"))
    for name in SITES:
        kit = read_kit(kits / "coordinator").as_dispatcher() if name == DISPATCHER else read_kit(kits / name)
        with pytest.raises(ConfigError, match="A key belongs to the certificate in the kit"):
            put_key(kit, (own / f"{'bank' if name == 'shop' else 'shop'}.key").read_bytes())
        if name != DISPATCHER:
            with pytest.raises(ConfigError, match=r"A kit holds the key of its certificate.*certificate install"):
                kit.check_private()
        put_key(kit, (own / f"{name}.key").read_bytes())
        assert kit.key_file.stat().st_mode & 0o777 == 0o600
    for name in ("bank", "coordinator"):
        read_kit(kits / name).check_private()
    subject = x509.load_pem_x509_certificate(read_kit(kits / "alice").certificate()).subject.rfc4514_string()
    assert "alice@operators.silosynth" in subject and "lead" in subject  # as FLARE needs it
    assert {one.name for one in issued_by(kits / "authority")} == set(SITES)


def test_a_request_is_of_who_it_says(own: Path, tmp_path: Path) -> None:
    plan = read_plan(own / "federation.toml")
    bank, _ = first_request("bank", tmp_path / "bank.key")
    with pytest.raises(StorageError, match="A key is drawn only once"):
        first_request("bank", tmp_path / "bank.key")
    for asked, said in (({"shop": bank}, "'bank' in place of 'shop'"), ({"bank": b"{}"}, "something else")):
        with pytest.raises(ConfigError, match=said):
            write_kits(plan, tmp_path / "kits", asked)
        shutil.rmtree(tmp_path / "kits")
    with pytest.raises(ConfigError, match="Did you mean 'bank'"):
        write_kits(plan, tmp_path / "kits", {"bnak": bank})
    with pytest.raises(ConfigError, match="renewed for who holds"):
        renew(bank, own / "kits" / "authority", time.time())


def test_a_kit_that_was_handed_out_is_not_made_again_unless_it_is_lost(made: Path, tmp_path: Path) -> None:
    kits = Path(shutil.copytree(made, tmp_path / "kits"))
    shutil.rmtree(kits / "bank")
    shop = (kits / "shop" / "engine" / "startup" / "client.crt").read_bytes()
    plan = read_plan(made.parent / "federation.toml")
    write_kits(plan, kits)
    assert [path.name for path in (kits / "bank").iterdir()] == ["kit.json"]
    write_kits(plan, kits, again=["bank"])
    renewed = read_kit(kits / "bank")
    assert renewed.key_file.exists() and renewed.certificate() != (made / "bank/engine/startup/client.crt").read_bytes()
    assert (kits / "shop" / "engine" / "startup" / "client.crt").read_bytes() == shop
    assert len([one for one in issued_by(kits / "authority") if one.name == "bank"]) == 2


def test_keys_that_an_earlier_version_has_kept_go(made: Path, tmp_path: Path) -> None:
    kits = Path(shutil.copytree(made, tmp_path / "kits"))
    shutil.rmtree(kits / "authority" / "issued")
    (state,) = kits.glob("authority/*/state/cert.json")
    bank = read_kit(kits / "bank")
    kept = {"cert": bank.certificate().decode(), "pri_key": bank.key_file.read_text()}
    state.write_text(json.dumps(json.loads(state.read_text()) | {"bank": kept}))
    write_kits(read_plan(made.parent / "federation.toml"), kits)
    assert keys_below(kits / "authority") == [state] and "pri_key" not in json.loads(state.read_text())
    assert [one.name for one in issued_by(kits / "authority")] == ["bank"]


def shown(kit: StartKit) -> bytes:
    """A site's certificate as others see it."""
    return revoked.der(kit.certificate())


def test_a_revoked_certificate_counts_no_more_wherever_the_list_is(kits: Path) -> None:
    bank, shop, coordinator = (read_kit(kits / name) for name in ("bank", "shop", "coordinator"))
    counts = coordinator.revoked()
    assert coordinator.revocations() is None and not counts.any() and not counts(shown(bank))
    first = revoke(kits / "authority", ["bank"], time.time())
    assert b"PRIVATE" not in first.pem and put_list(coordinator, first.pem) == first
    assert counts(shown(bank)) and not counts(shown(shop))  # without being started anew
    assert {one.name: one.revoked for one in issued_by(kits / "authority")}["bank"]
    with pytest.raises(ConfigError, match="that is revoked"):
        renew((kits / "bank.request").read_bytes(), kits / "authority", time.time() + 10)
    number = f"{next(one.serial for one in issued_by(kits / 'authority') if one.name == 'shop'):x}"
    second = revoke(kits / "authority", [number], time.time())
    assert (second.number, len(second.serials)) == (2, 2)
    assert put_list(coordinator, second.pem) == second and counts(shown(shop)) and counts(shown(bank))
    assert put_list(coordinator, first.pem) is None and counts(shown(shop))  # nobody goes back to an older list
    with pytest.raises(ConfigError, match="Did you mean 'shop'"):
        revoke(kits / "authority", ["shpo"], time.time())


def test_a_list_is_the_authoritys_and_says_how_old_it_is(kits: Path, own: Path) -> None:
    bank, now = read_kit(kits / "bank"), time.time()
    for pem in (revoke(own / "kits" / "authority", [], now).pem, bank.certificate(), b"-----BEGIN X509 CRL-----"):
        with pytest.raises(ConfigError, match="signed by this federation's authority"):
            put_list(bank, pem)
    kept = put_list(bank, revoke(kits / "authority", [], now).pem)
    assert kept is not None and "0 days old; 0 certificates" in kept.in_words(now)
    assert not kept.is_due(now) and "A newer one is due" in kept.in_words(now + 91 * DAY)
    (kits / "bank" / "work" / revoked.FILE).write_bytes(kept.pem[:-60])
    with pytest.raises(StorageError, match="Install it again"):
        bank.revoked()(shown(bank))  # nobody is let in, rather than somebody who is revoked


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
