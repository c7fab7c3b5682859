"""What `silosynth check` finds at a site."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.deployment.common import customers
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.deployment import preflight
from silosynth.deployment.kits import SILO_TEMPLATE, read_kit


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A silo's, with rows and a policy."""
    from tests.deployment.kill_jobs import prepare

    prepare("silofuse", tmp_path)
    frame = customers(150)
    frame.loc[:2, "customer"] = "C-1"
    frame.to_csv(tmp_path / "bank" / "rows.csv", index=False)
    for key in tmp_path.rglob("*.key"):
        key.chmod(0o600)
    return tmp_path / "bank"


def found(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Verdicts and words, by what was looked at."""
    by: dict[str, list[tuple[str, str]]] = {}
    for one in preflight.findings(read_kit(folder)):
        by.setdefault(one.what, []).append((one.verdict, one.said))
    return by


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that can be reached."""
    monkeypatch.setattr(preflight, "dialled_certificate", lambda *_: b"certificate")
    monkeypatch.setattr(preflight.socket, "create_connection", lambda *_: SimpleNamespace(close=lambda: None))


def test_a_silo_that_is_ready_and_what_it_is_told(kit: Path) -> None:
    told = found(kit)
    assert {verdict for lines in told.values() for verdict, _ in lines} <= {"fine", "warning"}
    assert "3 of 150 rows share their identifier" in told["rows"][1][1]
    assert told["columns"][0][1].startswith("age (") and "customer" not in told["columns"][0][1]
    assert "silofuse" in told["policy"][0][1] and "worst coordinator learns" in told["policy"][1][1]
    assert set(told) == {"clock", "certificate", "private keys", "disk", "silosynth", "coordinator", "policy", "rows",
                         "columns", "memory"}  # fmt: skip


@pytest.mark.parametrize(
    ("break_it", "what", "said"),
    [
        (lambda kit: (kit / "silo.toml").write_text(SILO_TEMPLATE), "rows", "the template, unchanged"),
        (lambda kit: (kit / "rows.csv").unlink(), "rows", "rows.csv"),
        (lambda kit: (kit / "rows.csv").write_text("customer,age\n1,2\n2,3\n"), "rows", "fewer than the policy's"),
        (lambda kit: (kit / "policy.toml").write_text("least_row = 3\n"), "policy", "least_rows"),
        (lambda kit: (kit / "sealing.key").chmod(0o644), "private keys", "chmod 600"),
    ],
)
def test_each_fault_is_found(break_it: Any, what: str, said: str, kit: Path) -> None:
    break_it(kit)
    faults = [words for verdict, words in found(kit)[what] if verdict == "fault"]
    assert faults and said in faults[0]


def test_columns_that_silo_toml_declares_and_the_table_lacks(kit: Path) -> None:
    with open(kit / "silo.toml", "a") as file:
        file.write('[schema.agee]\nkind = "continuous"\n')
    assert ("fault", "[schema.agee] declares a column that the table lacks. Did you mean 'age'?") in found(kit)[
        "columns"
    ]


def test_certificates_that_are_not_valid_yet_or_no_more(kit: Path) -> None:
    startup, now = kit / "engine" / "startup", datetime.now(timezone.utc)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    for begin, end, what in ((-400, -3, "certificate"), (-400, 5, "certificate"), (2, 300, "clock")):
        made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now + timedelta(begin)).not_valid_after(now + timedelta(end))
        pem = made.sign(key, hashes.SHA256()).public_bytes(preflight.serialization.Encoding.PEM)
        (startup / "client.crt").write_bytes(pem)
        verdict = found(kit)[what][0][0]
        assert verdict == ("warning" if end == 5 else "fault")
    assert any("do not belong together" in said for _, said in found(kit)["certificate"])


def test_the_command_says_it_all_and_fails_with_the_first_fault(kit: Path) -> None:
    done = CliRunner().invoke(app, ["check", "--kit", str(kit), "--json"])
    assert done.exit_code == 0 and len(json.loads(done.stdout)["findings"]) > 8
    (kit / "silo.toml").write_text(SILO_TEMPLATE)
    done = CliRunner().invoke(app, ["check", "--kit", str(kit)])
    assert done.exit_code == 2 and "the template, unchanged" in done.output and "faults of rows" in done.output


def test_the_coordinator_is_checked_too(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None: ...

        def setsockopt(self, *_: object) -> None: ...

        def bind(self, place: tuple[str, int]) -> None:
            if place[1] == 8003:
                raise OSError

    monkeypatch.setattr(preflight.socket, "socket", Probe)
    told = found(kit.parent / "coordinator")
    assert [verdict for verdict, _ in told["ports"]] == ["fine", "warning", "fine"] and "rows" not in told
