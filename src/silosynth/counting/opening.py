"""Opening: tables that silos hold shares of, to the coordinator, with noise that is in the shares before they open.

Silos draw noise on every cell, add it to their shares, and send these: the coordinator sees the sum of shares, and of
noise. Of a table of two silos each draws half of it, such that both halves together are discrete Laplace noise of the
table's epsilon (`mechanisms.half_noise`). Before the coordinator passes a table on, it adds another half: a silo that
takes its own off still faces two. So for each row of the aligned table

    the coordinator faces the noise of both silos: epsilon        a silo faces that of the other and of the coordinator:
    anybody else faces all three halves: epsilon at most          epsilon

at a variance of one and a half for those who get the table passed on, where full noise of both silos would have two. Of
a table of one silo's columns that silo draws all noise; nothing is added.

Shares of two silos are masked against each other, so that one that opens says nothing by itself. The event of a table
of two silos is joint: both list it, and for both together it counts once. A silo opens what its target affords, with
all that it has opened before; without a target it opens nothing. It knows of tables that it has a part in.

What this rests on: all parties follow the protocol, see `silosynth.counting.protocol`. A silo that hid other words than
flags may have weighted a row beyond the noise. Tables of three silos do not open, since there the dealer could do so;
nor do those of silos that hold different rows, which secure sums are for. Levels, edges and the bound of row numbers
are public: whoever takes them from the rows tells of rows what the noise does not hide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Roster, expect_one
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Positive, Release
from silosynth.core.streams import Keystream
from silosynth.counting.plan import Bits, CountRequest, Plan, bits_for
from silosynth.counting.products import AnyWords
from silosynth.counting.protocol import as_words
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import half_noise

REACH = 40.0  # of noise, in units of 1 / epsilon: exceeded with a probability below exp(-39)


class OpenTables(Message):
    """Coordinator: open these sets of the last counting, each with noise of its epsilon."""

    sets: tuple[int, ...]
    epsilons: Positive[tuple[float, ...]]


class SharesOpened(Message, release=Release.NOISED):
    """Silo: my shares with my noise, cells in a row; and the tables' events."""

    shares: tuple[Tensor, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class OpenedTables:
    """Noised tables, by the number of their set.

    Attributes:
        own: what the coordinator sees; for itself only.
        passed_on: with its own noise as well: what silos and others may see.
    """

    own: dict[int, npt.NDArray[np.int64]]
    passed_on: dict[int, npt.NDArray[np.int64]]


def open_tables(
    roster: Roster, request: CountRequest, epsilons: Mapping[int, float], rng: Keystream
) -> Conversation[OpenedTables]:
    """The coordinator's side, after `count` with the same request.

    Args:
        roster: all silos.
        request: what was counted.
        epsilons: of the sets that open.
        rng: the coordinator's own noise; its seed is a secret.

    Raises:
        ConfigError: a set is of three silos, or of silos with different rows; or k bits have no room for its noise.
        ProtocolError: a silo refuses, such as for its target; or replies with something else.
    """
    plan = Plan(request)
    for number, epsilon in epsilons.items():
        check_opening(plan, number, epsilon)
    held = {silo: tuple(number for number in epsilons if silo in plan.parts[number]) for silo in roster}
    asks = {silo: OpenTables(own, tuple(epsilons[n] for n in own)) for silo, own in held.items() if own}
    replies = yield Exchange(asks)
    sums = {number: plan.zeros(1, math.prod(request.shape(number))) for number in epsilons}
    for silo in asks:
        shares = expect_one(silo, replies[silo], SharesOpened).shares
        if len(shares) != len(held[silo]):
            raise ProtocolError(
                f"Silo {silo!r} opens the shares that it was asked for", len(shares), "Open them again."
            )
        for number, share in zip(held[silo], shares, strict=True):
            sums[number] += as_words(share, sums[number].shape, request.bits, silo)
    own = {number: _signed(words, request).reshape(request.shape(number)) for number, words in sums.items()}
    return OpenedTables(own, {n: table + _added(plan, n, epsilons[n], rng) for n, table in own.items()})


def check_opening(plan: Plan, number: int, epsilon: float) -> None:
    """Check that a set can open with noise of this epsilon.

    Raises:
        ConfigError: it cannot.
    """
    if not 0 <= number < len(plan.parts):
        raise ConfigError("Tables that open were counted", number, f"There are {len(plan.parts)}.")
    if len(plan.parts[number]) > 2 or "" in plan.parts[number]:
        raise ConfigError("Tables that open are of one or two silos with the same rows", number, "Leave it closed.")
    if not 0 < epsilon < math.inf:
        raise ConfigError("Tables open with noise of a finite epsilon above zero", epsilon)
    if plan.request.bits < bits_to_open(plan.request.rows, epsilon):
        raise ConfigError(f"Words of {plan.request.bits} bits have no room for such noise", epsilon, "Count with more.")


def bits_to_open(rows: int, epsilon: float) -> Bits:
    """The fewest bits that hold counts of so many rows with noise: those that are below zero, too."""
    return bits_for(rows + 2 * math.ceil(REACH / epsilon))


def _signed(words: AnyWords, request: CountRequest) -> npt.NDArray[np.int64]:
    """Noised counts: what lies in the upper half of what no count of so many rows reaches is below zero."""
    if request.bits == 64:
        return words.view(np.int64)
    top, wide = request.rows + ((1 << request.bits) - request.rows) // 2, words.astype(np.int64)
    return np.where(wide < top, wide, wide - (1 << request.bits))


def _added(plan: Plan, number: int, epsilon: float, rng: Keystream) -> npt.NDArray[np.int64]:
    """The coordinator's half of the noise; none on a table of one silo."""
    shape = plan.request.shape(number)
    return half_noise(epsilon, shape, rng).numpy() if len(plan.parts[number]) == 2 else np.zeros(shape, np.int64)
