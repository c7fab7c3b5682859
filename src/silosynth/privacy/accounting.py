"""What noisy releases cost together, how much noise a target needs, and how a training is charged.

Releases about the same rows add up (sequential composition). Events speak of one row of a silo's table, added or
removed, so budgets are per silo, for a person who is one row of one silo. Where silos hold the same people, as with
columns spread over silos, a person's budget is the cost of all silos' events; joint events count once.

`Losses` composes discrete Laplace and discrete Gaussian noise on counts, and Gaussian noise on sums of sampled rows, by
privacy loss distributions (`dp-accounting`), rounded pessimistically. Losses lie on a grid; losses between its points
become a pessimistic mixture of them (Doroshenko et al. 2022, "connect the dots"). Both directions, a row added and a
row removed, are tracked, and the worse one counts.

A private training is charged before its first step, on both sides, by every algorithm alike:

1. *Learn.* Each silo learns its encoders from noised counts, by its part of the target (`Target.encoder_budget`), and
   replies with a noised row count and the events of both: `EncodersLearnt`, `Account.begin`.
2. *Agree.* The silos agree on a secret for this training: `agree_and_charge`, `silosynth.privacy.agreement`.
3. *Charge.* The coordinator solves for the noise of all steps to come and has every silo charge them: `Charge`.
4. *Tag.* Each silo checks that all silos' events together cost at most the target, its own among them, and confirms
   with a tag derived from the secret and its row count: `Account.charge`.

A silo then takes no more steps than it was charged for: `Account.take_step`. Events of other silos are the
coordinator's word.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scipy.special import log_ndtr

from silosynth.core.conversation import Conversation, Roster, check_same_rows, expect
from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Message, Release, from_state, to_state
from silosynth.privacy.agreement import agree, new_purpose
from silosynth.privacy.events import (
    DISCRETE_GAUSSIAN,
    GAUSSIAN,
    KNOWN,
    LEAST_DELTA,
    MOST_TIMES,
    SAMPLED_GAUSSIAN,
    UNSOUND,
    Event,
    Target,
    gaussian_steps,
    gaussian_table,
)  # fmt: skip
from silosynth.privacy.mechanisms import LEAST_VARIANCE

DELTA = 1e-5  # at which budgets are stated where a run has no target, and kept where a silo's policy names none
_MOST_NOISE = 1e7  # noise multiplier
_MORE = "Give a larger dp.epsilon or dp.delta, or a smaller dp.encoders."
LEAST_NOISE = 0.3  # noise multiplier; a row that is hit once is then all but known
_POINTS = 100_000  # of the grid from zero to the sum of epsilons, at most, for counts alone
_GRID = 2e-4  # of losses, or up to twice that, where there is Gaussian noise
_NO_SAVING = 100.0  # epsilon of one count above which composition saves nothing
_TABLE = 0.0  # in place of a rate: discrete noise on the counts of all rows
_WIDEST = 1e5  # standard deviation of discrete noise that is composed, point by point; more of it counts as this much
_HOPELESS = 5e3  # about twice the mean loss above which nothing is computed


class Losses:
    """The composed cost of events. Further Gaussian events can be added on top to see what they would cost."""

    def __init__(self, counts: Mapping[Event, int], gaussian: bool = False) -> None:
        self.pure: Counter[float] = Counter()  # epsilon of a count → how many
        self.steps: Counter[tuple[float, float]] = Counter()  # (noise, rate) → how many; rate 0: `_TABLE`
        self.added = 0.0  # epsilons that are not composed: see `Event.added`
        for event, times in counts.items():
            if event.mechanism == SAMPLED_GAUSSIAN:
                self.steps[event.noise, event.rate] += times * event.times
            elif event.mechanism == DISCRETE_GAUSSIAN:
                self.steps[event.noise, _TABLE] += times * event.times
            elif event.added:
                self.added += event.epsilon * times * event.times
            else:
                self.pure[event.epsilon] += times * event.times
        self.sum = self.added + math.fsum(epsilon * times for epsilon, times in self.pure.items())
        gaussian = gaussian or bool(self.steps)
        wide = gaussian and self.sum > _HOPELESS
        self.apart = wide or max(self.pure, default=0.0) > _NO_SAVING or self.pure.total() > MOST_TIMES  # all are added
        self.grid = _grid(max(self.pure, default=0.0), self.sum, gaussian)

    def epsilon(self, delta: float, *more: tuple[float, float, int]) -> float:
        """Epsilon at ``delta``, with ``more`` Gaussian steps (noise, rate, how many) added.

        Without Gaussian noise at most the sum of epsilons, which is what a delta below `LEAST_DELTA` gives; with it,
        infinity for such a delta. A thousandth of delta makes up for rounding errors.
        """
        steps = [(*kind, times) for kind, times in self.steps.items()] + list(more)
        if delta < LEAST_DELTA or (self.apart and not steps) or _hopeless(steps):
            return math.inf if steps else self.sum
        pure = () if self.apart else tuple(self.pure.items())
        epsilon = _epsilon(pure, tuple(self.steps.items()), tuple(more), self.grid, delta)
        epsilon += self.sum if self.apart else self.added
        return epsilon if steps else min(epsilon, self.sum)


# The coordinator, each silo and then a statement ask for the same cost: all but the first find it here.
@lru_cache(maxsize=1024)
def _epsilon(
    pure: tuple[tuple[float, int], ...],
    steps: tuple[tuple[tuple[float, float], int], ...],
    more: tuple[tuple[float, float, int], ...],
    grid: float,
    delta: float,
) -> float:
    total = _composed(pure, steps, grid)
    for noise, rate, times in more:
        total = total.compose(_gaussian(noise, rate, times, grid))
    return float(total.get_epsilon_for_delta(0.999 * delta))


@lru_cache(maxsize=8)
def _composed(
    pure: tuple[tuple[float, int], ...], steps: tuple[tuple[tuple[float, float], int], ...], grid: float
) -> Any:
    losses, total = _library(), _library().identity(grid)
    for epsilon, times in pure:
        one = losses.from_discrete_laplace_mechanism(epsilon, value_discretization_interval=grid, use_connect_dots=True)
        total = total.compose(one.self_compose(times))
    for (noise, rate), times in steps:
        total = total.compose(_gaussian(noise, rate, times, grid))
    return total


@lru_cache(maxsize=32)
def _gaussian(noise: float, rate: float, times: int, grid: float) -> Any:
    more = {"value_discretization_interval": grid, "use_connect_dots": True}
    if rate == _TABLE:
        one = _library().from_discrete_gaussian_mechanism(min(noise, _WIDEST), **more)
    else:
        one = _library().from_gaussian_mechanism(noise, sampling_prob=rate, **more)
    return one.self_compose(times)


def _library() -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # takes a second to import

    return privacy_loss_distribution


def _grid(greatest: float, total: float, gaussian: bool) -> float:
    """A grid that the largest epsilon of a count fits exactly, unless such a grid would be too fine."""
    if not gaussian:
        return greatest / 2 ** max(0, math.floor(math.log2(_POINTS * greatest / total))) if greatest else _GRID
    if not _GRID <= greatest <= _NO_SAVING:
        return _GRID
    return float(greatest / 2 ** math.floor(math.log2(greatest / _GRID)))


def _hopeless(steps: Sequence[tuple[float, float, int]]) -> bool:
    """Whether an epsilon would be in the thousands, and its grid huge; or steps more than anybody takes."""
    losses = 0.0
    for noise, rate, times in steps:
        if noise < LEAST_NOISE or times > MOST_TIMES:
            return True
        gap = 1 / (noise * noise)
        losses += times * min(gap, (rate or 1.0) ** 2 * math.expm1(gap))
    return losses > _HOPELESS


@dataclass(frozen=True, slots=True)
class Budget:
    """What events cost together. Two statements, both true: (epsilon, delta), and (pure_epsilon, own_delta).

    Attributes:
        epsilon: by the tightest composition, at `delta`.
        delta: the one asked for, plus `own_delta`.
        pure_epsilon: the sum of the events' epsilons; pure differential privacy where no event has a delta.
        own_delta: the sum of the events' deltas.
        counts: how often each event occurs.
    """

    epsilon: float
    delta: float
    pure_epsilon: float
    own_delta: float
    counts: Mapping[Event, int]


def spent(events: Iterable[Event], delta: float) -> Budget:
    """The cost of events about the same rows.

    Epsilon is composed (`Losses`), rounded upwards. Neighbours of which only one has a level at all can be told apart
    with probability at most the event's own delta, which is added. An `UNSOUND` event costs infinity.

    Args:
        events: of one silo, or of one aligned table.
        delta: allowed for composition, besides the events' own; 0 gives the sum of epsilons.

    Raises:
        ProtocolError: an event of a mechanism that is not known here. No budget is stated without it.
        ConfigError: delta is not in [0, 1).
    """
    if not 0 <= delta < 1:
        raise ConfigError("The delta of a budget is at least zero and below one", delta)
    counts = _known(events)
    kinds = {event.mechanism for event in counts}
    own = _own_delta(counts)
    pure = math.inf if kinds & {*GAUSSIAN, UNSOUND} else Losses(counts).sum
    epsilon = math.inf if UNSOUND in kinds else Losses(counts).epsilon(delta) if counts else 0.0
    return Budget(epsilon, min(1.0, delta + own), pure, min(1.0, own), counts)


def cost(events: Iterable[Event], target: Target) -> float:
    """Epsilon of events about the same rows, at the target's delta; the events' own deltas are a part of that."""
    events = list(events)
    return spent(events, max(0.0, target.delta - _own_delta(_known(events)))).epsilon


def noise_multiplier(target: Target, events: Iterable[Event], rate: float, steps: int) -> float:
    """The least noise with which ``events`` and ``steps`` steps of DP-SGD together cost at most the target.

    Searched from above, to a few thousandths: what is returned has been found to cost no more. At least `LEAST_NOISE`.
    A search takes up to seconds, and all silos and the coordinator of a process ask for the same: results are cached.

    Args:
        target: a private one; its delta covers the events' own deltas.
        events: everything else charged for the same rows: of an aligned table, the encoders of all silos.
        rate: the probability with which a row takes part in a step.
        steps: their number; for several such mechanisms over the same rows, the sum.

    Raises:
        ConfigError: the events alone cost the target or more.
    """
    return _noise_multiplier(target, tuple(events), rate, steps)


@lru_cache(maxsize=64)
def table_variance(target: Target, tables: int) -> int:
    """The least half of a variance, a whole number, with which so many tables together cost at most the target.

    For `mechanisms.discrete_gaussian`, of which one party adds twice as much, or two add this much each; at least
    `LEAST_VARIANCE`. To a few hundredths: discrete noise costs a little more than continuous noise, or less, as epsilon
    falls on its grid.

    Raises:
        ConfigError: see `noise_multiplier`.
    """
    half = max(LEAST_VARIANCE, math.ceil(noise_multiplier(target, (), 1.0, tables) ** 2 / 2))
    while not affords(target, [gaussian_table("", math.sqrt(2 * half))] * tables):
        half += 1 + half // 1000
    return half


@lru_cache(maxsize=64)
def _noise_multiplier(target: Target, events: tuple[Event, ...], rate: float, steps: int) -> float:
    counts = _known(events)
    losses, delta = Losses(counts, gaussian=True), target.delta - _own_delta(counts)
    spare = target.epsilon - losses.epsilon(delta)
    if not (delta >= LEAST_DELTA and spare > 0):
        raise ConfigError(
            "What is noised besides training must leave a part of the target",
            f"epsilon {rounded_up(target.epsilon - spare)} of {target.epsilon:g}",
            _MORE,
        )

    def with_noise(noise: float) -> float:
        return losses.epsilon(delta, (noise, rate, steps))

    high = max(1.0, 2 * rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / spare)
    while (price := with_noise(high)) > target.epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise ConfigError("So little epsilon takes more noise than can be accounted for", f"{spare:.3g}", _MORE)
    low, above = high, price
    while low > LEAST_NOISE and above <= target.epsilon:
        high, price, low = low, above, max(LEAST_NOISE, low / 2)
        above = with_noise(low)
    return low if above <= target.epsilon else _narrowed(with_noise, low, above, high, price, target.epsilon)


def _narrowed(
    cost: Callable[[float], float], low: float, above: float, high: float, price: float, most: float
) -> float:
    """The upper end of a bracket, narrowed by interpolating linearly in logarithms to just below ``most``."""
    while price < 0.998 * most and high > 1.0005 * low:
        share = 0.5
        if above < math.inf and price > 0:
            share = (math.log(above) - math.log(0.999 * most)) / (math.log(above) - math.log(price))
        trial = low * (high / low) ** min(0.95, max(0.05, share))
        if (trial_cost := cost(trial)) <= most:
            high, price = trial, trial_cost
        else:
            low, above = trial, trial_cost
    return high


def _known(events: Iterable[Event]) -> Counter[Event]:
    counts = Counter(events)
    for name in {event.mechanism: None for event in counts}:
        if name not in KNOWN:
            raise ProtocolError("Only events of known mechanisms can be added up", name, nearest(name, KNOWN))
    return counts


def _own_delta(counts: Mapping[Event, int]) -> float:
    return math.fsum(event.delta * event.times * times for event, times in counts.items())


def rounded_up(number: float) -> str:
    """A cost rounded up to four significant digits."""
    if number == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(number)) - 3)
    return f"{math.ceil(number / unit * (1 - 1e-12)) * unit:.4g}"  # 0.1 + 0.2 is 0.3


ROUNDING = 1e-9  # relative, of a cost that was solved for
_DISCRETE = 23.0  # see `affords_adaptive`


def affords(target: Target, events: Iterable[Event]) -> bool:
    """Whether events about the same rows cost at most the target, up to rounding."""
    return cost(events, target) <= target.epsilon * (1 + ROUNDING)


def affords_adaptive(target: Target, events: Iterable[Event]) -> bool:
    """Whether that holds as well where what was released before decided on the noise of what came after: a filter.

    Composition by losses takes all noise as settled beforehand. Gaussian noise needs no such thing: releases of noise
    multipliers z are together as private as a single one of 1 / √(Σ 1 / z²), whatever each z hangs on, as long as the
    sum is bounded beforehand (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). `DISCRETE_GAUSSIAN` noise
    tells neighbours apart no better than Gaussian noise of a multiplier that is smaller by a factor of 1 + 1 / (23 z²):
    a test compares all thresholds, for variances from `LEAST_VARIANCE` on.

    Raises:
        ConfigError: an event has another mechanism.
    """
    counts = _known(events)
    other = {event.mechanism for event in counts} - {DISCRETE_GAUSSIAN}
    if other:
        raise ConfigError("Noise that hangs on what was released is discrete Gaussian", ", ".join(sorted(other)))
    parts = (
        (event.times * times, (1 + 1 / (_DISCRETE * event.noise**2)) / event.noise) for event, times in counts.items()
    )
    mu = math.sqrt(math.fsum(times * once**2 for times, once in parts))
    above, below = (float(log_ndtr(sign * mu / 2 - target.epsilon / mu)) for sign in (1, -1))
    return math.exp(above) - math.exp(target.epsilon + below) <= target.delta - _own_delta(counts)


class EncodersLearnt(Message, release=Release.NOISED):
    """Silo: its noised row count, and what that and its encoders have cost.

    Attributes:
        nonce: makes the secret of this training a new one.
    """

    rows: int
    nonce: str
    events: tuple[Event, ...]


class Charge(Message, release=Release.NOISED, common=True):
    """Coordinator: charge ``events`` for the steps to come.

    Attributes:
        rows: the mean of the silos' noised row counts.
        learnt: events that all silos have charged so far.
        events: of each silo, or of all silos together where joint.
    """

    rows: int
    learnt: tuple[Event, ...]
    events: tuple[Event, ...]


class Charged(Message, release=Release.NOISED):
    """Silo: charged. Equal tags (32 bytes) mean equal row counts; the coordinator learns no more from them."""

    tag: bytes
    events: tuple[Event, ...]


def mean_rows(counts: Sequence[int]) -> int:
    """The mean of silos' row counts of the same rows, which differ by their noise; at least 2."""
    return max(2, round(sum(counts) / len(counts)))


