"""Rows that only one silo has: autoencoders are trained on them where job and policy say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, SMALL, Rows, customers, job, parties, prepared, run, seated

import silosynth as ss
from silosynth.algorithms.silofuse.protocol import PARTS, AskLatents, FitCoder, TrainAutoencoder
from silosynth.core.errors import ConfigError, DataError, PolicyError
from silosynth.deployment.exposure import exposures
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.silo_ledger import SiloLedger, verify_file
from silosynth.runtime.wire import pack, unpack

ALLOWED = OPEN.model_copy(update={"own_rows": True})
OWN = {**SMALL, "own_rows": True}
ODD = 99_000  # an income that only people have whom the shop does not know


def overlapping(n: int = 120) -> dict[str, Rows]:
    """A bank and a shop that have 40 customers in common, and 40 each that the other lacks."""
    whole = customers(n)
    whole.loc[:39, "income"] = ODD + whole.index[:40]
    bank, shop = whole[:80], whole[40:]
    return {
        "bank": Rows(bank[["customer", "age", "income"]].reset_index(drop=True), ["customer"]),
        "shop": Rows(shop[["customer", "visits", "paid"]].reset_index(drop=True), ["customer"]),
    }


def booked(silos: dict[str, Rows], name: str, folder: Path) -> tuple[DeploymentSilo, list[str]]:
    """A silo with a ledger, and what it says."""
    said: list[str] = []
    place = folder / name
    book = SiloLedger(place, "trial", seated(silos)[name])
    releases = Releases(place)
    silo = DeploymentSilo(
        seated(silos)[name], silos[name], ALLOWED, place, releases, torch.device("cpu"), say=said.append, book=book
    )
    return silo, said


def latents(silo: DeploymentSilo, begin: int = 0) -> torch.Tensor:
    """Those of a silo's rows, after training from a part on."""
    if not begin:
        silo.answer(FitCoder())
    for part in range(begin, PARTS):
        silo.answer(TrainAutoencoder(part))
    reply: Any = silo.answer(AskLatents())
    z_NL: torch.Tensor = reply.z_NL
    return z_NL


def test_a_policy_forbids_it_unless_it_says_otherwise(tmp_path: Path) -> None:
    silos = overlapping()
    with pytest.raises(PolicyError, match="'own_rows': only rows that other silos have"):
        run(job(silos, options=OWN), parties(silos, tmp_path), tmp_path)
    told = [one for one in exposures(SiloPolicy(own_rows=True)) if one.key == "own_rows = false"]
    assert len(told) == 1 and "no other silo holds" in told[0].learns
    assert not [one for one in exposures(SiloPolicy()) if one.key == "own_rows = false"]


def test_rows_of_one_silo_alone_are_trained_on_and_send_nothing(tmp_path: Path) -> None:
    silos = overlapping()
    (bank, said), (shop, _) = booked(silos, "bank", tmp_path), booked(silos, "shop", tmp_path)
    prepared({"bank": bank, "shop": shop}, job(silos, options=OWN))
    assert "and 40 that no other silo has, by which autoencoders are trained" in said
    z_NL = latents(bank)
    assert len(z_NL) == 40  # those in common, and no others
    lines = [json.loads(line) for line in (tmp_path / "bank" / "ledger.jsonl").read_text().splitlines()]
    assert [(one["linked"], one["own"]) for one in lines if one.get("kind") == "trained on"] == [(40, 40)]
    assert not verify_file(tmp_path / "bank" / "ledger.jsonl").faults
    without = parties(silos, tmp_path / "without")
    prepared(without, job(silos))
    assert not torch.equal(latents(without["bank"]), z_NL)


def test_a_restored_silo_goes_on_to_the_same_latents(tmp_path: Path) -> None:
    silos = overlapping()
    asked = job(silos, options=OWN, holdout=0.2)
    before = parties(silos, tmp_path, ALLOWED)
    prepared(before, asked)
    bank = before["bank"]
    bank.answer(FitCoder())
    bank.answer(TrainAutoencoder(0))
    state = bank.state()
    again = parties(silos, tmp_path, ALLOWED)["bank"]
    again.restore(unpack(pack(state)))
    assert torch.equal(latents(again, 1), latents(bank, 1))


