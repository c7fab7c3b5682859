"""What the guide to federations shows works: files can be read, commands and options exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.core.conversation import Roster
from silosynth.deployment.coordinator import order
from silosynth.deployment.judging import JudgeOptions
from silosynth.deployment.kits import KEY, KIT, POLICY_TEMPLATE, FederationPlan, read_kit, read_plan
from silosynth.deployment.policy import POLICY, SiloPolicy, read_policy
from silosynth.deployment.rows import SILO, SiloData, read_silo
from silosynth.experiment import grammar as experiment

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/federation.md"
CLUSTER = ROOT / "docs/guide/kubernetes.md"
COMMANDS = {
    "certificate request", "certificate sign", "certificate install", "certificate show", "certificate list",
    "certificate revoke",
    "provision", "coordinator start", "party start", "party key", "policy check", "console", "submit", "status", "stop",
    "ledger show", "ledger verify", "ledger releases", "fetch", "judge", "appraise",
    "backup", "restore", "draw", "forget", "label", "verify", "approve", "refuse", "check", "resume",
}  # fmt: skip


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def toml(marker: str) -> list[str]:
    """The TOML files of the guide in which a line starts with ``marker``."""
    found = [text for text in blocks(GUIDE, "toml") if re.search(rf"^{re.escape(marker)}", text, re.MULTILINE)]
    assert found, marker
    return found


def with_all(text: str) -> str:
    """A file in which keys that are shown as comments count too."""
    return re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)


def keys(kind: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


def test_every_toml_file_is_of_a_kind_that_is_checked() -> None:
    known = [*toml("[coordinator]"), *toml("[data]"), *toml("least_rows"), *toml("[run]"), *toml("group = ")]
    assert sorted(known) == sorted(blocks(GUIDE, "toml"))


def test_groups_of_silos(tmp_path: Path) -> None:
    (text,) = toml("group = ")
    (tmp_path / "plan.toml").write_text(text)
    silos = ("clinic", "fund", "hospital", "insurer")
    job = order(experiment.read(tmp_path / "plan.toml"), Roster(silos), "alice").job
    assert job.config.silo_groups == (silos[:2], silos[2:]) and job.align is not None  # type: ignore[attr-defined]


def test_federation_toml(tmp_path: Path) -> None:
    (text,) = toml("[coordinator]")
    (tmp_path / "federation.toml").write_text(text)
    plan = read_plan(tmp_path / "federation.toml")
    assert list(plan.silos) == ["bank", "shop"] and all(silo.key for silo in plan.silos.values())
    assert all(re.search(rf"^\[?{key}\b", text, re.MULTILINE) for key in keys(FederationPlan))
    assert all(re.search(rf"^{key} = ", text, re.MULTILINE) for key in keys(type(plan.coordinator)))


def test_silo_toml(tmp_path: Path) -> None:
    for number, text in enumerate(toml("[data]")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "customers.parquet").touch()
        (folder / SILO).write_text(text.replace("/run/secrets/crm", str(folder / "password")))
        (folder / "password").touch(0o600)
        assert read_silo(folder).identifiers
    sources = (ROOT / "docs/guide/data-sources.md").read_text()
    assert all(
        f"{key} = " in sources or f"`{key}`" in sources for key in keys(SiloData) - {"identifiers", "batch_rows"}
    )


@pytest.mark.parametrize("text", [*toml("least_rows"), POLICY_TEMPLATE], ids=["guide", "kit"])
def test_policy_toml_shows_all_rules_and_their_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / POLICY).write_text(text)
    assert read_policy(tmp_path) == SiloPolicy()
    (tmp_path / POLICY).write_text(with_all(text))
    assert read_policy(tmp_path).model_fields_set == keys(SiloPolicy)
    explained = GUIDE.read_text().split("| rule | what is refused")[1].split("\n\n")[0]
    assert all(f"`{rule}`" in explained for rule in keys(SiloPolicy))


def test_experiment_toml_shows_every_key(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(toml("[coordinator]")[0])
    (text,) = toml("[run]")
    (tmp_path / "experiment.toml").write_text(with_all(text))
    plan = experiment.read(tmp_path / "experiment.toml")
    assert plan.unused("submit") == {}
    assert plan.model_fields_set == {"algorithm", "align", "split", "sample", "run", "judge"}
    elsewhere = {
        "algorithm.runtime", "split.seed", "split.path", "sample.seed", "sample.path", "sample.raw_text",
        "sample.given", "sample.balance", "sample.shift",
    }  # fmt: skip
    for name in plan.model_fields_set:
        section = getattr(plan, name)
        shown = section.model_fields_set | {key.split(".")[1] for key in elsewhere if key.startswith(name)}
        assert shown == keys(type(section)), name
    from silosynth.core.conversation import Roster

    made = order(plan, Roster(("bank", "shop")), "alice")
    assert made.job.name == "customers-1" and made.transport == "stream" and made.job.seed == 7
    assert made.job.holdout == 0.2
    assert plan.judge is not None
    options = JudgeOptions(**plan.judge.model_dump(exclude={"dealer"}))
    assert options.target == "income" and options.opening == JudgeOptions().opening


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_keys_kits_a_silo_that_is_added_and_certificates_that_are_renewed(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    plan, kits, renewed = tmp_path / "federation.toml", tmp_path / "kits", tmp_path / "renewed"
    text = 'name = "riverbank"\n[coordinator]\nhost = "127.0.0.1"\n'
    for silo in ("bank", "shop", "tax"):
        public = json.loads(run("party", "key", "--out", tmp_path / silo, "--json"))["public"]
        text += f'[silos.{silo}]\nkey = "{public}"\n'
        plan.write_text(text)
        if silo != "bank":  # first the bank and the shop; then the tax office joins
            run("provision", plan, "--out", kits)
    run("provision", plan, "--out", renewed)
    certificates = {}
    for silo in ("bank", "shop", "tax"):
        assert not (kits / silo / KEY).exists()
        shutil.copy(tmp_path / silo, kits / silo / KEY)
        certificates[silo] = read_kit(kits / silo).certificates()
        shutil.rmtree(kits / silo / "engine")
        shutil.copytree(renewed / silo / "engine", kits / silo / "engine")
        shutil.copy(renewed / silo / KIT, kits / silo / KIT)
        kit = read_kit(kits / silo)
        assert kit.roster.parties == ("bank", "shop", "tax") and kit.seat().name == silo
        assert kit.certificates().authority != certificates[silo].authority
    assert len({found.authority for found in certificates.values()}) == 1


def test_provisioning_says_which_kits_hold_private_keys(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    public = json.loads(run("party", "key", "--out", tmp_path / "sealing.key", "--json"))["public"]
    (tmp_path / "federation.toml").write_text(
        f'name = "river"\n[coordinator]\nhost = "127.0.0.1"\n[silos.bank]\nkey = "{public}"\n'
    )
    run("certificate", "request", "--name", "bank", "--key", tmp_path / "key", "--out", tmp_path / "bank.request")
    told = run("provision", tmp_path / "federation.toml", "--out", tmp_path / "kits", "--requests", tmp_path)
    assert "private keys over a channel that it alone can read: coordinator.\n" in told


def commands(text: str) -> Iterator[list[str]]:
    """The silosynth commands in a shell script, without the program's own name."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        found = [number for number, word in enumerate(words) if word == "silosynth" or word.endswith("/bin/silosynth")]
        if found and (words[0] in ("silosynth", "kubectl") or words[0].startswith("/")):
            yield words[found[0] + 1 :]


