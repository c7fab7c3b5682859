"""Jobs from the first greeting to the results, with silos in one process."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, SMALL, Rows, customers, job, parties, prepared, run, two_silos
from typer.testing import CliRunner

import silosynth as ss
from silosynth.algorithms.gdts.protocol import NoisedSummaries
from silosynth.algorithms.silofuse.protocol import AskLatents, FitCoder, TrainAutoencoder
from silosynth.alignment import AlignConfig
from silosynth.cli import app
from silosynth.commands.outcomes import _report
from silosynth.commands.session import Session
from silosynth.core.conversation import Party, SyntheticColumns
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError, SilosynthError, StorageError
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.data.infer import infer
from silosynth.deployment import protocol
from silosynth.deployment.coordinator import read_status
from silosynth.deployment.kept import guarantee_of, kept_job, kept_model
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.privacy.mechanisms import noised_counts, noised_levels


def test_a_job_gives_what_training_on_the_linked_rows_gives(tmp_path: Path) -> None:
    silos = two_silos()
    sides = parties(silos, tmp_path)
    orders = {}
    for name, side in sides.items():  # the common order, which only silos know
        begun = side._prepare

        def prepare(side=side, name=name, begun=begun):  # type: ignore[no-untyped-def]
            orders[name] = side._aligner.rows
            return begun()

        side._prepare = prepare  # type: ignore[method-assign]
    place = run(job(silos), sides, tmp_path)
    frames = {name: rows.frame.iloc[orders[name].numpy()].reset_index(drop=True) for name, rows in silos.items()}
    assert (frames["bank"].customer == frames["shop"].customer).all()  # row i is the same customer in both
    assert len(frames["bank"]) == len(set(silos["bank"].frame.customer) & set(silos["shop"].frame.customer))
    together = pd.concat([frame.drop(columns="customer") for frame in frames.values()], axis=1)
    model = ss.fit(
        "silofuse", ss.simulate(together, silos={"bank": ["age", "income"], "shop": ["visits", "paid"]}),
        preset="fast", seed=7, options=SMALL, progress=False,
    )  # fmt: skip
    made = pd.read_parquet(place / "synthetic.parquet")
    pd.testing.assert_frame_equal(made, model.sample(50))
    for silo in silos:  # every silo keeps the table that is published
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / silo / "synthetic.parquet"), made)
        assert (tmp_path / silo / "part.silosynth").exists()


@pytest.mark.slow
def test_linked_people_have_the_same_pseudonym_everywhere(tmp_path: Path) -> None:
    declared = {"customer": "pseudonym"}
    silos = {name: replace(rows, declared=declared) for name, rows in two_silos().items()}
    for folder, synthesis, policy in (
        (tmp_path / "a", "shared", OPEN),
        (tmp_path / "b", "partitioned", OPEN.model_copy(update={"share_synthetic": False})),
    ):
        place = run(job(silos, options={**SMALL, "synthesis": synthesis}), parties(silos, folder, policy), folder)
        tables = [pd.read_parquet(folder / silo / "synthetic.parquet") for silo in silos]
        if synthesis == "shared":
            tables.append(pd.read_parquet(place / "synthetic.parquet"))
        held = [table["customer"].tolist() for table in tables]
        assert all(one == held[0] for one in held)
        assert all(re.fullmatch(r"[A-Z]-\d{5}", text) for text in held[0])


def test_the_coordinator_writes_what_it_learnt(tmp_path: Path) -> None:
    silos = two_silos()
    place = run(job(silos), parties(silos, tmp_path), tmp_path)
    result = json.loads((place / "result.json").read_text())
    counts = result["matched"]
    assert counts["bank"]["rows"] == 150 and counts["shop"]["rows"] == 153
    assert counts["bank"]["common"] == counts["shop"]["common"] == result["rows"]
    assert result["silos"] == {"bank": ["age", "income"], "shop": ["visits", "paid"]}
    assert read_status(place).state == "done" and read_status(place).attempts == 1
    said = {json.loads(line)["type"] for line in (place / "ledger.jsonl").read_text().splitlines()}
    assert {"deployment.PreparedRows", "deployment.Publish"} <= said
    text = (place / "ledger.jsonl").read_text() + (place / "result.json").read_text()
    assert not any(number in text for number in silos["bank"].frame.customer)


@pytest.mark.slow
def test_a_report_at_a_silo_says_what_drew_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silos = two_silos()
    place = run(job(silos), parties(silos, tmp_path), tmp_path)
    shutil.copy(place / "ledger.jsonl", tmp_path / "bank")
    silos["bank"].frame.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "silo.toml").write_text('[data]\npath = "rows.csv"\nidentifiers = ["customer"]\n')
    judge = ss.evaluate
    monkeypatch.setattr(ss, "evaluate", lambda **given: judge(**given, figures="gan"))
    kit: Any = SimpleNamespace(name="bank", folder=tmp_path, jobs=tmp_path)
    made = pd.read_parquet(tmp_path / "bank" / "synthetic.parquet")
    _report(Session(quiet=True), kit, "bank", made, tmp_path / "report.json", None)
    about = json.loads((tmp_path / "report.json").read_text())["about"]
    assert (about["algorithm"], about["preset"], about["seed"]) == ("silofuse", "fast", 7)
    assert about["guarantee"].startswith("none") and about["silos"] == {"bank": ["age", "income"]}
    assert set(about["ranges"]) == {"age", "income"}


@pytest.mark.slow
def test_a_secret_seed_gives_another_table_and_still_trains(tmp_path: Path) -> None:
    silos = two_silos()
    policy = SiloPolicy(least_rows=10, keyed_hash=True)
    place = run(job(silos, seed=None), parties(silos, tmp_path / "a", policy), tmp_path / "a")
    other = run(job(silos, seed=None), parties(silos, tmp_path / "b", policy), tmp_path / "b")
    a, b = (pd.read_parquet(folder / "synthetic.parquet") for folder in (place, other))
    assert list(a.columns) == list(b.columns) and not a.equals(b)


@pytest.mark.slow
def test_a_private_job_publishes_no_exact_number_of_rows(tmp_path: Path) -> None:
    silos, policy = two_silos(), SiloPolicy(least_rows=10, keyed_hash=True, algorithms=["dplt"])
    bounds = {"bank": {"age": {"low": 18, "high": 80}, "income": {"low": 0, "high": 8000}},
              "shop": {"visits": {"low": 0, "high": 40}}}  # fmt: skip
    silos = {name: replace(rows, declared=bounds[name]) for name, rows in silos.items()}
    target = {"dp": {"epsilon": 5.0, "delta": 1e-5}}
    place = run(
        job(silos, algorithm="dplt", seed=None, rows=None, options=target), parties(silos, tmp_path, policy), tmp_path
    )
    result = json.loads((place / "result.json").read_text())
    assert len(pd.read_parquet(place / "synthetic.parquet")) == result["rows"]
    assert "matched" not in result
    for name, rows in silos.items():  # of which each knows its own part
        known = kept_model(tmp_path / name, name, infer(rows.frame, bounds[name]), []).describe()  # type: ignore[union-attr]
        assert known["guarantee"].startswith("epsilon at most 5 at delta 1e-05 for the released model")
        assert (known["algorithm"], known["seed"]) == ("dplt", -1)


TINY = {
    "dp_training": {"coder_steps": 10, "latent_steps": 4, "hidden": [8], "width": 8, "batch": 40}, "least_rows": 50,
    "latent.width": 16, "latent.steps": 6, "latent.checks": 2, "latent.sample_steps": 3,
}  # fmt: skip


@pytest.mark.parametrize("link", ["none", pytest.param("psi", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "algorithm", ["dplt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mst", "aim", "silofuse"))]
)
def test_a_private_job_runs_while_an_epsilon_is_limited(tmp_path: Path, algorithm: str, link: Any) -> None:
    whole, align = customers(160), None if link == "none" else AlignConfig(link)
    bounds = {"bank": {"age": {"low": 18, "high": 80}, "income": {"low": 0, "high": 8000}},
              "shop": {"visits": {"low": 0, "high": 40}}}  # fmt: skip
    columns = {"bank": ["age", "income"], "shop": ["visits", "paid"]}
    silos = {
        silo: Rows(whole[["customer", *columns[silo]]], ["customer"], bounds[silo]) for silo in ("bank", "shop")
    }  # fmt: skip
    policy = SiloPolicy(
        algorithms=[algorithm], largest_epsilon=3.1, largest_epsilon_per_job=3.0, exact_rows=align is not None,
        require_alignment=False,
    )  # fmt: skip
    options = {"dp": {"epsilon": 3.0, "delta": 1e-5}, **(TINY if algorithm == "silofuse" else {})}
    asked = job(silos, algorithm=algorithm, seed=None, align=align, options=options)
    place = run(asked, parties(silos, tmp_path, policy), tmp_path)
    assert len(pd.read_parquet(place / "synthetic.parquet")) == 50
    told = {json.loads(line)["type"] for line in (place / "ledger.jsonl").read_text().splitlines()}
    assert "deployment.PreparedRows" not in told
    spent = [Releases(tmp_path / silo).without("") for silo in silos]
    assert all(spent)
    kept = kept_job(tmp_path / "bank")
    assert kept is not None
    stated = str(guarantee_of(algorithm, kept.config, kept.seed))
    assert stated.startswith("epsilon at most 3 at delta 1e-05 for the released model")
    assert guarantee_of(algorithm, kept.config, 7) is None  # a seed tells the noise
    own = [line for line in (place / "ledger.jsonl").read_text().splitlines() if '"bank"' in line]
    (tmp_path / "bank" / "ledger.jsonl").write_text("\n".join(own))  # as it records them itself
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "bank"), "--json"])
    privacy = json.loads(shown.stdout)["privacy"]
    assert privacy["summary"] == stated and privacy["release"]["epsilon"] == 3 > privacy["silos"]["bank"]["epsilon"]
    with pytest.raises(PolicyError, match=r"largest_epsilon': all releases together cost at most 3\.1"):
        run(replace(asked, name="another"), parties(silos, tmp_path, policy), tmp_path / "again")


@pytest.mark.parametrize(
    ("rule", "changes", "dp"),
    [
        ("open_tables", {}, {}),
        ("open_tables", {"open_tables": "no"}, {"epsilon": 3.0, "delta": 1e-5}),
        ("require_dealer", {"require_dealer": True}, {"epsilon": 3.0, "delta": 1e-5}),
        ("largest_epsilon", {"largest_epsilon": 2.0, "exact_rows": True}, {"epsilon": 3.0, "delta": 1e-5}),
    ],
)
def test_a_training_that_counts_keeps_to_what_may_open(
    rule: str, changes: dict[str, Any], dp: dict[str, float], tmp_path: Path
) -> None:
    silos, policy = two_silos(60), OPEN.model_copy(update={"algorithms": ["mst"], "public_seed": False, **changes})
    asked = job(silos, algorithm="mst", seed=None, rows=None, options={"dp": dp} if dp else {})
    with pytest.raises(PolicyError, match=f"'{rule}'"):
        run(asked, parties(silos, tmp_path, policy), tmp_path)


def test_rows_of_horizontal_silos_need_no_alignment(tmp_path: Path) -> None:
    whole = customers(300).drop(columns="customer")
    silos = {"north": Rows(whole[:180].reset_index(drop=True)), "south": Rows(whole[180:].reset_index(drop=True))}
    options = {"generator": "ctgan", "rounds": 2, "ctgan.epochs": 2, "ctgan.batch": 50, "ctgan.least_rounds": 0,
               "ctgan.generator": [8], "ctgan.critic": [8], "ctgan.encoders.modes": 2}  # fmt: skip
    place = run(job(silos, algorithm="gdts", align=None, options=options), parties(silos, tmp_path), tmp_path)
    made = pd.read_parquet(place / "synthetic.parquet")
    assert list(made.columns) == list(whole.columns) and len(made) == 50
    assert list(ss.load(place / "model.silosynth").sample(5).columns) == list(whole.columns)


def rows_of(whole: pd.DataFrame, count: int = 3) -> dict[str, Rows]:
    """Silos with different rows, whose numbers have bounds."""
    bounds = {"age": {"low": 0, "high": 120}, "income": {"low": 0, "high": 500_000}}
    parts = np.array_split(np.arange(len(whole)), count)
    frames = [whole.iloc[part][["customer", "age", "income"]].reset_index(drop=True) for part in parts]
    return {f"silo{number}": Rows(frame, ["customer"], bounds) for number, frame in enumerate(frames)}


@pytest.mark.slow
def test_tables_of_different_rows_under_a_largest_epsilon(tmp_path: Path) -> None:
    """All silos get the synthetic table; what the training has cost is in each one's record, once."""
    silos, options = rows_of(customers(240)), {"horizontal": True, "dp": {"epsilon": 0.9, "delta": 1e-5}}
    policy = OPEN.model_copy(update={"algorithms": ["mst"], "largest_epsilon": 1.0, "open_tables": "noised"})
    sides = parties(silos, tmp_path, policy)
    asked = job(silos, algorithm="mst", seed=None, align=None, rows=40, options=options)
    place = run(asked, sides, tmp_path)
    assert len(pd.read_parquet(place / "synthetic.parquet")) == 40
    assert len(pd.read_parquet(tmp_path / "silo1" / "synthetic.parquet")) == 40
    assert ss.load(place / "model.silosynth").sample(7).shape == (7, 2)
    with pytest.raises(PolicyError, match="largest_epsilon"):
        run(replace(asked, name="again"), sides, tmp_path / "again")


