"""Jobs whose model is public: whoever has its file draws the rows that silos would, and a policy may refuse it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import OPEN, Rows, customers, job
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, sides, table
from typer.testing import CliRunner

import silosynth as ss
from silosynth.algorithms.marginals.protocol import DecodersHandedOver, HandOverDecoders, PossibleTold
from silosynth.cli import app
from silosynth.commands import outcomes
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError
from silosynth.core.rules import read_rules
from silosynth.deployment import conducting, exposure
from silosynth.deployment.coordinator import MODEL, Order
from silosynth.deployment.policy import SiloPolicy
from silosynth.deployment.protocol import GivenColumn, Job
from silosynth.deployment.silo import DeploymentSilo

BOUNDS: dict[str, dict[str, Any]] = {
    "age": {"low": 18, "high": 80}, "income": {"low": 0, "high": 8000}, "visits": {"low": 0, "high": 40},
}  # fmt: skip
DP = {"dp": {"epsilon": 8.0, "delta": 1e-6}}
ALLOWED = OPEN.model_copy(update={"algorithms": ["mst"], "share_decoders": True, "conditions": ["age"]})
RULES = [
    {"kind": "pattern", "column": "paid", "pattern": "c[a-z]+", "on_break": "ignore"},
    {"kind": "inequality", "low": "visits", "high": "age", "strict": True},
]


def bounded() -> dict[str, Rows]:
    """Silos with the same rows in the same order, whose numbers have bounds."""
    whole = customers(150)
    return {
        silo: Rows(whole[held], declared={name: BOUNDS[name] for name in held if name in BOUNDS})
        for silo, held in COLUMNS.items()
    }


def asked(synthesis: str = "public", **changes: Any) -> Job:
    return job(bounded(), **{"algorithm": "mst", "align": None, "options": DP | {"synthesis": synthesis}} | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job under rules."""
    folder = tmp_path_factory.mktemp("public")
    carry_out(Order(replace(asked(), rules=read_rules(RULES))), bounded(), folder, policy=ALLOWED)
    return folder


def test_the_models_file_gives_the_rows_that_silos_draw(trained: Path) -> None:
    place = trained / "coordinator" / "trial"
    model = ss.load(place / MODEL)
    later = table(carry_out(more(trained, 40, 11, "late"), ABSENT, trained, policy=ALLOWED))
    pd.testing.assert_frame_equal(ss.load(place / MODEL).sample(40, seed=11), later)
    assert later["paid"].str.startswith("c").all() and (later["visits"] < later["age"]).all()
    order = more(trained, 20, 3, "given")
    assert order.job.drawing is not None
    drawing = replace(order.job.drawing, given=(GivenColumn("age", "age=30..60"),))
    place = carry_out(replace(order, job=replace(order.job, drawing=drawing)), ABSENT, trained, policy=ALLOWED)
    pd.testing.assert_frame_equal(model.sample(20, seed=3, given={"age": (30, 60)}), table(place))


def test_the_ledger_says_that_decoders_left_and_what_they_are(trained: Path) -> None:
    place = trained / "coordinator" / "trial"
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["type"].endswith("DecodersHandedOver")]
    assert [line["from"] for line in told] == list(COLUMNS)
    told += [line for line in lines if line["type"].endswith("PossibleTold")]  # of the rule across silos
    assert len(told) == 4 and all("follows from noised statistics" in line["privacy"] for line in told)
    assert json.loads((place / "result.json").read_text())["silos"] == COLUMNS


def test_the_coordinator_fetches_the_model(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Site:
        name, roster, jobs = "coordinator", tuple(COLUMNS), trained / "coordinator"

    monkeypatch.setattr(outcomes, "open_kit", lambda kit: Site)
    runner, out = CliRunner(), tmp_path / "m.silosynth"
    named = ["--out", str(tmp_path / "s.csv"), "--model", str(out), "--json"]
    found = runner.invoke(app, ["fetch", "trial", *named])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["model"] == str(out)
    drawn = runner.invoke(app, ["sample", str(out), "--rows", "9", "--out", str(tmp_path / "nine.csv")])
    assert drawn.exit_code == 0 and len(pd.read_csv(tmp_path / "nine.csv")) == 9
    (Site.jobs / "trial" / MODEL).rename(tmp_path / "kept")
    missing = runner.invoke(app, ["fetch", "trial", *named, "--force"])
    (tmp_path / "kept").rename(Site.jobs / "trial" / MODEL)
    assert isinstance(missing.exception, (ConfigError, SystemExit)) and missing.exit_code


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"share_decoders": False}, "share_decoders"),
        ({"share_synthetic": False}, "share_synthetic"),
        ({"approval": "person"}, "approval"),
    ],
)
def test_a_policy_refuses_it_before_any_row_is_read(changes: dict[str, Any], rule: str, tmp_path: Path) -> None:
    policy = ALLOWED.model_copy(update=changes)
    with pytest.raises(PolicyError, match=f"Policy rule '{rule}'"):
        carry_out(Order(asked()), ABSENT, tmp_path, policy=policy)


