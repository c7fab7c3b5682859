from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import pytest
import torch

from silosynth.core.errors import CheckpointError, StorageError
from silosynth.runtime.checkpoint import CheckpointStore, CheckpointWarning, PartStore, Saved, secret_seed
from silosynth.runtime.ledger import Position


def saved(number: int) -> Saved:
    return Saved(
        number, 10 * number, Position(20 * number, 999), {"round": number, "z": torch.full((3,), float(number))}
    )


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path, "experiment 1")
    for number in (1, 2, 3):
        store.commit(saved(number))
    return store


def test_the_newest_comes_back(store: CheckpointStore) -> None:
    latest = store.latest()
    assert latest is not None
    assert (latest.number, latest.step, latest.ledger) == (3, 30, Position(60, 999))
    assert torch.equal(latest.state["z"], torch.full((3,), 3.0))


def test_the_last_two_are_kept(store: CheckpointStore) -> None:
    assert parts(store.folder / "coordinator") == ["000002.ckpt", "000003.ckpt"]


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "new", "x").latest() is None


def test_partial_files_are_no_checkpoints(store: CheckpointStore) -> None:
    (store.folder / "coordinator" / ".000004.ckpt.ab12.part").write_bytes(b"half")
    (store.folder / "coordinator" / "notes.ckpt").write_bytes(b"")
    latest = store.latest()
    assert latest is not None
    assert latest.number == 3


def test_a_damaged_newest_is_passed_over_with_a_warning(store: CheckpointStore) -> None:
    path = store.folder / "coordinator" / "000003.ckpt"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.warns(CheckpointWarning, match=r"000003\.ckpt.*cut short.*before it is used"):
        latest = store.latest()
    assert latest is not None
    assert latest.number == 2


def test_when_all_are_damaged_nothing_begins_anew_silently(store: CheckpointStore) -> None:
    for path in (store.folder / "coordinator").iterdir():
        path.write_bytes(b"")
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=r"000002\.ckpt.*start over"):
        store.latest()


def test_another_experiment_is_named(store: CheckpointStore) -> None:
    other = CheckpointStore(store.folder, "experiment 2")
    for touch in (other.latest, other.clear):
        with pytest.raises(CheckpointError, match=r"experiment 1.*experiment 2"):
            touch()
    assert store.latest() is not None


def test_clearing_makes_room_for_a_new_run(store: CheckpointStore) -> None:
    store.clear()
    assert store.latest() is None


def test_an_overtaken_future_is_removed(store: CheckpointStore) -> None:
    store.commit(saved(2))  # the run resumed from 1
    latest = store.latest()
    assert latest is not None
    assert latest.number == 2


def test_a_party_keeps_one_more_since_its_newest_may_not_be_committed(tmp_path: Path) -> None:
    store = PartStore(tmp_path / "bank")
    for number in range(1, 6):
        store.save(number, {"held": torch.tensor(number)})
    assert parts(tmp_path / "bank") == ["000003.ckpt", "000004.ckpt", "000005.ckpt"]
    assert store.load(4)["held"] == 4
    store.save(1, {"held": torch.tensor(1)})  # a new run in the same folder
    assert parts(tmp_path / "bank") == ["000001.ckpt"]


def test_a_missing_or_damaged_part_of_a_party_is_an_error(tmp_path: Path) -> None:
    store = PartStore(tmp_path)
    with pytest.raises(CheckpointError, match=r"000001\.ckpt"):
        store.load(1)
    store.save(1, {"held": torch.ones(9)})
    path = tmp_path / "000001.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="damaged"):
        store.load(1)


def test_state_that_cannot_be_stored_leaves_the_one_before(store: CheckpointStore) -> None:
    with pytest.raises(StorageError, match=r"state\.odd"):
        store.commit(Saved(4, 40, Position(0, 0), {"odd": object()}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = store.latest()
    assert latest is not None
    assert latest.number == 3


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_nobody_else_may_read_what_a_party_keeps(store: CheckpointStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.commit(saved(1))
        PartStore(tmp_path / "part").save(1, {"rows": 3})
        secret_seed(tmp_path, again=False)
    finally:
        os.umask(before)
    kept = [*store.folder.rglob("*.ckpt"), tmp_path / "part" / "000001.ckpt", tmp_path / "seed"]
    assert len(kept) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_what_others_could_read_is_closed_and_said(tmp_path: Path) -> None:
    parts = PartStore(tmp_path)
    parts.save(1, {"rows": 3})
    (tmp_path / "000001.ckpt").chmod(0o644)
    with pytest.warns(CheckpointWarning, match=r"Others on this machine could read .*000001\.ckpt"):
        assert parts.load(1) == {"rows": 3}
    assert stat.S_IMODE((tmp_path / "000001.ckpt").stat().st_mode) == 0o600
