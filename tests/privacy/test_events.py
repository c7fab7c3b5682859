from __future__ import annotations

import math

import pytest

from silosynth.core.errors import ConfigError, MessageError
from silosynth.privacy.events import DISCRETE_LAPLACE, Event
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
