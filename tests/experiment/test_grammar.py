"""Experiment files: what they may say, and what is said about those that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.rules import KINDS
from silosynth.core.schema import Kind
from silosynth.experiment import grammar as experiment
from silosynth.experiment.grammar import Experiment

MINIMAL = """
[data]
path = "table.csv"
[silos.bank]
columns = ["income"]
[silos.clinic]
columns = ["age", "visits"]
"""

FULL = """
[data]
path = "table.parquet"
[silos.bank]
columns = ["income"]
[silos.clinic]
path = "sub/clinic.csv"
[schema.income]
kind = "integer"
decimals = -2
low = 0
high = 1e6
[schema.born]
kind = "datetime"
low = 1900-01-01
[algorithm]
name = "silofuse"
preset = "fast"
seed = 7
device = "cpu"
runtime = "processes"
[algorithm.options.latent]
steps = 10
[split]
path = "holdout.csv"
[sample]
rows = 5
seed = 3
path = "out.parquet"
[evaluate]
target = "income"
report = "r.json"
[output]
folder = "out"
[run]
limit = 600
missing = "wait"
"""

SECTIONS = ["data", "silos", "groups", "schema", "rules", "algorithm", "align", "run", "split", "sample", "evaluate"]
SECTIONS.append("output")

FEDERATED = """
[algorithm]
name = "silofuse"
[align]
method = "keyed-hash"
[run]
name = "trial"
silos = ["bank"]
transport = "stream"
limit = 60.0
missing = "wait"
patience = 60.0
[sample]
rows = 5
"""

GROUPED = """
[data]
path = "table.csv"
[silos.clinic]
group = 'north'
columns = ['age']
[silos.bank]
group = 'north'
columns = ['sex']
[silos.fund]
group = 'south'
columns = ['age', 'sex']
[groups.north]
share = 0.6
[groups.south]
share = 0.3
"""
SHARES = """
[data]
path = 'table.csv'
[silos.north]
share = 0.4
[silos.south]
share = 0.3
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "my experiment.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def _error(write: Write, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        assert experiment.read(write(text)).participants
    return str(caught.value)


def test_a_minimal_file_has_defaults_for_the_rest(write: Write, tmp_path: Path) -> None:
    plan = experiment.read(write(MINIMAL))
    assert plan.algorithm.name == "silofuse"
    assert plan.algorithm.preset == "balanced"
    assert plan.split.share == 0.2
    assert plan.sample.rows is None
    assert plan.folder == tmp_path / "my experiment"


def test_a_full_file_is_read_as_written(write: Write, tmp_path: Path) -> None:
    plan = experiment.read(write(FULL))
    assert plan.algorithm.options == {"latent": {"steps": 10}}
    assert plan.split.share == 0.0
    assert plan.folder == tmp_path / "out"
    assert plan.resolve("sub/clinic.csv") == tmp_path / "sub" / "clinic.csv"
    assert plan.sample.seed == 3
    assert (plan.run.limit, plan.run.missing) == (600, "wait")
    assert plan.overrides()["income"] == {"kind": "integer", "decimals": -2, "low": 0, "high": 1e6}
    assert list(plan.to_dict()) == SECTIONS


def test_the_default_output_folder_is_never_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "no_suffix"
    path.write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"must end in \.toml"):
        experiment.read(path)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert set(experiment.read(path).silos) == {"bank", "clinic"}


def test_silos_are_in_groups(write: Write) -> None:
    plan = experiment.read(write(GROUPED))
    assert plan.grouped == {"north": ["clinic", "bank"], "south": ["fund"]} and plan.shares == {}
    assert {group: one.share for group, one in plan.groups.items()} == {"north": 0.6, "south": 0.3}
    assert experiment.read(write(SHARES)).grouped == {}


def test_shares_may_leave_rows_out_or_use_all_of_them(write: Write) -> None:
    assert experiment.read(write(SHARES)).shares == {"north": 0.4, "south": 0.3}
    assert experiment.read(write(MINIMAL)).shares == {}
    tenths = "".join(f"[silos.s{i}]\nshare = 0.1\n" for i in range(10))
    assert sum(experiment.read(write("[data]\npath = 'a'\n" + tenths)).shares.values()) == pytest.approx(1)


