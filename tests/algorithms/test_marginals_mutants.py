"""Mutations of MST's and AIM's mechanisms, for silos with different columns, are caught by one check of what opens.

`check` reads only what a training has sent and what silos hold: the noise on every count, next to the events that
charge it. For silos with different rows see `test_marginals_rows.test_weaker_mechanisms_are_caught`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.algorithms.rows_play import half_on_full_tables, half_on_later_tables, later_tables_as_if_none_were_open
from tests.algorithms.test_marginals import DP, KINDS, Play

from silosynth.algorithms.marginals import private, protocol as marginals
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams
from silosynth.counting import joint, opening
from silosynth.counting.opening import CellNoise
from silosynth.encoders import table as private_encoders
from silosynth.privacy import mechanisms
from silosynth.privacy.accounting import affords, cost
from silosynth.privacy.events import Event
from silosynth.privacy.joint import charged, weights
from silosynth.privacy.statement import statement
from silosynth.runtime.ledger import Ledger

Numbers = np.ndarray
LOW = 3.0  # standard deviations by which a mean square may be low: it is, or is not, by the streams' fixed seeds


@dataclass
class Heard:
    """The noise of a training.

    Attributes:
        columns: on counts that encoders were learnt from, in order, in whole cells.
        units: the same, next to what was charged for each.
        tables: of each set that opened, all of it.
        bits: of each set of two silos, those of each.
        noises: with which each set was to open.
        charged: the event of each set.
        learnt: events of encoders and numbers of rows.
        drawn: those that came with the noise on these, whether they were listed or not.
    """

    columns: list[Numbers] = field(default_factory=list)
    units: list[Numbers] = field(default_factory=list)
    tables: dict[int, Numbers] = field(default_factory=dict)
    bits: dict[int, dict[str, Numbers]] = field(default_factory=dict)
    noises: dict[int, CellNoise] = field(default_factory=dict)
    charged: dict[int, Event] = field(default_factory=dict)
    learnt: list[Event] = field(default_factory=list)
    drawn: list[Event] = field(default_factory=list)


def people(rows: int = 20_000) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    job, rich = (rng.choice(list("abcdefghijkl"), rows) for _ in range(2))
    return pd.DataFrame(
        {"job": job, "age": rng.integers(20, 65, rows), "pay": rng.integers(20, 140, rows), "rich": rich}
    )


def heard(kind: str, patched: pytest.MonkeyPatch) -> tuple[Play, Heard]:
    """Train, and listen."""
    play = Play(whole=people(), kind=kind, **{"dp": DP} | KINDS[kind] | {"bins": 16, "groups": 8})
    found, counts, hide = Heard(), private_encoders.gaussian_counts, joint.JointNoise._hide

    def gaussian_counts(exact: Any, *more: Any) -> Any:
        noised, event = counts(exact, *more)
        found.columns.append((noised - exact).numpy().ravel())
        found.units.append(found.columns[-1] / event.noise)
        if found.drawn[-1:] != [event]:  # missing values are drawn apart, and are one more cell of a column's levels
            found.drawn.append(event)
        return noised, event

    def hidden(silo: Any, *given: Any) -> Any:
        reply = hide(silo, *given)
        for number, bits in silo._now.bits.items():
            found.bits.setdefault(number, {})[silo._seat.name] = bits
        return reply

    with patched.context() as listening:
        for module in (private_encoders, mechanisms):  # of numbers, and of levels
            listening.setattr(module, "gaussian_counts", gaussian_counts)
        listening.setattr(joint.JointNoise, "_hide", hidden)
        play.drive()
    for name, ask, reply in play.said:
        if isinstance(reply, opening.SharesOpened):
            assert isinstance(ask, opening.OpenTables)
            listed = {event.what: event for event in reply.events}
            named = ((number, named_table(play, number)) for number in ask.sets)
            found.charged |= {number: listed[name] for number, name in named if name in listed}
            found.noises |= dict(zip(ask.sets, ask.noises, strict=True))
            for number, share in zip(ask.sets, reply.shares, strict=True):
                words = share.numpy().reshape(-1).view(f"u{play.silos[name].counter.shares[number].itemsize}")
                noise = (words - play.silos[name].counter.shares[number].reshape(-1)).view(f"i{words.itemsize}")
                found.tables[number] = found.tables.get(number, np.zeros(len(noise), noise.dtype)) + noise
        elif isinstance(reply, marginals.NoisedAttributesMade):
            found.learnt += reply.events
    return play, found


def named_table(play: Play, number: int) -> str:
    """What the event of a set says."""
    request = play.silos["tax"].counter.request
    assert request is not None
    return "a table of " + ", ".join(request.columns[place].name for place in request.sets[number])


def stated(play: Play) -> float:
    """Epsilon as a ledger of the training states it, for the model and all who read."""
    ledger = Ledger()
    for name, _, reply in play.said:
        ledger.add(0, name, COORDINATOR, reply, 0)
    return float(statement(ledger.entries())["release"]["epsilon"])


def costs(play: Play, found: Heard) -> float:
    """Epsilon of the noise that was drawn, whatever was listed: on each column, and each table that has opened."""
    request = play.silos["tax"].counter.request
    assert request is not None
    silos = {number: {request.columns[place].silo for place in request.sets[number]} for number in found.tables}
    tables = [found.noises[number].event("", len(of) == 2, DP["delta"]) for number, of in silos.items()]
    named = sum(event.delta for event in found.learnt)
    return cost([*found.drawn, *tables], replace(play.config.dp, delta=DP["delta"] - named))


def check(play: Play, found: Heard) -> None:
    """Check that everybody faces the noise that is charged, that all is charged once, and no noise is used twice."""
    plan = play.silos["tax"]._plan
    assert plan is not None
    assert stated(play) > costs(play, found) - 1e-6, "more is spent than is stated"
    two = {number: noise for number, noise in found.tables.items() if found.charged[number].joint}
    enough(
        np.concatenate([noise / found.charged[number].noise for number, noise in two.items()]), "tables of two silos"
    )
    for left_out in ("registry", "tax"):  # it knows its own bits, and faces those of the other one
        faced = [part(found, number, left_out) / found.charged[number].noise for number in two]
        enough(np.concatenate(faced), f"tables of two silos, as {left_out} sees them")
    for number in two:
        worth = charged(2 * found.noises[number].half_variance, DP["delta"])
        assert (found.charged[number].noise, found.charged[number].delta) == worth, "charged as more than it is"
    alone = [noise / found.charged[n].noise for n, noise in found.tables.items() if n not in two]
    enough(np.concatenate(alone), "tables of one silo")
    enough(np.concatenate(found.units), "columns")
    planned = sorted(map(math.sqrt, (*[plan.rows] * len(play.silos), *plan.columns)))
    assert sorted(event.noise for event in found.learnt) == planned, "not as planned, or not all charged"
    most = private.most_tables(play.config, play.silos["tax"]._levels)
    assert len(found.charged) == len(found.tables) <= 6 + len(private.single_sets(play.config, 4)) + most, (
        "not all charged"
    )
    events = play.events()
    assert len(events) == len(found.learnt) + len(found.tables), "not all charged"
    assert affords(play.config.dp, events), "more than the target"
    bits = [own[:, :8].ravel().astype(np.int64) for parts in found.bits.values() for own in parts.values()]
    drawn = [noise.astype(np.int64) for noise in found.tables.values()] + found.columns + bits
    starts = [noise[:12].tobytes() for noise in drawn if len(noise) >= 12]
    assert len(set(starts)) == len(starts), "the same noise twice"


def part(found: Heard, number: int, left_out: str) -> Numbers:
    """What the bits of one silo make of a table's noise, whatever those of the other are; less their mean."""
    (bits,) = (bits for name, bits in found.bits[number].items() if name != left_out)
    made = bits.astype(np.float64) @ np.array(weights(2 * found.noises[number].half_variance))
    centred: Numbers = made - made.mean()
    return centred


