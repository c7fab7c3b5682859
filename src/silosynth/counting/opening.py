"""Opening: tables that silos hold shares of, to the coordinator: with noise that is in the shares before, or exactly.

*With noise.* Silos draw noise on every cell, add it to their shares, and send these: the coordinator sees the sum of
shares, and of noise. Of a table of two silos both draw it together, so that neither knows it (`counting.joint`), if the
noise says so (`CellNoise.joint`): then everybody faces the same, which is what is charged.

Or each draws half of it. Before the coordinator passes a table on, it adds another half: a silo that takes its own off
still faces two. So for each row of the aligned table

    the coordinator faces the noise of both silos: epsilon        a silo faces that of the other and of the coordinator:
    anybody else faces all three halves: epsilon at most          epsilon

at a variance of one and a half for those who get the table passed on, where full noise of both silos would have two.
Of a table of one silo's columns that silo draws all noise; nothing is added.

The event of a table of two silos is joint: both list it, and for both together it counts once. A silo opens what its
target affords, with all that it has opened before; without a target it opens nothing with noise. It knows of tables
that it has a part in.

*Of silos with different rows* the share of each is the table of its own rows, and sums open by `privacy.aggregation`,
in which all silos must take part. Each of n silos adds one of n - 1 parts of the noise: one that takes its own off
still faces all of it, as does a coordinator that colludes with one. The event of a table is each silo's own.

*Of groups of silos*, each divided by columns and of other rows, shares of all groups' tables are summed in the same
way, so that no group's table opens. A silo that has no part in a table adds zeros, and a part of the noise as well: n
is the number of all silos. Every silo lists every table, since a row of its group counts in all of them.

*Exactly*: shares as they are, of a silo that was made to do so (``exact``), which is never up to a message.

Shares of several silos are masked against each other, so that one that opens says nothing by itself.

What this rests on: all parties follow the protocol, see `silosynth.counting.protocol`. A silo that hid other words
than flags may have weighted a row beyond the noise. Tables of three silos do not open with noise, since there the
dealer could weight rows so; exactly they do, and there, too, a dealer that deviates could show rows. Levels, edges
and the bound of row numbers are public: whoever takes them from the rows tells of rows what the noise does not hide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.core.conversation import Conversation, Exchange, Replies, Roster, expect_one
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Message, Release, Struct
from silosynth.core.streams import Keystream
from silosynth.counting.joint import draw_noise
from silosynth.counting.plan import Bits, CountRequest, Plan, bits_for
from silosynth.counting.products import WIDTHS, AnyWords
from silosynth.counting.protocol import as_words
from silosynth.privacy.aggregation import LEAST, Masked, secure_words
from silosynth.privacy.events import DISCRETE_LAPLACE, Event, gaussian_table
from silosynth.privacy.joint import charged
from silosynth.privacy.masks import Words
from silosynth.privacy.mechanisms import (
    LEAST_VARIANCE,
    MOST_VARIANCE,
    discrete_gaussian,
    noised_counts,
    part_noise,
)  # fmt: skip

REACH = 40.0  # of noise, in units of 1 / epsilon: exceeded with a probability below exp(-39)
EXACT = None  # in place of a table's noise
Counts = npt.NDArray[np.int64]


class CellNoise(Struct):
    """Noise on every cell of a table (`silosynth.privacy.mechanisms`): discrete Laplace, or discrete Gaussian.

    Attributes:
        epsilon: of the table, with discrete Laplace noise; else 0.
        half_variance: of each half of discrete Gaussian noise; else 0. Takes far less noise where tables are many.
        joint: whether both silos of a table draw Gaussian noise together, of twice that variance (`privacy.joint`).

    Raises:
        ConfigError: not one of both numbers is given, or it is out of range; or joint noise is not Gaussian.
    """

    epsilon: float = 0.0
    half_variance: int = 0
    joint: bool = field(default=False, repr=False)  # what one party draws by itself hangs on the numbers alone

    def whole(self, shape: tuple[int, ...], rng: Keystream) -> Counts:
        """All of it, by one party."""
        if self.half_variance:
            return discrete_gaussian(2 * self.half_variance, math.prod(shape), rng).reshape(shape)
        noised, _ = noised_counts(torch.zeros(shape, dtype=torch.int64), self.epsilon, "", rng)
        return noised.numpy()

    def part(self, parts: int, shape: tuple[int, ...], rng: Keystream) -> Counts:
        """One of so many equal parts: those of as many parties make all of it, or somewhat more of Gaussian noise."""
        if self.half_variance:
            return discrete_gaussian(self.part_variance(parts), math.prod(shape), rng).reshape(shape)
        return part_noise(self.epsilon, parts, shape, rng).numpy()

    def part_variance(self, parts: int) -> int:
        """Of Gaussian noise: a whole number, and not below what its sums have next to its law with."""
        return max(LEAST_VARIANCE, -(-2 * self.half_variance // parts))

    def deviation(self, added: int, parts: int = 2) -> float:
        """The standard deviation of ``added`` parts, of which ``parts`` are all of it."""
        if self.half_variance:
            return math.sqrt(added * self.part_variance(parts))
        q = math.exp(-self.epsilon)
        return math.sqrt(added / parts * 2 * q) / (1 - q)

    @property
    def reach(self) -> int:
        """What it, and twice as many parts of Gaussian noise, do not exceed, but with a probability below exp(-39)."""
        return math.ceil(9 * self.deviation(4) if self.half_variance else REACH / self.epsilon)

    def event(self, what: str, joint: bool, delta: float) -> Event:
        """What it costs to open one table with it, of two silos (``joint``) or one; ``delta`` is the target's."""
        if self.joint and joint:
            deviation, slip = charged(2 * self.half_variance, delta)
            return replace(gaussian_table(what, deviation, joint=True, target=delta), delta=slip)
        if self.half_variance:
            return gaussian_table(what, self.deviation(2), joint=joint, target=delta)
        return Event(DISCRETE_LAPLACE, float(self.epsilon), 0.0, what, joint=joint, target=delta)

    def _check(self) -> None:
        if self.half_variance:
            if self.epsilon or not LEAST_VARIANCE <= self.half_variance <= MOST_VARIANCE // 2:
                rule = f"Halves of Gaussian noise have a variance from {LEAST_VARIANCE} to {MOST_VARIANCE // 2}"
                raise ConfigError(rule, self.half_variance, "Open with more epsilon, or fewer tables.")
        elif self.joint or not 0 < self.epsilon < math.inf:
            raise ConfigError("Tables open with noise of a finite epsilon above zero, or Gaussian", self.epsilon)


