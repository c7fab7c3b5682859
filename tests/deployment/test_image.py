"""The image's recipe, carried out step by step; and what comes of it, run as pods run it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tests.deployment.recipe import Stage, built
from tests.house import ROOT

TORCH = os.environ.get("SILOSYNTH_TORCH", "")
"""The index where PyTorch without CUDA is found. Nothing is downloaded by tests unless it is named."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="layers of file systems need Linux and root"),
    pytest.mark.skipif(not TORCH, reason="SILOSYNTH_TORCH names no index of packages"),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    context = tmp_path_factory.mktemp("context")
    lines = (ROOT / ".dockerignore").read_text().split()
    for name in (line[1:] for line in lines if line.startswith("!")):
        found = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(found, context / name, ignore=ignored) if found.is_dir() else shutil.copy(found, context)
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no file systems can be mounted here")
    with built(ROOT / "deploy/Dockerfile", context, {"TORCH": TORCH}, tmp_path_factory.mktemp("layers")) as made:
        yield made


def test_it_starts_as_nobody_in_particular_and_writes_nothing(image: Stage) -> None:
    assert (image.user, image.folder, image.entry) == ("10001:10001", "/kit", ["silosynth"])
    shown = image.run([*image.entry, "--help"], closed=True)
    assert shown.returncode == 0, shown.stderr
    assert "coordinator" in shown.stdout
    who = image.run(["sh", "-c", "id -u; id -g; touch /kit/x 2>&1; touch /tmp/x && echo tmp"], closed=True)
    assert who.stdout.split()[:2] == ["10001", "10001"] and "Read-only" in who.stdout and "tmp" in who.stdout.split()


def test_it_has_what_sites_need_and_the_sources_of_this_checkout(image: Stage) -> None:
    script = (
        "import nvflare, adbc_driver_postgresql, private_set_intersection.python, torch\n"
        "import silosynth\nfrom silosynth.deployment.protocol import installed\n"
        "print(silosynth.__file__, *installed())"
    )
    found = image.run(["python", "-W", "ignore", "-c", script], closed=True)
    assert found.returncode == 0, found.stderr
    where, version, sources = found.stdout.split()
    from silosynth.deployment.protocol import installed

    assert "site-packages" in where and (version, sources) == installed()


def test_pods_commands_are_there(image: Stage) -> None:
    for command in ("coordinator", "party"):
        shown = image.run([*image.entry, command, "start", "--kit", "/kit"], closed=True)
        assert shown.returncode == 4 and "/kit" in shown.stderr, shown  # there is no kit yet


def test_the_build_leaves_nothing_behind(image: Stage) -> None:
    assert not (image.root / "tmp" / "wheels").exists() and not (image.root / "source").exists()
