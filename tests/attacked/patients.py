"""One real silo of SiloFuse with patients, whose latents the coordinator has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from silosynth.algorithms.silofuse.options import CoderConfig, SiloFuseConfig
from silosynth.algorithms.silofuse.protocol import (
    PARTS,
    AskLatents,
    FitCoder,
    Latents,
    SynthesiseFromLatents,
    TrainAutoencoder,
)
from silosynth.algorithms.silofuse.silo import SiloFuseSilo
from silosynth.core.conversation import State, SyntheticColumns
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.simulation import federation

TINY = CoderConfig(hidden=(16,), steps=20, fit_to_rows=False)


def frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    diagnosis = rng.choice(list("ABCDEFGH"), rows, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05])
    return pd.DataFrame(
        {
            "income": np.round(rng.lognormal(10.4, 0.5, rows), 2),
            "age": rng.integers(18, 90, rows),
            "pressure": np.round(rng.normal(130, 18, rows), 1),
            "diagnosis": diagnosis,
            "smoker": rng.random(rows) < np.where(diagnosis < "D", 0.5, 0.1),
        }
    )


@dataclass
class Attacked:
    """The silo's party that draws rows, what it judges asks by, its rows, and their latents."""

    silo: SiloFuseSilo
    reference: State
    rows: pd.DataFrame
    z_NL: torch.Tensor

    def decoded(self, z_GL: torch.Tensor, rows: int | None = None) -> pd.DataFrame:
        """What the silo decodes these latents to."""
        reply = self.silo.answer(SynthesiseFromLatents(z_GL, len(z_GL) if rows is None else rows, "draw"))
        assert isinstance(reply, SyntheticColumns)
        return plain(reply.table)

    def oracle(self, z_GL: torch.Tensor) -> pd.DataFrame:
        """What a silo without the rule decodes them to."""
        return plain(self.silo.coder.decode(z_GL, len(z_GL), Streams(5)))


def plain(table: Table) -> pd.DataFrame:
    from silosynth.data.frames import to_frame

    made: pd.DataFrame = to_frame(table)
    return made


def attacked(rows: int = 150, config: CoderConfig = TINY) -> Attacked:
    """A silo that has trained its autoencoder, and sent its latents."""
    data = frame(rows)
    schema, table = federation.read_table(data, {})
    own = schema, seats(["clinic"], Streams(1))["clinic"], Streams(2), torch.device("cpu"), SiloFuseConfig(coder=config)
    silo = SiloFuseSilo(table, *own)
    silo.answer(FitCoder())
    silo.answer(TrainAutoencoder(PARTS - 1))
    reply = silo.answer(AskLatents())
    assert isinstance(reply, Latents)
    drawing = SiloFuseSilo(Table(()), *own)  # as a deployed silo makes it once training has ended
    drawing.restore(silo.trained())
    return Attacked(drawing, silo.reference(), data, reply.z_NL)


def found(rows: pd.DataFrame, decoded: pd.DataFrame) -> dict[str, float]:
    """Of how many rows the income is right to 1 %, and the diagnosis."""
    close = (decoded["income"] / rows["income"].to_numpy() - 1).abs() <= 0.01
    same = decoded["diagnosis"].astype(str).to_numpy() == rows["diagnosis"].to_numpy()
    return {"income": float(close.mean()), "diagnosis": float(same.mean())}
