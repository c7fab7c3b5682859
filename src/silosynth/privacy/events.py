"""What a noisy release costs, and what a training may cost: the option ``dp`` of algorithms that offer it (`Target`).

An event is made with the noise, and travels in the message that carries the release.

All events speak of the same neighbours: two tables of one silo that differ by one row, added or removed; or two
aligned tables, for a mechanism in which several silos take part together (``joint``). From whom the noise hides whether
that row was there is the event's ``scope``:

- "readers": whoever reads the message, or anything computed from what it tells.
- "release": outsiders, who see nothing but the finished model and its synthetic tables.
- "all": both.

An algorithm that lists an event of scope "release" or "all" claims more than that event: **all** that its model and
its synthetic tables have from rows was released by events of these scopes.

A message lists its events in a field ``events: tuple[Event, ...]``, and its type declares ``Release.NOISED``. The
ledger records them, and `silosynth.privacy.accounting` adds them up. Each release is listed in one message of its silo:
in two, it counts twice. A coordinator that passes noised statistics on lists their events again; those do not count.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Positive, Struct

DISCRETE_LAPLACE = "discrete Laplace"
THRESHOLDED = "thresholded histogram"
SAMPLED_GAUSSIAN = "Poisson-sampled Gaussian"
DISCRETE_GAUSSIAN = "discrete Gaussian"
UNSOUND = "paper-unsound"
KNOWN = (DISCRETE_LAPLACE, THRESHOLDED, SAMPLED_GAUSSIAN, DISCRETE_GAUSSIAN, UNSOUND)
GAUSSIAN = (SAMPLED_GAUSSIAN, DISCRETE_GAUSSIAN)
LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e9  # of a target: beyond, noise cannot be accounted for, or is none
MOST_TIMES = 2**22  # that a release is made: time and memory of accounting grow with it
LEAST_DELTA = 1e-10  # below, rounding errors of accounting would count

Scope = Literal["readers", "release", "all"]


class Event(Struct):
    """One noisy release, or many equal ones. `silosynth.privacy.mechanisms` and the functions here make new ones.

    Attributes:
        mechanism: how it was noised; the accountant knows those named here, and refuses others.
        epsilon: what the noise alone gives, of `DISCRETE_LAPLACE` and `THRESHOLDED`: both add discrete Laplace noise of
            this parameter to counts of which one row changes one, by 1. 0 for the other mechanisms.
        delta: the probability, at most, that the name of a level that one row holds is released, or that noise shows a
            row that two silos have drawn together (`silosynth.privacy.joint`); else 0.
        what: what was released, in words: "counts of the levels of column 'job'". Never a value from the table.
        noise: of `GAUSSIAN` mechanisms: standard deviation of the noise, in units of what one row changes at most.
        rate: of `SAMPLED_GAUSSIAN`: the probability with which a row takes part in a step, independent of all others
            and known to nobody whom the event protects from. 1: every row does.
        times: number of steps, charged before the first.
        scope: from whom the noise hides; see the module's docstring.
        joint: whether several silos take part in the same noise, over rows that they share. Each of them lists the
            event; for all of them together it counts once.
        added: whether its epsilon is added to that of all others as it is, rather than composed with them: for counts
            whose outcome decides on how much noise others get, which composition by losses does not allow for.
        target: delta at which budgets that hold this event are stated, thresholds' deltas included; 0 for the default.

    Raises:
        ConfigError: a number is out of its range.
    """

    mechanism: str
    epsilon: float
    delta: float
    what: str
    noise: float = 0.0
    rate: float = 1.0
    times: int = 1
    scope: Scope = "readers"
    joint: bool = False
    added: bool = False
    target: float = 0.0

    def _check(self) -> None:
        gaussian = self.mechanism in GAUSSIAN
        if not (0 < self.epsilon < math.inf or (self.epsilon == 0 and (gaussian or self.mechanism == UNSOUND))):
            raise ConfigError("The epsilon of a noisy release is a finite number above zero", self.epsilon)
        for name in ("delta", "target"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"The {name} of a noisy release is at least zero and below one", getattr(self, name))
        if gaussian and not 0 < self.noise < math.inf:
            raise ConfigError("The noise multiplier of a noisy release is a finite number above zero", self.noise)
        if not 0 < self.rate <= 1:
            raise ConfigError("The rate at which rows are sampled is above zero and at most one", self.rate)
        if not 1 <= self.times <= MOST_TIMES:
            raise ConfigError(f"A noisy release is made from 1 to {MOST_TIMES:,} times", self.times)


def gaussian_steps(
    what: str,
    noise: float,
    rate: float,
    times: int,
    *,
    scope: Scope = "release",
    joint: bool = False,
    target: float = 0.0,
) -> Event:
    """The event of ``times`` sums over Poisson-sampled rows with Gaussian noise: DP-SGD, or a noised upload.

    List it in a message before the first step; see `Event` for the arguments.
    """
    return Event(SAMPLED_GAUSSIAN, 0.0, 0.0, what, float(noise), float(rate), times, scope, joint, target=float(target))


def gaussian_table(what: str, noise: float, *, joint: bool = False, target: float = 0.0) -> Event:
    """The event of a table of counts, of which one row changes one by 1, with discrete Gaussian noise on each.

    Args:
        what: what is released, in words.
        noise: its standard deviation.
        joint, target: see `Event`.
    """
    return Event(DISCRETE_GAUSSIAN, 0.0, 0.0, what, float(noise), joint=joint, target=float(target))


def unsound(what: str) -> Event:
    """The event of noise that earns no epsilon, listed so that statements say so."""
    return Event(UNSOUND, 0.0, 0.0, what, scope="release")


def draws_noise(options: object) -> bool:
    """Whether a training with these options draws noise that is to protect rows: its seed must stay secret."""
    dp, epsilon = getattr(options, "dp", Target()), getattr(options, "epsilon", math.inf)
    return bool(dp.private or dp.mechanism == "paper-unsound" or epsilon < math.inf)


class Target(Struct):
    """A whole training costs at most this (epsilon, delta); the noise follows from it.

    Two tables are neighbours if one has one row more (of a vertical federation: one row of the aligned table).

    Raises:
        ConfigError: an epsilon without a delta, a delta without an epsilon, or a value out of its range.
    """

    epsilon: Positive[float] = math.inf  # infinity: no differential privacy
    delta: float = 0.0  # well below one over the number of rows
    mechanism: Literal["dpsgd", "paper-unsound"] = "dpsgd"  # the second protects nobody: no epsilon is stated for it
    clip: Positive[float] = 1.0  # largest norm of one row's gradient, over all networks that see real rows
    encoders: float = 0.1  # share of epsilon, and of delta, that column encoders and the number of rows may cost
    noise: float = 0.0  # noise multiplier for "paper-unsound"; for "dpsgd" it is solved for
    # Of numbers without declared ones; not shown, as random numbers hang on the text. See `silosynth.encoders.ranges`.
    bounds: Literal["declared", "noised"] = field(default="declared", repr=False)

    def _check(self) -> None:
        if not 0 < self.encoders < 1:
            raise ConfigError("Option 'dp.encoders' is a share of epsilon, above 0 and below 1", self.encoders)
        if not 0 <= self.noise < math.inf:
            raise ConfigError("Option 'dp.noise' is a finite number, at least zero", self.noise)
        if self.mechanism == "paper-unsound":
            self._check_unsound()
        else:
            self._check_sound()

    @property
    def private(self) -> bool:
        """Whether differential privacy is asked for, and kept."""
        return self.mechanism == "dpsgd" and self.epsilon < math.inf

    def encoder_budget(self, silos: int) -> tuple[float, float]:
        """Epsilon and delta for the encoders and the row count of one of ``silos`` silos."""
        share = self.encoders / silos
        return self.epsilon * share, self.delta * share

    def _check_sound(self) -> None:
        if self.private and not LEAST_EPSILON <= self.epsilon <= MOST_EPSILON:
            rule = f"An epsilon is from {LEAST_EPSILON:g} to {MOST_EPSILON:g}"
            raise ConfigError(rule, self.epsilon, "Usual ones are from 0.1 to 10; leave it out for no privacy.")
        if self.private and not LEAST_DELTA / self.encoders <= self.delta < 0.5:
            raise ConfigError(
                f"An epsilon needs a delta, of at least {LEAST_DELTA / self.encoders:g} and below 1/2",
                self.delta,
                'Such as dp = {"epsilon": 10, "delta": 1e-5}; well below one over the number of rows.',
            )
        if not self.private and self.bounds == "noised":
            raise ConfigError("Bounds are noised under differential privacy", "no epsilon", "Leave dp.bounds out.")
        if not self.private and self.delta != 0:
            raise ConfigError("A delta needs a finite epsilon", self.delta, "Give dp.epsilon, or leave dp.delta out.")
        if self.noise:
            raise ConfigError(
                "The noise is solved for: dp.noise is for dp.mechanism = 'paper-unsound' only", self.noise
            )

    def _check_unsound(self) -> None:
        if self.epsilon < math.inf or self.delta:
            raise ConfigError(
                "The paper's mechanism gives no differential privacy: it takes no epsilon and no delta",
                (self.epsilon, self.delta),
                "Give dp.noise, its noise multiplier; or leave dp.mechanism out for a guarantee that holds.",
            )