def with_parts(
    counts: Iterable[Counts], noises: Iterable[CellNoise], parts: int, draws: Iterable[Keystream]
) -> list[Counts]:
    """Counts of one silo, each with one of so many parts of its noise."""
    return [own + noise.part(parts, own.shape, rng) for own, noise, rng in zip(counts, noises, draws, strict=True)]


class OpenTables(Message):
    """Coordinator: open these sets of the last counting, each with this noise."""

    sets: tuple[int, ...]
    noises: tuple[CellNoise, ...]


class SharesOpened(Message, release=Release.NOISED):
    """Silo: my shares with my noise, cells in a row; and the tables' events."""

    shares: tuple[Tensor, ...]
    events: tuple[Event, ...]


class RevealTables(Message):
    """Coordinator: open these sets of the last counting, exactly."""

    sets: tuple[int, ...]


class SharesRevealed(Message, release=Release.TABLES):
    """Silo: my shares as they are, cells in a row; all silos' together are the tables."""

    shares: tuple[Tensor, ...]


class OpenSums(Message):
    """Coordinator: mask these sets of your own rows' tables, for the sum over all silos, in the round of this number.

    ``noises`` are of each set, or empty for exact sums.
    """

    number: int
    sets: tuple[int, ...]
    noises: tuple[CellNoise, ...]


