"""DPLT's epsilons and noise, and its tables of two silos that nobody sees without noise.

*Tables of two silos.* Silo a's latent attributes are a matrix of flags A (N, K), silo b's B (N, J); the tables of all
pairs are A'B. All sums are modulo 2^64. The coordinator deals (Du and Atallah 2001; Beaver 1991): from seeds it gives a
the random matrix U, b the random matrix V, and to each a share of U'V, of which W is random and U'V - W the rest.
Sealed, a sends b the matrix D = A - U, and b sends a the matrix E = B - V. Then ::

    a replies  A'E + W + M          b replies  D'V + (U'V - W) - M          the sum is A'B

M is random, and known to a and b only: without it the coordinator, who knows V and W, would learn A'V. It is another
for other D or E (`mask_of`). Each silo adds its own noise to its reply, so that noise remains for whoever knows the
other's.

Who learns what: b sees D, in which any A is equally likely to whoever does not know U; likewise a. The coordinator sees
the noised sum. This holds where all follow the protocol, and the coordinator shares with no silo what it has dealt:
with U or V, D or E reveal the rows' latent attributes.

Shapes: N rows, K columns of the silo's own matrix, J of the other silo's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from silosynth.algorithms.dplt.options import DPLTConfig
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.streams import Keystream, Streams
from silosynth.counting.products import AnyWords, product
from silosynth.privacy import accounting, sealed
from silosynth.privacy.events import DISCRETE_LAPLACE, Event, Target
from silosynth.privacy.masks import add_mask
from silosynth.privacy.mechanisms import noised_counts

HALVINGS = 9  # of what composition may save
WORDS = 5  # of 63 bits, for a seed of 32 bytes


def epsilons(config: DPLTConfig, columns: Sequence[int], events: Sequence[Event]) -> tuple[float, float, float]:
    """Epsilon of a table of two attributes of a silo, of one of a group, and of one of two latent attributes.

    Infinity without differential privacy. Otherwise the greatest, in the proportion of ``shares``, with which all
    tables of all silos and ``events``, those of encoders, together cost at most the target.

    Args:
        config: all options.
        columns: number of columns of each silo.
        events: of all silos' encoders.

    Raises:
        ConfigError: encoders leave nothing.
    """
    dp = config.dp
    if not dp.private:
        return math.inf, math.inf, math.inf
    latent = sum(-(-count // config.most) for count in columns)
    counts = sum(math.comb(count, 2) for count in columns), latent, math.comb(latent, 2)
    shares = config.shares.groups, config.shares.latents, config.shares.tree
    total = sum(share for share, count in zip(shares, counts, strict=True) if count)
    first = dp.epsilon - accounting.spent(events, 0.0).pure_epsilon  # by adding up
    if not first > 0:
        raise ConfigError("Encoders must leave a part of epsilon", dp.epsilon, "Give a smaller dp.encoders.")

    def divided(epsilon: float) -> list[float]:
        parts = zip(shares, counts, strict=True)
        return [epsilon * share / total / count if count else math.inf for share, count in parts]

    def within(epsilon: float) -> bool:
        tables = [
            Event(DISCRETE_LAPLACE, each, 0.0, "a table")
            for each, count in zip(divided(epsilon), counts, strict=True)
            for _ in range(count)
        ]
        return accounting.cost([*events, *tables], dp) <= dp.epsilon

    low, high = first, 2 * first
    while within(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    pairs, groups, tree = divided(low)
    return pairs, groups, tree


class TableNoise:
    """Noise on the tables of one reply, and its events. Every event of a training has the same scope and target."""

    def __init__(self, rng: Keystream, target: Target) -> None:
        self.rng, self.target = rng, target
        self.events: list[Event] = []

    def noised(self, counts: Tensor, epsilon: float, what: str, joint: bool = False) -> Tensor:
        """Noised counts of one table, or of a share of it modulo 2^64: a row is in one cell of it."""
        noised, event = noised_counts(counts, epsilon, what, self.rng)
        if event is not None:
            self.events.append(replace(event, scope="all", joint=joint, target=self.target.delta))
        return noised

    def check(self, before: Sequence[Event], epsilons: Sequence[float]) -> None:
        """Refuse tables that cost more than the target with all events ``before``: the coordinator sets the noise.

        No `Account`: it charges steps before the first, and how many tables there are is known once they are counted.

        Raises:
            ProtocolError: names the epsilons of the tables, and the target.
        """
        target = self.target
        if target.private and not (max(epsilons) < math.inf and accounting.affords(target, [*before, *self.events])):
            rule = "A silo releases no tables that cost more than its target, with all that it has released"
            raise ProtocolError(rule, tuple(epsilons), f"It is epsilon {target.epsilon:g} at delta {target.delta:g}.")


def seed_of(streams: Streams) -> bytes:
    """32 bytes that are a function of a stream."""
    words = (streams.child(number).integer().to_bytes(8, "big") for number in range(WORDS))
    return sealed.derive(b"".join(words), b"silosynth dplt seed 1")


def mask_of(seed: bytes, d_NK: AnyWords, e_NJ: AnyWords) -> bytes:
    """The seed of M for these D and E: a silo that is brought back, and given another E, masks with another M."""
    digests = (hashlib.sha256(np.ascontiguousarray(part).astype("<u8").tobytes()).digest() for part in (d_NK, e_NJ))
    return sealed.derive(seed, sealed.framed("silosynth dplt mask 1", *digests))


def masked_share(left_NK: AnyWords, right_NJ: AnyWords, correction_KJ: AnyWords, mask: bytes, sign: int) -> AnyWords:
    """A silo's reply (K, J) before noise: left and right are A and E for silo a, D and V for b; ``sign`` is of M."""
    share = np.ascontiguousarray(product(left_NK, right_NJ) + correction_KJ).reshape(-1)
    add_mask(share, mask, sign)
    return share.reshape(correction_KJ.shape)
