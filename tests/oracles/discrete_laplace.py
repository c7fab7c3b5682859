"""Discrete Laplace noise, one draw at a time, as Canonne, Kamath and Steinke (2020) write it: fractions, and no floats.

https://arxiv.org/abs/2004.00010, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

Below = Callable[[int], int]  # a number drawn uniformly from [0, n)


def happens(probability: Fraction, below: Below) -> bool:
    return below(probability.denominator) < probability.numerator


def happens_exp(gamma: Fraction, below: Below) -> bool:
    """An event of probability exp(-gamma), gamma from 0 to 1: algorithm 1."""
    k = 1
    while happens(gamma / k, below):
        k += 1
    return k % 2 == 1


def draw(s: int, t: int, below: Below) -> int:
    """Discrete Laplace noise of scale t/s, which is epsilon = s/t: algorithm 2."""
    while True:
        u = below(t)
        if not happens_exp(Fraction(u, t), below):
            continue
        v = 0
        while happens_exp(Fraction(1), below):
            v += 1
        y = (u + t * v) // s
        negative = below(2) == 1
        if not (negative and y == 0):
            return -y if negative else y
