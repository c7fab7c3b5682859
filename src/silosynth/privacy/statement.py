"""What a ledger tells: who sent how much (`totals`), and what may be claimed about a run's privacy (`statement`).

Two kinds of budget, which must not be confused:

- each silo's, for what its messages reveal: against whoever reads them. It says nothing about the model as a whole.
- the release's, where the algorithm claims that all of it is charged (see `silosynth.privacy.events`): the finished
  model and its synthetic tables, against outsiders; and against the coordinator and silos only where they have read
  nothing un-noised either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from silosynth.core.conversation import COORDINATOR
from silosynth.core.messages import Release
from silosynth.privacy.accounting import DELTA, Budget, rounded_up, spent
from silosynth.privacy.events import GAUSSIAN, SAMPLED_GAUSSIAN, UNSOUND, Event, Target

_SILENT = (Release.NOTHING.value, Release.NOISED.value, Release.DERIVED.value)
_PUBLIC = (  # to a run that claims all
    *_SILENT, Release.SYNTHETIC.value, Release.MADE.value, Release.SCHEMA.value, Release.SEALED.value,
    Release.MASKED.value,  # of sums: where these are noised, their messages say so
)  # fmt: skip

COVERS = {
    "readers": "what the message tells, against all who read it",
    "release": "the model and its synthetic tables, against outsiders",
    "all": "what the message tells, against all who read it; the model and its synthetic tables",
}
LEAVES_OUT = {
    "readers": "the model and its synthetic tables",
    "release": "whatever the coordinator and silos read",
    "all": "what other messages tell without noise",
}
PROTECTS = {"readers": "readers", "release": "release", "all": "both"}  # a word for tables
_NONE = "none: no differential privacy was applied, no epsilon can be stated"
_UNSOUND = (
    "none: the published mechanism was applied, which noises one layer of several that learn from rows. "
    "It gives no differential privacy, whatever its noise: no epsilon holds"
)
_KNOWN = (
    "none: the noise follows from the seed that the run was given, and whoever knows or guesses the seed subtracts it. "
    "Leave the seed out: then a secret one is drawn, and an epsilon holds"
)
_COVERS = (
    "These budgets cover the statistics listed, and what is computed from them alone, against everybody who reads the "
    "messages that carry them: with or without one row in that silo's table, any such reading is about equally likely, "
    "up to a factor of exp(epsilon), and delta. They are per silo and per row: somebody with several rows, or with "
    "rows in several silos, spends the sum; further runs on the same tables add to it. They hold against readers who "
    "do not know the noise, which in a simulated federation is a function of the run's seed."
)
_RELEASED = (
    "With or without {row}, any model and any synthetic table is about equally likely, up to a factor of exp(epsilon), "
    "and delta. The table is that of training rows, after hold-out rows were split off: the choice of these is not "
    "covered. Somebody with several rows spends as many times that; further runs on the same tables add to it. The "
    "names, kinds, dtypes (with the order and number type of categories), decimals, declared bounds and declared "
    "levels of columns are taken as public. It holds against outsiders who see only what is released, the model and "
    "its synthetic tables, and who know neither the noise nor which rows were sampled; in a simulated federation "
    "both are a function of the run's seed. The report, schema.toml and the ledger are not covered, since they hold "
    "exact figures of real rows: publish the model and the synthetic tables only."
)


SUMS = frozenset({"NoisedCells", "NoisedSum"})
"""Messages in which events are each silo's own, of rows that no other has."""
OF_GROUPS = "TakeOwnNoisedAttributes"
"""A message that is sent to groups of silos only."""


def totals(
    ledger: Iterable[Mapping[str, Any]], by: Sequence[str] = ("from", "to", "type", "privacy")
) -> list[dict[str, Any]]:
    """Messages and bytes per sender, receiver, type, and what messages give away, in order of first appearance.

    ``ledger`` has records as they stand in a ledger's file; with fewer fields in ``by``, lines sum over the others.
    """
    sums: dict[tuple[str, ...], list[int]] = {}
    for record in ledger:
        total = sums.setdefault(tuple(str(record.get(field) or "not stated") for field in by), [0, 0])
        total[0] += 1
        total[1] += int(record.get("bytes") or 0)
    return [dict(zip(by, key, strict=True)) | {"messages": n, "bytes": size} for key, (n, size) in sums.items()]