def test_the_coordinators_own_rows_of_different_rows_are_not_approved_either(tmp_path: Path) -> None:
    """Of silos with different rows: the coordinator draws itself, so that nobody there could look at them first."""
    policy = ALLOWED.model_copy(update={"approval": "person"})
    rows = {silo: Rows(customers(150)[["age", "income"]], declared=BOUNDS) for silo in COLUMNS}
    alike = asked(options=DP | {"horizontal": True})
    with pytest.raises(PolicyError, match="Policy rule 'approval'"):
        carry_out(Order(alike), rows, tmp_path, policy=policy)


def test_decoders_stay_whatever_the_options_say(tmp_path: Path) -> None:
    """The policy looks at the message, too: as of a silo whose party would tell."""
    strict = ALLOWED.model_copy(update={"share_decoders": False})
    with pytest.raises(PolicyError, match="share_decoders"):
        strict.check_reply(DecodersHandedOver((), ()), charged=True)
    ALLOWED.check_reply(DecodersHandedOver((), ()), charged=False)
    limited = ALLOWED.model_copy(update={"largest_epsilon": 9.0})
    limited.check_reply(DecodersHandedOver((), ()), charged=True)
    with pytest.raises(PolicyError, match="largest_epsilon"):
        limited.check_reply(DecodersHandedOver((), ()), charged=False)
    assert isinstance(sides(ABSENT, tmp_path, "x", strict)["bank"], DeploymentSilo) and HandOverDecoders.common


def test_a_silo_tells_of_the_jobs_own_rules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would be another way to what its columns are drawn from; those tell no more than noised counts have."""
    limited = ALLOWED.model_copy(update={"share_decoders": False, "largest_epsilon": 9.0})
    limited.check_reply(PossibleTold(()), charged=True)
    with pytest.raises(PolicyError, match="largest_epsilon"):
        limited.check_reply(PossibleTold(()), charged=False)
    other = read_rules([{"kind": "inequality", "low": "visits", "high": "income"}])
    monkeypatch.setattr(conducting, "across", lambda rules, held: other)
    with pytest.raises(ProtocolError, match="the job's own rules"):
        carry_out(Order(asked()), bounded(), tmp_path, policy=ALLOWED)


@pytest.mark.slow
def test_it_runs_under_a_largest_epsilon_and_costs_nothing_more(tmp_path: Path) -> None:
    policy = ALLOWED.model_copy(update={"largest_epsilon": 9.0, "public_seed": False})
    spent = {}
    for synthesis in ("shared", "public"):
        folder = tmp_path / synthesis
        carry_out(Order(asked(synthesis, seed=None)), bounded(), folder, policy=policy)
        lines = [json.loads(line) for line in (folder / "bank" / "releases.jsonl").read_text().splitlines()]
        planned = {
            event["noise"] for line in lines for event in line["events"]
        }  # which tables open, secret noise decides
        spent[synthesis] = planned, len(lines)
        assert (folder / "coordinator" / "trial" / MODEL).exists() is (synthesis == "public")
    assert spent["shared"] == spent["public"]


def test_the_officer_is_told_what_a_public_model_means() -> None:
    told = {one.key: one for one in exposure.exposures(SiloPolicy(share_decoders=True))}
    assert told["share_decoders = false"].weight == 3
    limited = {one.key: one for one in exposure.exposures(SiloPolicy(share_decoders=True, largest_epsilon=1.0))}
    assert limited["share_decoders = false"].weight == 0
    assert "share_decoders = false" not in {one.key for one in exposure.exposures(SiloPolicy())}