def check(words: list[str]) -> str:
    """Check that a command exists with its options; returns its name."""
    depth = 2 if words[0] in ("coordinator", "party", "policy", "ledger", "certificate") else 1
    name = " ".join(words[:depth])
    assert name in COMMANDS, words
    shown = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, words
    assert all(word in shown.stdout for word in words if word.startswith("--")), (words, shown.stdout)
    return name


def test_commands_exist_and_all_are_shown() -> None:
    seen = {check(words) for text in blocks(GUIDE, "sh") for words in commands(text)}
    assert seen == COMMANDS
    assert {check(words) for text in blocks(CLUSTER, "sh") for words in commands(text)} >= {"submit", "status", "fetch"}


def test_a_wheel_that_is_handed_out_is_built_by_a_command_that_exists_and_has_the_extras_named() -> None:
    shown = [line for text in blocks(GUIDE, "sh") for line in text.splitlines() if "whl" in line]
    assert shown[0].startswith("make wheel && sha256sum dist/silosynth-") and "*.whl)[" in shown[-1]
    assert re.search(r"^wheel:.*\n\t.* wheel .*--wheel-dir dist ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"\*\.whl\)\[([\w,]+)\]", shown[-1])[0].split(",")) <= set(extras)


def test_systemd_units_start_commands_that_exist() -> None:
    names = set()
    for text in blocks(GUIDE, "ini"):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(text)
        names.add(check(shlex.split(unit["Service"]["ExecStart"])[1:]))
        assert unit["Service"]["Restart"] == "always" and unit["Service"]["User"] == "silosynth"
    assert names == {"coordinator start", "party start"}
