"""Rows that a silo keeps while a job runs: it goes on although the table has changed, to the same bytes."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.attacked.desk import Desk, a_job
from tests.deployment.common import Rows, seated, two_silos
from tests.deployment.test_suspended import attempt, full, parties

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import CheckpointError, DataError, StorageError
from silosynth.deployment import endings
from silosynth.deployment.coordinator import read_status, resume
from silosynth.deployment.protocol import Begin
from silosynth.deployment.silo import DeploymentSilo
from silosynth.deployment.snapshot import FILE, Snapshot

FULL = StorageError("The file cannot be written: the disk is full", "x", "Free space.")


def with_snapshots(sides: dict[str, DeploymentSilo], place: Path) -> dict[str, DeploymentSilo]:
    for name, side in sides.items():
        side._snapshot = Snapshot(place / name, side.seat)
    return sides


@pytest.mark.slow
def test_a_job_goes_on_with_the_rows_that_it_began_with(tmp_path: Path) -> None:
    rows = two_silos()
    attempt(tmp_path / "whole", parties(rows, tmp_path / "whole"))
    place = tmp_path / "cut"
    sides = with_snapshots(parties(rows, place), place)
    full(sides["shop"], FULL)
    with pytest.raises(StorageError):
        attempt(place, sides)
    assert read_status(place / COORDINATOR).state == "suspended"
    changed = {name: Rows(one.frame[5:].reset_index(drop=True), one.identifiers) for name, one in rows.items()}
    resume(place / COORDINATOR)
    attempt(place, with_snapshots(parties(changed, place), place))
    tables = [pd.read_parquet(tmp_path / name / COORDINATOR / "synthetic.parquet") for name in ("whole", "cut")]
    pd.testing.assert_frame_equal(*tables)


def kept(folder: Path, silo: str = "bank") -> Snapshot:
    return Snapshot(folder, seated(two_silos())[silo])


def test_rows_are_read_as_they_were_written_by_their_silo_and_job_alone(tmp_path: Path) -> None:
    rows = two_silos()["bank"].frame.assign(note=["a", None] * 75, when=pd.Timestamp("2026-01-01"), yes=True)
    rows.loc[3, "income"] = np.nan
    written = kept(tmp_path / "job").keep(rows)
    pd.testing.assert_frame_equal(written, rows)
    found = kept(tmp_path / "job").rows()
    assert found is not None
    pd.testing.assert_frame_equal(found, rows)
    path = tmp_path / "job" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"PAR1" not in path.read_bytes() and b"C-0" not in path.read_bytes()
    for damaged in (path.read_bytes()[:-1], b"", bytes(40)):
        (tmp_path / "job" / FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="began with"):
            kept(tmp_path / "job").rows()
    kept(tmp_path / "job").keep(rows)
    with pytest.raises(CheckpointError):
        kept(tmp_path / "job", "shop").rows()
    (tmp_path / "other").mkdir()
    path.rename(tmp_path / "other" / FILE)
    with pytest.raises(CheckpointError):
        kept(tmp_path / "other").rows()
    assert kept(tmp_path / "job").rows() is None


def test_they_go_with_the_checkpoints(tmp_path: Path) -> None:
    kept(tmp_path).keep(two_silos()["bank"].frame)
    endings.drop_checkpoints(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_column_of_several_kinds_is_refused_without_its_values(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="values of one kind") as found:
        kept(tmp_path).keep(pd.DataFrame({"odd": ["secret", 7, object()]}))
    assert "secret" not in str(found.value) and not any(tmp_path.iterdir())


@pytest.mark.parametrize("snapshot", [True, False])
def test_it_is_asked_for_in_silo_toml(tmp_path: Path, snapshot: bool) -> None:
    desk = Desk(tmp_path)
    settings = (tmp_path / "silo.toml").read_text().replace("[data]\n", f"[data]\nsnapshot = {str(snapshot).lower()}\n")
    (tmp_path / "silo.toml").write_text(settings)
    desk.open().ask(Begin(a_job()))
    assert (tmp_path / "work" / "jobs" / "trial" / FILE).exists() == snapshot
