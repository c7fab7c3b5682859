"""A silo's own table ⇄ latents: column encoders, an autoencoder trained in parts, and marginal calibration.

Nothing here sends anything: the algorithms' parties own a `Coder` and decide what leaves.
Shapes: N training rows, B a batch of them, C columns with levels, S columns with scores, L latents, G generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from silosynth.core.errors import DataError
from silosynth.core.messages import Struct, check_positive
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, EncoderConfig, decode_table, encode_table, fit_encoder, restored, stored
from silosynth.encoders.private import Learnt, learn
from silosynth.models.autoencoder import TableAutoencoder
from silosynth.models.calibration import Calibration, calibrate, level_shares
from silosynth.models.encoded import shape_of
from silosynth.models.layers import build
from silosynth.models.training import Learner, batches, held_out

LEAST_ROWS = 2
PARTS = 10  # messages in which the autoencoders' training is asked for, whatever the number of iterations
_MOST_LOGITS = 2**25  # numbers held at once while decoding: 128 MB, also with 10 000 levels


@dataclass(frozen=True, slots=True)
class CoderConfig(Struct):
    """A silo's encoders and autoencoder."""

    encoders: EncoderConfig = EncoderConfig()
    hidden: tuple[int, ...] = (256, 256)  # widths of the encoder's hidden layers; the decoder mirrors them
    latents_per_column: int = 2  # s_i / d_i (paper: 1)
    form: Literal["plain", "vae", "noisy", "clipped"] = "noisy"  # what lies between encoder and decoder
    sigma: float = 0.15  # noise through which a "noisy" decoder reads unit-variance latents
    kl: float = 0.01  # weight of the divergence of a "vae"
    spread: bool = False  # numeric heads give mean and variance (paper), or the mean
    weight: float = 5.0  # of squared score errors against cross-entropy
    fit_to_rows: bool = True  # small tables get fewer steps and smaller batches: see `sized`
    steps: int = 1500  # iterations
    batch: int = 512
    rate: float = 4e-3
    decay: float = 1e-4
    schedule: Literal["one-cycle", "constant"] = "one-cycle"  # of the learning rate
    clip: float = 5.0  # gradient norm; 0 for no clipping
    held_out: float = 0.1  # share of training rows (at most 2 000) that choose among weights; 0: the last ones
    sample_heads: bool = True  # decode by drawing from the heads; False takes their modes
    calibrate: bool = True  # match the decoded marginals to the silo's own

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "hidden", "latents_per_column", "steps", "batch", "rate")


