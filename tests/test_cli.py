"""The command line: help, output on the right stream, errors in one clean block, exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import silosynth
from silosynth import __version__
from silosynth.cli import app

COMMANDS = [
    (), ("demo",), ("run",), ("sample",), ("evaluate",), ("inspect",), ("datasets",), ("datasets", "list"),
    ("datasets", "fetch"), ("silo-process",), ("provision",), ("coordinator",), ("coordinator", "start"), ("party",),
    ("party", "start"), ("party", "key"), ("submit",), ("status",), ("stop",), ("ledger",), ("fetch",),
    ("ledger", "show"), ("ledger", "verify"),
    ("audit",), ("appraise",), ("papers",), ("papers", "list"), ("papers", "show"), ("papers", "page"),
    ("papers", "run"), ("papers", "run", "silofuse/table-3"), ("papers", "run", "vflgan/figure-6"),
]  # fmt: skip

PLAN = """
[data]
path = "people.csv"
[silos.clinic]
columns = ["age", "visits", "ill"]
[silos.bank]
columns = ["income", "region"]
[algorithm]
preset = "fast"
device = "cpu"
[evaluate]
target = "ill"
"""


def call(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "silosynth", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def said(result: Result) -> dict[str, Any]:
    """The JSON value on stdout."""
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture
def plan(table: Path) -> Path:
    path = table.parent / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: silosynth {' '.join(command)}".rstrip() in result.stdout


def test_the_version_is_the_package_s() -> None:
    assert call("--version").stdout == f"silosynth {__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = call("smaple")
    assert result.exit_code == 2
    assert "sample" in result.stderr


@pytest.mark.live
def test_the_module_runs_as_a_command() -> None:
    done = shell("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"silosynth {__version__}\n", "")


# Errors


@pytest.mark.live
def test_an_error_is_one_block_with_rule_value_and_remedy(plan: Path) -> None:
    plan.write_text(PLAN.replace("preset", "presett"))
    done = shell("run", plan)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: plan.toml: algorithm.presett is not a known key (got: presett)\n       Did you mean 'preset'?\n"
    )


def test_debug_adds_the_traceback_and_keeps_the_code(plan: Path) -> None:
    plan.write_text("[data")
    result = call("run", plan, "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "error: plan.toml must be valid TOML" in result.stderr


def test_an_error_is_json_when_asked_for(tmp_path: Path) -> None:
    result = call("inspect", tmp_path / "absent.csv", "--json")
    assert result.exit_code == 4
    error = said(result)["error"]
    assert error["kind"] == "StorageError"
    assert error["exit_code"] == 4
    assert error["remedy"]
    assert "error: " in result.stderr


def test_an_algorithm_that_does_not_exist_names_the_nearest(plan: Path) -> None:
    plan.write_text(PLAN.replace("[algorithm]", '[algorithm]\nname = "silofuze"'))
    result = call("run", plan)
    assert result.exit_code == 2
    assert "Did you mean 'silofuse'?" in result.stderr


def test_an_option_is_checked_before_anything_is_written(plan: Path) -> None:
    plan.write_text(PLAN + "[algorithm.options]\nlatent.step = 3\n")
    result = call("run", plan)
    assert result.exit_code == 2
    assert "Did you mean 'steps'?" in result.stderr
    assert not (plan.parent / "plan").exists()


def test_a_target_that_does_not_exist_is_found_before_training(plan: Path) -> None:
    plan.write_text(PLAN.replace('target = "ill"', 'target = "sick"'))
    result = call("run", plan)
    assert result.exit_code == 2
    assert "sick" in result.stderr
    assert not (plan.parent / "plan" / "ledger.jsonl").exists()


def test_silos_of_different_lengths_are_refused(plan: Path, people: pd.DataFrame) -> None:
    people[["income", "region"]].head(300).to_csv(plan.parent / "bank.csv", index=False)
    plan.write_text(PLAN.replace("[silos.bank]", '[silos.bank]\npath = "bank.csv"'))
    result = call("run", plan)
    assert result.exit_code == 2
    assert "clinic: 400 rows, bank: 300 rows" in result.stderr
    assert "identifier" in result.stderr


def test_a_column_that_a_silo_lacks_names_the_nearest(plan: Path) -> None:
    plan.write_text(PLAN.replace('"visits"', '"visit"'))
    result = call("run", plan)
    assert result.exit_code == 2
    assert "The table of silo 'clinic' has no such column (got: visit)" in result.stderr
    assert "Did you mean 'visits'?" in result.stderr


def test_a_full_disk_is_exit_code_4(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "plan/schema.toml")

    monkeypatch.setattr(Path, "write_text", full)
    result = call("run", plan)
    assert result.exit_code == 4
    assert "the disk is full (got: plan/schema.toml)" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_says_how_to_resume(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(silosynth, "fit", interrupted)
    result = call("run", plan)
    assert result.exit_code == 130
    assert f"Continue with: silosynth run {plan} --resume" in result.stderr


@pytest.mark.live
def test_what_nobody_foresaw_is_one_line() -> None:
    code = (
        "import sys; from silosynth import cli; sys.argv = ['silosynth', 'datasets', 'list'];"
        "import silosynth.data.datasets as d; d.names = lambda: 1 / 0; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("internal error: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in done.stderr


@pytest.mark.live
@pytest.mark.parametrize(
    ("said", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")]
)
def test_threads_spin_for_a_moment_unless_the_user_says_how_they_wait(said: dict[str, str], spins: str) -> None:
    code = (
        "import atexit, os, sys; from silosynth import cli; sys.argv = ['silosynth', '--version'];"
        "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)); cli.main()"
    )
    usual = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=usual | said)
    assert done.stdout.splitlines()[-1] == f"{spins} False"


# Looking


def test_inspect_shows_a_table_s_kinds(table: Path) -> None:
    result = call("inspect", table)
    assert result.exit_code == 0
    assert "400 rows, 5 columns" in result.stdout
    columns = {c["name"]: c for c in said(call("inspect", table, "--json"))["columns"]}
    assert columns["region"]["kind"] == "categorical"
    assert columns["region"]["distinct"] == 3
    assert columns["income"]["missing"] == 0
    assert all(column["reason"] for column in columns.values())


def test_inspect_shows_an_experiment_with_its_defaults(plan: Path) -> None:
    assert "split.seed = 0" in call("inspect", plan).stdout
    assert said(call("inspect", plan, "--json"))["experiment"]["algorithm"]["name"] == "silofuse"


def test_inspect_shows_what_was_noised_and_what_that_covers(tmp_path: Path) -> None:
    event = {"mechanism": "discrete Laplace", "epsilon": 0.5, "delta": 0.0, "what": "counts of the levels of 'job'"}
    sent = {"step": 1, "from": "bank", "to": "coordinator", "type": "Counts", "bytes": 9}
    noised = sent | {"privacy": "noised statistics, by the events listed", "events": [event, event]}
    lines = [noised, sent | {"privacy": "un-noised weights of a network trained on the rows"}]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = " ".join(call("inspect", tmp_path).stdout.split())
    assert "none: the noise follows from the seed" in known and "discrete Laplace 0.5" not in known
    (tmp_path / "seed").write_text("1")  # a secret one, which the folder keeps until the run has ended
    shown = " ".join(call("inspect", tmp_path).stdout.split())
    assert "bank counts of the levels of 'job' 2 discrete Laplace 0.5 0" in shown
    assert "total 1 1e-05" in shown
    assert "un-noised weights of a network" in shown.split("The rest of the training")[1]
    facts = said(call("inspect", tmp_path, "--json"))["privacy"]
    assert facts["silos"]["bank"]["pure_epsilon"] == 1.0
    assert facts["rest"].endswith("no epsilon holds for the model as a whole.")


def test_inspect_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    result = call("inspect", tmp_path)
    assert result.exit_code == 2
    assert "A run's folder" in result.stderr


def test_inspect_tells_a_model_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "m.silosynth").write_bytes(b"silosynth\r\n\x00 and then rubbish that is long enough")
    result = call("inspect", tmp_path / "m.silosynth")
    assert result.exit_code == 4
    assert "Traceback" not in result.stderr


def test_quiet_says_nothing(table: Path) -> None:
    result = call("inspect", table, "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_datasets_are_listed() -> None:
    assert "adult" in call("datasets", "list").stdout
    listed = said(call("datasets", "list", "--json"))["datasets"]
    assert [entry["name"] for entry in listed] == sorted(entry["name"] for entry in listed)
    assert all(entry["licence"] for entry in listed)


def test_a_data_set_that_does_not_exist_names_the_nearest() -> None:
    result = call("datasets", "fetch", "adlt")
    assert result.exit_code == 2
    assert "Did you mean 'adult'?" in result.stderr


@pytest.mark.parametrize(
    "command", [("evaluate", "--train", "absent.csv", "--synthetic", "absent.csv"), ("fetch", "j1")]
)
def test_a_report_of_another_ending_is_refused_before_anything_is_read(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*command, "--report", "report.pdf")
    assert result.exit_code != 0 and "must end in .html, .htm, .json" in result.stderr
    assert not list(tmp_path.iterdir())


def test_appraise_says_what_columns_are_worth(plan: Path, tmp_path: Path) -> None:
    report = tmp_path / "appraisal.html"
    result = call("appraise", plan, "--report", report, "--seed", 3, "--json")
    assert result.exit_code == 0, result.stderr
    told = said(result)
    assert told["epsilon"] is None and len(told["pairs"]) == 6 and told["path"] == str(report)
    assert "silosynth appraisal" in result.stderr and "rows in common" in report.read_text()
    again = call("appraise", plan, "--report", report)
    assert again.exit_code == 4 and "--force" in again.stderr


def test_appraise_refuses_shares_of_rows_and_what_costs_nothing(plan: Path) -> None:
    free = call("appraise", plan, "--epsilon", 0)
    assert free.exit_code == 2 and "epsilon" in free.stderr
    plan.write_text('[data]\npath = "people.csv"\n[silos.a]\nshare = 0.5\n[silos.b]\nshare = 0.5\n')
    result = call("appraise", plan)
    assert result.exit_code == 2 and "different columns of the same rows" in result.stderr
