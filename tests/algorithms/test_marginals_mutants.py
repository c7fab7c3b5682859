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
from tests.algorithms.test_marginals import DP, KINDS, Play

from silosynth.algorithms.marginals import private, protocol as marginals
from silosynth.algorithms.marginals.silo import MarginalsSilo
from silosynth.core.errors import ProtocolError
from silosynth.core.streams import Streams
from silosynth.counting import opening
from silosynth.counting.opening import CellNoise
from silosynth.encoders import table as private_encoders
from silosynth.privacy import mechanisms
from silosynth.privacy.accounting import affords
from silosynth.privacy.events import Event

Numbers = np.ndarray
LOW = 3.0  # standard deviations by which a mean square may be low: it is, or is not, by the streams' fixed seeds


@dataclass
class Heard:
    """The noise of a training.

    Attributes:
        columns: on counts that encoders were learnt from, in order, in whole cells.
        tables: of each set that opened, what each party added.
        charged: the event of each set.
        learnt: events of encoders and numbers of rows.
    """

    columns: list[Numbers] = field(default_factory=list)
    tables: dict[int, dict[str, Numbers]] = field(default_factory=dict)
    charged: dict[int, Event] = field(default_factory=dict)
    learnt: list[Event] = field(default_factory=list)


def people(rows: int = 20_000) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    job, rich = (rng.choice(list("abcdefghijkl"), rows) for _ in range(2))
    return pd.DataFrame(
        {"job": job, "age": rng.integers(20, 65, rows), "pay": rng.integers(20, 140, rows), "rich": rich}
    )


def heard(kind: str, patched: pytest.MonkeyPatch) -> tuple[Play, Heard]:
    """Train, and listen."""
    play = Play(whole=people(), kind=kind, **{"dp": DP} | KINDS[kind] | {"bins": 16, "groups": 8})
    found, counts, added = Heard(), private_encoders.gaussian_counts, opening._added

    def gaussian_counts(exact: Any, *more: Any) -> Any:
        noised, event = counts(exact, *more)
        found.columns.append((noised - exact).numpy().ravel())
        return noised, event

    def own(plan: Any, number: int, noises: Any, rng: Any) -> Any:
        noise = added(plan, number, noises, rng)
        if len(plan.parts[number]) == 2:
            found.tables.setdefault(number, {})["coordinator"] = noise.ravel()
        return noise

    with patched.context() as listening:
        for module in (private_encoders, mechanisms):  # of numbers, and of levels
            listening.setattr(module, "gaussian_counts", gaussian_counts)
        listening.setattr(opening, "_added", own)
        play.drive()
    for name, ask, reply in play.said:
        if isinstance(reply, opening.SharesOpened):
            assert isinstance(ask, opening.OpenTables)
            events = zip(ask.sets, reply.events, strict=True)
            found.charged |= dict(events)
            for number, share in zip(ask.sets, reply.shares, strict=True):
                words = share.numpy().reshape(-1).view(f"u{play.silos[name].counter.shares[number].itemsize}")
                noise = (words - play.silos[name].counter.shares[number].reshape(-1)).view(f"i{words.itemsize}")
                found.tables.setdefault(number, {})[name] = noise.astype(np.int64)
        elif isinstance(reply, marginals.NoisedAttributesMade):
            found.learnt += reply.events
    return play, found


