"""TabVFL driven by hand, with silos lost as a test requires; and the same networks in one piece with equal masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from tests.oracles import tabvfl_one_piece as one

import silosynth as ss
from silosynth.algorithms.tabvfl import protocol as tabvfl
from silosynth.algorithms.tabvfl.networks import Labels, partitions
from silosynth.algorithms.tabvfl.silo import TabVFLSilo
from silosynth.catalog import ALGORITHMS
from silosynth.core.conversation import Checkpoint, Exchange, Progress
from silosynth.core.streams import Streams
from silosynth.models.tabnet import obfuscate
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode, pack, unpack

CPU = torch.device("cpu")
SIZES = {"net": {"latent": 6, "attention": 3, "steps": 2, "shared": 2}, "batch": 12, "validation": 0.0,
         "pretraining_epochs": 2, "finetuning_epochs": 2}  # fmt: skip
SPLITS = {
    1: {"a": ["city", "income", "debt", "sex", "visits"]},
    2: {"a": ["city", "income"], "b": ["debt", "sex", "visits"]},
    5: {"a": ["city"], "b": ["income"], "c": ["debt"], "d": ["sex"], "e": ["visits"]},
}


def table(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    city = rng.choice(["Bern", "Oslo", "Rome"], rows)
    income = rng.normal(50, 9, rows) + 20 * (city == "Oslo")
    return pd.DataFrame(
        {
            "city": city,
            "income": income,
            "debt": rng.gamma(2.0, 3.0, rows).round(1),
            "sex": rng.choice(["f", "m"], rows),
            "visits": rng.poisson(4, rows),
            "good": np.where(income + rng.normal(0, 3, rows) > 55, "yes", "no"),
        }
    )


def configured(preset: str = "fast", **options: Any):
    return ALGORITHMS["tabvfl"].configure(preset, {**SIZES, **options})


class Play:
    """Silos and a coordinator. ``lost`` decides who does not reply to an ask: (silo, ask) → bool."""

    def __init__(
        self, silos: int = 2, rows: int = 40, number: bool = False, lost: Callable | None = None, **options: Any
    ) -> None:
        frame = table(rows)
        self.federation = ss.simulate(frame, silos=SPLITS[silos])
        self.roster, self.config, self.lost = self.federation.roster, configured(**options), lost
        values = frame["income"] if number else (frame["good"] == "yes")
        values = torch.tensor(((values - values.mean()) / values.std()).to_numpy() if number else values.to_numpy())
        self.labels = Labels(values.float() if number else values.long(), 0 if number else 2)
        seat = seats(self.roster, Streams(0).child("seats"))
        self.silos = {
            silo: TabVFLSilo(held, self.federation.schemas[silo], seat[silo], Streams(0).child(silo), CPU, self.config)
            for silo, held in self.federation.tables.items()
        }
        self.said: list[tuple[str, Any, Any]] = []
        self.points: list[tuple[bytes, dict[str, bytes]]] = []
        self.progress: list[Progress] = []
        self.exchanges = 0

    def coordinate(self, state: Any = None):
        streams = Streams(0).child("coordinator")
        return tabvfl.coordinate(self.roster, self.config, self.labels, streams, CPU, state)

    def train(self, state: Any = None) -> bytes:
        model = self.drive(self.coordinate(state))
        return pack({"model": model, "parts": {name: silo.trained() for name, silo in self.silos.items()}})

    def resume(self, point: tuple[bytes, dict[str, bytes]]) -> bytes:
        for name, part in point[1].items():
            self.silos[name].restore(unpack(part))
        return self.train(unpack(point[0]))

    def prepared(self) -> tabvfl._TwoPhases:
        """Run up to the first step."""
        streams = Streams(0).child("coordinator")
        state = self.drive(tabvfl._begin(self.roster, self.config, self.labels, streams))
        return tabvfl._TwoPhases(self.roster, self.config, self.labels, streams, CPU, state)

    def in_double_precision(self, training: tabvfl._TwoPhases) -> None:
        """So that gradients of both can be compared to their last digits."""
        training.host.trainee.network.double()
        self.labels = training.labels = replace(
            self.labels, values=self.labels.values.double().to(torch.int64 if self.labels.classes else torch.float64)
        )
        for silo in self.silos.values():
            silo.guest.trainee.network.double()
            silo.guest.rows = replace(silo.guest.rows, scores=silo.guest.rows.scores.double())

    def drive(self, talk):
        got: Any = None
        while True:
            try:
                step = talk.send(got)
            except StopIteration as end:
                return end.value
            got = self.take(step)

    def take(self, step) -> dict:
        if isinstance(step, Exchange):
            return self.exchange(step)
        if isinstance(step, Checkpoint):
            parts = {name: pack(silo.state()) for name, silo in self.silos.items()}
            self.points.append((pack(step.state), parts))
        elif isinstance(step, Progress):
            self.progress.append(step)
        return {}

    def exchange(self, step: Exchange) -> dict:
        """Pass all messages through the wire format; replies of lost silos are left out."""
        self.exchanges += 1
        got = {}
        for silo, ask in step.asks.items():
            if self.lost is not None and self.lost(silo, ask):
                assert step.missing, "the conversation cannot do without it"
                continue
            got[silo] = decode(encode(self.silos[silo].answer(decode(encode(ask)))))
            self.said.append((silo, ask, got[silo]))
        return got

    def asked(self, kind: type) -> list[tuple[str, Any, Any]]:
        return [one for one in self.said if isinstance(one[1], kind)]


class Oracle:
    """The same in one piece, from the weights of a play."""

    def __init__(self, play: Play, training: tabvfl._TwoPhases) -> None:
        self.play, self.training = play, training
        play.in_double_precision(training)
        guests = {name: one.weights_of(silo.guest.trainee.network) for name, silo in play.silos.items()}
        host = one.weights_of(training.host.trainee.network)
        self.whole = one.Whole(guests, host, play.config, partitions(play.config, len(play.roster)))

    def rows(self, step: int) -> dict[str, torch.Tensor]:
        rows_B = self.training.batches.of(step)
        return {name: silo.guest.features(rows_B) for name, silo in self.play.silos.items()}

    def masks(self, step: int) -> dict[str, torch.Tensor]:
        found = {}
        for name, x in self.rows(step).items():
            draw = self.play.silos[name].guest.streams.child("mask", step).torch()
            found[name] = obfuscate(x, self.play.config.mask, draw)[1]
        return found

    def check(self) -> None:
        """All gradients are equal."""
        pairs = [(self.whole.guests[name], silo.guest.trainee.network) for name, silo in self.play.silos.items()]
        for weights, networks in [*pairs, (self.whole.host, self.training.host.trainee.network)]:
            for name, weight in networks.named_parameters():
                wanted = weights[name].grad
                assert (wanted is None) == (weight.grad is None), name
                if wanted is not None:
                    torch.testing.assert_close(
                        weight.grad, wanted, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
                    )
