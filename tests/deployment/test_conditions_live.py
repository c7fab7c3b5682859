"""Rules, and draws under conditions, over processes of their own: by the commands that operators use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("nvflare")

from tests.deployment.abroad import SILOFUSE, Abroad
from tests.deployment.flare.deployment import free_port
from tests.deployment.network import Host

from silosynth.core.conversation import COORDINATOR
from silosynth.deployment.silo_ledger import verify_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RULES = """
[[rules]]
kind = "inequality"
low = "visits"
high = "age"
"""


@pytest.fixture(scope="module")
def abroad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad[Host]]:
    hosts = {name: Host() for name in (COORDINATOR, "bank", "shop")}
    made = Abroad(tmp_path_factory.mktemp("live"), hosts, free_port())
    made.provision()
    with open(made.kits / "bank" / "policy.toml", "a") as policy:
        policy.write('conditions = ["age"]\nleast_condition_rows = 20\n')
    try:
        made.everybody()
        made.submit("ruled", SILOFUSE, then=RULES)
        made.done("ruled")
        yield made
    finally:
        for host in hosts.values():
            host.clear()


def test_rules_hold_and_conditions_are_allowed_refused_and_noted(abroad: Abroad[Host]) -> None:
    kit = str(abroad.kits / COORDINATOR)
    words = ["draw", "ruled", "--rows", "30", "--seed", "5", "--kit", kit]
    allowed = abroad.command(COORDINATOR, *words, "--given", "age=30..70", "--name", "some")
    assert allowed.returncode == 0, allowed.stderr
    made = pd.read_parquet(abroad.kits / "shop" / "work" / "jobs" / "some" / "synthetic.parquet")
    assert len(made) == 30 and made["age"].between(30, 70).all() and (made["visits"] <= made["age"]).all()
    for name, given, rule in (("one", "age=79..", "least_condition_rows"), ("other", "paid=card", "conditions")):
        refused = abroad.command(COORDINATOR, *words, "--given", given, "--name", name)
        assert refused.returncode == 3 and f"Policy rule '{rule}' forbids it" in refused.stderr
    shown = abroad.command("bank", "ledger", "one", "--kit", str(abroad.kits / "bank"), "--json")
    assert json.loads(shown.stdout)["conditions"][0]["given"] == ["age=79.."]
    for name in ("some", "one"):
        path = Path(abroad.kits / "bank" / "work" / "jobs" / name / "ledger.jsonl")
        assert verify_file(path, job=name).faults == ()


def test_a_frame_is_drawn_row_by_row_or_refused_as_a_whole_and_noted(abroad: Abroad[Host]) -> None:
    (abroad.kits / "framed.csv").write_text("age,visits\n30..70,\n,\n18..50,\n30..70,\n")
    (abroad.kits / "pointed.csv").write_text("age\n30..70\n79..\n")
    file = abroad.kits / "framed.toml"
    file.write_text('[sample]\nseed = 5\ngiven = "framed.csv"\n')
    words = ["draw", "ruled", "--kit", str(abroad.kits / COORDINATOR)]
    framed = abroad.command(COORDINATOR, *words, "--experiment", str(file), "--name", "framed")
    assert framed.returncode == 0, framed.stderr
    made = pd.read_parquet(abroad.kits / "shop" / "work" / "jobs" / "framed" / "synthetic.parquet")
    assert len(made) == 4 and made["age"][[0, 3]].between(30, 70).all() and made["age"][2] <= 50
    assert (made["visits"] <= made["age"]).all()
    more = ("--given-rows", str(abroad.kits / "pointed.csv"), "--seed", "5", "--name", "pointed")
    refused = abroad.command(COORDINATOR, *words, *more)
    assert refused.returncode == 3 and "Policy rule 'least_condition_rows' forbids it" in refused.stderr
    shown = abroad.command("bank", "ledger", "framed", "--kit", str(abroad.kits / "bank"), "--json")
    said = ["age=30..70 in 2 rows", "no condition in 1 rows", "age=18..50 in 1 rows"]
    assert json.loads(shown.stdout)["conditions"][0]["given"] == said
    for name in ("framed", "pointed"):
        path = Path(abroad.kits / "bank" / "work" / "jobs" / name / "ledger.jsonl")
        assert verify_file(path, job=name).faults == ()