def test_silos_with_the_same_columns_of_a_job_that_does_not_say_so(tmp_path: Path) -> None:
    silos = rows_of(customers(240))
    asked = job(silos, algorithm="mst", seed=None, align=None, options={"dp": {"epsilon": 1.0, "delta": 1e-5}})
    with pytest.raises(ConfigError, match=r"the same columns in silo0, silo1, silo2.*horizontal = true"):
        run(asked, parties(silos, tmp_path, OPEN.model_copy(update={"algorithms": ["mst"]})), tmp_path)


def test_partitioned_columns_stay_in_their_silo(tmp_path: Path) -> None:
    silos = two_silos()
    policy = OPEN.model_copy(update={"share_synthetic": False})
    asked = job(silos, options={**SMALL, "synthesis": "partitioned"})
    place = run(asked, parties(silos, tmp_path, policy), tmp_path)
    assert not (place / "synthetic.parquet").exists()
    assert list(pd.read_parquet(tmp_path / "bank" / "synthetic.parquet").columns) == ["age", "income"]
    assert len(pd.read_parquet(tmp_path / "shop" / "synthetic.parquet")) == 50


def test_synthetic_columns_stay_whatever_the_coordinator_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job says that they stay; the policy holds even if the algorithm sends them all the same."""
    silos = two_silos()
    policy = OPEN.model_copy(update={"share_synthetic": False})
    asked = job(silos, options={**SMALL, "synthesis": "partitioned"})
    sides = parties(silos, tmp_path, policy)
    monkeypatch.setattr(Party, "publish", lambda self, table, share: SyntheticColumns(table))
    with pytest.raises(PolicyError, match=r"Silo 'bank', step.*Policy rule 'share_synthetic'"):
        run(asked, sides, tmp_path)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (OPEN.model_copy(update={"algorithms": ["gdts"]}), "algorithms"),
        (OPEN.model_copy(update={"submitters": ["bob"]}), "submitters"),
        (OPEN.model_copy(update={"public_seed": False}), "public_seed"),
        (OPEN.model_copy(update={"least_rows": 149}), "least_rows"),
        (OPEN.model_copy(update={"share_synthetic": False}), "share_synthetic"),
        (OPEN.model_copy(update={"messages": ["alignment.*"]}), "messages"),
        (OPEN.model_copy(update={"refused": ["*.Latents"]}), "refused"),
        (OPEN.model_copy(update={"refused": ["core.*"]}), "refused"),  # synthetic columns
        (OPEN.model_copy(update={"largest_epsilon": 3.0, "exact_rows": True}), "largest_epsilon"),
        (OPEN.model_copy(update={"largest_epsilon": 3.0}), "exact_rows"),
    ],
)
def test_a_silo_refuses_what_its_policy_forbids_and_says_which_rule(
    tmp_path: Path, policy: SiloPolicy, rule: str
) -> None:
    silos = two_silos()
    with pytest.raises(PolicyError, match=f"Silo 'shop', step.*Policy rule '{rule}'"):
        run(job(silos), parties(silos, tmp_path, shop=policy), tmp_path)
    status = read_status(tmp_path / "coordinator")
    assert status.state == "failed" and rule in status.error


def test_a_finite_budget_lets_nothing_out_without_noise(tmp_path: Path) -> None:
    whole = customers(300).drop(columns="customer")
    silos = {"north": Rows(whole[:180].reset_index(drop=True)), "south": Rows(whole[180:].reset_index(drop=True))}
    tight = OPEN.model_copy(update={"largest_epsilon": 10.0})
    with pytest.raises(PolicyError, match=r"nothing about rows leaves without noise.*no dp"):
        run(job(silos, algorithm="gdts", align=None, options={}), parties(silos, tmp_path, north=tight), tmp_path)


def test_names_of_levels_that_one_row_holds_cost_what_no_budget_has() -> None:
    """With delta 0, GDTS releases all names, and charges nothing for noise that then protects nobody."""
    tight = OPEN.model_copy(update={"largest_epsilon": 0.1})
    with pytest.raises(PolicyError, match=r"all noise is charged.*NoisedSummaries without events"):
        tight.check_reply(NoisedSummaries((), 5, ()), charged=True)
    _, _, event = noised_levels(("a", "b"), torch.tensor([50, 1]), 0.01, 0.4, "names", Streams(0).noise())
    assert event is not None
    with pytest.raises(PolicyError, match=r"Policy rule 'largest_delta'.*0\.4"):
        tight.check_spending([event], [], [])


@pytest.mark.parametrize("restored", [False, True])
def test_the_first_refusal_ends_the_job_at_the_silo(restored: bool, tmp_path: Path) -> None:
    silos = two_silos()
    policy = OPEN.model_copy(update={"refused": ["algorithms.silofuse.Latents"]})
    sides, begun = parties(silos, tmp_path, bank=policy), job(silos, align=None)
    silo = sides["bank"]
    prepared(sides, begun)
    silo.answer(FitCoder())
    before = silo.state()
    with pytest.raises(PolicyError, match="refused"):
        silo.answer(AskLatents())
    if restored:
        silo = parties(silos, tmp_path, bank=OPEN)["bank"]  # in a new process, and by another policy
        with pytest.raises(ProtocolError, match="the first message that it refuses"):
            silo.restore(before)
    with pytest.raises(ProtocolError, match="the first message that it refuses"):
        silo.answer(TrainAutoencoder(0))


def test_a_job_goes_on_after_an_error_that_may_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silos = two_silos()
    sides, begun = parties(silos, tmp_path), job(silos, align=None)
    silo = sides["bank"]
    prepared(sides, begun)
    before = silo.state()
    (tmp_path / "bank" / "part.silosynth").mkdir(parents=True)  # as good as a full disk
    with pytest.raises(StorageError):
        silo.answer(protocol.KeepPart())
    with pytest.raises(ProtocolError, match="the first message that it refuses"):
        silo.answer(FitCoder())
    silo.restore(before)
    assert isinstance(silo.answer(FitCoder()), Message)


def test_a_budget_holds_over_all_jobs_and_the_same_noise_counts_once(tmp_path: Path) -> None:
    _, event = noised_counts(torch.tensor([5]), 1.0, "counts", Streams(0).noise())
    assert event is not None
    policy, releases = SiloPolicy(largest_epsilon=2.5, largest_epsilon_per_job=1.5), Releases(tmp_path)
    for name, asked in (("one", "a"), ("one", "a"), ("two", "b")):  # the second is the first again
        policy.check_spending([event], releases.without(asked, name), releases.without(asked))
        releases.add(name, asked, [event])
    with pytest.raises(PolicyError, match=r"Policy rule 'largest_epsilon': all releases together cost at most 2\.5"):
        policy.check_spending([event], releases.without("c", "three"), releases.without("c"))
    with pytest.raises(PolicyError, match=r"Policy rule 'largest_epsilon_per_job': .* at most 1\.5"):
        policy.check_spending([event], releases.without("c", "two"), releases.without("c"))


def test_versions_and_sources_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silos, digests = (
        two_silos(),
        iter(["0" * 64] * 3),
    )  # the coordinator asks first: for its checkpoints, what it begins with, and its greeting
    monkeypatch.setattr(protocol, "sources", lambda: next(digests, "f" * 64))
    with pytest.raises(SilosynthError, match=r"of the coordinator, .*SHA-256 0{64}.*f{64} at silo"):
        run(job(silos), parties(silos, tmp_path), tmp_path)


def test_mistakes_of_silos_are_said_in_words(tmp_path: Path) -> None:
    silos = two_silos()
    bare = {**silos, "shop": Rows(silos["shop"].frame)}
    with pytest.raises(SilosynthError, match=r"Silo 'shop', step.*columns that each silo's silo\.toml names"):
        run(job(bare), parties(bare, tmp_path / "a"), tmp_path / "a")
    wrong = {**silos, "shop": Rows(silos["shop"].frame, ["customr"])}
    with pytest.raises(SilosynthError, match=r"customr.*Did you mean 'customer'\?"):
        run(job(wrong), parties(wrong, tmp_path / "b"), tmp_path / "b")
    with pytest.raises(SilosynthError, match=r"same rows in the same order.*'bank': 150, 'shop': 153"):
        run(job(silos, align=None), parties(silos, tmp_path / "c"), tmp_path / "c")
    same = {**silos, "shop": Rows(silos["shop"].frame.rename(columns={"visits": "age"}), ["customer"])}
    with pytest.raises(SilosynthError, match="'age' is in 'bank' and in 'shop'"):
        run(job(same), parties(same, tmp_path / "d"), tmp_path / "d")


def test_a_policy_need_not_allow_that_silos_agree_on_the_job(tmp_path: Path) -> None:
    silos = two_silos(40)
    strict = OPEN.model_copy(update={"messages": ["algorithms.silofuse.*"], "require_alignment": False})
    assert prepared(parties(silos, tmp_path, strict), job(silos, align=None)).keys() == silos.keys()
