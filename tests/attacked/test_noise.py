"""Attacks on noise: what its last bits, and what a file, tell of it."""

from __future__ import annotations

import torch

from silosynth.core.streams import Streams
from silosynth.privacy.dpsgd import noised

DEVIATION, DRAWN = 1.0, 20_000


def finest(values: torch.Tensor) -> torch.Tensor:
    """The exponent of the last bit that is set, of float32 numbers that are not zero."""
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa.double() * 2**24).long()
    return exponent - 24 + torch.log2((whole & -whole).double()).long()


def test_outputs_near_zero_do_not_tell_whether_the_sum_was_zero() -> None:
    """Mironov (2012): 0 + noise has finer last bits near zero than 64 + noise can have, or 1 + noise.

    The attacker learns the finest bits of either sum from draws of his own, and calls every output that is finer than
    the other sum's ever are.
    """
    outputs = {}
    for total in (0.0, 4.0):
        drawn = noised({"w": torch.full((DRAWN,), total)}, 4 * DEVIATION, Streams(1).noise())["w"]
        near = drawn[(drawn.abs() < 0.25) & (drawn != 0)]
        outputs[total] = finest(near)
    told = (outputs[0.0] < outputs[4.0].min()).double().mean()
    assert len(outputs[0.0]) > 500 and float(told) < 0.02
