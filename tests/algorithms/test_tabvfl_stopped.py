"""A silo's process is stopped for half a minute: training continues, it rejoins at the right batch, nothing is lost."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.algorithms.tabvfl_play import CPU, SIZES, configured, table

import silosynth as ss
from silosynth.algorithms.tabvfl.networks import Batches
from silosynth.algorithms.tabvfl.options import FINETUNING, PRETRAINING, TabVFLConfig
from silosynth.algorithms.tabvfl.protocol import Embed
from silosynth.algorithms.tabvfl.silo import TabVFLSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import PartyLostWarning
from silosynth.runtime.wire import decode, encode, pack

STOPPED, LIMIT = 30.0, 4.0  # seconds
EPOCHS, AT = 200, 5  # of the phase in which the silo is stopped; the step before which it is
SILOS = {"a": ["city", "income"], "b": ["debt", "sex", "visits"]}


@dataclass
class Noted:
    """An exchange: when it ended, its number, its asks and replies."""

    when: float
    number: int
    asks: dict[str, Any]
    got: dict[str, Any]


@dataclass
class Stop:
    """Stops silo b before step ``AT`` of a phase; epochs are slow from then on until it is back, to last longer."""

    phase: str
    begun: float = float("inf")
    ended: float = float("inf")
    timers: list[threading.Timer] = field(default_factory=list)

    def before(self, exchange: Exchange) -> None:
        ask = exchange.asks.get("b")
        if isinstance(ask, Embed) and (ask.phase, ask.step) == (self.phase, AT):
            silos = [one for one in psutil.Process().children() if "silo-process" in one.cmdline()]
            silo = max(silos, key=lambda child: child.pid)
            silo.suspend()  # SIGSTOP
            self.begun = time.monotonic()
            self.timers.append(threading.Timer(STOPPED, self.go_on, [silo]))
            self.timers[0].start()

    def pace(self, progress) -> None:
        if self.begun < time.monotonic() < self.ended + 5.0:
            time.sleep(0.25)

    def go_on(self, silo: psutil.Process) -> None:
        self.ended = time.monotonic()
        silo.resume()


def noting(exchanges: list[Noted], stop: Stop, coordinate):
    """The same conversation, recorded; ``stop`` is called before each exchange."""

    def noted(*given):
        talk, got = coordinate(*given), None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return end.value
            if isinstance(step, Exchange):
                stop.before(step)
            got = yield step
            if isinstance(step, Exchange):
                exchanges.append(Noted(time.monotonic(), len(exchanges) + 1, dict(step.asks), dict(got)))

    return noted


def kinds(made: ss.Representation, silo: str, number: int) -> list[str]:
    """The types of a silo's replies in an exchange, by the ledger."""
    lines = [line for line in made.ledger if (line["from"], line["step"]) == (silo, number)]
    return [line["type"].rpartition(".")[2] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("phase", [PRETRAINING, FINETUNING])
def test_a_silo_that_is_stopped_rejoins_at_the_right_batch_and_nothing_is_lost(monkeypatch, tmp_path, phase):
    exchanges, stop, federation = [], Stop(phase), ss.simulate(table(), SILOS)
    entry = ALGORITHMS["tabvfl"]
    noted = replace(entry, coordinate=noting(exchanges, stop, entry.coordinate))
    monkeypatch.setitem(ALGORITHMS, "tabvfl", noted)  # type: ignore[arg-type]
    options = SIZES | {f"{phase}_epochs": EPOCHS, "validation": 0.3, "patience": 999}
    how = {"preset": "fast", "options": options, "runtime": "processes", "folder": tmp_path, "checkpoint_every": 0}
    with pytest.warns(PartyLostWarning) as told:
        made = ss.represent("tabvfl", federation, table()["good"], limit=LIMIT, progress=stop.pace, **how)
    texts = [str(one.message) for one in told if "The run waits" not in str(one.message)]  # on a busy machine, at first
    assert len(texts) == 2 and all("'b'" in text for text in texts)
    assert "did not answer within 4 s. The run goes on without it" in texts[0] and "takes part again" in texts[1]

    embeds = [one for one in exchanges if isinstance(one.asks.get("a"), Embed) and one.asks["a"].phase == phase]
    lost, back = _goes_on(embeds, stop)
    _rejoins(exchanges, embeds[back:], federation)
    asked = {line["step"] for line in made.ledger if line["to"] == "b"}
    assert not asked & {one.number for one in embeds[lost + 1 : back]}
    assert kinds(made, "b", embeds[lost].number) == ["Missing", "Embedded"]
    assert all(kinds(made, "b", one.number) == kinds(made, "a", one.number) for one in exchanges[embeds[back].number :])
    twin = _twin(federation, [one for one in exchanges if one.number in asked], embeds[lost].number, phase)
    assert pack(made.parts["b"]) == pack(twin.trained())

    new = made.federation(table(30))
    assert np.isfinite(made.transform()).all(axis=None) and made.predict(new).isin(["no", "yes"]).all()
    again = ss.represent("tabvfl", federation, table()["good"], resume=True, progress=False, **how)
    whole = [pack({"coordinator": one.coordinator, "parts": dict(one.parts)}) for one in (made, again)]
    assert whole[0] == whole[1]  # from the last checkpoint, which was written after b was back


def _goes_on(embeds: list[Noted], stop: Stop) -> tuple[int, int]:
    """No step is skipped while b is absent. Returns the first step of its absence and the first after it."""
    count = len(embeds) // EPOCHS
    assert [one.asks["a"].step for one in embeds] == list(range(EPOCHS * count))
    away = [i for i, one in enumerate(embeds) if "b" not in one.got]
    assert away[0] == AT and away == list(range(away[0], away[-1] + 1))
    meanwhile = [i for i in away if stop.begun < embeds[i].when < stop.ended]
    assert len(meanwhile) > 50 and embeds[meanwhile[-1]].when - embeds[meanwhile[0]].when > STOPPED / 2
    return away[0], away[-1] + 1


def _rejoins(exchanges: list[Noted], back: list[Noted], federation: ss.Federation) -> None:
    """Its first batch is the same as a's, and it gets no gradient of a batch for which it was absent."""
    first, second = back[0].asks, back[1].asks
    assert first["b"].step == first["a"].step and second["b"].step == first["b"].step + 1
    assert first["a"].grad_BW is not None or first["a"].step % 2 == 0  # the first of an epoch has none
    assert first["b"].grad_BW is None
    assert second["b"].of in (-1, first["b"].step)
    prepare = exchanges[0].asks["b"]
    rows_B = Batches(federation.rows, _config(first["a"].phase), prepare.order).of(first["a"].step)
    assert back[0].got["a"].z_BW.shape[0] == back[0].got["b"].z_BW.shape[0] == len(rows_B)


def _config(phase: str) -> TabVFLConfig:
    return configured(**{f"{phase}_epochs": EPOCHS}, validation=0.3, patience=999)


def _twin(federation: ss.Federation, exchanges: list[Noted], lost: int, phase: str) -> TabVFLSilo:
    """Replays b's asks to a copy in this process: equal replies show that b lost and confused nothing."""
    streams = Streams(0)
    seat = seats(federation.roster, streams.child("seats"))["b"]
    twin = TabVFLSilo(federation.tables["b"], federation.schemas["b"], seat, streams.party("b"), CPU, _config(phase))
    for one in exchanges:
        reply = encode(twin.answer(decode(encode(one.asks["b"]))))
        assert one.number == lost or reply == encode(one.got["b"])
        if isinstance(one.asks["b"], Embed):
            assert twin.guest is not None and twin.guest.pending is not None
            rows_B = twin.guest.batches.of(one.asks["b"].step)
            assert torch.equal(twin.guest.pending.x_BF, twin.guest.features(rows_B))
    return twin
