"""The moving average of weights against its definition, and in the GANs that offer it."""

from __future__ import annotations

import copy

import pandas as pd
import pytest
import torch
from torch import nn

import silosynth as ss
from silosynth.catalog import ALGORITHMS
from silosynth.core.errors import ConfigError
from silosynth.models.training import MovingAverage
from silosynth.runtime.wire import pack


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def stepped(net: nn.Module, average: MovingAverage, steps: int) -> list[dict[str, torch.Tensor]]:
    """Train a little; the weights after each step."""
    seen = []
    for _ in range(steps):
        net(torch.randn(8, 3))  # running statistics move too
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.1)
        average.take()
        seen.append(copy.deepcopy(net.state_dict()))
    return seen


def test_the_average_is_that_of_its_definition():
    net = network()
    average = MovingAverage(net, 0.8)
    seen = stepped(net, average, 60)
    expected = seen[0]["0.weight"].double()
    for step, state in enumerate(seen, start=1):
        share = max(0.2, 10 / (10 + step))
        expected = (1 - share) * expected + share * state["0.weight"].double()
    torch.testing.assert_close(average.weights["0.weight"].double(), expected, rtol=1e-5, atol=1e-7)
    assert average.weights["1.num_batches_tracked"] == 60
    assert (average.weights["1.running_mean"] - seen[-1]["1.running_mean"]).abs().max() > 0


def test_it_is_applied_for_a_while_and_training_goes_on_without_it():
    net = network()
    average = MovingAverage(net, 0.9)
    last = stepped(net, average, 5)[-1]
    x = torch.randn(6, 3)
    net.eval()
    with average.applied():
        inside = net(x)
    assert all(torch.equal(value, last[name]) for name, value in net.state_dict().items())
    assert not torch.allclose(inside, net(x))


def test_without_an_average_the_weights_are_the_networks_own():
    net = network()
    average = MovingAverage(net, 0.0)
    last = stepped(net, average, 3)[-1]
    assert all(torch.equal(value, last[name]) for name, value in average.weights.items())


def test_it_goes_on_from_a_state():
    nets = [network(), network()]
    first, second = (MovingAverage(net, 0.9) for net in nets)
    stepped(nets[0], first, 4)
    nets[1].load_state_dict(nets[0].state_dict())
    second.restore(first.state())
    for net, average in zip(nets, (first, second), strict=True):
        torch.manual_seed(5)
        stepped(net, average, 30)
    assert all(torch.equal(value, second.weights[name]) for name, value in first.weights.items())


@pytest.mark.parametrize("name", ["vtgan", "ctgan"])
@pytest.mark.slow
def test_gans_release_the_average(name: str, tmp_path):
    frame = pd.DataFrame({"a": ["x", "y", "y"] * 20, "b": range(60), "c": ["u", "v"] * 30})
    federation = ss.simulate(frame, silos={"one": ["a", "b"], "two": ["c"]})
    federation = federation if name == "vtgan" else federation.central()
    sizes = {"epochs": 3, "least_rounds": 12, "batch": 20, "rate": 1e-2, "noise": 4}
    sizes |= {"width": 8, "generator_width": 8} if name == "vtgan" else {"generator": [8], "critic": [8]}
    models = {
        keep: ss.fit(name, federation, "fast", options=sizes | {"average": keep}, progress=False) for keep in (0.0, 0.9)
    }
    made = {keep: model.sample(50) for keep, model in models.items()}
    assert not made[0.0].equals(made[0.9])
    models[0.9].save(tmp_path / "model")
    assert ss.load(tmp_path / "model").sample(50).equals(made[0.9])
    with pytest.raises(ConfigError, match="average"):
        ss.fit(name, federation, "fast", options=sizes | {"average": 1.0})


def test_a_training_that_goes_on_has_the_same_average(tmp_path):
    frame = pd.DataFrame({"a": ["x", "y", "y"] * 20, "b": range(60)})
    federation = ss.simulate(frame, silos={"one": ["a", "b"]})
    options = {"epochs": 2, "least_rounds": 40, "batch": 20, "generator": [8], "critic": [8], "average": 0.9}

    def stop(progress):
        if progress.done >= 3:
            raise ZeroDivisionError

    more = {"preset": "fast", "options": options, "folder": tmp_path, "checkpoint_every": 0}
    whole = ss.fit("ctgan", federation, preset="fast", options=options, progress=False)
    with pytest.raises(ZeroDivisionError):
        ss.fit("ctgan", federation, progress=stop, **more)
    again = ss.fit("ctgan", federation, progress=False, resume=True, **more)
    assert pack(dict(again.parts)) == pack(dict(whole.parts))


def test_silos_that_average_models_refuse_to_average_steps():
    with pytest.raises(ConfigError, match="average"):
        ALGORITHMS["gdts"].configure("fast", {"ctgan.average": 0.5})
