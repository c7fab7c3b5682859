"""Shared by tests of SiloFuse and its variants: a table of two silos, short trainings, silos driven by hand."""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import torch

import silosynth as ss
from silosynth.algorithms.silofuse.options import CoderConfig, SiloFuseConfig
from silosynth.algorithms.silofuse.protocol import FitCoder
from silosynth.catalog import ALGORITHMS
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats

CPU = torch.device("cpu")
SMALL = {"coder.steps": 20, "latent.width": 32, "latent.steps": 20, "latent.checks": 2, "latent.batch": 64}
LEARN = {
    "coder.steps": 600,
    "coder.hidden": [64, 64],
    "latent.width": 64,
    "latent.steps": 1500,
    "latent.checks": 5,
    "latent.batch": 256,
}


def people(rows: int = 3000) -> pd.DataFrame:
    """Two silos with a common cause: job and pay depend on each other across them."""
    rng = np.random.default_rng(0)
    job = rng.choice(["nurse", "smith", "judge"], rows, p=[0.5, 0.3, 0.2])
    pay = np.select([job == "nurse", job == "smith"], [30, 50], 90) + rng.normal(0, 4, rows)
    return pd.DataFrame({"job": job, "age": rng.integers(20, 65, rows), "pay": pay.round(1), "rich": pay > 60})


SILOS = {"registry": ["job", "age"], "tax": ["pay", "rich"]}


def fit(name="silofuse", data=None, preset="fast", silos=None, **options):
    data = people() if data is None else data
    federation = ss.simulate(data, silos=silos or SILOS)
    if ALGORITHMS[name].central:
        federation = federation.central()
    return ss.fit(name, federation, preset=preset, options={**SMALL, **options}, progress=False)


def seated_silos(kind, rows=64, **options):
    """Silos whose encoders are fitted; `form` is plain."""
    federation = ss.simulate(people(rows), silos=SILOS)
    parties, seated = {}, seats(federation.roster, Streams(0).child("seats"))
    for silo, table in federation.tables.items():
        schema, streams = federation.schemas[silo], Streams(0).child(silo)
        config = SiloFuseConfig(coder=CoderConfig(form="plain", hidden=(16, 8), latents_per_column=2))
        parties[silo] = kind(table, schema, seated[silo], streams, CPU, config)
        parties[silo].answer(FitCoder())
    return federation.roster, parties


def encoded_at_once(parties, rows):
    """All silos' encodings, computed in one graph."""
    coders = [party.coder for party in parties.values()]
    return torch.cat([coder.network.encode(coder.levels[rows], coder.scores[rows])[0] for coder in coders], 1)


def loss_at_once(party, z, rows):
    return party.coder.network.likelihood(z, party.coder.levels[rows], party.coder.scores[rows], 5.0)


def weights_of(parties, network):
    silos = [weight for party in parties.values() for weight in party.coder.network.parameters()]
    return [*silos, *network.parameters()]


def play(parties, conversation):
    """Drive a conversation by hand; returns the types of asks, by exchange."""
    asks, replies = [], None
    with contextlib.suppress(StopIteration):
        while True:
            exchange = conversation.send(replies)
            asks.append({silo: type(ask) for silo, ask in exchange.asks.items()})
            replies = {silo: parties[silo].answer(ask) for silo, ask in exchange.asks.items()}
    return asks
