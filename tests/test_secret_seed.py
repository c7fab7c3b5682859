"""A training with differential privacy draws its own seed: its noise is not what a default seed gives everybody."""

from __future__ import annotations

import pytest
from tests.contracts.test_every_algorithm import TINY, federation, whole_of

import silosynth as ss
from silosynth.core.errors import ConfigError

PRIVATE = {"preset": "fast", "options": TINY["vflgan private"], "progress": False}
PUBLIC = {"preset": "fast", "options": TINY["vflgan"], "progress": False}


def test_private_trainings_differ_and_do_not_tell_their_seed(tmp_path):
    first, second = (ss.fit("vflgan", federation("vflgan"), **PRIVATE, folder=tmp_path / n) for n in "ab")
    assert whole_of(first) != whole_of(second)
    assert first.seed == second.seed == -1
    seed = (tmp_path / "a" / "seed").read_text()
    first.save(tmp_path / "model.silosynth")
    assert seed.encode() not in (tmp_path / "model.silosynth").read_bytes()
    assert (tmp_path / "a" / "seed").stat().st_mode & 0o77 == 0


def test_a_private_training_is_resumed_with_its_own_seed(tmp_path):
    def stop(progress):
        if progress.stage == "adversarial training" and progress.done > 1:
            raise KeyboardInterrupt

    kept = {**PRIVATE, "folder": tmp_path / "run", "checkpoint_every": 0}
    with pytest.raises(KeyboardInterrupt):
        ss.fit("vflgan", federation("vflgan"), **{**kept, "progress": stop})
    seed = int((tmp_path / "run" / "seed").read_text())
    resumed = ss.fit("vflgan", federation("vflgan"), **kept, resume=True)
    assert whole_of(resumed) == whole_of(ss.fit("vflgan", federation("vflgan"), seed=seed, **PRIVATE))
    with pytest.raises(ConfigError, match="folder"):
        ss.fit("vflgan", federation("vflgan"), **PRIVATE, resume=True)


def test_without_differential_privacy_the_seed_is_zero():
    silos = federation("vflgan")
    assert whole_of(ss.fit("vflgan", silos, **PUBLIC)) == whole_of(ss.fit("vflgan", silos, seed=0, **PUBLIC))
