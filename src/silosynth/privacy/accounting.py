"""What noisy releases cost together, and what may be said about it.

Releases about the same rows add up (sequential composition). Events say "one row of this silo's table, added or
removed", so budgets are per silo. They are stated for a person whose rows are one row of one silo; where silos hold the
same people, as with columns spread over silos, somebody's budget is the sum over silos.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Release
from silosynth.core.roster import COORDINATOR
from silosynth.privacy.events import DISCRETE_LAPLACE, THRESHOLDED, Event

KNOWN = (DISCRETE_LAPLACE, THRESHOLDED)
DELTA = 1e-6  # at which budgets are stated
_POINTS = 100_000  # of the grid of privacy losses from zero to the sum of epsilons, at most
_LEAST_DELTA = 1e-10
_NO_SAVING = 100.0
_NONE = "none: no differential privacy was applied, no epsilon can be stated"


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
    """What events about the same rows cost together.

    Epsilon is composed by privacy loss distributions (`dp-accounting`), on the safe side. The noise of every known
    mechanism is discrete Laplace on counts of sensitivity 1. Neighbours of which only one has some level at all are
    told apart with the event's own delta instead, which is added.

    Args:
        events: of one silo.
        delta: allowed for composition, besides the events' own; 0 gives the sum of epsilons.

    Raises:
        ProtocolError: an event of a mechanism that is not known here. No budget is stated without it.
        ConfigError: delta is not in [0, 1).
    """
    if not 0 <= delta < 1:
        raise ConfigError("The delta of a budget is at least zero and below one", delta)
    counts = Counter(events)
    for name in {event.mechanism: None for event in counts}:
        if name not in KNOWN:
            raise ProtocolError("Only events of known mechanisms can be added up", name, nearest(name, KNOWN))
    pure = math.fsum(event.epsilon * times for event, times in counts.items())
    own = math.fsum(event.delta * times for event, times in counts.items())
    epsilon = min(pure, _composed(counts, pure, delta)) if counts and delta > 0 else pure
    return Budget(epsilon, min(1.0, delta + own), pure, min(1.0, own), counts)


def _composed(counts: Mapping[Event, int], pure: float, delta: float) -> float:
    """Epsilon at ``delta`` of discrete Laplace noise of sensitivity 1, by privacy loss distributions.

    Losses lie on a grid that the greatest epsilon fits exactly; the others become pessimistic mixtures of its points
    (Doroshenko et al. 2022, "connect the dots"). Below `_LEAST_DELTA` the transform's rounding errors would count, and
    with an epsilon above `_NO_SAVING` nothing is saved: the sum stands. A thousandth of delta makes up for such errors.
    """
    greatest = max(event.epsilon for event in counts)
    if delta < _LEAST_DELTA or greatest > _NO_SAVING:
        return pure
    from dp_accounting.pld import privacy_loss_distribution as losses  # takes a second to import

    step = greatest / 2 ** max(0, math.floor(math.log2(_POINTS * greatest / pure)))
    times: Counter[float] = Counter()
    for event, count in counts.items():
        times[event.epsilon] += count
    total = losses.identity(step)
    for epsilon, count in times.items():
        one = losses.from_discrete_laplace_mechanism(epsilon, value_discretization_interval=step, use_connect_dots=True)
        total = total.compose(one.self_compose(count))
    return float(total.get_epsilon_for_delta(0.999 * delta))


def statement(ledger: Sequence[Mapping[str, Any]], delta: float = DELTA) -> dict[str, Any]:
    """What a ledger's events earn, and for what; as plain values, for JSON and for tables.

    Args:
        ledger: records as they stand in a ledger's file.
        delta: at which budgets are stated, besides the events' own.

    Returns:
        ``summary``: one sentence. ``silos``: for each silo that noised something ``epsilon``, ``delta``,
        ``pure_epsilon``, ``own_delta`` and ``events``, each with what, mechanism, count, epsilon and delta.
        ``covers`` and ``rest``: what budgets hold for, and what they do not; empty where nothing was noised.
        ``unnoised``: what else messages gave away.

    Raises:
        ProtocolError: see `spent`.
    """
    events: dict[str, list[Event]] = {}
    for record in ledger:
        if record.get("events") and record["from"] != COORDINATOR:  # a coordinator repeats what silos have noised
            events.setdefault(record["from"], []).extend(Event(**event) for event in record["events"])
    budgets = {silo: spent(own, delta) for silo, own in events.items()}
    declared = dict.fromkeys(str(record["privacy"]) for record in ledger if record.get("privacy"))
    unnoised = [text for text in declared if text not in (Release.NOTHING.value, Release.NOISED.value)]
    return {
        "summary": _summary(budgets),
        "silos": {silo: _plain(budget) for silo, budget in budgets.items()},
        "covers": _COVERS if budgets else "",
        "rest": _rest(unnoised) if budgets else "",
        "unnoised": unnoised,
    }


def rounded_up(number: float) -> str:
    """A cost with four significant digits that is never less than the cost."""
    if number == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(number)) - 3)
    return f"{math.ceil(number / unit * (1 - 1e-12)) * unit:.4g}"  # 0.1 + 0.2 is 0.3


_COVERS = (
    "These budgets cover the statistics listed, and what is computed from them alone, against everybody who reads the "
    "messages that carry them: with or without one row in that silo's table, any such reading is about equally likely, "
    "up to a factor of exp(epsilon), and delta. They are per silo and per row: somebody with several rows, or with "
    "rows in several silos, spends the sum; further runs on the same tables add to it. They hold against readers who "
    "do not know the noise, which in a simulated federation is a function of the run's seed."
)


def _summary(budgets: Mapping[str, Budget]) -> str:
    if not budgets:
        return _NONE
    number = sum(sum(budget.counts.values()) for budget in budgets.values())
    epsilon, delta = (rounded_up(max(getattr(b, name) for b in budgets.values())) for name in ("epsilon", "delta"))
    return (
        f"for {number} noised statistics only: epsilon at most {epsilon} at delta {delta}, per silo and row. "
        "No epsilon holds for the model as a whole"
    )


def _rest(unnoised: Sequence[str]) -> str:
    kinds = "; ".join(unnoised)
    if kinds:
        return f"The rest of the training is un-noised ({kinds}), so that no epsilon holds for the model as a whole."
    return (
        "No other message is declared to tell about single rows. Models and synthetic rows may still do, by what silos "
        "keep: no epsilon is stated for the model as a whole."
    )


def _plain(budget: Budget) -> dict[str, Any]:
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "pure_epsilon": budget.pure_epsilon,
        "own_delta": budget.own_delta,
        "events": [
            {"what": e.what, "mechanism": e.mechanism, "count": times, "epsilon": e.epsilon, "delta": e.delta}
            for e, times in budget.counts.items()
        ],
    }
