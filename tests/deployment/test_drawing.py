"""More rows of what a job has trained, in jobs of their own, with silos in this process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import OPEN, SMALL, Rows, customers, job, two_silos
from tests.deployment.sites import ABSENT, COLUMNS, Gone, carry_out, more, same_rows, sides, table, trained_once
from typer.testing import CliRunner

import silosynth as ss
from silosynth.cli import app
from silosynth.commands import jobs
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, PartyLostError, PolicyError, ProtocolError, SilosynthError
from silosynth.deployment.coordinator import (
    KEPT,
    Order,
    Status,
    drawing_order,
    read_status,
    read_trained,
    unpack_order,
)
from silosynth.deployment.kept import PART, REFERENCE
from silosynth.deployment.protocol import (
    Begin,
    Drawing,
    GivenColumn,
    GivenRows,
    Greet,
    Job,
    OtherShares,
    Publish,
    installed,
)
from silosynth.deployment.silo import DeploymentSilo
from silosynth.runtime.wire import unpack


def simulated(folder: Path) -> ss.Model:
    """The model that all sites have together, as `silosynth.fit` would have returned it."""
    place = folder / "coordinator" / "trial"
    done, kept = unpack_order((place / "order").read_bytes()).job, read_trained(place)
    parts = {silo: unpack((folder / silo / "trial" / PART).read_bytes())["part"] for silo in done.silos}
    return ss.Model(
        algorithm=done.algorithm, preset=done.preset, seed=7, config=done.config, roster=Roster(done.silos),
        schemas=kept.schemas, coordinator=kept.coordinator, parts=parts, rows=kept.rows,
        columns=tuple(name for held in COLUMNS.values() for name in held), flavour="pandas",
    )  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job with a public seed."""
    return trained_once(tmp_path_factory.mktemp("once"))


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy, to be drawn from."""
    return Path(shutil.copytree(once, tmp_path / "sites"))


def test_rows_are_those_of_a_simulated_model_and_the_same_after_a_restart(trained: Path) -> None:
    model = simulated(trained)
    first = carry_out(more(trained, 70, 11, "first"), ABSENT, trained)
    again = carry_out(more(trained, 70, 11, "again"), ABSENT, trained)
    other = carry_out(more(trained, 70, 12, "other"), ABSENT, trained)
    pd.testing.assert_frame_equal(table(first), model.sample(70, seed=11))
    assert (first / "synthetic.parquet").read_bytes() == (again / "synthetic.parquet").read_bytes()
    assert not table(other).equals(table(first))
    for silo in COLUMNS:
        pd.testing.assert_frame_equal(pd.read_parquet(trained / silo / "first" / "synthetic.parquet"), table(first))
    result = json.loads((first / "result.json").read_text())
    assert result["drawn_from"] == "trial" and not (first / KEPT).exists()
    asked = {json.loads(line)["type"] for line in (first / "ledger.jsonl").read_text().splitlines()}
    assert not any("Prepared" in one or "Placed" in one for one in asked)


def test_secret_seeds_give_fresh_rows_each_time(trained: Path) -> None:
    strict = OPEN.model_copy(update={"public_seed": False})
    drawn = [table(carry_out(more(trained, 60, None, name), ABSENT, trained, policy=strict)) for name in ("a", "b")]
    assert len(drawn[0]) == 60 and not drawn[0].equals(drawn[1])
    with pytest.raises(PolicyError, match="'public_seed'"):
        carry_out(more(trained, 60, 3, "c"), ABSENT, trained, policy=strict)


def test_most_rows_drawn_is_of_all_jobs_together(trained: Path) -> None:
    few = OPEN.model_copy(update={"most_rows_drawn": 150})  # of which the training has drawn 50
    carry_out(more(trained, 60, 1, "one"), ABSENT, trained, policy=few)
    carry_out(more(trained, 60, 1, "same"), ABSENT, trained, policy=few)  # the same rows count once
    with pytest.raises(PolicyError, match=r"'most_rows_drawn'.*at most 150"):
        carry_out(more(trained, 60, 2, "two"), ABSENT, trained, policy=few)
    assert read_status(trained / "coordinator" / "two").state == "failed"
    carry_out(more(trained, 40, None, "three"), ABSENT, trained, policy=few)  # what was refused counts for nothing
    with pytest.raises(PolicyError, match="'most_rows_drawn'"):
        carry_out(more(trained, 40, None, "four"), ABSENT, trained, policy=few)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"algorithms": ["gdts"]}, "algorithms"),
        ({"least_rows": 121}, "least_rows"),
        ({"share_synthetic": False}, "share_synthetic"),
        ({"require_dp": True}, "require_dp"),
        ({"jobs_per_day": 1}, "jobs_per_day"),
        ({"largest_epsilon": 1.0}, "largest_epsilon"),
    ],
)
def test_the_policy_of_now_applies(changes: dict[str, Any], rule: str, trained: Path) -> None:
    now = OPEN.model_copy(update=changes)
    with pytest.raises(PolicyError, match=f"Policy rule '{rule}'"):
        carry_out(more(trained, 20, 1, "late"), ABSENT, trained, policy=now)


def test_partitioned_rows_stay_in_their_silo(tmp_path: Path) -> None:
    silos, policy = same_rows(), OPEN.model_copy(update={"share_synthetic": False})
    asked = Order(job(silos, align=None, options={**SMALL, "synthesis": "partitioned"}))
    carry_out(asked, silos, tmp_path, policy=policy)
    place = carry_out(more(tmp_path, 30, 5, "late"), ABSENT, tmp_path, policy=policy)
    assert not (place / "synthetic.parquet").exists()
    for silo, held in COLUMNS.items():
        made = pd.read_parquet(tmp_path / silo / "late" / "synthetic.parquet")
        assert list(made.columns) == held and len(made) == 30


def test_a_draw_that_is_cut_draws_the_same_rows_and_counts_them_once(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = more(trained, 60, None, "cut")
    few = OPEN.model_copy(update={"most_rows_drawn": 110, "public_seed": False})
    publish = DeploymentSilo._publish

    def lost(self: DeploymentSilo, ask: Publish) -> Any:
        error = PartyLostError("Silo 'shop' answers", "gone")
        error.gone = True
        raise error

    monkeypatch.setattr(DeploymentSilo, "_publish", lost)
    with pytest.raises(SilosynthError):
        carry_out(asked, ABSENT, trained, policy=few)
    tally = trained / "bank" / "trial" / "drawn.jsonl"
    assert [json.loads(line)["rows"] for line in tally.read_text().splitlines()] == [50, 60]
    monkeypatch.setattr(DeploymentSilo, "_publish", publish)
    for silo in COLUMNS:
        (trained / silo / "cut" / "closed").unlink(missing_ok=True)
    place = carry_out(asked, ABSENT, trained, policy=few)
    assert len(table(place)) == 60
    assert len(tally.read_text().splitlines()) == 2


def test_what_is_learnt_of_asks_holds_over_all_jobs(trained: Path) -> None:
    before = (trained / "bank" / "trial" / REFERENCE).read_bytes()
    carry_out(more(trained, 40, None, "one"), ABSENT, trained)
    assert (trained / "bank" / "trial" / REFERENCE).read_bytes() != before  # counted there, and nowhere else
    assert not (trained / "bank" / "one" / REFERENCE).exists()


def begin(silo: DeploymentSilo, asked: Job) -> None:
    """As a coordinator does."""
    silo.answer(Greet(asked.algorithm, asked.submitter, *installed()))
    silo.answer(Begin(asked))


def test_other_terms_than_those_of_the_training_are_refused(trained: Path) -> None:
    asked = more(trained, 20, 1, "wrong").job
    other = job(same_rows(), align=None, options={**SMALL, "latent.steps": 41}).config
    for changes in (
        {"config": other}, {"silos": ("bank",)}, {"preset": "balanced"}, {"drawing": Drawing("trial", 8)},
        {"drawing": Drawing("trail", 7)},
    ):  # fmt: skip
        silo = sides(ABSENT, trained, "wrong")["bank"]
        with pytest.raises(ProtocolError, match="Rows are drawn from a job"):
            begin(silo, replace(asked, **changes))
        shutil.rmtree(trained / "bank" / "wrong")
    (trained / "bank" / "trial" / "closed").touch()
    with pytest.raises(ProtocolError, match="refused to go on with"):
        begin(sides(ABSENT, trained, "wrong")["bank"], asked)


def test_a_part_of_another_training_is_not_drawn_from(trained: Path) -> None:
    """Such as one of which a later job of the same name, begun by a deviating coordinator, has left the terms."""
    (trained / "bank" / "trial" / PART).unlink()
    with pytest.raises(ProtocolError, match="whose training has ended"):
        carry_out(more(trained, 20, 1, "late"), ABSENT, trained)


def test_orders_name_a_job_that_is_done_and_trained(trained: Path) -> None:
    carry_out(more(trained, 20, 1, "late"), ABSENT, trained)
    with pytest.raises(ConfigError, match="Name trial"):
        drawing_order(trained / "coordinator" / "late", 20, 1, None, "coordinator")
    place = trained / "coordinator" / "trial"
    assert unpack_order((place / "order").read_bytes()).job.seed == 7 and read_trained(place).rows == 120
    made = drawing_order(place, 20, None, None, "bob").job
    assert made.name.startswith("trial-drawn-") and made.submitter == "bob" and made.drawing == Drawing("trial", 7)
    Status("interrupted").write(place)
    with pytest.raises(ConfigError, match="trial is interrupted"):
        more(trained, 20, 1, "x")
    Status("done").write(place)
    (place / KEPT).unlink()
    with pytest.raises(ConfigError, match="earlier versions"):
        more(trained, 20, 1, "x")
    with pytest.raises(ConfigError, match="how many rows"):
        job(two_silos(), drawing=Drawing("a", None))


def test_the_command_draws_at_the_coordinator_alone(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kit(folder: Path, coordinator: bool = False) -> Any:
        return SimpleNamespace(name=folder.name, folder=folder, jobs=folder, roster=None, stream_port=None)

    monkeypatch.setattr(jobs, "open_kit", kit)
    words = ["draw", "trial", "--rows", "30", "--seed", "4", "--no-wait", "--json", "--kit"]
    done = CliRunner().invoke(app, [*words, str(trained / "coordinator"), "--name", "late"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["job"] == "late"
    assert unpack_order((trained / "coordinator" / "late" / "order").read_bytes()).job.rows == 30
    elsewhere = CliRunner().invoke(app, [*words, str(trained / "bank")])
    assert elsewhere.exit_code == 2 and "start at the coordinator's machine" in elsewhere.stderr


FILE = """[sample]
rows = 40
given = { age = { low = 30 } }
shift = { paid = { card = 0.4 } }
"""
AGE, CARDS = GivenColumn("age", '{"age": {"low": 30}}'), OtherShares("paid", '{"card": 0.4}')


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--experiment", "plan.toml"), (40, (AGE,), CARDS)),
        (("--experiment", "plan.toml", "-n", "9", "--given", AGE.text), (9, (AGE,), CARDS)),
        (("-n", "9", "--shift", "paid=card:0.4"), (9, (), CARDS)),
        (("-n", "9", "--shift", '{"paid": {"card": 0.4}}', "--given", AGE.text), (9, (AGE,), CARDS)),
        (("-n", "9", "--balance", "paid"), (9, (), OtherShares("paid"))),
        (("--given-rows", "rows.csv"), (3, (), None)),
        (("--experiment", "rows.toml"), (3, (), None)),
    ],
)  # fmt: skip
def test_file_options_and_json_ask_alike(
    words: tuple[str, ...], expected: tuple[Any, ...], trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = trained / "coordinator"
    monkeypatch.setattr(jobs, "open_kit", lambda *_, **__: SimpleNamespace(name="coordinator", jobs=place))
    monkeypatch.chdir(trained)
    Path("plan.toml").write_text(FILE)
    Path("rows.csv").write_text("age,paid\n30..,card\n,cash\n30..,card\n")
    Path("rows.toml").write_text('[sample]\ngiven = "rows.csv"\n')
    order = ["draw", "trial", *words, "--name", "late", "--no-wait", "--kit", str(place)]
    done = CliRunner().invoke(app, order, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    asked = unpack_order((place / "late" / "order").read_bytes()).job
    assert (asked.rows, asked.given, asked.shares) == expected
    older, card, cash = (
        GivenColumn(*one) for one in (("age", "age=30.."), ("paid", "paid=card"), ("paid", "paid=cash"))
    )
    framed = expected == (3, (), None)
    assert asked.frame == (GivenRows(((older, card), (cash,)), (0, 1, 0)) if framed else None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "says how many rows"),
        (("-n", "9", "--balance", "paid", "--shift", "paid=card:0.4"), "grouped in one way"),
        (("-n", "9", "--shift", '{"paid": {"card": 1}, "age": {"30": 1}}'), "shares of one column"),
        (("-n", "9", "--shift", "paid"), "COLUMN=LEVEL:SHARE"),
        (("-n", "9", "--balance", "pade"), "Did you mean 'paid'"),
    ],
)
def test_what_cannot_be_asked_is_said(
    words: tuple[str, ...], said: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = trained / "coordinator"
    monkeypatch.setattr(jobs, "open_kit", lambda *_, **__: SimpleNamespace(name="coordinator", jobs=place))
    done = CliRunner().invoke(app, ["draw", "trial", *words, "--kit", str(place)], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and said in done.stderr


def test_the_model_of_silos_with_different_rows_is_the_coordinators(tmp_path: Path) -> None:
    whole = customers(200).drop(columns="customer")
    silos = {"north": Rows(whole[:110].reset_index(drop=True)), "south": Rows(whole[110:].reset_index(drop=True))}
    options = {"generator": "ctgan", "rounds": 1, "ctgan.epochs": 1, "ctgan.batch": 50, "ctgan.least_rounds": 0,
               "ctgan.generator": [8], "ctgan.critic": [8], "ctgan.encoders.modes": 2}  # fmt: skip
    place = carry_out(Order(job(silos, algorithm="gdts", align=None, options=options)), silos, tmp_path)
    late = carry_out(more(tmp_path, 25, 3, "late"), {"north": Gone(), "south": Gone()}, tmp_path)
    pd.testing.assert_frame_equal(table(late), ss.load(place / "model.silosynth").sample(25, seed=3))
    assert len(pd.read_parquet(tmp_path / "south" / "late" / "synthetic.parquet")) == 25