class ExactSum(Masked, release=Release.TABLES):
    """Silo: my tables, masked; the sum over all silos opens exactly."""


class NoisedSum(Masked, release=Release.NOISED):
    """Silo: my tables with my part of the noise, masked; and the tables' events."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class OpenedTables:
    """Tables, by the number of their set.

    Attributes:
        own: what the coordinator sees; for itself only.
        passed_on: with its own noise as well: what silos and others may see.
    """

    own: dict[int, Counts]
    passed_on: dict[int, Counts]


def open_tables(
    roster: Roster, request: CountRequest, noises: Mapping[int, CellNoise | None], rng: Keystream, number: int = 0
) -> Conversation[OpenedTables]:
    """The coordinator's side, after `count` with the same request.

    Args:
        roster: all silos.
        request: what was counted; where groups of silos did, by one of them: the sets of all have the same shapes.
        noises: of the sets that open; `EXACT` for none.
        rng: the coordinator's own noise, and what it deals for noise that silos draw together; its seed is a secret.
        number: of silos with different rows: of the first round of secure sums; above those of earlier ones.

    Raises:
        ConfigError: a set is of three silos and opens with noise; k bits have no room for its noise; or too few silos
            hold different rows.
        ProtocolError: a silo refuses, such as for its target; or replies with something else.
    """
    plan = Plan(request)
    for place, noise in noises.items():
        check_opening(plan, place, noise)
    if request.horizontal or request.silos != roster.parties:
        sums = yield from _secure_sums(roster, plan, noises, number)
        return OpenedTables(sums, sums)
    found: dict[int, Counts] = {}
    yield from draw_noise(roster, plan, _drawn_together(plan, noises), rng)
    for chosen in _alike(noises):
        held = {silo: tuple(place for place in chosen if silo in plan.parts[place]) for silo in roster}
        held = {silo: own for silo, own in held.items() if own}
        if held:
            replies = yield Exchange({silo: _ask(own, noises) for silo, own in held.items()})
            found |= _summed(plan, held, replies)
    own = {place: found[place] for place in noises}
    return OpenedTables(own, {n: table + _added(plan, n, noises, rng) for n, table in own.items()})


def _drawn_together(plan: Plan, noises: Mapping[int, CellNoise | None]) -> dict[int, int]:
    """The variances of the noise that two silos draw together, by set."""
    two = ((number, noise) for number, noise in noises.items() if noise is not None and len(plan.parts[number]) == 2)
    return {number: 2 * noise.half_variance for number, noise in two if noise.joint}


def _alike(noises: Mapping[int, CellNoise | None]) -> list[list[int]]:
    """Sets that open with noise, and those that open exactly; what there are."""
    exact = [number for number, noise in noises.items() if noise is EXACT]
    return [sets for sets in ([number for number in noises if number not in exact], exact) if sets]


def _secure_sums(
    roster: Roster, plan: Plan, noises: Mapping[int, CellNoise | None], number: int
) -> Conversation[dict[int, Counts]]:
    """Sums over all silos of their shares, none of which is read by itself. All silos are part of each."""
    found: dict[int, Counts] = {}
    for place, chosen in enumerate(_alike(noises)):
        sizes = [math.prod(plan.request.shape(one)) for one in chosen]
        ask = _ask(tuple(chosen), noises)
        opened = OpenSums(number + place, ask.sets, getattr(ask, "noises", ()))
        words, _ = yield from secure_words(dict.fromkeys(roster, opened), opened.number, sum(sizes), len(roster))
        cells = _from_sum(words, plan.request)
        for one, own in zip(chosen, np.split(cells, np.cumsum(sizes)[:-1]), strict=True):
            found[one] = own.reshape(plan.request.shape(one))
    return {one: found[one] for one in noises}


def for_sum(tables: Sequence[Counts], request: CountRequest) -> Words:
    """Tables of own rows as words of 64 bits, for a sum over silos; or shares modulo 2^k, as the upper k bits.

    There the sum is modulo 2^k as well: what is carried beyond, which hangs on single shares, falls off.
    """
    return np.concatenate(tables).view(np.uint64) << _unused_bits(request)


def _from_sum(words: Words, request: CountRequest) -> Counts:
    if request.horizontal:
        return words.view(np.int64)
    return _signed((words >> _unused_bits(request)).astype(WIDTHS[request.bits]), request)


def _unused_bits(request: CountRequest) -> np.uint64:
    return np.uint64(0 if request.horizontal else 64 - request.bits)


def _ask(sets: tuple[int, ...], noises: Mapping[int, CellNoise | None]) -> OpenTables | RevealTables:
    wanted = tuple(noise for number in sets if (noise := noises[number]) is not None)
    return OpenTables(sets, wanted) if wanted else RevealTables(sets)


def _summed(plan: Plan, held: Mapping[str, tuple[int, ...]], replies: Replies) -> dict[int, Counts]:
    """The sums of silos' shares, by set."""
    request = plan.request
    sums = {
        n: plan.zeros(1, math.prod(request.shape(n))) for n in dict.fromkeys(n for own in held.values() for n in own)
    }
    for silo, own in held.items():
        shares = expect_one(silo, replies[silo], SharesOpened, SharesRevealed).shares
        if len(shares) != len(own):
            raise ProtocolError(
                f"Silo {silo!r} opens the shares that it was asked for", len(shares), "Open them again."
            )
        for number, share in zip(own, shares, strict=True):
            sums[number] += as_words(share, sums[number].shape, request.bits, silo)
    return {number: _signed(words, request).reshape(request.shape(number)) for number, words in sums.items()}


