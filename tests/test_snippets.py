"""README and docs work as written: Python and shell run; what they compute is sane, and is what the text shows.

Snippets of one page run in order, in one namespace or one folder, on tables that have the columns they name. What would
train for hours is run at sizes in `SMALLER`. What cannot run here is named in `ELSEWHERE`, with the tests that try it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.bounds import bounds
from tests.test_docs import PAGES, ROOT, blocks

import silosynth as ss
from silosynth.evaluation import Report

PYTHON = [page for page in PAGES if blocks(page, "python")]
SHELL = [page for page in PAGES if blocks(page, "bash")]
ELSEWHERE = {
    "papers": "tests/papers",
    "policy": "tests/attacked",
    "provision": "tests/deployment",
    "coordinator": "tests/deployment",
    "party": "tests/deployment",
    "submit": "tests/deployment",
    "fetch": "tests/deployment",
    "appraise": "tests/deployment",
    "judge": "tests/deployment",
}
SMALLER = {  # what a page says → what is run
    "docs/guide/audits.md": {
        'silos={"bank": [...], "clinic": [...]}': "silos=silos",
        '"balanced", ': '"fast", {"generator": [16], "critic": [16], "batch": 50, "epochs": 1, "least_rounds": 1}, ',
        "Trainings(100, processes=2, together=25)": "Trainings(10, together=5)",
    },
    "docs/algorithms/vtgan.md": {
        '"generator_blocks": [2, 0]': '"generator_blocks": [2, 0], "epochs": 1, "least_rounds": 3',
    },
}
COPY = """#!{python}
import sys, pandas
train, out, seed = sys.argv[1:]
pandas.read_csv(train).sample(frac=1.0, replace=True, random_state=int(seed)).to_csv(out, index=False)
"""


def people(rows: int, seed: int) -> pd.DataFrame:
    """The columns that snippets name."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    income = np.round(rng.lognormal(10, 0.4, rows) * (1 + age / 200))
    return pd.DataFrame(
        {
            "income": income,
            "debt": np.round(income * rng.random(rows)),
            "age": age,
            "visits": rng.poisson(age / 20),
            "diagnosis": np.where(rng.random(rows) < age / 120, "ill", "well"),
            "default": rng.choice(["yes", "no"], rows),
        }
    )


def namespace() -> dict[str, Any]:
    """What snippets that do not begin with an import take for granted."""
    frame = people(300, 0)
    bank = {"bank": ["income", "debt", "default"], "clinic": ["age", "visits", "diagnosis"]}
    return {
        "bounded": ss.simulate(frame, silos=bank, schema=bounds(frame)),
        "ss": ss, "frame": frame, "other_rows": people(50, 1), "federation": ss.simulate(frame, silos=bank),
        "table": frame.assign(income=np.where(frame["income"] > 30_000, "high", "low")),
        "silos": bank, "train": frame[:200], "holdout": frame[200:],
        "north": frame[:100], "south": frame[100:200], "west": frame[200:],
    }  # fmt: skip


