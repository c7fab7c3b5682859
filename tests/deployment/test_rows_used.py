"""Reports of a silo compare the rows that were trained on, and those that were held out."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tests.deployment.common import job, parties, prepared
from tests.deployment.sites import same_rows

from silosynth.commands.outcomes import _rows_of_job
from silosynth.commands.session import Session
from silosynth.deployment.rows_used import read_rows_used, rows_used, table_hash


def said(ui: Session) -> list[str]:
    lines: list[str] = []
    ui.note = lines.append  # type: ignore[method-assign]
    return lines


def test_a_job_keeps_which_rows_it_trains_on_and_holds_out(tmp_path: Path) -> None:
    silos = same_rows(200)
    whole = silos["bank"].frame
    prepared(parties(silos, tmp_path), job(silos, align=None, holdout=0.2))
    used = read_rows_used(tmp_path / "bank")
    assert used is not None and 100 < len(used.train) < 190 and len(used.train) + len(used.held) == 200
    assert sorted([*used.train.tolist(), *used.held.tolist()]) == list(range(200))
    other = read_rows_used(tmp_path / "shop")
    assert other is not None and other.held.equal(used.held)  # the same persons everywhere
    ui = Session(quiet=True)
    lines = said(ui)
    parts, which = _rows_of_job(ui, tmp_path / "bank", whole)
    pd.testing.assert_frame_equal(parts["holdout"], whole.iloc[used.held.numpy()].reset_index(drop=True))
    assert which == "rows trained on, and rows held out"
    assert len(parts["train"]) == len(used.train) and lines == []


def test_another_table_than_that_of_the_training_is_said_to_be_one(tmp_path: Path) -> None:
    whole = same_rows(60)["bank"].frame
    prepared(parties(same_rows(60), tmp_path), job(same_rows(60), align=None))
    ui = Session(quiet=True)
    lines = said(ui)
    assert len(_rows_of_job(ui, tmp_path / "bank", whole)[0]["train"]) == 60 and lines == []
    parts, which = _rows_of_job(ui, tmp_path / "bank", whole[:40])
    assert len(parts["train"]) == 40 and parts["holdout"] is None and "has changed since the job trained" in lines[0]
    assert which == "all rows of that day, not only those trained on"
    _rows_of_job(ui, tmp_path / "nowhere", whole)
    assert "it is not kept which" in lines[1]


def test_a_table_is_known_again_by_its_values_and_names() -> None:
    frame = same_rows(20)["shop"].frame
    assert table_hash(frame) == table_hash(frame.copy())
    changed = frame.copy()
    changed.loc[3, "paid"] = "coins"
    assert len({table_hash(one) for one in (frame, changed, frame[::-1], frame.rename(columns={"paid": "by"}))}) == 4
    import torch

    used = rows_used(frame, torch.tensor([4, 2, 9]), torch.tensor([False, True, False]))
    assert used.train.tolist() == [4, 9] and used.held.tolist() == [2]
