"""``silosynth papers``: commands that the registry names exist, as do kept files; none is left out; the page agrees."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from silosynth.cli import app
from silosynth.core.errors import UnavailableError
from silosynth.papers import EXPERIMENTS, experiment, registry
from silosynth.papers.published import PAPERS, Published
from silosynth.papers.registry import STATES
from silosynth.papers.results import plainly

ROOT = Path(__file__).parents[2]
ENTRIES = registry.entries()
KEPT = {name for entry in ENTRIES for name in entry.kept}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["papers", *map(str, arguments)])


def said(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_every_experiment_belongs_to_something() -> None:
    assert {entry.experiment for entry in ENTRIES if entry.experiment} == set(EXPERIMENTS)


def test_kept_files_exist_and_hold_what_their_commands_compute() -> None:
    for name in KEPT:
        assert (registry.RESULTS / f"{name}.md").is_file(), name
    for entry in ENTRIES:
        for name in entry.kept:
            path = registry.RESULTS / f"{name}.json"
            content = json.loads(path.read_text()) if path.exists() else {}
            if "experiment" in content:
                assert entry.experiment == content["experiment"], entry.name


def test_no_results_of_a_paper_are_left_out() -> None:
    stems = {path.stem for path in registry.RESULTS.iterdir()}
    forms = {path.stem for path in registry.RESULTS.glob("*.json") if '"silosynth papers"' in path.read_text()[:100]}
    assert {stem for stem in stems if stem.split("_")[0] in PAPERS} | forms <= KEPT | {"vtgan_speed"}


def test_the_page_is_what_the_registry_says() -> None:
    remedy = "silosynth papers page --out docs/papers.md"
    assert (ROOT / "docs/papers.md").read_text("utf-8") == registry.page(), remedy


def test_names_are_numbers_of_papers_and_stand_once() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.paper in PAPERS and entry.name
        if entry.paper != "beside":
            assert re.fullmatch(r"(table|figure)-\d+(\.\d)?", entry.number), entry.name


def test_without_a_command_it_is_said_what_is_missing() -> None:
    for entry in ENTRIES:
        assert bool(entry.experiment) != bool(entry.missing), entry.name
        assert entry.experiment or not entry.kept, entry.name
        assert entry.deviates or not entry.kept or entry.paper == "beside", entry.name


AT_THEIR_SIZE = {  # whose published size is kept, or was not timed
    "silofuse/table-2", "silofuse/figure-10", "vtgan/figure-4", "vtgan/figure-5", "vflgan/table-3", "tabvfl/table-2",
    "tabvfl/table-4",
}  # fmt: skip


def test_it_is_said_how_long_the_published_size_takes() -> None:
    for entry in ENTRIES:
        assert bool(entry.hours) == (entry.paper != "beside" and entry.name not in AT_THEIR_SIZE), entry.name
        if entry.hours[:1].isdigit():
            jobs = experiment.load(str(entry.experiment)).sized("published", entry.given)
            apart = 300 if entry.experiment == "records" else 1  # trainings of a row
            assert int(entry.hours.split()[0]) == apart * len(jobs), entry.name
    assert registry.find("vtgan/figure-7").hours == "150 trainings, about 390 hours of one thread, which needs a GPU"
    assert registry.find("vflgan/figure-13").hours == "4 trainings, about an hour of one thread"


def test_titles_are_as_the_papers_number() -> None:
    titles = {entry.name: entry.title for entry in ENTRIES}
    assert titles["silofuse/table-3"] == "Table III" and titles["tabvfl/table-6.1"] == "Table 6.1"
    assert titles["vflgan/table-3"] == "Table 3" and titles["gdts/figure-5"] == "Figure 5"


def test_list_tells_states_and_takes_a_paper() -> None:
    everything = said("list")
    assert [one["name"] for one in everything["entries"]] == [entry.name for entry in ENTRIES]
    assert sum(everything["counts"].values()) == len(ENTRIES) and set(everything["counts"]) == set(STATES)
    assert {one["paper"] for one in said("list", "gdts")["entries"]} == {"GDTS"}
    assert "gdts/table-1" in call("list", "gdts").stdout and "gdts_copies:" in call("list", "gdts").stdout


def test_show_has_command_sizes_deviations_and_the_kept_tables() -> None:
    entry = registry.find("silofuse/table-3")
    shown = call("show", entry.name).stdout
    kept = (registry.RESULTS / "silofuse_tables3_4.md").read_text("utf-8")
    assert entry.command is not None
    assert all(part in shown for part in (entry.shows, entry.sizes, entry.command, entry.deviates, plainly(kept)))
    assert "published: Adult" not in call("show", "beside/inversion").stdout  # of ours nothing is
    rows = json.loads((registry.RESULTS / "silofuse_tables3_4.json").read_text("utf-8"))["rows"]
    assert said("show", entry.name)["kept"][0]["sizes"].startswith(
        f"{len(rows)} results, tables abalone, adult, cardio"
    )


def test_show_has_the_tables_of_its_own_rows_and_the_drawings_of_all() -> None:
    shown = call("show", "tabvfl/table-6.1").stdout
    assert "without-finetuning" in shown and "benchmarks/results/tabvfl_figure5.svg" in shown
    assert "lt-fixed" not in shown.partition("## ")[2] and "lt-fixed" in call("show", "tabvfl/figure-5").stdout


def test_unknown_names_are_refused_with_the_nearest() -> None:
    wrong = "silofuse/tabel-3"
    for *arguments, near in (
        ("show", wrong, "silofuse/table-3"), ("run", wrong, "silofuse/table-3"), ("list", "vt-gan", "vtgan"),
    ):  # fmt: skip
        result = call(*arguments)
        assert result.exit_code == 2 and near in result.stderr


def test_pages_are_shown_with_their_columns_below_each_other() -> None:
    page = "# Title\n\n| a | b |\n| --- | --- |\n| long | 1 |\n|  | 10 |\n\nText | with a bar\n\n![Curves](some.svg)"
    shown = "# Title\n\na      b\nlong   1\n      10\n\nText | with a bar\n\nCurves: benchmarks/results/some.svg"
    assert plainly(page) == shown


def test_without_the_repository_sizes_and_tables_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.sizes(registry.kept_rows("gdts_odd", tmp_path)) is registry.kept_page("gdts_odd", tmp_path) is None
    monkeypatch.setattr(registry, "RESULTS", tmp_path / "none")
    refused = call("page", "--out", tmp_path / "papers.md")
    assert refused.exit_code == 2 and "needs the results in the repository" in refused.stderr
    assert "this installation has none" in call("show", "gdts/table-2").stdout


def test_sizes_are_those_of_the_rows() -> None:
    rows = [{"table": "a", "rows": 40_000, "seed": seed, "epochs": None} for seed in (0, 1, 1)]
    assert registry.sizes(rows) == "3 results, table a, rows 40 000, seeds 0 and 1"
    rows += [{"table": name, "rows": 10, "seed": 2} for name in "bc"]
    assert registry.sizes(rows, brief=True) == "5 results, 3 tables, rows 10 and 40,000, seeds 0 to 2"
    assert registry.sizes([]) is None


def test_an_entry_s_rows_are_its_own_among_those_of_a_file() -> None:
    nine, ten = (registry.find(f"vtgan/figure-{number}") for number in (9, 10))
    own = [registry.own_rows(entry, "vtgan_figures9_10") for entry in (nine, ten)]
    assert [{row["partition"] for row in rows} for rows in own] == [{"D^2_0 G^0_2"}, {"D^2_0 G^2_0"}]
    assert sum(map(len, own)) == len(registry.kept_rows("vtgan_figures9_10"))
    assert all(registry.own_rows(entry, name) for entry in ENTRIES for name in entry.kept), "a figure without rows"


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_is_kept_is_size_kept_row_for_row(name: str) -> None:
    files = {file for entry in ENTRIES if entry.experiment == name for file in entry.kept}
    rows = [row for file in files for row in registry.kept_rows(file)]
    try:
        wanted = [experiment.identified(job) for job in experiment.load(name).sized("kept", {})]
    except UnavailableError:
        pytest.skip("needs the data sets")
    unknown = [row for row in rows if not any(identity.items() <= row.items() for identity in wanted)]
    lacking = [identity for identity in wanted if not any(identity.items() <= row.items() for row in rows)]
    assert not unknown and not lacking


def test_the_page_is_written(tmp_path: Path) -> None:
    assert call("page", "--out", tmp_path / "papers.md").exit_code == 0
    assert (tmp_path / "papers.md").read_text("utf-8") == registry.page()


def test_states_follow_from_what_there_is() -> None:
    found = [Published("gdts", "table-1", "", "", *more) for more in ((), ("copies",), ("copies", ("kept",)))]
    assert [entry.state for entry in found] == ["none yet", "command", "kept"]


@pytest.mark.parametrize("name", sorted(name for name in KEPT if (registry.RESULTS / f"{name}.json").exists()))
def test_pages_of_results_are_what_their_rows_say(name: str, tmp_path: Path) -> None:
    entry = next(entry for entry in ENTRIES if name in entry.kept)
    shutil.copy(registry.RESULTS / f"{name}.json", tmp_path)
    shown = CliRunner().invoke(app, ["papers", "run", entry.name, "--show", "--out", str(tmp_path / f"{name}.md")])
    assert shown.exit_code == 0, shown.stderr
    remedy = f"silosynth papers run {entry.name} --show --out benchmarks/results/{name}.md"
    assert (tmp_path / f"{name}.md").read_text("utf-8") == registry.kept_page(name), remedy
