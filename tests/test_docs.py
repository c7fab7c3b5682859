"""What README and docs show is right: files are valid, links lead somewhere, commands, scripts and targets exist.

`test_snippets` runs what can be run.
"""

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
from silosynth.deployment import rows
from silosynth.evaluation import Score, fidelity
from silosynth.evaluation.coding import code_tables
from silosynth.experiment import grammar as experiment

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


GROUPS = ("ledger", "certificate", "coordinator", "datasets", "papers", "party")  # of commands


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/index.md"], ids=lambda page: page.name)
def test_experiment_files_in_the_docs_are_valid(page: Path, tmp_path: Path) -> None:
    whole = [block for block in blocks(page, "toml") if "[silos." in block]
    for text in blocks(page, "toml"):
        file = text if text in whole else whole[0].partition("[algorithm]")[0] + text  # a section by itself
        (tmp_path / "experiment.toml").write_text(file, encoding="utf-8")
        plan = experiment.read(tmp_path / "experiment.toml")
        catalog.algorithm(plan.algorithm.name).configure(plan.algorithm.preset, plan.algorithm.options)


def test_sources_in_the_docs_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRM_USER", "CRM_PASSWORD"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "secret").touch(0o600)
    for text in blocks(ROOT / "docs/guide/data-sources.md", "toml"):
        path = re.search(r'^path = "(.*)"', text, re.MULTILINE)
        (tmp_path / (path[1] if path else "unused")).touch()
        text = text.replace("/run/secrets/crm", str(tmp_path / "secret"))
        for file in re.findall(r'"(?:sqlite|duckdb):///(.*)"', text):  # where an absolute one is, no test may write
            text = text.replace(file, Path(file).name)
            (tmp_path / Path(file).name).touch()
        (tmp_path / rows.SILO).write_text(text, encoding="utf-8")
        assert rows.read_silo(tmp_path)


KNOWN = {"bash", "sh", "python", "toml", "text", "ini", "sql"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_language_and_an_end(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences[1::2]) <= {""}
    assert set(fences[::2]) <= KNOWN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_scripts_and_files_of_commands_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in (
        line.split("#")[0].split()
        for block in (*blocks(page, "bash"), *blocks(page, "sh"))
        for line in block.splitlines()
    ):
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
        own = [word for word in words if re.match(r"(\.ci|benchmarks|deploy|examples|tests)/", word)]
        assert all((ROOT / word).exists() for word in own), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_docs_can_be_read(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_docs_exist(page: Path) -> None:
    lines = [line for block in (*blocks(page, "bash"), *blocks(page, "sh")) for line in block.splitlines()]
    found = (re.match(r"(?:kubectl exec .* -- )?silosynth (.*)", line.split("#")[0]) for line in lines)
    for words in (["silosynth", *match[1].split()] for match in found if match):
        depth = 4 if words[1:3] == ["papers", "run"] else 3 if words[1] in GROUPS else 2
        named = words[1:depth]
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
    code = blocks(ROOT / page, "python")[0] + '\nreport.save("report.json")\n'
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


def test_tests_that_the_documents_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", page.read_text("utf-8"))}
    assert len(named) > 20
    gone = []
    for name in named:
        path, *scopes = name.split("::")
        text = (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else ""
        if not all(re.search(rf"^\s*(?:def|class) {scope}\b", text, re.MULTILINE) for scope in scopes):
            gone.append(name)
    assert gone == []


def test_claims_of_the_protection_table_have_numbers_and_numbers_have_tests() -> None:
    claims, tests = (ROOT / "docs/guide/protection.md").read_text(encoding="utf-8").split("| | tests |")
    told = dict(re.findall(r"^\| (\d+) \| (.*) \|$", tests, re.MULTILINE))
    cited = {number for group in re.findall(r"\[(\d+(?:, \d+)*)\]", claims) for number in group.split(", ")}
    assert cited == told.keys()
    for path, _, name in re.findall(r"`(tests/[\w/]+\.py)(::([\w:]+))?`", tests):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert all(f"def {part}(" in text or f"class {part}" in text for part in name.split("::") if part), (path, name)