def check(play: Play, found: Heard) -> None:
    """Check that everybody faces the noise that is charged, that all is charged once, and no noise is used twice."""
    plan = play.silos["tax"]._plan
    assert plan is not None
    for left_out in ("registry", "tax", "coordinator"):
        faced = [
            sum(noise for name, noise in parts.items() if name != left_out) / found.charged[number].noise
            for number, parts in found.tables.items()
            if len(parts) == 3
        ]
        enough(np.concatenate(faced), f"tables of two silos, less the part of {left_out}")
    alone = [
        noise / found.charged[n].noise
        for n, parts in found.tables.items()
        if len(parts) == 1
        for noise in parts.values()
    ]
    enough(np.concatenate(alone), "tables of one silo")
    learnt = np.concatenate(found.columns) / found.learnt[0].noise
    enough(learnt, "columns")
    assert {event.noise for event in found.learnt} == {math.sqrt(plan.columns)}
    assert len(found.learnt) == sum(one.columns for one in play.silos["tax"].held) + len(play.silos), "not all charged"
    most = private.most_tables(play.config, play.silos["tax"]._levels)
    assert len(found.charged) == len(found.tables) <= 6 + most, "not all charged"
    events = play.events()
    assert len(events) == len(found.learnt) + len(found.tables), "not all charged"
    assert affords(play.config.dp, events), "more than the target"
    drawn = [noise for parts in found.tables.values() for noise in parts.values()] + found.columns
    starts = [noise[:6].tobytes() for noise in drawn if len(noise) >= 6]
    assert len(set(starts)) == len(starts), "the same noise twice"


def enough(units: Numbers, what: str) -> None:
    least = 1 - LOW * math.sqrt(2 / len(units))
    assert least > 0.5, f"too few cells to tell half the noise: {len(units)}"
    assert np.mean(units**2) > least, f"{what}: noise below its event's"


# Half the noise.


def half_of_silos(patched: pytest.MonkeyPatch) -> None:
    real = CellNoise.part
    patched.setattr(CellNoise, "part", lambda noise, parts, *more: real(noise, 2 * parts, *more))


def half_of_the_coordinator(patched: pytest.MonkeyPatch) -> None:
    real = opening._added
    patched.setattr(opening, "_added", lambda *given: real(*given) // 2)


def none_of_the_coordinator(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(opening, "_added", lambda plan, number, *more: np.zeros(plan.request.shape(number), np.int64))


def half_on_tables_of_one_silo(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(CellNoise, "whole", lambda noise, *given: noise.part(4, *given))


def half_on_columns(patched: pytest.MonkeyPatch) -> None:
    real = mechanisms.gaussian_counts

    def gaussian_counts(counts: Any, variance: int, what: str, rng: Any) -> Any:
        noised, event = real(counts, variance // 2, what, rng)
        return noised, replace(event, noise=math.sqrt(variance))

    for module in (private_encoders, mechanisms):
        patched.setattr(module, "gaussian_counts", gaussian_counts)


def half_on_full_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.full_noise
    patched.setattr(private, "full_noise", lambda *given: halved(real(*given)))


def half_on_the_last_tables(patched: pytest.MonkeyPatch) -> None:
    real = private.last_noise
    patched.setattr(private, "last_noise", lambda *given: halved(real(*given)))


def last_tables_as_if_none_were_open(patched: pytest.MonkeyPatch) -> None:
    real = private.last_noise
    patched.setattr(
        private, "last_noise", lambda config, held, levels, opened, last: real(config, held, levels, 0, last)
    )


def halved(noise: CellNoise | None) -> CellNoise:
    assert noise is not None
    return CellNoise(half_variance=max(mechanisms.LEAST_VARIANCE, noise.half_variance // 2))


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


def of_the_coordinator_again(patched: pytest.MonkeyPatch) -> None:
    real = opening._added
    again = Streams(0).child("again")
    patched.setattr(opening, "_added", lambda plan, number, noises, rng: real(plan, number, noises, again.noise()))


MUTATED = ["mst", "aim", "aim last"]
MUTATIONS = [
    (half_of_silos, "noise below"),
    (half_of_the_coordinator, "noise below"),
    (none_of_the_coordinator, "noise below"),
    (half_on_tables_of_one_silo, "noise below"),
    (half_on_columns, "columns: noise below"),
    (half_on_full_tables, "opens no tables beyond its target"),
    (a_tables_event, r"zip\(\)"),
    (a_columns_event, "not all charged"),
    (of_silos_again, "the same noise twice"),
    (of_the_coordinator_again, "the same noise twice"),
]


OF_LAST_TABLES = [half_on_the_last_tables, last_tables_as_if_none_were_open]
CASES = [
    *((mutate, caught, kind) for mutate, caught in MUTATIONS for kind in MUTATED),
    *((mutate, "opens no tables beyond its target", "aim last") for mutate in OF_LAST_TABLES),
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
