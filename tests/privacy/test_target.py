from __future__ import annotations

import math
from typing import Any

import pytest

from silosynth.core.errors import ConfigError
from silosynth.privacy.events import Target


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