def check_opening(plan: Plan, number: int, noise: CellNoise | None) -> None:
    """Check that a set can open with this noise, or `EXACT`.

    Raises:
        ConfigError: it cannot.
    """
    if not 0 <= number < len(plan.parts):
        raise ConfigError("Tables that open were counted", number, f"There are {len(plan.parts)}.")
    if plan.request.horizontal and len(plan.request.silos) < (least := LEAST if noise is None else 2):
        rule = f"Sums over silos with different rows are over {least} or more, of which each knows its own"
        raise ConfigError(rule, len(plan.request.silos), "Leave it closed.")
    if noise is None:
        return
    if len(plan.parts[number]) > 2:
        raise ConfigError("Tables that open with noise are of one or two silos", number, "Leave it closed.")
    if noise.joint and (plan.request.horizontal or plan.request.dealer):
        rule = "Two silos draw noise together where they hold different columns, and the coordinator deals"
        raise ConfigError(rule, plan.request.dealer or "different rows", "Open with halves of noise.")
    if plan.request.bits < bits_to_open(plan.request.rows, noise):
        rule = f"Words of {plan.request.bits} bits have no room for such noise"
        raise ConfigError(rule, noise.epsilon or noise.half_variance, "Count with more.")


def bits_to_open(rows: int, noise: CellNoise | None) -> Bits:
    """The fewest bits that hold counts of so many rows with noise: those that are below zero, too."""
    return bits_for(rows if noise is None else rows + 2 * noise.reach)


def _signed(words: AnyWords, request: CountRequest) -> Counts:
    """Noised counts: what lies in the upper half of what no count of so many rows reaches is below zero."""
    if request.bits == 64:
        return words.view(np.int64)
    top, wide = request.rows + ((1 << request.bits) - request.rows) // 2, words.astype(np.int64)
    return np.where(wide < top, wide, wide - (1 << request.bits))


def _added(plan: Plan, number: int, noises: Mapping[int, CellNoise | None], rng: Keystream) -> Counts:
    """The coordinator's half of the noise; none on a table of one silo, or where two draw it together."""
    shape, noise = plan.request.shape(number), noises[number]
    if noise is None or noise.joint or len(plan.parts[number]) < 2:
        return np.zeros(shape, np.int64)
    return noise.part(2, shape, rng)
