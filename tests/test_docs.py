"""What README and guide show works: experiment files are valid, links lead somewhere, commands exist, code runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from silosynth import catalog
from silosynth.cli import app
from silosynth.data import datasets
from silosynth.evaluation import Score, fidelity
from silosynth.evaluation.coding import code_tables
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
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_quickstart_runs_and_its_floors_are_those_of_random_halves(page: str, tmp_path: Path) -> None:
    """Its figures, not only its exit code: a floor of rows split by position lies far outside."""
    code = _blocks(ROOT / page, "python")[0] + '\nreport.save("report.json")\n'
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = {"report.html", "report.json"} | ({"demo.silosynth"} if page == "README.md" else set())
    assert {path.name for path in tmp_path.iterdir()} == files
    report = json.loads((tmp_path / "report.json").read_text())
    assert [premise["holds"] for premise in report["premises"]] == [True, True, True]
    assert report["ledger"]
    floors = {score["name"]: score["floor"] for score in report["scores"]}
    rows = report["rows"]
    many = _floors_of_random_rows(rows["n_train"], rows["n_holdout"], rows["n_synthetic"])
    for name, drawn in many.items():
        assert min(drawn) <= floors[name] <= max(drawn), name
    assert 0.44 < floors["two_sample_auc_xgboost"] < 0.56
    if page == "README.md":
        assert "VERDICTS ARE WITHHELD" not in done.stdout
        assert "show through" not in (tmp_path / "report.html").read_text()


def _floors_of_random_rows(n: int, h: int, m: int) -> dict[str, list[float]]:
    """Floors of the shape and the trend error for n training, h hold-out and m synthetic rows of the demo table."""
    (table,) = code_tables({"demo": datasets.demo().frame}).values()
    found: dict[str, list[float]] = {"column_shape_error": [], "pair_trend_error": []}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(table))
        compared = fidelity.compare(table.take(order[:n]), table.take(order[n : n + h]), rng, replicates=False)
        floor = fidelity.Floor(compared, fidelity.size_scale(n, m, n, h), "")
        scores = [*fidelity.column_shape(compared, floor), *fidelity.pair_trend(compared, floor, [None] * 8)]
        for name, drawn in found.items():
            (score,) = (score for score in scores if score.name == name)
            assert isinstance(score, Score) and score.floor is not None
            drawn.append(score.floor)
    return found
