"""A training with differential privacy draws its own seed: its noise is not what a default seed gives everybody."""

from __future__ import annotations

import shutil

import pytest
from tests.contracts.settings import BOUNDS, TINY, federation, frame
from tests.contracts.test_every_algorithm import whole_of

import silosynth as ss
from silosynth.core.errors import ConfigError
from silosynth.runtime.wire import pack

TARGET = {"epsilon": 1.0, "delta": 1e-5, "encoders": 0.5}  # the noise of so little is found soon
PRIVATE = {"preset": "fast", "options": TINY["vflgan private"] | {"dp": TARGET}, "progress": False}
PUBLIC = {"preset": "fast", "options": TINY["vflgan"], "progress": False}


@pytest.mark.slow
def test_private_trainings_differ_and_do_not_tell_their_seed(tmp_path):
    first, second = (ss.fit("vflgan", federation("vflgan private"), **PRIVATE, folder=tmp_path / n) for n in "ab")
    assert whole_of(first) != whole_of(second)
    assert first.seed == second.seed == -1
    seed = (tmp_path / "a" / "seed").read_text()
    assert int(seed) > 2**80
    first.save(tmp_path / "model.silosynth")
    assert seed.encode() not in (tmp_path / "model.silosynth").read_bytes()
    assert (tmp_path / "a" / "seed").stat().st_mode & 0o77 == 0


@pytest.mark.slow
def test_a_private_training_is_resumed_with_its_own_seed(tmp_path):
    def stop(progress):
        if progress.stage == "adversarial training" and progress.done > 1:
            raise KeyboardInterrupt

    kept = {**PRIVATE, "folder": tmp_path / "run", "checkpoint_every": 0}
    with pytest.raises(KeyboardInterrupt):
        ss.fit("vflgan", federation("vflgan private"), **{**kept, "progress": stop})
    whole = again(tmp_path / "run", tmp_path / "whole", federation("vflgan private"))
    resumed = ss.fit("vflgan", federation("vflgan private"), **kept, resume=True)
    assert whole_of(resumed) == whole_of(whole)
    with pytest.raises(ConfigError, match="folder"):
        ss.fit("vflgan", federation("vflgan private"), **PRIVATE, resume=True)


def again(folder, other, silos, **more):
    """A training from its start, with the secret that another folder keeps."""
    other.mkdir()
    shutil.copy(folder / "seed", other)
    return ss.fit("vflgan", silos, **PRIVATE, folder=other, resume=True, **more)


@pytest.mark.slow
def test_other_data_get_other_noise_from_the_same_secret(tmp_path):
    """A level's new name is nothing to the networks of the silo that does not hold it; but the noise of all is new."""
    first = ss.fit("vflgan", federation("vflgan private"), **PRIVATE, folder=tmp_path / "first")
    data = frame()
    renamed = data.assign(note=data["note"].replace({"b": "c"}))
    columns = {"bank": ["age", "spent", "city"], "shop": ["member", "since", "note"]}
    silos = ss.simulate(renamed, columns, BOUNDS)
    same = again(tmp_path / "first", tmp_path / "same", federation("vflgan private"))
    other = again(tmp_path / "first", tmp_path / "other", silos)
    assert whole_of(same) == whole_of(first)
    assert pack(other.parts["bank"]) != pack(first.parts["bank"])


@pytest.mark.live
def test_silos_in_processes_take_the_secret_as_well(tmp_path):
    first = ss.fit("vflgan", federation("vflgan private"), **PRIVATE, folder=tmp_path / "first")
    apart = again(tmp_path / "first", tmp_path / "apart", federation("vflgan private"), runtime="processes")
    assert whole_of(apart) == whole_of(first)


def test_without_differential_privacy_the_seed_is_zero():
    silos = federation("vflgan private")
    assert whole_of(ss.fit("vflgan", silos, **PUBLIC)) == whole_of(ss.fit("vflgan", silos, seed=0, **PUBLIC))