def sized(config: CoderConfig, rows: int) -> CoderConfig:
    """The config for a table of so many rows."""
    if not config.fit_to_rows:
        return config
    return replace(config, steps=min(config.steps, max(400, rows // 10)), batch=min(config.batch, max(32, rows // 8)))


class Coder:
    """Encoders and autoencoder of one silo. To decode with a restored state, an empty table will do."""

    def __init__(self, table: Table, schema: Schema, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.streams, self.device = schema, streams, device
        self.encoders: tuple[Encoder, ...] = ()
        self.config = CoderConfig()
        self.calibration: Calibration | None = None
        self.read = 0  # latents that the decoder reads; 0 for the encoder's own

    @property
    def latents(self) -> int:
        """L, the number of latents of a row."""
        return self.config.latents_per_column * len(self.encoders)

    def fit_encoders(self, config: CoderConfig) -> None:
        """Fit the column encoders and make a fresh autoencoder.

        Raises:
            DataError: the table has fewer than two rows, or no column to model.
        """
        self._check_table()
        self.read = 0
        rng = self.streams.child("encoders").numpy()
        self.config = config = sized(config, len(self.table))
        self.encoders = tuple(
            fit_encoder(column, self.schema[column.name], config.encoders, rng) for column in self.table.columns
        )
        self._encode_rows()
        self._make_learner()
        self.shares = level_shares(self.network.shape, self.levels)

    def join(self, latents: int) -> None:
        """Make a fresh autoencoder whose decoder reads so many latents, of all silos."""
        self.read = latents
        self._make_learner()

    def learn_encoders(self, config: CoderConfig, epsilon: float, delta: float, target: float) -> Learnt:
        """`fit_encoders` from noised counts, which also give the shares of levels; see `encoders.private.learn`."""
        self._check_table()
        rng = self.streams.child("encoders").noise()
        learnt = learn(self.table, self.schema, config.encoders, epsilon, delta, rng, target=target)
        self.config, self.encoders = config, learnt.encoders
        self._encode_rows()
        self._make_learner()
        shares = zip(learnt.encoders, learnt.shares, strict=True)
        found = [share for encoder, share in shares if encoder.width > 1]
        self.shares = torch.cat([*found, torch.zeros(0)]).to(self.device)
        return learnt

    def train(self, part: int, parts: int) -> None:
        """Train the autoencoder for one of ``parts`` equal parts of its steps (paper, Algorithm 1, lines 1-8)."""
        if not self.network.shape.size:
            return
        goal = self.config.steps * (part + 1) // parts
        draw = self.streams.child("autoencoder", part).torch(self.device)
        rows = batches(len(self.train_rows), self.config.batch, draw)
        self.network.train()
        while self.learner.done < goal:
            batch = self.train_rows[next(rows)]
            self.learner.descend(self._loss(batch, draw))
        if self.config.held_out:
            self.learner.judge(self._held_out_loss())
        if part == parts - 1:
            self.learner.settle()
            self.network.eval()

    @torch.no_grad()
    def encode(self) -> Tensor:
        """Latents (N, L) of the training rows: posterior means, by the frozen encoder (lines 9-11)."""
        self.network.eval()
        chunks = zip(self.levels.split(self._chunk), self.scores.split(self._chunk), strict=True)
        return torch.cat([self.network.encode(levels, scores)[0] for levels, scores in chunks]).cpu()

    @torch.no_grad()
    def decode(self, z_GL: Tensor, rows: int, streams: Streams) -> Table:
        """The first ``rows`` rows that ``z_GL`` stands for, drawn from the heads (Algorithm 2, line 7).

        All of ``z_GL`` tells how generated marginals differ from training's; they are matched where the config says so,
        by corrections that are found at the first call and then kept.
        """
        draw, rng = streams.child("heads").torch(self.device), streams.child("columns").numpy()
        self.network.eval()
        if self.config.calibrate and self.calibration is None:
            self.calibration = self._calibration(z_GL, draw)
        levels, scores = [], []
        for z in z_GL[:rows].split(self._chunk):
            logits, means, spread = self.network.decode(z.to(self.device))
            if spread is not None and self.config.sample_heads:
                means = means + (0.5 * spread).exp() * torch.randn(means.shape, generator=draw, device=self.device)
            if self.calibration is not None:
                logits, means = self.calibration.apply(logits, means)
            levels.append(self.network.buckets.draw(logits, draw if self.config.sample_heads else None))
            scores.append(means)
        return decode_table(torch.cat(levels).cpu(), torch.cat(scores).cpu(), self.encoders, rng)

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue training, or (smaller) to decode."""
        if not self.encoders:
            return {"encoders": None}
        return {
            "encoders": stored(self.encoders),
            "config": to_state(self.config),
            "read": self.read,
            "learner": self.learner.state() if training else None,
            "network": None if training else dict(self.network.state_dict()),
            "shares": self.shares,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        if state["encoders"] is None:
            return
        self.config = from_state(CoderConfig, state["config"])
        self.encoders = restored(state["encoders"])
        self.read = state["read"]
        if len(self.table):
            self._encode_rows()
        self._make_learner()
        if state["learner"] is None:
            self.network.load_state_dict(state["network"])
            self.network.eval()
        else:
            self.learner.restore(state["learner"])
        self.shares = state["shares"].to(self.device)
        self.calibration = None

    def _check_table(self) -> None:
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")

    @property
    def _chunk(self) -> int:
        """Rows that are decoded at once."""
        return max(64, min(8192, _MOST_LOGITS // 4 // max(1, self.network.shape.levels)))

    def _calibration(self, z_GL: Tensor, draw: torch.Generator) -> Calibration:
        enough = z_GL[: max(64, _MOST_LOGITS // max(1, self.network.shape.levels))]
        logits, means, _ = self.network.decode(enough.to(self.device))
        return calibrate(self.network.buckets, logits, means, self.shares, draw)

    def _encode_rows(self) -> None:
        levels, scores = encode_table(self.table, self.encoders, self.streams.child("ties").numpy())
        self.levels, self.scores = levels.to(self.device), scores.to(self.device)
        train, judge = held_out(len(levels), self.config.held_out, 2000, self.streams.child("held-out").torch())
        self.train_rows, self.judge_rows = train.to(self.device), judge.to(self.device)

    def _make_learner(self) -> None:
        config = self.config
        shape = (shape_of(self.encoders), self.latents, config.hidden, config.form, config.spread, self.read)
        network = build(TableAutoencoder, *shape, generator=self.streams.child("weights").torch())
        self.network = network.to(self.device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, schedule=config.schedule, decay=config.decay,
            clip=config.clip,
        )  # fmt: skip

    def _loss(self, rows: Tensor, draw: torch.Generator) -> Tensor:
        config = self.config
        noise = torch.randn(len(rows), self.latents, generator=draw, device=self.device)
        return self.network.loss(
            self.levels[rows], self.scores[rows], noise, sigma=config.sigma, kl=config.kl, weight=config.weight
        )

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self.network.eval()
        loss = float(self._loss(self.judge_rows, self.streams.child("judge").torch(self.device)))
        self.network.train()
        return loss
