"""What a policy's rules keep from a coordinator that deviates: each attack on one real silo behind its desk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacked.desk import OPENED, PSI, Desk, a_job
from typer.testing import CliRunner

from silosynth.algorithms.silofuse.protocol import FitCoder, SynthesiseFromLatents
from silosynth.algorithms.vtgan.protocol import EncodedPrivately, EncodeRows, GenerateRows
from silosynth.cli import app
from silosynth.core.conversation import SyntheticColumns
from silosynth.core.errors import DataError, MessageError, PolicyError, ProtocolError, SilosynthError
from silosynth.deployment import entry
from silosynth.deployment.exposure import exposures, rules_in_force
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import Begin, Greet, PreparedSchema, PrepareRows, installed
from silosynth.deployment.tallies import AskedConditions, BegunJobs
from silosynth.runtime.hub import ASK
from silosynth.runtime.wire import encode

DP = {"dp": {"epsilon": 2.0, "delta": 1e-5}}
TINY = {"coder.steps": 2, "coder.hidden": [8]}


def forbids(rule: str) -> Any:
    told = rf"^Silo 'bank': Policy rule '{rule}' forbids it\. .*\. Ask the silo's operator: its log\.txt"
    return pytest.raises(PolicyError, match=told)


# What errors tell.


def test_a_misspelt_identifier_tells_no_names_of_columns(tmp_path: Path) -> None:
    desk = Desk(tmp_path, identifiers=("custmer",)).open()
    with pytest.raises(DataError, match=r"has the columns that its silo\.toml names as identifiers"):
        desk.ask(Begin(a_job(align=PSI)))
    assert not any(desk.heard(name) for name in ("custmer", "customer", "income"))
    assert "custmer" in desk.log and "Did you mean 'customer'?" in desk.log


def test_too_few_rows_are_not_told_how_few_they_are(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "require_alignment = false\nlargest_epsilon = 4.0\n", rows=37).begin(a_job(options=DP))
    with forbids("least_rows"):
        desk.ask(PrepareRows())
    assert not desk.heard("37") and not desk.heard("100")
    assert "at least 100 rows" in desk.log and "37 rows" not in desk.log.split("refused")[1]


def test_paths_stay_in_the_silo(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "rows.csv").unlink()
    with pytest.raises(SilosynthError, match="Ask the silo's operator"):
        desk.open().ask(Begin(a_job()))
    assert not desk.heard(str(tmp_path)) and not desk.heard("rows.csv")
    assert "rows.csv" in desk.log


def test_hosts_and_tables_of_a_database_stay_in_the_silo(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "silo.toml").write_text('[data]\ndatabase = "duckdb:///secret-host.db"\n')
    with pytest.raises(SilosynthError, match="Ask the silo's operator"):
        desk.open()
    assert not desk.heard("secret-host") and "table" in desk.log


def test_a_job_before_it_is_opened_and_a_wrong_checkpoint_are_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(ProtocolError, match="A job must be opened first"):
        desk.ask(PrepareRows())
    with pytest.raises(SilosynthError, match="Ask the silo's operator"):
        desk.open().restore(3)
    assert not desk.heard(str(tmp_path))


# Hosts.


def test_a_silo_dials_no_host_but_that_of_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = []
    monkeypatch.setattr(entry, "serve_endpoint", lambda endpoint, **more: dialled.append(more["address"]))
    monkeypatch.setattr(entry.StartKit, "certificates", lambda kit: None)
    with pytest.raises(ProtocolError, match="A silo dials the coordinator's address in its own kit, and no other"):
        Desk(tmp_path / "a").open(stream="database.internal:5432")
    assert not dialled
    Desk(tmp_path / "b").open(stream="coordinator.example.org:8003")
    assert dialled == ["coordinator.example.org:8003"]


# Asks.


def wrong(desk: Desk) -> list[Any]:
    return [
        lambda: desk.ask(SynthesiseFromLatents(torch.zeros(3, 999), 3, "0")),
        lambda: desk.ask(SynthesiseFromLatents(torch.zeros(3, 4, dtype=torch.int64), 3, "0")),
        lambda: desk.ask(SynthesiseFromLatents(torch.zeros(3, 2), 10**6, "")),
    ]


@pytest.mark.parametrize("number", range(3))
def test_asks_of_a_wrong_shape_are_refused_and_end_the_job(tmp_path: Path, number: int) -> None:
    desk = Desk(tmp_path)
    desk.sampling(a_job(options=TINY))
    with pytest.raises(SilosynthError):
        wrong(desk)[number]()
    with pytest.raises(ProtocolError, match="A job ends at a silo with the first message that it refuses"):
        desk.ask(PrepareRows())


@pytest.mark.parametrize(
    "damage", [lambda blob: blob[: len(blob) // 2], lambda blob: blob.replace(b"FitCoder", b"FitCodec")]
)
def test_asks_that_cannot_be_read_end_the_job(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    desk = Desk(tmp_path).prepared(a_job(options=TINY))
    with pytest.raises(MessageError):
        desk.hand(ASK, damage(encode(FitCoder())))
    with pytest.raises(ProtocolError, match="A job ends at a silo with the first message that it refuses"):
        desk.ask(FitCoder())


def test_an_ask_that_breaks_a_computation_tells_neither_line_nor_text(tmp_path: Path) -> None:
    desk = Desk(tmp_path).prepared(a_job(options=TINY))
    desk.answer._endpoint.party._party.answer = lambda ask: {}["Zürich"]  # type: ignore[union-attr]
    with pytest.raises(ProtocolError, match="A silo is asked for what fits its columns and what came before"):
        desk.ask(FitCoder())
    assert not desk.heard("KeyError") and not desk.heard("rich") and "[KeyError]" in desk.log


# Rules on jobs.


@pytest.mark.parametrize(
    ("rule", "policy", "changes"),
    [
        ("require_dp", "require_dp = true", {}),
        ("largest_epsilon", "largest_epsilon = 1.0", {}),
        ("largest_epsilon", "largest_epsilon = 1.0", {"options": DP}),
        ("largest_epsilon_per_job", "largest_epsilon_per_job = 1.0\nlargest_epsilon = 5.0", {"options": DP}),
        ("exact_rows", "largest_epsilon = 5.0", {"options": DP, "align": PSI}),
        ("min_count", "", {"options": {"coder.encoders.min_count": 1}}),
        ("min_count", "min_count = 20", {}),
        ("min_count", "", {"options": {"coder.encoders.pool_rare": False}}),
        ("min_count", "", {"algorithm": "gdts", "options": {"delta": 0.0}}),
        ("psi_queries", "psi_queries = 0", {"align": PSI}),
        ("keyed_hash", "", {"align": replace(PSI, method="keyed-hash")}),
        ("jobs_per_day", "jobs_per_day = 0", {}),
        ("submitters", 'submitters = ["bob"]', {}),
        ("public_seed", "", {"seed": 5}),
    ],
)
def test_a_job_that_a_rule_forbids_does_not_begin(
    tmp_path: Path, rule: str, policy: str, changes: dict[str, Any]
) -> None:
    desk = Desk(tmp_path, OPENED + policy + "\n", identifiers=("customer",)).open()
    with forbids(rule):
        desk.ask(Begin(a_job(**changes)))


@pytest.mark.parametrize("name", ["vtgan", "vflgan", "vflgan-base", "vertigan", "gdts", "dplt", "silofuse", "e2edistr"])
def test_a_papers_preset_is_refused_until_the_options_are_set_that_the_error_names(name: str) -> None:
    policy, options = SiloPolicy(algorithms=[name], require_alignment=False), dict[str, Any]()
    named = {"true": True, "1e-5": 1e-5}
    for _ in range(3):
        try:
            policy.check_job(a_job(name, preset="paper", options=options), "alice")
            break
        except PolicyError as error:
            told = re.search(r"Set (\S+) = (\S+) in \[algorithm.options\]; preset = \"paper\"", str(error.public()))
            assert told is not None
            options[told[1]] = named[told[2]]
    else:
        pytest.fail(f"still refused with {options}")
    assert options


def test_a_silo_trains_on_linked_rows_alone(tmp_path: Path) -> None:
    """``align = none`` would train on all rows, those included that no other silo holds."""
    desk = Desk(tmp_path, "least_rows = 10\n", identifiers=("customer",)).open()
    with forbids("require_alignment"):
        desk.ask(Begin(a_job()))


def test_a_refused_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SilosynthError, match=r"refused names types of messages.*federated"):
        Desk(tmp_path, 'refused = ["federated.*"]\n')


@pytest.mark.parametrize(("least", "told"), [(5, True), (20, False)])
def test_forms_of_pseudonyms_stand_for_as_many_people_as_levels(tmp_path: Path, least: int, told: bool) -> None:
    desk = Desk(tmp_path, OPENED + f"min_count = {least}\n", rows=30)
    codes = [f"K-{number:04d}" for number in range(1000, 1010)] + [f"K{number}" for number in range(10**6, 10**6 + 20)]
    (tmp_path / "rows.csv").write_text("code,age\n" + "".join(f"{c},{20 + n}\n" for n, c in enumerate(codes)))
    (tmp_path / "silo.toml").write_text('[data]\npath = "rows.csv"\n[schema.code]\nkind = "pseudonym"\n')
    desk.begin(a_job(options={"coder.encoders.min_count": least}))
    columns = desk.ask(PrepareRows()).schema.columns  # type: ignore[attr-defined]
    assert bool(columns[0].forms) == told


def test_jobs_of_a_day_are_counted_on_disk(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Desk(tmp_path, OPENED + "jobs_per_day = 2\n").begin(a_job(name=name))
    with forbids("jobs_per_day"):  # the first again, which would draw fresh secrets
        Desk(tmp_path, OPENED + "jobs_per_day = 2\n").begin(a_job(name="one"))
    with forbids("jobs_per_day"):
        Desk(tmp_path, OPENED + "jobs_per_day = 2\n").begin(a_job(name="three"))


def test_a_day_later_jobs_begin_again(tmp_path: Path) -> None:
    now = [0.0]
    begun = BegunJobs(tmp_path, lambda: now[0])
    assert begun.with_job("a", 1) and not begun.with_job("b", 1)
    now[0] += 24 * 3600 + 1
    assert begun.with_job("b", 1)


def test_the_same_condition_is_asked_again_and_others_of_a_day_are_counted(tmp_path: Path) -> None:
    now = [0.0]
    asked = AskedConditions(tmp_path, lambda: now[0])
    assert asked.with_these({"a", "b"}, 2) and asked.with_these({"b"}, 2)
    assert not asked.with_these({"c"}, 2) and not AskedConditions(tmp_path, lambda: now[0]).with_these({"a", "c"}, 2)
    now[0] += 24 * 3600 + 1
    assert asked.with_these({"c", "d"}, 2)


def test_rows_drawn_are_counted_over_repeated_asks_and_restored_checkpoints(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPENED + "most_rows_drawn = 70\n")
    width = desk.sampling(a_job(options=TINY, rows=100))

    def drawn(value: float) -> Any:
        return desk.ask(SynthesiseFromLatents(torch.full((30, width), value), 30, f"{value}"))

    desk.save(1)
    assert isinstance(drawn(7.0), SyntheticColumns)
    desk.restore(1)
    assert isinstance(drawn(8.0), SyntheticColumns) and isinstance(drawn(8.0), SyntheticColumns)  # the same rows
    desk.restore(1)
    with forbids("most_rows_drawn"):
        drawn(9.0)


def test_a_job_draws_at_most_twice_as_many_rows_as_it_says(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    width = desk.sampling(a_job(options=TINY))  # 20 rows
    assert desk.ask(SynthesiseFromLatents(torch.full((40, width), 9.0), 40, "a"))
    with pytest.raises(ProtocolError, match="A silo draws twice as many rows as a job asks for"):
        desk.ask(SynthesiseFromLatents(torch.full((1, width), 8.0), 1, "b"))


# An epsilon that is limited.


def test_made_rows_and_gradients_are_no_release_of_nothing(tmp_path: Path) -> None:
    """After refused features, `GenerateRows` read rows off what was declared to tell nothing about single rows."""
    desk = Desk(tmp_path, OPENED + "largest_epsilon = 4.0\n").open()
    with forbids("largest_epsilon"):
        desk.ask(Begin(a_job("vtgan")))
    with pytest.raises(ProtocolError, match="A job ends at a silo with the first message that it refuses"):
        desk.ask(GenerateRows(0, torch.zeros(2, 4), "bank"))


def test_encoders_without_noise_are_refused_in_a_private_job(tmp_path: Path) -> None:
    """The job says ``dp``, and nothing else can be asked for: it was, with other options in the message."""
    desk = Desk(tmp_path, OPENED + "largest_epsilon = 4.0\n").prepared(a_job("vtgan", options=DP))
    assert isinstance(desk.ask(EncodeRows()), EncodedPrivately)


def test_a_private_job_tells_no_exact_number_of_rows(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPENED + "largest_epsilon = 4.0\n").begin(a_job(options=DP))
    columns = desk.ask(PrepareRows())
    assert isinstance(columns, PreparedSchema)
    assert all(column.low is None and column.high is None for column in columns.schema.columns)


def test_versions_are_told_to_those_who_must_agree_on_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path).open()
    version, sources = installed()
    desk.ask(Greet("silofuse", "alice", "0.1", sources))  # a number alone is no difference
    said = f"of the coordinator, silosynth 0.1, have SHA-256 0123, {sources} at silo 'bank', silosynth {version}"
    with pytest.raises(ProtocolError, match=re.escape(said)):
        desk.ask(Greet("silofuse", "alice", "0.1", "0123"))


# Words for an officer.


@pytest.mark.parametrize(
    ("policy", "worst", "key"),
    [
        ({"public_seed": True}, "all noise", "public_seed = false"),
        ({}, "one vector for each person", "largest_epsilon; or leave it out of algorithms"),
        ({"min_count": 1}, "names of levels that one person holds", "min_count = 5"),
        ({"keyed_hash": True}, "a pseudonym of each person", "keyed_hash = false"),
        ({"require_dp": True}, "a huge one adds no noise", "largest_epsilon"),
        ({"largest_epsilon_per_job": 1.0}, "as often as it starts one: 100 a day", "largest_epsilon"),
    ],
)
def test_the_worst_points_come_first_with_the_key_that_closes_them(
    policy: dict[str, Any], worst: str, key: str
) -> None:
    found = exposures(SiloPolicy(**policy))
    weights = [one.weight for one in found]
    assert weights == sorted(weights, reverse=True)
    (point,) = [one for one in found if worst in one.learns][:1]
    assert point.weight == 3 and point.key == key


@pytest.mark.parametrize(("epsilon", "percent"), [(0.5, "62.25 %"), (1.0, "73.11 %"), (4.0, "98.21 %")])
def test_an_epsilon_is_told_as_how_sure_a_guess_becomes(epsilon: float, percent: str) -> None:
    found = exposures(SiloPolicy(largest_epsilon_per_job=epsilon))
    assert any(f"at most {percent} of the time" in one.learns for one in found)


def test_a_strict_policy_leaves_nothing_that_a_key_closes_but_the_budget(tmp_path: Path) -> None:
    strict = SiloPolicy(
        largest_epsilon_per_job=0.5, largest_epsilon=1.0, share_synthetic=False, submitters=["alice"],
        allow_coordinators=["ab" * 32], jobs_per_day=1, approve_start=True,
    )  # fmt: skip
    closing = {one.key for one in exposures(strict)}
    assert closing == {"largest_epsilon_per_job, smaller", "largest_epsilon, smaller", ""}


COUNTING: dict[str, Any] = {"algorithms": ["judge"]}
OPENED_BY: dict[str, dict[str, Any]] = {
    "algorithms": {}, "psi_queries": {}, "largest_epsilon": {}, "share_synthetic": {}, "approval": {}, "rules": {},
    "approve_start": {}, "most_rows_drawn": {}, "jobs_per_day": {}, "submitters": {}, "allow_coordinators": {},
    "least_rows": {"least_rows": 10}, "min_count": {"min_count": 1}, "require_alignment": {"require_alignment": False},
    "own_rows": {"own_rows": True}, "keyed_hash": {"keyed_hash": True}, "public_seed": {"public_seed": True},
    "largest_epsilon_per_job": {"largest_epsilon": 4.0},
    "largest_delta": {"largest_epsilon": 1.0, "largest_delta": 0.1},
    "exact_rows": {"largest_epsilon": 1.0, "exact_rows": True}, "open_tables": COUNTING | {"open_tables": "exact"},
    "open_figures": COUNTING | {"open_figures": True}, "require_dealer": COUNTING,
    "share_decoders": {"share_decoders": True}, "conditions": {"conditions": ["age"]},
    "least_condition_rows": {"conditions": ["age"], "least_condition_rows": 5},
    "conditions_per_day": {"conditions": ["age"]},
}  # fmt: skip
CLOSES_NOTHING = {
    "messages": "what it forbids, no allowed algorithm can do without",
    "refused": "likewise, but for a few types",
    "require_dp": "the coordinator chooses the epsilon",
    "approval_hours": "the answer becomes no",
}


def test_every_rule_closes_a_point_or_it_is_known_why_not() -> None:
    assert {*OPENED_BY, *CLOSES_NOTHING} == set(SiloPolicy.model_fields)
    for rule, policy in OPENED_BY.items():
        assert any(re.search(rf"\b{rule}\b", one.key) for one in exposures(SiloPolicy(**policy))), rule


def test_every_rule_is_shown_with_its_value_and_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("approve_start = true\n")
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["policy", "check", "--kit", str(tmp_path)]).stdout
    in_force = shown.partition("Rules in force")[2]
    for rule in rules_in_force(SiloPolicy(approve_start=True)):
        assert re.search(rf"^{rule.key} +{re.escape(rule.value)}  ", in_force, re.MULTILINE), rule
        assert len(rule.says) > 20 and "`" not in rule.says, rule
    assert {one.key for one in rules_in_force(SiloPolicy())} == set(SiloPolicy.model_fields)


def test_a_person_who_says_yes_to_each_job_is_told() -> None:
    told = {one.learns for one in exposures(SiloPolicy(approve_start=True, approval_hours=5.0))}
    assert any("has said yes to the job's terms, within 5 hours" in text for text in told)
    assert not any("without a word" in text for text in told)


def test_an_officer_reads_it_in_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("public_seed = true\n")
    runner = CliRunner(env={"COLUMNS": "200"})
    shown = runner.invoke(app, ["policy", "check", "--kit", str(tmp_path)])
    assert shown.exit_code == 0 and shown.stdout.index("all noise") < shown.stdout.index("names and kinds")
    facts = json.loads(runner.invoke(app, ["policy", "check", "--kit", str(tmp_path), "--json"]).stdout)
    assert facts["exposures"][0]["key"] == "public_seed = false"
    assert {"key": "public_seed", "value": "true"}.items() <= {one["key"]: one for one in facts["rules"]}[
        "public_seed"
    ].items()


# What a job tells before it trains.


@pytest.mark.parametrize("algorithm", ["silofuse", "dplt", "vtgan"])
def test_before_a_private_training_nothing_depends_on_a_row(tmp_path: Path, algorithm: str) -> None:
    said = []
    for rows in (120, 119):
        desk = Desk(tmp_path / str(rows), OPENED + f'largest_epsilon = 4.0\nalgorithms = ["{algorithm}"]\n', rows=120)
        lines = (desk.folder / "rows.csv").read_text().splitlines()
        (desk.folder / "rows.csv").write_text("\n".join(lines[: rows + 1]) + "\n")
        version, sources = installed()
        desk.open()
        asked = a_job(algorithm, options=DP)
        begun = [desk.ask(ask) for ask in (Greet(algorithm, "alice", version, sources), Begin(asked))]
        said.append([encode(reply) for reply in (*begun, desk.agree(asked).ask(PrepareRows()))])
    assert said[0] == said[1]
