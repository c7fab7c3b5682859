"""What a coordinator infers from latents when it knows some rows: the privacy limit of SiloFuse, measured.

    python benchmarks/inversion.py

The attacker holds the latents of all training rows (as a SiloFuse coordinator does) and the true values of a few of
them. It learns an inversion from those and applies it to the rest. "blind" is the same attacker without latents: the
most frequent level, or the median. Categorical columns: share of rows guessed right. Numbers: R² of the guess.
"""

from __future__ import annotations

import argparse
from typing import Any

import common
import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

import silosynth as ss
from silosynth.algorithms.silofuse.protocol import Latents
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.data.partition import in_order
from silosynth.simulation.inprocess import make_parties
from silosynth.simulation.model import resolve_device

ROWS, TESTED = 10_000, 2000


def latents(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """What each silo sends: the conversation is driven by hand up to that message."""
    federation = ss.simulate(frame, silos=in_order(list(frame.columns), 4))
    entry, cpu = algorithm("silofuse"), resolve_device("cpu")
    parties = make_parties(entry, federation, Streams(0), cpu)
    talk = entry.coordinate(federation.roster, entry.configure("balanced"), Streams(0), cpu)
    step = next(talk)
    while True:
        replies = {}
        if isinstance(step, Exchange):
            replies = {silo: parties[silo].answer(ask) for silo, ask in step.asks.items()}
        if all(isinstance(reply, Latents) for reply in replies.values()) and replies:
            return {silo: reply.z_NL.numpy() for silo, reply in replies.items()}
        step = talk.send(replies)


def attack(z: np.ndarray, column: pd.Series, known: int) -> tuple[float, float]:
    """Success on unknown rows, and that of guessing blindly."""
    if pd.api.types.is_numeric_dtype(column) and column.nunique() > 20:
        values = column.to_numpy(float)
        guess = ExtraTreesRegressor(200, random_state=0).fit(z[:known], values[:known]).predict(z[-TESTED:])
        rest = values[-TESTED:]
        return 1 - float(((guess - rest) ** 2).sum() / ((rest - rest.mean()) ** 2).sum()), 0.0
    codes = pd.factorize(column.astype("object").fillna("missing").astype(str))[0]
    guess = ExtraTreesClassifier(200, random_state=0).fit(z[:known], codes[:known]).predict(z[-TESTED:])
    blind = np.bincount(codes[:known]).argmax()
    return float((guess == codes[-TESTED:]).mean()), float((codes[-TESTED:] == blind).mean())


def main() -> None:
    """Attack every column of Adult from its own silo's latents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", nargs="+", type=int, default=[20, 200, 2000])
    options = parser.parse_args()
    frame = common.table("adult").sample(ROWS, random_state=0).reset_index(drop=True)
    sent = latents(frame)
    rows: list[dict[str, Any]] = []
    for silo, columns in in_order(list(frame.columns), 4).items():
        for column in columns:
            tried = {known: attack(sent[silo], frame[column], known) for known in options.known}
            row: dict[str, Any] = {"silo": silo, "column": column, "blind": tried[options.known[-1]][1]}
            rows.append(row | {f"{known} rows known": won for known, (won, _) in tried.items()})
    common.keep("inversion", rows)


if __name__ == "__main__":
    main()
