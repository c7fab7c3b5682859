"""Every algorithm on a GPU, where there is one: trained there, used there and on the CPU, resumed."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from tests.contracts.settings import TINY, fitted

import silosynth as ss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
every = pytest.mark.parametrize("name", sorted(TINY))


@every
def test_a_model_trained_on_the_gpu_samples_there_and_on_the_cpu(name, tmp_path):
    model = fitted(name, device="cuda")
    table = model.sample(40, seed=1)
    model.save(tmp_path / "model.silosynth")
    for device in ("cuda", "cpu"):
        again = ss.load(tmp_path / "model.silosynth", device=device).sample(40, seed=1)
        assert list(again.columns) == list(table.columns) and len(again) == 40
        assert list(again.dtypes) == list(table.dtypes)
        if device == "cuda":
            assert again.equals(table)


@every
def test_a_run_on_the_gpu_goes_on_from_its_checkpoint(name, tmp_path):
    calls = count()

    def stop(_):
        if next(calls) == 2:
            raise KeyboardInterrupt

    kept = {"device": "cuda", "folder": tmp_path / "run", "checkpoint_every": 0}
    with pytest.raises(KeyboardInterrupt):
        fitted(name, **kept, progress=stop)
    resumed, straight = fitted(name, **kept, resume=True), fitted(name, device="cuda")
    assert resumed.sample(30, seed=2).equals(straight.sample(30, seed=2))
