"""What README and guide show works: experiment files are valid, links lead somewhere, commands exist, code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from silosynth import catalog
from silosynth.cli import app
from silosynth.experiment import grammar as experiment

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


GROUPS = ("bench", "coordinator", "datasets", "party")  # of commands


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/index.md"], ids=lambda page: page.name)
def test_experiment_files_in_the_docs_are_valid(page: Path, tmp_path: Path) -> None:
    text, *_ = (block for block in _blocks(page, "toml") if "[silos." in block)
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    plan = experiment.read(tmp_path / "experiment.toml")
    catalog.algorithm(plan.algorithm.name).configure(plan.algorithm.preset, plan.algorithm.options)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_docs_exist(page: Path) -> None:
    lines = [line for block in _blocks(page, "bash") for line in block.splitlines()]
    for words in (line.split("#")[0].split() for line in lines if line.startswith("silosynth ")):
        named = words[1:3] if words[1] in GROUPS else words[1:2]
        shown = CliRunner().invoke(app, [*named, "--help"])
        assert shown.exit_code == 0, words
        assert all(word in shown.stdout for word in words if word.startswith("-")), words


def test_the_guide_names_every_preset_and_algorithm() -> None:
    guide = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for name in (*catalog.ALGORITHMS, *catalog.ALGORITHMS["silofuse"].presets):
        assert name in guide


@pytest.mark.slow
def test_the_python_code_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = _blocks(ROOT / "README.md", "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "demo.silosynth"}