def enough(units: Numbers, what: str) -> None:
    least = 1 - LOW * math.sqrt(2 / len(units))
    assert least > 0.5, f"too few cells to tell half the noise: {len(units)}"
    assert np.mean(units**2) > least, f"{what}: noise below its event's"


# Half the noise.


def half_of_the_bits(patched: pytest.MonkeyPatch) -> None:
    real = joint.draw
    patched.setattr(joint, "draw", lambda cells, count, rng: real(cells, count, rng) * (np.arange(count) % 2))


def no_bits_of_one_silo(patched: pytest.MonkeyPatch) -> None:
    real, last = joint.JointNoise._hide, joint.draw

    def hide(silo: Any, *given: Any) -> Any:
        with pytest.MonkeyPatch.context() as one:
            one.setattr(joint, "draw", lambda *how: last(*how) * (silo._seat.name != "tax"))
            return real(silo, *given)

    patched.setattr(joint.JointNoise, "_hide", hide)


def weights_of_half_the_variance(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(joint, "weights", lambda variance: weights(variance // 2))


def charged_as_all_of_the_variance(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(opening, "charged", lambda variance, delta: (math.sqrt(variance), 0.0))


def half_on_tables_of_one_silo(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(CellNoise, "whole", lambda noise, *given: noise.part(4, *given))


def half_on_columns(patched: pytest.MonkeyPatch) -> None:
    real = mechanisms.gaussian_counts

    def gaussian_counts(counts: Any, variance: int, what: str, rng: Any) -> Any:
        noised, event = real(counts, variance // 2, what, rng)
        return noised, replace(event, noise=math.sqrt(variance))

    for module in (private_encoders, mechanisms):
        patched.setattr(module, "gaussian_counts", gaussian_counts)


# One event left out.


def a_tables_event(patched: pytest.MonkeyPatch) -> None:
    real = MarginalsSilo._open

    def opened(silo: Any, ask: Any) -> Any:
        reply = real(silo, ask)
        return replace(reply, events=reply.events[:-1]) if isinstance(reply, opening.SharesOpened) else reply

    patched.setattr(MarginalsSilo, "_open", opened)


def a_columns_event(patched: pytest.MonkeyPatch) -> None:
    real = MarginalsSilo._make
    patched.setattr(MarginalsSilo, "_make", lambda *given: (r := real(*given), replace(r, events=r.events[1:]))[1])


# Noise reused.


def of_silos_again(patched: pytest.MonkeyPatch) -> None:
    real = Streams.noise
    patched.setattr(Streams, "noise", lambda streams: real(Streams(0)))


def bits_again(patched: pytest.MonkeyPatch) -> None:
    real = joint.draw
    again = Streams(0).child("again")
    patched.setattr(joint, "draw", lambda cells, count, rng: real(cells, count, again.noise()))


MUTATED = ["mst", "aim", "aim last"]
MUTATIONS = [
    (half_of_the_bits, "noise below"),
    (no_bits_of_one_silo, "as registry sees them: noise below"),
    (weights_of_half_the_variance, "tables of two silos: noise below"),
    (charged_as_all_of_the_variance, "charged as more than it is"),
    (half_on_tables_of_one_silo, "noise below"),
    (half_on_columns, "columns: noise below"),
    (half_on_full_tables, "opens no tables beyond its target"),
    (a_tables_event, "more is spent than is stated"),
    (a_columns_event, "more is spent than is stated"),
    (of_silos_again, "the same noise twice"),
    (bits_again, "the same noise twice"),
]


OF_LATER_TABLES = [half_on_later_tables, later_tables_as_if_none_were_open]
CASES = [
    *((mutate, caught, kind) for mutate, caught in MUTATIONS for kind in MUTATED),
    *((mutate, "opens no tables beyond its target", "aim last") for mutate in OF_LATER_TABLES),
]


@pytest.mark.parametrize("kind", MUTATED)
def test_mechanisms_as_they_are_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(*heard(kind, monkeypatch))


@pytest.mark.parametrize(
    ("mutate", "caught", "kind"), [pytest.param(*one, id=f"{one[0].__name__} {one[2]}") for one in CASES]
)
def test_weaker_mechanisms_are_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], caught: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ValueError, ProtocolError), match=caught):
        check(*heard(kind, monkeypatch))
