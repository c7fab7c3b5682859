from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from silosynth.core.errors import StorageError
from silosynth.core.files import locked, make_folder, read, sweep, write_atomic


def test_bytes_and_functions_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"one")
    assert read(path) == b"one"
    write_atomic(path, lambda file: file.writelines([b"two", b"three"]))
    assert path.read_bytes() == b"twothree"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_failing_writer_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"before")

    def fail(file: BinaryIO) -> None:
        file.write(b"half of ")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, fail)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_the_users_file_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"x")
    other = tmp_path / "plain"
    other.write_bytes(b"x")
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("missing/a.bin", "folder to write to must exist"),
        ("file/a.bin", "folder to write to must exist"),
        ("folder", "this is a folder"),
    ],
)
def test_each_refusal_names_path_reason_and_remedy(tmp_path: Path, place: str, remedy: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=remedy) as caught:
        write_atomic(tmp_path / place, b"x")
    assert place.split("/")[0] in str(caught.value)
    assert caught.value.remedy


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission"):
        write_atomic(tmp_path / "a.bin", b"x")
    tmp_path.chmod(0o700)


def test_reading_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="must exist"):
        read(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be made"):
        make_folder(tmp_path / "file" / "folder")


FULL = """
import resource, signal, sys
from pathlib import Path
sys.dont_write_bytecode = True
from silosynth.core.errors import StorageError
from silosynth.core.files import write_atomic, sweep
limit = int(sys.argv[2])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    write_atomic(Path(sys.argv[1]), b"x" * 2_000_000)
except StorageError as error:
    print(error)
"""


def write_much(path: Path, limit: int) -> str:
    done = subprocess.run([sys.executable, "-c", FULL, str(path), str(limit)], capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="uses limits of Linux")
def test_no_room_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"before")
    told = write_much(path, 100_000)
    assert "a.bin" in told
    assert "disk is full" in told
    assert "Free space" in told
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Path:
    """A disk of one megabyte, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"may not mount a disk: {done.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.live
def test_a_full_disk_leaves_the_previous_file(tiny_disk: Path) -> None:
    path = tiny_disk / "a.bin"
    write_atomic(path, b"before")
    with pytest.raises(StorageError, match="disk is full") as caught:
        write_atomic(path, b"x" * 2_000_000)
    assert "Free space" in caught.value.remedy
    assert path.read_bytes() == b"before"
    assert os.listdir(tiny_disk) == ["a.bin"]
    write_atomic(path, b"after")
    assert path.read_bytes() == b"after"


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in (".0a1b2c3d.000001.ckpt", "below/.ffffffff.status.json", "kept", ".hidden", ".0a1b2c3d"):
        (tmp_path / name).write_text("x")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".0a1b2c3d", ".hidden", "kept"]


def test_a_lock_is_held_once_and_leaves_no_file(tmp_path: Path) -> None:
    path, taken = tmp_path / "new" / "lock", StorageError("One at a time", "two")
    with locked(path, taken), pytest.raises(StorageError, match="One at a time"), locked(path, taken):
        pass
    assert list(path.parent.iterdir()) == []
    with locked(path, taken):
        pass


def test_who_waits_for_a_lock_gets_it_next(tmp_path: Path) -> None:
    order, waiting = [], threading.Thread(target=lambda: _hold(tmp_path / "lock", lambda: order.append("second")))
    with locked(tmp_path / "lock"):
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def _hold(path: Path, work: Callable[[], object]) -> None:
    with locked(path):
        work()