def agree_and_charge(
    roster: Roster, purpose: str, learnt: Sequence[EncodersLearnt],
    solve: Callable[[int, Sequence[Event]], tuple[Event, ...]],
) -> Conversation[Charge]:  # fmt: skip
    """The coordinator's side of steps 2 to 4.

    Args:
        roster: the silos.
        purpose: of the secret.
        learnt: what they replied, in the same order.
        solve: the events of all steps to come, given `mean_rows` and the events so far.

    Raises:
        ConfigError: the target leaves no budget for the steps.
        ProtocolError: a silo refuses; or silos hold unequal numbers of rows.
    """
    yield from agree(roster, new_purpose(purpose, [reply.nonce for reply in learnt]), fresh=False)
    rows = mean_rows([reply.rows for reply in learnt])
    events = tuple(event for reply in learnt for event in reply.events)
    ask = Charge(rows, events, solve(rows, events))
    charged = expect((yield roster.everyone(ask)), Charged)
    check_same_rows(roster, [reply.tag for reply in charged])
    return ask


def joint_steps(what: str, target: Target, rate: float, steps: int, learnt: Sequence[Event]) -> tuple[Event, ...]:
    """The one event of steps that all silos take together, with the least noise that keeps the target."""
    noise = noise_multiplier(target, learnt, rate, steps)
    return (gaussian_steps(what, noise, rate, steps, joint=True, target=target.delta),)


