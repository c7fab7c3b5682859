"""Provisioning, and what sites say without a federation."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from tests.deployment.flare.deployment import free_port

from silosynth.core.errors import ConfigError, StorageError, UnavailableError
from silosynth.deployment.flare import require_flare
from silosynth.deployment.flare.console import Console
from silosynth.deployment.flare.daemon import connection_problem, party_name, serve_coordinator, serve_party
from silosynth.deployment.flare.provisioning import AUTHORIZATION, CLASSES, Project, provision
from silosynth.deployment.flare.site import site_of

pytestmark = pytest.mark.live  # the engine's own imports start processes

LAZY = """
import sys, importlib
for name in ("provisioning", "daemon", "console", "relay", "site", "child"):
    importlib.import_module("silosynth.deployment.flare." + name)
assert not [name for name in sys.modules if name.startswith("nvflare")]
"""


def project(**options: object) -> Project:
    given = {"name": "toys", "host": "127.0.0.1", "port": free_port(), "parties": ["bank"], "operators": ["alice"]}
    return Project(**{**given, **options})  # type: ignore[arg-type]


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_nothing_imports_the_engine_early() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LAZY], check=True, timeout=120)


def test_without_the_engine_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for use in (
        require_flare,
        lambda: provision(project(), tmp_path),
        lambda: Console(tmp_path),
        lambda: serve_coordinator(tmp_path, say=print),
    ):
        with pytest.raises(UnavailableError, match=r"pip install 'silosynth\[flare\]'"):
            use()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parties": ["bank", "bank"]}, "name of its own"),
        ({"parties": ["alice"]}, "name of its own"),
        ({"parties": ["my.bank"]}, "letters, digits, '_' and '-'"),
        ({"name": "a toy"}, "letters, digits, '_' and '-'"),
        ({"operators": []}, "at least one operator"),
        ({"operators": ["../etc"]}, "letters, digits, '_' and '-'"),
        ({"port": 0}, "1 to 65535"),
        ({"scheme": "smoke"}, "grpc, tcp, http"),
    ],
)
def test_names_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        project(**options)


def test_kits_hold_what_each_needs_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    provision(project(host="federation.example.org", more_hosts=["10.0.0.7", "localhost"]), tmp_path)
    startup = {name: tmp_path / name / "engine" / "startup" for name in ("coordinator", "bank", "alice")}
    held = certificate(startup["coordinator"] / "server.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(name.value) for name in held.value] == ["federation.example.org", "10.0.0.7", "localhost"]
    for key in tmp_path.glob("*/engine/startup/*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "authority").stat().st_mode) == 0o700
    assert not list(tmp_path.glob("*/engine/**/*.sh"))
    for name in ("coordinator", "bank"):
        local = tmp_path / name / "engine" / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert resources["class_allow_list"] == CLASSES and resources["class_list_enforcement_mode"] == "enforce"
        assert json.loads((local / "authorization.json").read_text()) == AUTHORIZATION
    assert {rights["byoc"] for rights in AUTHORIZATION["permissions"].values()} == {"none"}


def test_a_party_is_added_by_the_same_authority(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    provision(project(), tmp_path)
    before = (tmp_path / "bank/engine/startup/client.crt").read_bytes()
    provision(project(parties=["bank", "clinic"]), tmp_path)
    assert (tmp_path / "bank/engine/startup/client.crt").read_bytes() == before
    roots = {path.read_bytes() for path in tmp_path.glob("*/engine/startup/rootCA.pem")}
    assert len(roots) == 1
    added = certificate(tmp_path / "clinic/engine/startup/client.crt")
    added.verify_directly_issued_by(x509.load_pem_x509_certificate(roots.pop()))
    (tmp_path / "authority").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="authority that issued the others"):
        provision(project(parties=["bank", "lab"]), tmp_path)


def test_a_folder_without_a_kit_is_told(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    for use in (
        lambda: serve_party(tmp_path, say=print),
        lambda: serve_coordinator(tmp_path, say=print),
        lambda: Console(tmp_path),
    ):
        with pytest.raises(StorageError, match=r"holds .*kit"):
            use()


def test_nobody_at_the_other_end_is_told(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    provision(project(), tmp_path)
    assert party_name(site_of(tmp_path / "bank")) == "bank"
    assert connection_problem(site_of(tmp_path / "bank")).startswith("nobody listens at 127.0.0.1:")
    with pytest.raises(UnavailableError, match=r"The coordinator at 127.0.0.1:.* answers"):
        Console(tmp_path / "alice", limit=3.0)