def test_held_out_rows_are_not_among_them(tmp_path: Path) -> None:
    silos = overlapping()
    sides = parties(silos, tmp_path, ALLOWED)
    prepared(sides, job(silos, options=OWN, holdout=0.5))
    bank: Any = sides["bank"]
    own, linked = bank._own, bank._n_rows
    assert 5 < len(own) < 35 and 5 < linked < 35
    assert (
        float(own["income"].values.min())
        >= ODD
        > float(bank._party.coder.columns.table["income"].values[:linked].max())
    )


def test_synthetic_rows_stand_for_the_rows_in_common(tmp_path: Path) -> None:
    silos = overlapping()
    place = run(job(silos, options=OWN, rows=200), parties(silos, tmp_path, ALLOWED), tmp_path)
    made = pd.read_parquet(place / "synthetic.parquet")
    assert (made["income"] < ODD / 2).mean() > 0.9  # although half of the bank's rows have an odd income


def test_where_it_cannot_be() -> None:
    with pytest.raises(ConfigError, match="With dp a silo trains on linked rows alone"):
        job(overlapping(), options={**SMALL, "own_rows": True, "dp.epsilon": 1.0, "dp.delta": 1e-5})
    frames = {name: rows.frame for name, rows in overlapping().items()}
    linked = ss.simulate(frames, identifier="customer")
    with pytest.raises(ConfigError, match="Joint training is of rows that all silos have"):
        ss.fit("silofuse-joint", linked, "fast", options=OWN, progress=False)
    alike = ss.simulate(frames["bank"], silos={"a": ["age"], "b": ["income"]})
    with pytest.raises(ConfigError, match="come from tables that are linked"):
        ss.fit("silofuse", alike, "fast", options=OWN, progress=False)


# Simulations.


def test_simulated_tables_are_linked_by_identifier() -> None:
    frames = {name: rows.frame for name, rows in overlapping().items()}
    frames["shop"] = frames["shop"].sample(frac=1, random_state=3)
    frames["bank"].loc[79, "customer"] = frames["bank"].loc[78, "customer"]  # one in two rows
    frames["bank"].loc[77, "customer"] = None
    linked = ss.simulate(frames, identifier="customer")
    assert linked.rows == 37 and linked.columns == ("age", "income", "visits", "paid")
    assert {name: len(own) for name, own in linked.own.items()} == {"bank": 43, "shop": 43}
    both = frames["bank"].merge(frames["shop"], on="customer")[:37]
    assert linked.tables["bank"]["age"].values.tolist() == both["age"].tolist()
    assert linked.tables["shop"]["visits"].values.tolist() == both["visits"].tolist()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda frames: frames["bank"].insert(0, "client", frames["bank"].pop("customer")), DataError, "customer"),
        (lambda frames: frames["bank"].update({"customer": [f"x{k}" for k in range(80)]}), DataError, "none"),
        (lambda frames: frames["bank"].insert(1, "paid", 1), DataError, "belongs to one silo"),
    ],
)
def test_tables_that_cannot_be_linked(change: Any, error: type[Exception], said: str) -> None:
    frames = {name: rows.frame for name, rows in overlapping().items()}
    change(frames)
    with pytest.raises(error, match=said):
        ss.simulate(frames, identifier="customer")
    with pytest.raises(ConfigError, match="name: table"):
        ss.simulate(frames["shop"], identifier="customer")


def test_a_simulation_trains_on_them_too() -> None:
    linked = ss.simulate({name: rows.frame for name, rows in overlapping().items()}, identifier="customer")
    made = {
        own: ss.fit("silofuse", linked, "fast", options={**SMALL, "own_rows": own}, progress=False).sample(60, seed=1)
        for own in (False, True)
    }
    assert not made[True].equals(made[False])
    assert (made[True]["income"] < ODD / 2).mean() > 0.9 and np.isfinite(made[True]["age"]).all()