def test_kinds_are_those_of_the_schema() -> None:
    assert set(get_args(experiment.KindName)) == {kind.value for kind in Kind}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[silos.a]\ncolums = ['x']\n", "silos.a.colums is not a known key (got: colums). Did you mean 'columns'?"),
        (MINIMAL + "[sampel]\n", "sampel is not a known key (got: sampel). Did you mean 'sample'?"),
        (MINIMAL + "[algorithm]\npresets = 'a'", "algorithm.presets is not a known key (got: presets). Did you"),
        (MINIMAL + "[schema.age]\nknid = 'integer'", "schema.age.knid is not a known key (got: knid). Did you"),
        (MINIMAL + "[schema.age]\nkind = 'integr'", "Did you mean 'integer'?"),
        (MINIMAL + "[algorithm]\nruntime = 'process'", "Did you mean 'processes'?"),
        (MINIMAL + "[algorithm]\nseed = '7'", "algorithm.seed must be a whole number (got: 7). Write a whole"),
        (MINIMAL + "[algorithm]\nthreads = 0", "algorithm.threads must be at least 1, or one of auto (got: 0). Known"),
        (MINIMAL + "[algorithm]\nseed = -1", "algorithm.seed must be at least 0 (got: -1)"),
        (MINIMAL + "[run]\nlimit = 0.0", "run.limit must be more than 0.0 (got"),
        (MINIMAL + "[algorithm]\nlimit = 9", "algorithm.limit is not a known key (got: limit). Write it under [run]."),
        (MINIMAL + "[algorithm]\nmissing = 'wait'", "algorithm.missing is not a known key (got: missing). Write it"),
        (MINIMAL + "[algorithm]\nname = 3", "algorithm.name must be text (got: 3). Put it in quotes"),
        (MINIMAL + "[algorithm]\nname = ''", "algorithm.name must be a text that is not empty"),
        (MINIMAL + "[split]\nholdout = 1.5", "split.holdout must be less than 1.0 (got: 1.5)"),
        (MINIMAL + "[split]\nholdout = true", "split.holdout must be a number (got: True)"),
        (MINIMAL + "[split]\nholdout = 0.1\npath = 'a'", "split: at most one of 'holdout' and 'path' may be given"),
        (MINIMAL + "[split]\nsample = 0.0", "split.sample must be more than 0.0 (got: 0.0)"),
        (MINIMAL + "[sample]\nrows = 2.5", "sample.rows must be a whole number (got: 2.5)"),
        (MINIMAL + "[sample]\npath = 'a.txt'", "sample.path: the name must end in .csv or .parquet (got: a.txt)"),
        (MINIMAL + "[evaluate]\nreport = 'a'", "evaluate.report: the name must end in .html or .htm or .json (got"),
        (MINIMAL + "[schema.age]\nlow = true", "schema.age.low: it must be a number, or a date such as 2024-01-31"),
        (MINIMAL.replace('["income"]', "'income'"), "silos.bank.columns must be a list"),
        (MINIMAL.replace('["income"]', "[]"), "silos.bank.columns must be at least of length 1"),
        ("[data]\npath = 'a'", "silos is missing. Add one section per silo"),
        ("[silos]\n", "silos is missing. Add one section per silo"),
        ("[silos.a]\n", "silos.a: 'columns', 'path' or 'share' must be given"),
        ("[silos.a]\ncolumns = ['x']\n", "silo 'a' has no 'path', so a [data] table must be given"),
        ("[silos.a]\npath = 'x'\n[data]\npath = 'y'", "[data] is given although every silo has a 'path' of its own"),
        ("[silos.a]\ncolumns = ['x']\n[data]\n", "data: exactly one of 'path' and 'dataset' must be given"),
        (SHARES + "path = 'x'", "silos.south: 'share' deals out rows of the [data] table; neither 'path' nor"),
        (SHARES + "columns = ['x']", "silos.south: 'share' deals out rows of the [data] table; neither 'path' nor"),
        (SHARES + "[silos.west]\ncolumns = ['x']", "either every silo has a 'share' or none: silo 'west' has none"),
        (SHARES + "[silos.west]\nshare = 0.5", "the silos' shares must add up to at most 1, not 1.2"),
        (SHARES + "[silos.west]\nshare = 0.0", "silos.west.share must be more than 0.0 (got: 0.0)"),
        (SHARES + "[silos.west]\nshare = 'half'", "silos.west.share must be a number (got: half)"),
        (SHARES.replace("[data]\npath = 'table.csv'\n", ""), "silo 'north' has no 'path', so a [data] table must"),
        (GROUPED.replace("group = 'south'\n", ""), "either every silo has a 'group' or none: silo 'fund' has none"),
        (GROUPED.replace("columns = ['sex']", "share = 0.5"), "rows are dealt out by a 'share' in [groups.north]"),
        (GROUPED.replace("[groups.north]", "[groups.noth]"), "groups.noth: no silo is in this group. Did you mean"),
        (GROUPED.replace("share = 0.3", "share = 0.7"), "the groups' shares must add up to at most 1"),
        (GROUPED[: GROUPED.index("[groups.south]")], "[groups.south] has a 'share' of the rows of [data], if silos"),
        (FEDERATED, "silos is missing. Add one section per silo"),
        (MINIMAL + "[run]\nsilos = ['bnak']", "there is no section [silos.bnak]. Did you mean 'bank'?"),
        (MINIMAL + "[run]\nsilos = []", "run.silos must be at least of length 1"),
        (MINIMAL + "[run]\ntransport = 'post'", "run.transport must be one of relay, stream"),
        (MINIMAL + "[run]\npatiense = 3", "run.patiense is not a known key (got: patiense). Did you mean 'patience'"),
        (MINIMAL + "[align]\nmethod = 'guess'", "align.method must be one of psi, keyed-hash, none"),
        ("silos = 3", "silos must be a section (got: 3)"),
        ("source = 'x'\n" + MINIMAL, "source is not a known key (got: source)"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_explained(write: Write, text: str, said: str) -> None:
    message = _error(write, text)
    assert message.startswith("my experiment.toml: ")
    assert said in message


def test_all_problems_are_told_at_once(write: Write) -> None:
    message = _error(write, MINIMAL + "[algorithm]\nsed = 1\nseed = 'a'\n[outptu]\n")
    assert len(message.splitlines()) == 3


def test_invalid_toml_names_the_line(write: Write) -> None:
    message = _error(write, "[data]\npath = \n")
    assert "my experiment.toml must be valid TOML" in message
    assert "at line 2" in message


def test_a_file_in_another_encoding_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(MINIMAL.encode("utf-16"))
    with pytest.raises(ConfigError, match="UTF-8"):
        experiment.read(path)


def test_a_file_that_is_absent_names_the_nearest(write: Write, tmp_path: Path) -> None:
    write(MINIMAL)
    with pytest.raises(StorageError, match=r"Did you mean 'my experiment\.toml'"):
        experiment.read(tmp_path / "my_experiment.toml")


def test_an_experiment_cannot_be_changed(write: Write) -> None:
    plan: Experiment = experiment.read(write(MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        plan.algorithm.seed = 3  # type: ignore[misc]


def test_each_command_says_what_it_does_not_use_of_a_file_made_for_the_other(write: Write) -> None:
    assert experiment.read(write(FULL)).unused("run") == {}
    assert experiment.read(write(FEDERATED)).unused("submit") == {}
    assert list(experiment.read(write(FULL)).unused("submit")) == [
        "data", "silos", "schema", "algorithm.runtime", "split.path", "sample.seed", "sample.path", "evaluate",
        "output",
    ]  # fmt: skip
    rows_apart = "[algorithm]\nname = 'gdts'\n[align]\nleast = 5\n"
    assert list(experiment.read(write(rows_apart)).unused("submit")) == ["align"]
    assert list(experiment.read(write(MINIMAL + "[judge]\nepsilon = 2.0\n")).unused("run")) == ["judge"]
    assert experiment.read(write("[judge]\nopening = 'exact'\n")).unused("submit") == {}
    assert list(experiment.read(write("[split]\nholdout = 0.2\nseed = 3\n")).unused("submit")) == ["split.seed"]
    unused = experiment.read(write(MINIMAL + FEDERATED)).unused("run")
    assert list(unused) == ["align", "run.name", "run.transport", "run.patience", "run.limit"]
    apart = (MINIMAL + FEDERATED).replace("[align]", 'runtime = "processes"\n[align]')
    assert "run.limit" not in experiment.read(write(apart)).unused("run")


def test_who_takes_part_is_said_once_for_all_commands(write: Write) -> None:
    assert experiment.read(write("")).taking_part == ()
    assert experiment.read(write(FEDERATED)).taking_part == ("bank",)
    assert experiment.read(write(MINIMAL)).taking_part == ("bank", "clinic")
    both = experiment.read(write(MINIMAL + FEDERATED))
    assert both.taking_part == ("bank",) and list(both.participants) == ["bank"]
    assert experiment.read(write(SHARES + "[run]\nsilos = ['south']")).shares == {"south": 0.3}


def test_rules_of_the_guide_can_be_read(write: Write) -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/rules.md").read_text(encoding="utf-8")
    rules = guide.partition("```toml\n")[2].partition("```")[0]
    plan = experiment.read(write(MINIMAL + rules))
    assert {rule.KIND for rule in plan.ruled()} == set(KINDS)
    (missing,) = (rule for rule in plan.ruled() if rule.on_break)
    assert missing.named == ("ward",)


def test_files_of_rules_lie_beside_the_experiment(write: Write) -> None:
    file = write(MINIMAL + '[[rules]]\nkind = "combination"\ncolumns = ["age", "visits"]\nfile = "sub/pairs.csv"\n')
    (rule,) = experiment.read(file).ruled()
    assert Path(rule.file) == file.parent / "sub/pairs.csv"


def test_a_rule_that_cannot_be_read_is_named(write: Write) -> None:
    rules = '[[rules]]\nkind = "unique"\ncolumns = ["age"]\n[[rules]]\nkind = "sum"\nparts = ["age", "visits"]\n'
    with pytest.raises(ConfigError, match=r"\[\[rules\]\], number 2: A rule of kind 'sum' lacks a key \(got: total\)"):
        experiment.read(write(MINIMAL + rules))
