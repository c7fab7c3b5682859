"""SiloFuse's coordinator inverts latents: it knows some rows, trains an inversion on these, and applies it to the rest.

It holds the latents of all training rows anyway. Shapes: N rows, L latents of a silo.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from silosynth.algorithms.silofuse.protocol import Latents
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.evaluation.scores import Floats
from silosynth.runtime.link import resolve_device
from silosynth.simulation.federation import Federation
from silosynth.simulation.silos import make_parties

TREES = 200
TESTED = 2000  # rows that guesses are scored on, the last ones
LEVELS = 20  # numbers with no more values than this are guessed as levels


def latents(federation: Federation, preset: str = "balanced", seed: int = 0) -> dict[str, Floats]:
    """What each silo sends (N, L): the conversation is driven by hand up to that message."""
    entry, cpu, streams = algorithm("silofuse"), resolve_device("cpu"), Streams(seed)
    config = entry.configure(preset)
    parties = make_parties(entry, config, federation, streams, cpu)
    talk = entry.coordinate(federation.roster, config, streams, cpu)
    step = next(talk)
    while True:
        replies = {}
        if isinstance(step, Exchange):
            replies = {silo: parties[silo].answer(ask) for silo, ask in step.asks.items()}
        sent = {silo: reply.z_NL.numpy() for silo, reply in replies.items() if isinstance(reply, Latents)}
        if replies and len(sent) == len(replies):
            return sent
        step = talk.send(replies)


def attack(z_NL: Floats, column: pd.Series, known: int) -> tuple[float, float]:
    """Success on the last rows by inverting the first ``known``, and without latents, guessing blindly.

    Categories: shares of rows guessed right, blindly the most frequent level. Numbers: R², blindly 0.
    """
    if pd.api.types.is_numeric_dtype(column) and column.nunique() > LEVELS:
        values = column.to_numpy(float)
        guess = ExtraTreesRegressor(TREES, random_state=0).fit(z_NL[:known], values[:known]).predict(z_NL[-TESTED:])
        rest = values[-TESTED:]
        return 1 - float(((guess - rest) ** 2).sum() / ((rest - rest.mean()) ** 2).sum()), 0.0
    codes = pd.factorize(column.astype("object").fillna("missing").astype(str))[0]
    guess = ExtraTreesClassifier(TREES, random_state=0).fit(z_NL[:known], codes[:known]).predict(z_NL[-TESTED:])
    blind = np.bincount(codes[:known]).argmax()
    return float((guess == codes[-TESTED:]).mean()), float((codes[-TESTED:] == blind).mean())
