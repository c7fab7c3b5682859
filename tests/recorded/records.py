"""The file of digests, by machine arithmetic and setting; and fitting with the sources of any commit."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("digests.json")
RUNTIMES = ["inprocess", "processes"]
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "dp-accounting")
REMEDY = """No digests are recorded for this machine's arithmetic. Record those of a commit that is known to be right:
    python -m tests.recorded record --at REV
and then check this tree: python -m tests.recorded check"""


def arithmetic() -> str:
    """What the bytes of a training depend on: the processor, and the libraries that compute."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    return ", ".join([platform.system(), _processor(), torch.backends.cpu.get_cpu_capability(), *versions])


def _processor() -> str:
    """Vendor, family and model: libraries choose their kernels by these."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    return " ".join([platform.machine(), *fields.values()])


def read() -> dict[str, dict[str, str]]:
    """This machine's records, by setting: the commit, and a digest for each facet."""
    return _all().get(arithmetic(), {})


def write(records: dict[str, dict[str, str]]) -> None:
    """Keep records of this machine, beside those of other machines and settings."""
    content = _all()
    content[arithmetic()] = content.get(arithmetic(), {}) | records
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _all() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@contextlib.contextmanager
def source_at(revision: str) -> Iterator[tuple[Path, str]]:
    """The src folder of a commit, in a work tree that goes again, and the commit's hash."""
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree / "src", commit
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


def fit(names: Sequence[str], runtime: str, source: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each setting's digests, with these tests' settings and the package in ``source``, in a process of its own.

    Raises:
        RuntimeError: another installation of the package was imported.
        subprocess.CalledProcessError: a setting cannot be fitted.
    """
    command = [sys.executable, "-m", "tests.recorded.fitting", runtime, *names]
    with tempfile.TemporaryDirectory() as state:  # for default run folders, which two recorders at once would share
        # The sources are for silos' processes too, and come before an editable install.
        environment = os.environ | {"PYTHONPATH": str(source), "XDG_STATE_HOME": state}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                line: dict[str, Any] = json.loads(text)
                if Path(line["source"]) != source.resolve():
                    raise RuntimeError(f"silosynth was imported from {line['source']}, not from {source}")
                yield line["name"], line["digests"]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:4])
