from __future__ import annotations

import math
from typing import Any

import pytest

from silosynth.core.errors import ConfigError, MessageError
from silosynth.privacy.events import DISCRETE_LAPLACE, Event, Target
from silosynth.runtime.wire import decode, encode


def test_an_event_travels() -> None:
    event = Event(DISCRETE_LAPLACE, 0.5, 0.0, "counts of the levels of column 'job'")
    assert decode(encode(event), {"privacy.Event": Event}) == event


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_event_has_a_finite_epsilon(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        Event(DISCRETE_LAPLACE, epsilon, 0.0, "")


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_an_event_has_a_delta_below_one(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        Event(DISCRETE_LAPLACE, 1.0, delta, "")


def test_an_event_holds_what_it_says() -> None:
    with pytest.raises(MessageError):
        Event(DISCRETE_LAPLACE, "1", 0.0, "")  # type: ignore[arg-type]


# Targets.


def test_without_an_epsilon_nothing_is_private() -> None:
    assert not Target().private
    assert not Target(mechanism="paper-unsound", noise=1.0).private
    assert Target(epsilon=1, delta=1e-5).private


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"epsilon": 1.0}, "needs a delta"),
        ({"epsilon": 1.0, "delta": 1e-10}, "needs a delta"),
        ({"epsilon": 1.0, "delta": 0.5}, "needs a delta"),
        ({"delta": 1e-5}, "needs a finite epsilon"),
        ({"epsilon": 0.0, "delta": 1e-5}, "epsilon"),
        ({"epsilon": math.nan, "delta": 1e-5}, "epsilon"),
        ({"clip": 0.0}, "clip"),
        ({"encoders": 0.0}, "encoders"),
        ({"encoders": 1.0}, "encoders"),
        ({"epsilon": 1.0, "delta": 1e-5, "noise": 1.0}, "solved for"),
        ({"mechanism": "paper-unsound", "noise": math.inf}, "finite"),
        ({"mechanism": "paper-unsound", "epsilon": 1.0, "delta": 1e-5}, "no differential privacy"),
        ({"mechanism": "paper-unsound", "delta": 1e-5}, "no differential privacy"),
    ],
)
def test_meaningless_targets_are_refused(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        Target(**fields)
