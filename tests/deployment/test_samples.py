"""Jobs that take up a sample of all rows: the same persons everywhere, before any is linked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.common import OPEN, Rows, customers, job, parties, run, two_silos
from tests.deployment.test_holdout import begun, trained_on

from silosynth.alignment.protocol import Placed
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError
from silosynth.deployment import holdout
from silosynth.deployment.rows_used import read_rows_used
from silosynth.runtime.wire import pack, unpack


def sampled(folder: Path, share: float = 0.5, **more: Any) -> dict[str, set[str]]:
    """Each silo's customers to train on."""
    silos = two_silos()
    sides = parties(silos, folder)
    begun(job(silos, sample=share, **more), sides)
    return {silo: trained_on(silos[silo], side) for silo, side in sides.items()}


def test_silos_take_up_the_same_persons_and_fewer_of_them_in_smaller_samples(tmp_path: Path) -> None:
    everybody, half = sampled(tmp_path, 1.0, name="all")["bank"], sampled(tmp_path)
    assert half["bank"] == half["shop"] < everybody and 45 <= len(half["bank"]) <= 98  # of 143
    assert sampled(tmp_path, name="later")["shop"] == half["bank"]
    fifth = sampled(tmp_path, 0.2, name="fifth")
    assert fifth["bank"] == fifth["shop"] < half["bank"]


def test_rows_are_held_out_of_the_sample_and_by_another_hash(tmp_path: Path) -> None:
    half, rest = sampled(tmp_path)["bank"], sampled(tmp_path, holdout=0.25, name="held")["bank"]
    without = sampled(tmp_path, 1.0, holdout=0.25, name="all-held")["bank"]
    assert rest == half & without and 0.5 < len(rest) / len(half) < 0.95


def test_nobody_is_asked_about_rows_that_are_not_in_the_sample(tmp_path: Path) -> None:
    silos = two_silos()
    heard = begun(job(silos, sample=0.2), sides := parties(silos, tmp_path))
    placed = [reply.matched for reply in heard["bank"] if isinstance(reply, Placed)]
    assert 10 < placed[0].rows < 50 and placed[0].common == len(trained_on(silos["bank"], sides["bank"]))
    assert holdout.sample_key(sides["bank"]._key) != sides["bank"]._key


def test_rows_in_the_same_order_are_sampled_by_their_place(tmp_path: Path) -> None:
    whole = customers(160)
    silos = {"bank": Rows(whole[["age", "income"]]), "shop": Rows(whole[["visits", "paid"]])}
    sides = parties(silos, tmp_path)
    begun(job(silos, sample=0.5, align=None), sides)
    orders = [side._order for side in sides.values()]
    assert orders[0] is not None and torch.equal(orders[0], orders[1])  # type: ignore[arg-type]
    assert 50 < len(orders[0]) < 110
    used = read_rows_used(tmp_path / "bank")
    assert used is not None and torch.equal(used.train, orders[0]) and not len(used.held)


def test_samples_by_place_of_tables_with_more_rows_or_fewer_are_refused(tmp_path: Path) -> None:
    whole, few = customers(161), OPEN.model_copy(update={"least_rows": 1})
    for more in (1, 2):  # nine samples of ten have as many rows without these
        silos = {"bank": Rows(whole[["age", "income"]]), "shop": Rows(whole[["visits", "paid"]][:-more])}
        with pytest.raises(ProtocolError, match=r"All silos take up the same rows|Silos must hold the same rows"):
            begun(job(silos, sample=0.1, align=None, name=f"less{more}"), parties(silos, tmp_path / f"less{more}", few))


def test_silos_with_rows_of_their_own_sample_these(tmp_path: Path) -> None:
    whole = customers(200).reset_index(drop=True)
    silos = {"north": Rows(whole[:100], ["customer"]), "south": Rows(whole[100:].reset_index(drop=True), ["customer"])}
    one = job(silos, algorithm="gdts", align=None, options={}, sample=0.5, holdout=0.25)
    begun(one, sides := parties(silos, tmp_path))
    assert all(20 < len(trained_on(silos[silo], side)) < 60 for silo, side in sides.items())


def test_rows_that_one_silo_has_alone_are_of_the_sample_too(tmp_path: Path) -> None:
    silos = two_silos(400)
    for share in (1.0, 0.5):
        one = job(silos, sample=share, name=f"own{share}", options={"own_rows": True})
        sides = parties(silos, tmp_path, OPEN.model_copy(update={"own_rows": True}))
        begun(one, sides)
        alone = sides["bank"]._alone
        order = sides["bank"]._order
        assert order is not None and len(alone) and not set(alone.tolist()) & set(order.tolist())
        assert len(alone) < 10
        least, most = (390, 390) if share == 1 else (150, 250)
        assert least <= len(alone) + len(order) <= most


def test_a_job_with_a_sample_trains_resumes_and_says_so(tmp_path: Path) -> None:
    silos = two_silos()
    one = job(silos, sample=0.5)
    folder = run(one, parties(silos, tmp_path), tmp_path / "coordinator")
    assert json.loads((folder / "label.json").read_text())["facts"]["sample"] == 0.5
    rows = json.loads((folder / "result.json").read_text())["rows"]
    begun(job(silos, sample=0.5, name="again"), sides := parties(silos, tmp_path / "again"))
    assert 45 <= rows <= 98
    back = parties(silos, tmp_path / "again")["bank"]
    back.restore(unpack(pack(sides["bank"].state())))
    assert back._order is not None and torch.equal(back._order, sides["bank"]._order)  # type: ignore[arg-type]


def test_least_rows_counts_the_sample(tmp_path: Path) -> None:
    silos = two_silos()
    with pytest.raises(PolicyError, match="least_rows"):
        begun(job(silos, sample=0.5), parties(silos, tmp_path, OPEN.model_copy(update={"least_rows": 120})))


def test_shares_are_few_so_that_two_samples_differ_by_many() -> None:
    silos = two_silos()
    with pytest.raises(ConfigError, match="a half, a fifth, a tenth and so on"):
        job(silos, sample=0.3)
    with pytest.raises(ConfigError, match="opens exact counts takes up all rows"):
        job(silos, algorithm="judge", preset="balanced", sample=0.5, options={"opening": "exact"}, seed=None)