def known_noise(ledger: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records of a run whose noise follows from a given seed, which say so: no epsilon is stated of them."""
    return [{**record, "noise": "known"} for record in ledger]


def of_one_silo(ledger: Iterable[Mapping[str, Any]], dp: Target) -> list[dict[str, Any]]:
    """Records of a silo's own ledger, which lack other silos' events, so that they say the target of the whole job."""
    return [{**record, "dp": {"epsilon": dp.epsilon, "delta": dp.delta}} for record in ledger]


def noise_is_known(ledger: Iterable[Mapping[str, Any]]) -> bool:
    """Whether records say that their noise follows from a given seed."""
    return any(record.get("noise") == "known" for record in ledger)


def statement(
    ledger: Sequence[Mapping[str, Any]], delta: float = DELTA, horizontal: bool | None = None, *,
    grouped: bool | None = None, assume_secret: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The guarantee that a ledger's events earn, as plain values, for JSON and for tables.

    Args:
        ledger: records as they stand in a ledger's file.
        delta: at which budgets are stated, besides the events' own, where events name no target.
        horizontal: whether silos hold different rows: the release's budget is then that of the silo that spends most.
            Otherwise it is for one row of the aligned table, all silos together. None if only the ledger is known:
            events that came with masked sums, which are over silos with different rows, say so.
        grouped: whether these are groups of silos, each of which lists all that its group's rows count in; or None.
        assume_secret: state what the noise would earn if nobody knew the seed that it follows from, which is what
            experiments with a fixed seed are about.

    Returns:
        ``summary``: one sentence. ``silos``: for each silo that noised something ``epsilon``, ``delta``,
        ``pure_epsilon`` and ``own_delta`` of what hides from readers of its messages (None where nothing does), and
        ``events``, each with what, mechanism, count, noise, rate, epsilon and delta of its own, scope, joint, covers
        and leaves_out. ``release``: ``epsilon`` and ``delta`` of the model (of `of_one_silo` the target), and ``rows``,
        of what; None where none is claimed. ``covers`` and ``rest``: what budgets hold for, and what they do not; empty
        where nothing was noised. ``unnoised``: what else messages gave away.

    Raises:
        ProtocolError: an event of a mechanism that is not known.
    """
    events = _events(ledger)
    every = [event for own in events.values() for event in own]
    target = max((event.target for event in every), default=0.0)
    declared = dict.fromkeys(str(record["privacy"]) for record in ledger if record.get("privacy"))
    unnoised = [text for text in declared if text not in _SILENT]
    unsound = any(event.mechanism == UNSOUND for event in every)
    claimed = not unsound and any(event.scope != "readers" for event in every)
    kinds = {str(record.get("type", "")).rpartition(".")[2] for record in ledger}
    horizontal = not SUMS.isdisjoint(kinds) if horizontal is None else horizontal
    grouped = OF_GROUPS in kinds if grouped is None else grouped
    release = _released(events, delta, target, horizontal, rows_of(horizontal, grouped)) if claimed else None
    budgets = {silo: _spent([e for e in own if e.scope != "release"], delta, target) for silo, own in events.items()}
    covers, rest = (_COVERS, _rest(unnoised)) if every else ("", "")
    if release is not None:
        release |= next((record["dp"] for record in ledger if "dp" in record), {})
        open_to = _readers(ledger, every)
        covers = _RELEASED.format(row=f"one row of {release['rows']}")
        rest = f"It does not hold against {open_to}." if open_to else _AGAINST_ALL
    stated = {
        "summary": _UNSOUND if unsound else _claim(release) if release else _summary(budgets),
        "silos": {silo: _plain(budgets[silo], own, target or delta) for silo, own in events.items()},
        "release": release,
        "covers": "" if unsound else covers,
        "rest": "" if unsound else rest,
        "unnoised": unnoised,
    }
    return _without_claims(stated) if every and noise_is_known(ledger) and not assume_secret else stated


def _without_claims(stated: Mapping[str, Any]) -> dict[str, Any]:
    """A statement with all that it would claim of secret noise left out."""
    none = dict.fromkeys(("epsilon", "delta", "pure_epsilon", "own_delta"))
    nothing = {"epsilon": None, "delta": None, "covers": "nothing", "leaves_out": "everything"}
    silos = {
        silo: {**none, "events": [event | nothing for event in own["events"]]} for silo, own in stated["silos"].items()
    }
    summary = stated["summary"] if stated["summary"] == _UNSOUND else _KNOWN
    return {**stated, "summary": summary, "silos": silos, "release": None, "covers": "", "rest": ""}


_AGAINST_ALL = (
    "It holds against the coordinator and the other silos as well, as long as the coordinator colludes with no silo: "
    "all that each reads of rows is noised, and listed. The coordinator tells silos how much noise to add; it is taken "
    "to keep to the protocol."
)


def _events(ledger: Iterable[Mapping[str, Any]]) -> dict[str, list[Event]]:
    """Events by silo. Those that the coordinator lists repeat the silos' own."""
    events: dict[str, list[Event]] = {}
    for record in ledger:
        if record.get("events") and record["from"] != COORDINATOR:
            events.setdefault(record["from"], []).extend(Event(**event) for event in record["events"])
    return events


def _spent(events: Sequence[Event], delta: float, target: float) -> Budget:
    """At the target's delta, if there is one, thresholds' deltas included."""
    if not target:
        return spent(events, delta)
    return spent(events, max(0.0, target - math.fsum(event.delta * event.times for event in events)))


def rows_of(horizontal: bool, grouped: bool) -> str:
    """Of what a row is that a model protects; see `statement`."""
    if grouped:
        return "one group's tables, all its silos together"
    return "one silo's table" if horizontal else "the aligned table, all silos together"


def _released(
    events: Mapping[str, Sequence[Event]], delta: float, target: float, horizontal: bool, rows: str
) -> dict[str, Any]:
    """The budget of the model: all events of all silos, joint ones once; or those of the silo that spends most."""
    if horizontal:
        budgets = [_spent(own, delta, target) for own in events.values()]
        worst = max(budgets, key=lambda budget: budget.epsilon)
        return {"epsilon": _finite(worst.epsilon), "delta": worst.delta, "rows": rows}
    joint: Counter[Event] = Counter()
    for own in events.values():
        joint |= Counter(event for event in own if event.joint)
    single = [event for own in events.values() for event in own if not event.joint]
    budget = _spent([*joint.elements(), *single], delta, target)
    return {"epsilon": _finite(budget.epsilon), "delta": budget.delta, "rows": rows}


def _readers(ledger: Iterable[Mapping[str, Any]], events: Iterable[Event]) -> str:
    """Who has read what without noise; empty if nobody has."""
    read: dict[str, dict[str, None]] = {}
    for record in ledger:
        kind = str(record.get("privacy") or "")
        if kind and kind not in _PUBLIC:
            read.setdefault("the coordinator" if record["to"] == COORDINATOR else "silos", {})[kind] = None
    if not read and any(event.scope == "release" for event in events):
        return "the coordinator and silos"
    return ", nor against ".join(f"{who}, which read {'; '.join(kinds)}" for who, kinds in sorted(read.items()))


def _claim(release: Mapping[str, Any]) -> str:
    if release["epsilon"] is None:
        return "none: there is too little noise for an epsilon to be stated"
    epsilon, delta = rounded_up(release["epsilon"]), rounded_up(release["delta"])
    return (
        f"epsilon at most {epsilon} at delta {delta} for the released model and its synthetic tables, "
        f"per row of {release['rows']}"
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


def _plain(budget: Budget, events: Sequence[Event], delta: float) -> dict[str, Any]:
    noised = bool(budget.counts)
    return {
        "epsilon": _finite(budget.epsilon) if noised else None,
        "delta": budget.delta if noised else None,
        "pure_epsilon": _finite(budget.pure_epsilon) if noised else None,
        "own_delta": budget.own_delta if noised else None,
        "events": [_line(event, times, delta) for event, times in Counter(events).items()],
    }


def _line(event: Event, times: int, delta: float) -> dict[str, Any]:
    """One row of the table. A Gaussian event's epsilon is that of all its steps, at the run's delta."""
    gaussian, sound = event.mechanism in GAUSSIAN, event.mechanism != UNSOUND
    cost = spent([event] * times, delta).epsilon if gaussian else event.epsilon if sound else None
    return {
        "what": event.what,
        "mechanism": event.mechanism,
        "count": times * event.times,
        "noise": event.noise if gaussian else None,
        "rate": event.rate if event.mechanism == SAMPLED_GAUSSIAN else None,
        "epsilon": None if cost is None else _finite(cost),
        "delta": delta if gaussian else event.delta,
        "scope": event.scope,
        "joint": event.joint,
        "covers": COVERS[event.scope] if sound else "nothing",
        "leaves_out": LEAVES_OUT[event.scope] if sound else "everything",
    }


def budget_rows(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of a statement's budget: its events, as in `statement`, each with its ``silo``, and one total.

    Several silos' events that count once have the silo "all". The total is the last row, and the epsilon and delta of
    the guarantee: of the release where one is claimed, else of the silo that spends most. No noise, no rows.
    `MANY` events of a silo that differ in nothing but what they are of, such as tables, are one row.
    """
    joint = dict[str, dict[str, Any]]()
    rows = []
    for silo, budget in stated["silos"].items():
        for event in budget["events"]:
            if event["joint"]:
                joint.setdefault(repr(event), event | {"silo": "all"})
            else:
                rows.append(event | {"silo": silo})
    rows = _together([*rows, *joint.values()])
    return [*rows, _total(stated)] if rows else []


MANY = 10


def _together(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ in nothing but what they are of as one, in place of the first."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(repr({**row, "what": ""}), []).append(row)
    found = []
    for row in rows:
        own = alike[repr({**row, "what": ""})]
        if len(own) < MANY:
            found.append(row)
        elif row is own[0]:
            found.append(_merged(own))
    return found


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    what = f"each of {len(rows)}, from {rows[0]['what']} to {rows[-1]['what']}"
    return {**rows[0], "what": what, "count": sum(row["count"] for row in rows)}


def _total(stated: Mapping[str, Any]) -> dict[str, Any]:
    release, budgets = stated["release"], list(stated["silos"].values())
    unsound = any(event["covers"] == "nothing" for budget in budgets for event in budget["events"])
    blank = {"silo": "", "mechanism": "", "count": None, "noise": None, "rate": None, "scope": "", "joint": False}
    if release is not None:
        what = f"total: the model and its synthetic tables, for one row of {release['rows']}"
        return {**blank, "what": what, "epsilon": release["epsilon"], "delta": release["delta"], "covers": "as stated"}
    epsilon, delta = (None if unsound else _most(budget[name] for budget in budgets) for name in ("epsilon", "delta"))
    what = "total" if unsound or len(budgets) < 2 else "total of the silo that spends most"
    covers = "nothing" if unsound else COVERS["readers"]
    return {**blank, "what": what, "epsilon": epsilon, "delta": delta, "covers": covers}


def _most(numbers: Iterable[float | None]) -> float | None:
    """The largest; None if one is None, and so infinite."""
    known = list(numbers)
    return None if None in known else max(number for number in known if number is not None)


def cell(number: float | None) -> str:
    """A cost in a table, rounded up; "none" where there is none."""
    return "none" if number is None else rounded_up(number)


def mechanism(event: Mapping[str, Any]) -> str:
    """The mechanism of an event of a statement, with noise multiplier and sampling rate where it has them."""
    noise = "" if event["noise"] is None else f", noise {event['noise']:.4g}"
    return f"{event['mechanism']}{noise}" + ("" if event["rate"] is None else f", rate {event['rate']:.4g}")


def _finite(number: float) -> float | None:
    return number if number < math.inf else None