def sane(report: Report) -> None:
    """Whether a report's own real rows are two random halves of one table, and all its figures are numbers."""
    floors = {score.name: score.floor for score in report.scores}
    assert all(np.isfinite(score.value) for score in report.scores)
    if report.about.counted is None:  # not by tables of counts alone
        assert abs(floors["two_sample_auc_xgboost"] - 0.5) < 0.1
        assert floors["column_shape_error"] < 8
    for silo in report.by_silo:
        assert all(np.isfinite(score.value) and score.value < 40 for score in silo.scores)


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs_and_its_figures_are_sane(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, shown = namespace(), io.StringIO()
    with contextlib.redirect_stdout(shown):
        for code in blocks(page, "python"):
            code = smaller(page, code)
            exec(compile(code, str(page), "exec"), given)
    for report in (value for value in given.values() if isinstance(value, Report)):
        sane(report)
    if expected := blocks(page, "text") if shown.getvalue() else []:
        alike(expected[0], shown.getvalue())
    if page.name == "README.md":
        assert {path.name for path in tmp_path.iterdir()} == {"report.html", "demo.silosynth"}
        assert f"{given['report'].score('column_shape_error').value:.2f} %" in Path("report.html").read_text()


def smaller(page: Path, code: str) -> str:
    """A snippet at a size that can be run."""
    for written, instead in SMALLER.get(str(page.relative_to(ROOT)), {}).items():
        assert written in code, written
        code = code.replace(written, instead)
    return code


NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


def alike(expected: str, shown: str) -> None:
    """Whether a text is what a page shows: the same words and nearly the same numbers; "…" stands for any lines."""
    lines = iter(shown.splitlines())
    skipping = False
    for line in expected.splitlines():
        if line.strip() == "…":
            skipping = True
            continue
        for found in lines:
            if words(found) == words(line) or not skipping:
                break
        else:
            raise AssertionError(f"not shown: {line}")
        skipping = False
        assert words(found) == words(line)
        assert numbers(found) == [nearly(number) for number in NUMBER.findall(line)], (found, line)


def nearly(number: str) -> object:
    """What equals a number: a count exactly, a score of three decimals within 0.1, others within a half."""
    whole, _, decimals = number.replace(",", "").partition(".")
    value = float(f"{whole}.{decimals or 0}")
    return (
        pytest.approx(value, abs=0.1)
        if len(decimals) == 3
        else pytest.approx(value, rel=0.5 * bool(decimals), abs=0.5 * bool(decimals))
    )


def words(line: str) -> list[str]:
    """A line without its numbers and spaces."""
    return NUMBER.sub("#", line).split()


def numbers(line: str) -> list[float]:
    """The numbers of a line."""
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


def commands(page: Path) -> Iterator[str]:
    """The lines of silosynth that run here."""
    for line in (line for block in blocks(page, "bash") for line in block.splitlines()):
        if line.startswith("silosynth ") and line.split()[1] not in ELSEWHERE:
            yield line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where all files lie that commands name."""
    everybody = people(400, 0)
    tables = {"table": everybody, "patients": everybody, "train": everybody[:320], "holdout": everybody[320:]}
    for name, table in (tables | {"synthetic": people(320, 1)}).items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    (experiment,) = (block for block in blocks(ROOT / "README.md", "toml") if "# experiment.toml" in block)
    (tmp_path / "experiment.toml").write_text(experiment, encoding="utf-8")
    (tmp_path / "mytool").write_text(COPY.format(python=sys.executable), encoding="utf-8")
    (tmp_path / "mytool").chmod(0o755)
    return tmp_path


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in SHELL if [*commands(page)]], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_run_and_their_figures_are_sane(page: Path, folder: Path) -> None:
    for line in commands(page):
        if "--resume" in line:  # as after an interruption: of a finished run there is nothing to continue
            shutil.rmtree(folder / "experiment", ignore_errors=True)
        words = shlex.split(line, comments=True)[1:]
        written = [folder / words[i + 1] for i, word in enumerate(words) if word in ("-o", "--report")]
        for path in written:  # of an earlier line, or of the folder's own tables: nothing is overwritten
            path.unlink(missing_ok=True)
        if words[:2] == ["audit", "experiment.toml"]:
            announced(words, folder)
            shutil.rmtree(folder / "audit", ignore_errors=True)  # it keeps one audit, and the page shows several
            continue
        facts = json.loads(finished([*words, "--json"], folder))
        for score in facts.get("scores", ()):
            assert score["value"] is not None and score["floor"] is not None, score
        for found in facts.get("findings", ()):
            assert found, line
        assert all(path.exists() for path in written)


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """A command, in a folder whose programs it finds."""
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "silosynth", *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(words: list[str], folder: Path) -> str:
    """What a command that succeeds writes."""
    with started(words, folder) as process:
        shown, errors = process.communicate(timeout=600)
    assert process.returncode == 0, (words, errors)
    return shown


def announced(words: list[str], folder: Path) -> None:
    """Whether a long command says how long it takes, and can be interrupted then."""
    with started(words, folder) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "trainings will take about" in line:
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=120)
    assert process.returncode == 130, words


def rows_of(page: Path, heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a text, by their first cell."""
    table = page.read_text(encoding="utf-8").split(heading)[1].split("\n| ---")[1].split("\n\n")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    return {first: rest for first, *rest in cells}


def test_what_readme_measured_is_what_is_on_record() -> None:
    kept = json.loads((ROOT / "benchmarks/results/presets.json").read_text())["rows"]
    shown = rows_of(ROOT / "README.md", "## Measured")
    names = (
        "shape %",
        "trend %",
        "across %",
        "XGB two-sample",
        "AUC",
        "nearer to train %",
        "fit, processor s",
        "peak GB",
    )
    for preset in ("balanced", "fast"):
        (record,) = (row for row in kept if (row["table"], row["preset"], row["seed"]) == ("adult", preset, 0))
        same_figures(shown[f"`{preset}`"], [record[name] for name in names])
        same_figures(shown["floor"][:5], [record[f"{name} floor"] for name in names[:5]])
    shown = rows_of(ROOT / "docs/performance.md", "## Presets")
    names = ("trend %", "trend % floor", "XGB two-sample", "XGB two-sample floor", "nearer to train %",
             "fit, processor s", "sample, processor s")  # fmt: skip
    for row in kept:
        if row["seed"] == 0:
            cells = shown[f"{row['table']}, `{row['preset']}`"]
            assert len(cells) == len(names)
            same_figures(cells, [row[name] for name in names])
    seeds = rows_of(ROOT / "docs/performance.md", "that seed and two others")
    for table in {row["table"] for row in kept}:
        for preset, place in (("balanced", 0), ("fast", 4)):
            all_three = [row for row in kept if (row["table"], row["preset"]) == (table, preset)]
            for cell, name in zip(seeds[table][place : place + 2], ("trend %", "XGB two-sample"), strict=True):
                same_figures(cell.split(", "), [row[name] for row in all_three])
    before = json.loads((ROOT / "benchmarks/results/presets_before_0071.json").read_text())["rows"]
    names = ("shape %", "trend %", "across %", "XGB two-sample", "AUC", "fit, processor s")
    for table, cells in rows_of(ROOT / "docs/performance.md", "as it is now, means of three seeds:").items():
        for cell, name in zip(cells, names, strict=True):
            sides = [
                [row[name] for row in rows if (row["table"], row["preset"]) == (table, "balanced")]
                for rows in (before, kept)
            ]
            assert all(len(side) == 3 for side in sides)
            same_figures(cell.split(", "), [statistics.mean(side) for side in sides])


def test_what_performance_says_of_where_time_goes_is_what_is_on_record() -> None:
    shown = rows_of(ROOT / "docs/performance.md", "# Where time goes")
    kept = {
        row["algorithm"]: row
        for row in json.loads((ROOT / "benchmarks/results/where_time_goes.json").read_text())["rows"]
    }
    names = ("train, s", "draw, s", "report, s", "networks, %", "encoders, %", "messages, %")
    others = ("secrets, %", "counting, %", "checkpoints, %", "ledger, %", "other, %")
    assert {"silofuse", "vtgan", "vflgan", "gdts"} < {title.strip("`") for title in shown}
    for title, cells in shown.items():
        row = kept[title.strip("`")]
        same_figures(cells, [*(row[name] for name in names), sum(row[name] for name in others)])


def same_figures(cells: list[str], figures: list[float]) -> None:
    """Whether the first cells show these figures, to the digits that they have."""
    assert len(cells) >= len(figures) > 0, (cells, figures)
    for cell, figure in zip(cells, figures, strict=False):
        (number,) = numbers(cell)
        assert number == pytest.approx(figure, abs=0.6 * 10 ** -len(cell.split()[0].partition(".")[2])), (cells, figure)


def test_what_readme_says_of_peers_is_what_is_on_record() -> None:
    shown = rows_of(ROOT / "README.md", "Beside another generator")
    kept = json.loads((ROOT / "benchmarks/results/peers.json").read_text())["rows"]
    names = ("shape %", "trend %", "two-sample AUC", "AUC or R²", "nearer to train %", "train s", "peak GB")
    titles = {"silosynth fast": "`fast`, four silos", "MOSTLY AI": "MOSTLY AI's engine, one table", "floor": "floor",
              "silosynth balanced": "`balanced`, four silos"}  # fmt: skip
    for record in kept:
        cells = shown.get(f"{record['table']}: {titles.get(record['generator'])}", [])
        for name, cell in zip(names, cells, strict=False):
            for number in numbers(cell):
                digits = len(cell.split()[0].partition(".")[2])
                assert number == pytest.approx(record[name], abs=0.6 * 10**-digits), (record["generator"], name)
    means = rows_of(ROOT / "README.md", "Means over these five tables")
    for generator in {record["generator"] for record in kept}:
        own = [record for record in kept if record["generator"] == generator]
        figures = [sum(record[name] for record in own) / 5 for name in names if own[0][name] is not None]
        same_figures(means[titles.get(generator, generator).partition(", one")[0]], figures)
    fast = {record["table"]: record for record in kept if record["generator"] == "silosynth fast"}
    assert all(
        fast[record["table"]][name] < record[name]
        for record in kept
        if record["generator"] not in ("silosynth fast", "silosynth balanced", "floor")
        for name in names[:2]
    )
    told = {(record["table"], titles.get(record["generator"])) for record in kept}
    assert {tuple(title.split(": ")) for title in shown if title} - told == set()


TITLES = {"Adult": "adult", "NSL-KDD": "intrusion_nsl_kdd_20pct", "covertype": "covertype_50k"}


def kept_marginals(name: str) -> dict[tuple[str, str, float], list[dict[str, Any]]]:
    rows: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["rows"]:
        if row["silos"] == 4:
            rows.setdefault((row["table"], row["algorithm"], row["epsilon"]), []).append(row)
    return rows


def lines_of_marginals(head: str) -> Iterator[tuple[str, float, list[str]]]:
    page, table = (ROOT / "docs/algorithms/marginals.md").read_text(encoding="utf-8"), ""
    for line in page.split(head)[1].split("\n\n")[0].splitlines()[2:]:
        title, epsilon, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        table = TITLES.get(title, title) or table
        yield table, float(epsilon), [f"0{cell}" if cell[:1] == "." else cell for cell in cells]


def test_what_the_page_of_marginals_says_of_central_ones_is_what_is_on_record() -> None:
    record, shown = kept_marginals("marginals_beside_central"), 0
    algorithms = ("aim", "central aim", "mst", "central mst")
    for table, epsilon, (seeds, *cells) in lines_of_marginals("| table | epsilon | seeds |"):
        rows = [record[table, algorithm, epsilon] for algorithm in algorithms]
        counts = [len(own) for own in rows]
        assert seeds in (", ".join(map(str, counts)), str(counts[0]) * (len({*counts}) == 1))
        both = {row["seed"] for row in rows[0]} & {row["seed"] for row in rows[1]}
        ours, central = (sum(row["pairs %"] for row in own if row["seed"] in both) for own in rows[:2])
        pairs, areas = ([float(np.mean([row[name] for row in own])) for own in rows] for name in ("pairs %", "AUC"))
        same_figures(cells, [*pairs, ours / central, *areas])
        shown += 4
    assert shown == len(record)


def test_what_the_page_of_marginals_says_of_dplt_is_what_is_on_record() -> None:
    ours, theirs, shown = kept_marginals("marginals_beside_central"), kept_marginals("marginals_rivals"), 0
    for table, epsilon, cells in lines_of_marginals("| table | epsilon | shape %: `aim` |"):
        rows = [ours[table, "aim", epsilon][0], *theirs.get((table, "dplt", epsilon), [])]
        assert all(row["seed"] == 0 for row in rows)
        figures = [row[name] for name in ("shape %", "trend %", "AUC") for row in rows]
        same_figures([cell for cell in cells if cell], figures)
        shown += len(rows) - 1
    assert shown == sum(algorithm == "dplt" for _, algorithm, _ in theirs)


def test_what_the_page_of_marginals_says_of_private_gans_is_what_is_on_record() -> None:
    ours, theirs, shown = kept_marginals("marginals_beside_central"), kept_marginals("marginals_rivals"), 0
    names = ("silofuse upload", "silofuse release", "wgan-gp", "vflgan", "vertigan", "vtgan")
    for table, epsilon, (first, *cells) in lines_of_marginals("| table | epsilon | `aim` | SiloFuse"):
        aim, with_less = (ours[table, "aim", one][0] for one in (epsilon, {1.0: 0.3, 10.0: 1.0}[epsilon]))
        same_figures(first.replace(" .", " 0.").split(", "), [aim["trend %"], aim["AUC"]])
        for name, cell in zip(names, cells, strict=True):
            (row,) = theirs.get((table, f"{name}, fast", epsilon), [None])
            assert bool(cell) == (row is not None)
            if row is not None:
                same_figures(cell.replace(" .", " 0.").split(", "), [row["trend %"], row["AUC"]])
                for better in (aim, with_less):
                    assert row["shape %"] > better["shape %"] and row["trend %"] > better["trend %"]
                    assert row["AUC"] < better["AUC"]
                shown += 1
    assert shown == sum(algorithm.endswith(", fast") for _, algorithm, _ in theirs)


def test_what_the_page_of_marginals_says_of_private_pgm_is_what_is_on_record() -> None:
    ours, theirs, shown = kept_marginals("marginals_beside_central"), kept_marginals("marginals_by_mbi"), 0
    for table, epsilon, (aim, *cells) in lines_of_marginals("| table | epsilon | `aim` | AIM by `mbi`"):
        first = ours[table, "aim", epsilon][0]["pairs %"]
        same_figures([aim], [first])
        for cell, record, name in zip(cells, (theirs, ours) * 2, ("aim", "aim", "mst", "mst"), strict=True):
            rows = record.get((table, f"central {name}", epsilon), [])
            assert bool(cell) == bool(rows)
            if rows:
                assert rows[0]["seed"] == 0
                same_figures([cell], [rows[0]["pairs %"]])
            if rows and record is theirs:
                own = {row["seed"]: row["pairs %"] for row in ours[table, "aim", epsilon]}
                apart = sum(own[row["seed"]] for row in rows) / sum(row["pairs %"] for row in rows)
                assert apart <= (1.1 if name == "aim" else 1.0)
                shown += 1
    assert shown == len(theirs)


def test_what_the_page_of_marginals_says_of_noised_bounds_is_what_is_on_record() -> None:
    ours, theirs, shown = kept_marginals("marginals_beside_central"), kept_marginals("marginals_noised_bounds"), 0
    for table, epsilon, cells in lines_of_marginals("| table | epsilon | shape %: declared"):
        rows = ours[table, "aim", epsilon][0], theirs[table, "aim, noised bounds", epsilon][0]
        same_figures(cells, [row[name] for name in ("shape %", "trend %", "AUC") for row in rows])
        shown += 1
    assert shown == len(theirs)


def test_what_the_page_of_marginals_says_of_other_rows_is_what_is_on_record() -> None:
    kept, page = ROOT / "benchmarks/results/marginals_rows.json", ROOT / "docs/algorithms/marginals.md"
    record = {
        (row["silos"], row["epsilon"]): row
        for row in json.loads(kept.read_text())["rows"]
        if row["rows"] in ("pooled", "even")
    }
    lines = page.read_text(encoding="utf-8").split("| silos | epsilon | shape % | trend %")[1].split("\n\n")[0]
    for line in lines.splitlines()[2:]:
        silos, epsilon, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        row = record.pop((1 if silos == "pooled" else int(silos), float(epsilon)))
        figures = [row["shape %"], row["trend %"], row["AUC"], row["MB"]]
        told = [cell.replace(".", "0.", 1) if cell[:1] == "." else cell for cell in cells if cell]
        same_figures(told, figures[: len(told)])
    assert not record


def test_shown_text_is_compared_with_what_is_printed() -> None:
    shown = "9 rows\nfirst 2.00 of 2,000\nnoise\nsecond 0.500"
    alike("9 rows\n…\nsecond 0.520", shown)
    alike("9 rows\nfirst 2.9 of 2,000", shown)
    for wrong in (
        "9 columns",
        "8 rows",
        "9 rows\nfirst 10.03 of 2,000",
        "…\nsecond 0.650",
        "…\nthird 1",
        "9 rows\nnoise",
    ):
        with pytest.raises(AssertionError):
            alike(wrong, shown)
