"""The manifests for Kubernetes: schemas, commands, settings, and how pods unpack their kit and are probed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.test_guide import CLUSTER, ROOT, blocks, check
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.deployment import presence
from silosynth.deployment.kits import KEY, KIT, read_kit
from silosynth.deployment.policy import SiloPolicy, read_policy
from silosynth.deployment.rows import read_silo

MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
SITES = {"coordinator": "coordinator", "party": "bank"}
POD = 10001  # user and group of pods
each = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)


def documents(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return {found["kind"]: found for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))}


def rules_of(container: dict[str, Any], what: str) -> dict[str, Any]:
    """Resources that a container asks for, or may have."""
    found: dict[str, Any] = container["resources"][what]
    return found


def pod_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = documents(path)["StatefulSet"]["spec"]["template"]["spec"]
    return found


@each
def test_pods_run_commands_that_exist_and_are_locked_in(path: Path) -> None:
    pod = pod_of(path)
    (main,) = pod["containers"]
    assert check(main["args"]) == f"{path.stem} start"
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    user = str(pod["securityContext"]["runAsUser"])
    assert f"--uid {user} " in (ROOT / "deploy/Dockerfile").read_text()
    volumes = {volume["name"] for volume in pod["volumes"]} | {"work"}
    for container in (*pod["initContainers"], main):
        rules = container["securityContext"]
        assert rules["readOnlyRootFilesystem"] and not rules["allowPrivilegeEscalation"]
        assert rules["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert {*rules_of(container, "requests")} >= {"cpu", "memory"} and "memory" in rules_of(container, "limits")
    mounts = {mount["name"]: mount["mountPath"] for mount in main["volumeMounts"]}
    assert main["args"][-1] == mounts["kit"] and mounts["work"] == f"{mounts['kit']}/work"
    assert all(volume["secret"]["defaultMode"] == 0o440 for volume in pod["volumes"] if "secret" in volume)


@each
def test_labels_and_network_policies_fit(path: Path) -> None:
    found = documents(path)
    pods, policy = found["StatefulSet"]["spec"], found["NetworkPolicy"]["spec"]
    labels = pods["template"]["metadata"]["labels"]
    assert pods["replicas"] == 1 and labels == pods["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    if "Service" in found:
        assert found["Service"]["spec"]["selector"] == labels and policy["egress"] == []
        assert {rule["port"] for rule in policy["ingress"][0]["ports"]} == {8002, 8003}
    else:
        assert policy["ingress"] == []


def test_settings_in_the_manifest_can_be_read(tmp_path: Path) -> None:
    (path,) = (path for path in MANIFESTS if path.stem == "party")
    for name, text in documents(path)["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text.replace("/run/secrets/crm", str(tmp_path)))
    (tmp_path / "password").touch(0o600)
    assert read_silo(tmp_path).identifiers == ["customer_id"]
    assert set(read_policy(tmp_path).algorithms) <= set(SiloPolicy().algorithms)


@each
def test_manifests_keep_the_schemas_of_old_and_new_clusters(path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for version in ("1.29", schemas.latest_version()):
        for found in documents(path).values():
            schemas.validate(found, version, strict=True)
    wrong = documents(path)["StatefulSet"]
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, "1.29", strict=True)


@each
def test_pods_are_probed_and_have_a_process_that_reaps(path: Path) -> None:
    pod = pod_of(path)
    assert pod["shareProcessNamespace"] and pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    (main,) = pod["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(main)
    probes = [main[name]["exec"]["command"][-1] for name in main if "exec" in (main[name] if "Probe" in name else ())]
    assert probes and all(f"/kit/work/{presence.FILE}" in text for text in probes)


def test_the_build_gets_what_the_image_copies_and_no_more() -> None:
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    lines = (ROOT / ".dockerignore").read_text().split()
    assert "*" in lines
    assert {line[1:] for line in lines if line[0] == "!"} == {name for names in copied for name in names.split()}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nvflare")
    folder = tmp_path_factory.mktemp("kits")
    plan = folder / "federation.toml"
    plan.write_text('name = "riverbank"\n[coordinator]\nhost = "127.0.0.1"\n[silos.bank]\n[silos.shop]\n')
    done = CliRunner().invoke(app, ["provision", str(plan), "--out", str(folder / "kits")])
    assert done.exit_code == 0, done.output
    return folder / "kits"


@pytest.fixture
def volumes() -> Iterator[Path]:
    """A folder that any user can enter, as none below pytest's own can."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


def packed(site: str, kits: Path, to: Path) -> None:
    """Pack a kit as the guide says."""
    (line,) = [
        line
        for text in blocks(CLUSTER, "sh")
        for line in text.splitlines()
        if line.startswith("tar ") and f"/{site} " in line
    ]
    to.mkdir()
    line = line.replace("kit.tar.gz", str(to / "kit.tar.gz")).replace("kits/", f"{kits}/")
    subprocess.run(["sh", "-c", line], check=True)


def as_pod(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's line as the user of a pod, where that is possible."""
    user: dict[str, Any] = {"user": POD, "group": POD, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, **user)


@pytest.mark.live
@each
def test_a_pods_user_unpacks_a_kit_into_a_volume_of_root(path: Path, kits: Path, volumes: Path) -> None:
    kit = volumes / "kit"
    packed(SITES[path.stem], kits, volumes / "secret")
    settings = volumes / "settings"
    settings.mkdir()
    for name, text in documents(path).get("ConfigMap", {"data": {}})["data"].items():
        (settings / name).write_text(text)
    kit.mkdir()
    if os.geteuid() == 0:
        os.chown(kit, 0, POD)
    kit.chmod(0o2777)
    (unpack,) = pod_of(path)["initContainers"]
    command = re.sub(r"(?<![\w/])/(?=(secret|settings|kit)\b)", f"{volumes}/", unpack["command"][-1])
    done = as_pod(command)
    assert done.returncode == 0, done.stderr
    site = read_kit(kit)
    site.check_private()
    assert site.name == SITES[path.stem] and (kit / KIT).exists()
    assert (kit / KEY).exists() == (path.stem == "party") and not (kit / "work").exists()
    assert all(stat.S_IMODE(found.stat().st_mode) & 0o077 == 0 for found in kit.rglob("*"))
    if path.stem == "coordinator":
        assert (site.dispatcher / "engine/startup/client.key").exists()


@pytest.mark.live
@each
def test_probes_tell_signs_of_life_from_old_ones(path: Path, tmp_path: Path) -> None:
    (main,) = pod_of(path)["containers"]
    presence.tell(tmp_path, 0.0, {})
    sign = tmp_path / presence.FILE
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "exec" not in main[name]:
            continue
        argv = [word.replace("/kit/work", str(tmp_path)) for word in main[name]["exec"]["command"]]
        codes = []
        for age in (0.0, 1e5):
            os.utime(sign, (time.time() - age,) * 2)
            codes.append(subprocess.run(argv, check=False).returncode)
        missing = [word.replace(presence.FILE, "nothing") for word in argv]
        codes.append(subprocess.run(missing, check=False, stderr=subprocess.DEVNULL).returncode)
        assert codes == [0, 1, 1], name