class Account:
    """What a silo has charged for one training, with what it may: at most its target.

    Attributes:
        target: of the whole training.
        learnt: events of this silo's encoders and row count.
        paid: what was charged for the steps; None before.
        taken: steps taken of those charged.
    """

    def __init__(self) -> None:
        self.target, self.learnt = Target(), tuple[Event, ...]()
        self.paid: Charge | None = None
        self.taken = 0

    def begin(self, target: Target, learnt: Sequence[Event]) -> None:
        """Begin a training that has charged ``learnt`` for its encoders and row count."""
        self.target, self.learnt, self.paid, self.taken = target, tuple(learnt), None, 0

    def charge(self, ask: Charge, silos: int, tag: bytes, later: int = 0) -> Charged:
        """Charge ``ask.events``, once; the last ``later`` of them are listed by the messages that they belong to.

        Raises:
            ProtocolError: charged before, nothing learnt, own events missing in ``ask.learnt``, or above the target.
        """
        steps = [event for event in ask.events for _ in range(1 if event.joint else silos)]
        known = self.learnt and not Counter(self.learnt) - Counter(ask.learnt)
        if self.paid is not None or not (known and affords(self.target, [*ask.learnt, *steps])):
            raise ProtocolError(
                "What a silo is charged costs at most the target, once, with what all silos have charged before",
                f"epsilon {cost([*ask.learnt, *steps], self.target):.4g} of {self.target.epsilon:g}",
                "Both sides must run the same version of silosynth.",
            )
        self.paid = ask
        return Charged(tag, ask.events[: len(ask.events) - later])

    def charge_joint(self, ask: Charge, silos: int, tag: bytes, what: str) -> Charged:
        """`charge` what `joint_steps` solved for, and nothing else.

        Raises:
            ProtocolError: it is something else; or see `charge`.
        """
        kind = gaussian_steps(what, 1.0, 1.0, 1, joint=True, target=self.target.delta)
        if [replace(event, noise=1.0, rate=1.0, times=1) for event in ask.events] != [kind]:
            asked = [event.what for event in ask.events]
            raise ProtocolError(f"A silo is charged one event for all {what}", asked)
        return self.charge(ask, silos, tag)

    @property
    def charged(self) -> Charge:
        """What was charged.

        Raises:
            ProtocolError: nothing yet.
        """
        if self.paid is None:
            raise ProtocolError("Private steps are taken after they were charged", "not charged")
        return self.paid

    def take_step(self) -> int:
        """The number of the next step, from 0, of the first event that was charged.

        Raises:
            ProtocolError: all steps that were charged have been taken.
        """
        if self.taken >= self.charged.events[0].times:
            raise ProtocolError("A silo takes no more private steps than were charged", self.taken)
        self.taken += 1
        return self.taken - 1

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return {
            "target": to_state(self.target),
            "learnt": [to_state(event) for event in self.learnt],
            "paid": None if self.paid is None else to_state(self.paid),
            "taken": self.taken,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.begin(from_state(Target, state["target"]), [from_state(Event, event) for event in state["learnt"]])
        self.paid = None if state["paid"] is None else from_state(Charge, state["paid"])
        self.taken = state["taken"]
