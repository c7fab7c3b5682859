from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from silosynth.core.errors import ProtocolError
from silosynth.models.training import RunningMean, flatten, unflatten, width


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).half())
        made[1](torch.randn(6, 4))  # so that running means are not zeros
    return made


class TestVectors:
    def test_there_and_back(self) -> None:
        state, other = network().state_dict(), network(1).state_dict()
        vector = flatten(state)
        assert vector.dtype == torch.float32 and vector.shape == (width(state),) == (3 * 4 + 4 + 4 * 4 + 4 * 2 + 2,)
        back = unflatten(vector, other)
        assert list(back) == list(state)
        for name, tensor in state.items():
            assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name
        network().load_state_dict(back)

    def test_running_statistics_are_averaged_and_counts_are_not(self) -> None:
        state = network().state_dict()
        state["1.num_batches_tracked"] += 41
        back = unflatten(torch.zeros(width(state)), state)
        assert back["1.num_batches_tracked"] == 42 and not back["1.running_mean"].any()

    def test_nothing_is_shared(self) -> None:
        state = network().state_dict()
        vector = flatten(state)
        back = unflatten(vector, state)
        for name, tensor in back.items():
            tensor.fill_(7)
            assert not (state[name] == 7).any(), name
        assert not (vector == 7).any()

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_numbers_that_are_not(self, bad: float) -> None:
        state = network().state_dict()
        state["1.running_var"][2] = bad
        with pytest.raises(ProtocolError, match=r"finite .*1\.running_var.*lower the learning rate"):
            flatten(state)
        vector = torch.zeros(width(state))
        vector[20] = bad
        with pytest.raises(ProtocolError, match=r"finite .*1\.bias"):
            unflatten(vector, state)

    @pytest.mark.parametrize("shape", [(41,), (43,), (6, 7), ()])
    def test_other_lengths(self, shape: tuple[int, ...]) -> None:
        assert width(network().state_dict()) == 42
        with pytest.raises(ProtocolError, match=r"A vector for this network is \(42,\)"):
            unflatten(torch.zeros(shape), network().state_dict())

    def test_no_weights(self) -> None:
        with pytest.raises(ProtocolError, match="have weights"):
            flatten({"count": torch.tensor(3)})


class TestRunningMean:
    @settings(max_examples=50)
    @given(st.integers(1, 20), st.integers(0, 2**31), st.booleans())
    def test_it_is_numpys_average(self, count: int, seed: int, single: bool) -> None:
        draw = np.random.default_rng(seed)
        vectors = draw.normal(5, 2, (count, 7))
        weights = draw.uniform(1e-3, 1e3, count)
        if single:
            vectors = vectors.astype(np.float32)
        mean = RunningMean(7)
        for vector, weight in zip(vectors, weights, strict=True):
            mean.add(torch.from_numpy(vector), float(weight))
        np.testing.assert_allclose(mean.mean().numpy(), np.average(vectors, axis=0, weights=weights), rtol=1e-6)
        assert mean.count == count and mean.weight == pytest.approx(weights.sum())

    def test_it_keeps_no_vector(self) -> None:
        mean = RunningMean(1000)
        seen = []
        for number in range(5):
            vector = torch.full((1000,), float(number))
            seen.append(weakref.ref(vector))
            mean.add(vector, 1.0)
            del vector
        gc.collect()
        assert not any(ref() is not None for ref in seen)
        assert mean.mean().unique().tolist() == [2.0]
        held = [value for value in vars(mean).values() if isinstance(value, torch.Tensor)]
        assert [one.numel() for one in held] == [1000]

    def test_small_among_large(self) -> None:
        """float32 would lose them: 10 000 times one beside 2²⁴."""
        mean = RunningMean(1)
        mean.add(torch.tensor([2.0**24]), 1.0)
        for _ in range(10_000):
            mean.add(torch.tensor([1.0]), 1.0)
        assert mean.mean().item() == (2**24 + 10_000) / 10_001

    def test_the_mean_is_a_copy(self) -> None:
        mean = RunningMean(2)
        mean.add(torch.ones(2), 2.0)
        mean.mean().fill_(9)
        assert mean.mean().tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("vector", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)])
    def test_other_vectors(self, vector: torch.Tensor) -> None:
        with pytest.raises(ProtocolError, match="A vector of this mean has 2 numbers"):
            RunningMean(2).add(vector, 1.0)

    def test_what_is_not_finite(self) -> None:
        mean = RunningMean(2)
        with pytest.raises(ProtocolError, match="Vectors that are averaged are finite"):
            mean.add(torch.tensor([0.0, float("nan")]), 1.0)
        for weight in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ProtocolError, match="A weight is finite and above zero"):
                mean.add(torch.zeros(2), weight)
        with pytest.raises(ProtocolError, match="over at least one"):
            mean.mean()
