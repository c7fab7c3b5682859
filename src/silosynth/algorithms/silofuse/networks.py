"""The autoencoders: a silo's own table ⇄ latents, and the coordinator's part where latents are joint.

Shapes: N training rows, B a batch of them, C columns with levels, S columns with scores, L latents, G generated rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from silosynth.algorithms.silofuse.options import CoderConfig
from silosynth.core.conditions import Condition
from silosynth.core.conversation import State
from silosynth.core.messages import from_state, to_state
from silosynth.core.schema import Table, below, common_levels
from silosynth.core.streams import Streams
from silosynth.encoders.allowed import Allowed, allowed
from silosynth.encoders.table import Learnt, TableCoder
from silosynth.models.autoencoder import JointEncoder, TableAutoencoder
from silosynth.models.encoded import shape_of
from silosynth.models.marginals import Calibration, calibrate, level_shares, score_quantiles
from silosynth.models.training import Learner, batches, build, held_out
from silosynth.privacy.events import Target

_JUDGES = 2000  # held-out rows at most
_NEVER = -1e9  # logit of a level that conditions do not allow
_DOUBT = 2.0  # standard errors of generated shares that may be chance
_MOST_LOGITS = 2**25  # numbers held at once while decoding: 128 MB, also with 10 000 levels


class Coder:
    """Autoencoder of one silo's columns.

    Attributes:
        levels, scores: the encoded rows, (N, C) and (N, S), on the device; after those that all silos have, the
            silo's own.
        shares: of each level among the rows that all silos have; calibration matches decoded marginals to them.
        meant: and quantiles of their scores; None where scores are standard normal, since encoders were fitted to
            these rows alone.
        read: number of latents that the decoder reads; 0 for the encoder's own.
    """

    def __init__(self, columns: TableCoder, device: torch.device) -> None:
        self.columns, self.streams, self.device = columns, columns.streams, device
        self.config = CoderConfig()
        self.calibration: Calibration | None = None
        self.read = 0
        self.own = 0  # the last rows of the table are of this silo alone
        self.meant: Tensor | None = None
        self.allowed: list[Allowed] = []

    @property
    def rows(self) -> int:
        """N, the number of rows that all silos have."""
        return len(self.columns.table) - self.own

    @property
    def latents(self) -> int:
        """L, the number of latents of a row."""
        return self.config.latents_per_column * len(self.columns.encoders)

    def fit(self, config: CoderConfig) -> None:
        """Fit the column encoders and make a fresh autoencoder.

        Raises:
            DataError: the table has fewer than two rows, or no column to model.
        """
        self.config = config.sized(len(self.columns.table))
        self.columns.fit(self.config.encoders, self.config.numbers)
        self._encode_rows()
        self.join(0)
        self.shares = level_shares(self.network.shape, self.levels[: self.rows])
        if self.own:
            self.meant = score_quantiles(self.scores[: self.rows], self.network.shape.on(self.levels[: self.rows]))

    def also(self, own: Table) -> None:
        """Train on rows of this silo alone too. They have no latents, and marginals are not matched to them."""
        table = self.columns.table
        self.columns.table = below(common_levels([table, own.select(table.names)]))
        self.own = len(own)

    def learn(self, config: CoderConfig, target: Target, silos: int) -> Learnt:
        """`fit` from noised counts, which also give the shares of levels; see `TableCoder.learn`."""
        self.config, learnt = config, self.columns.learn(config.encoders, target, silos)
        self._encode_rows()
        self.join(0)
        shares = zip(learnt.encoders, learnt.shares, strict=True)
        of_levels = [share for encoder, share in shares if encoder.width > 1]
        self.shares = torch.cat([*of_levels, torch.zeros(0)]).to(self.device)
        return learnt

    def join(self, latents: int) -> None:
        """Make a fresh autoencoder whose decoder reads ``latents`` latents, of all silos; 0 for its own."""
        self.read = latents
        shape = shape_of(self.columns.encoders)
        network = build(
            TableAutoencoder, shape, self.latents, self.config.hidden, self.config.form, self.config.spread, latents,
            generator=self.streams.child("weights").torch(),
        )  # fmt: skip
        self.network = network.to(self.device)
        self.learner = _learner(self.network, self.config)

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

    def reconstruction_loss(self, z_BL: Tensor, rows: Tensor) -> Tensor:
        """L_AE of rows of the table, decoded from ``z_BL`` (paper, eq. 4)."""
        return self.network.likelihood(z_BL, self.levels[rows], self.scores[rows], self.config.weight)

    @torch.no_grad()
    def encode(self) -> Tensor:
        """Latents (N, L) of the rows that all silos have: posterior means, by the frozen encoder (lines 9-11)."""
        self.network.eval()
        common = self.levels[: self.rows], self.scores[: self.rows]
        chunks = zip(*(of_rows.split(self._chunk) for of_rows in common), strict=True)
        return torch.cat([self.network.encode(levels, scores)[0] for levels, scores in chunks]).cpu()

    @torch.no_grad()
    def decode(self, z_GL: Tensor, rows: int, streams: Streams) -> Table:
        """The first ``rows`` rows of ``z_GL``, drawn from the heads (Algorithm 2, line 7).

        Where the config says so, generated marginals are matched to those of training, by corrections that the first
        call finds from all of ``z_GL`` and later calls keep.
        """
        draw = streams.child("heads").torch(self.device)
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
            logits = self._narrowed(logits, means)
            levels.append(self.network.buckets.draw(logits, draw if self.config.sample_heads else None))
            scores.append(means)
        return self.columns.decode(torch.cat(levels).cpu(), torch.cat(scores).cpu(), streams)

    def restrict(self, conditions: Sequence[Condition]) -> None:
        """Decode no codes but those that go with the conditions, wherever the heads give these any probability."""
        self.allowed = allowed(self.columns.encoders, self.columns.determined, conditions)

    @torch.no_grad()
    def weigh(self, z_GL: Tensor, streams: Streams) -> Tensor:
        """How probable (G,) the conditions are, given latents.

        The first call's must be drawn without a condition: they find the corrections of `decode`. As others than these
        are decoded, what may be chance of these is not corrected.
        """
        self.network.eval()
        if self.config.calibrate and self.calibration is None:
            self.calibration = self._calibration(z_GL, streams.child("weights").torch(self.device), _DOUBT)
        if not self.allowed:
            return torch.ones(len(z_GL))
        return torch.cat([self._chances(z.to(self.device)).cpu() for z in z_GL.split(self._chunk)])

    def _chances(self, z_BL: Tensor) -> Tensor:
        """The probability (B,) that all conditions hold, columns being independent given latents."""
        chance_B = torch.ones(len(z_BL), device=self.device)
        heads_BH = self.network.heads(z_BL, self._heads_of_conditions)
        widths = [one.encoder.width * (one.column >= 0) + (one.score >= 0) for one in self.allowed]
        for one, own_BH in zip(self.allowed, heads_BH.split(widths, dim=1), strict=True):
            place, line_B = self._levels_of(one), chance_B
            logits_BL = own_BH[:, : place.stop - place.start]
            if self.calibration is not None:
                logits_BL = logits_BL + self.calibration.offsets[place]
            if one.score >= 0:
                score_B = own_BH[:, -1]
                score_B = score_B if self.calibration is None else self.calibration.score(score_B, one.score)
                line_B = one.scores(score_B.cpu()).to(chance_B)
            chance_B = chance_B * one.chance(logits_BL.softmax(1), line_B)
        return chance_B

    @property
    def _heads_of_conditions(self) -> Tensor:
        """The places of the heads of columns under conditions: each column's levels, then its score."""
        places = []
        for one in self.allowed:
            levels = self._levels_of(one)
            places += [*range(levels.start, levels.stop)]
            places += [self.network.shape.levels + one.score] if one.score >= 0 else []
        return torch.tensor(places, device=self.device)

    def _narrowed(self, logits_BK: Tensor, score_BS: Tensor) -> Tensor:
        """Logits of levels that conditions do not allow become so low that none is drawn if another one can be."""
        for one in self.allowed:
            if one.column < 0:
                continue
            allowed_BL = one.level_L.to(logits_BK.device).expand(len(logits_BK), -1).clone()
            if one.score >= 0:
                on_line = one.scores(score_BS[:, one.score].cpu()).to(logits_BK.device)
                allowed_BL[:, : one.encoder.lines] = on_line[:, None]
            place = self._levels_of(one)
            logits_BK = logits_BK.clone()
            logits_BK[:, place] = logits_BK[:, place].masked_fill(~allowed_BL, _NEVER)
        return logits_BK

    def _levels_of(self, one: Allowed) -> slice:
        """The levels of a column among all K."""
        if one.column < 0:
            return slice(0, 0)
        start = int(self.network.shape.starts[one.column])
        return slice(start, start + one.encoder.width)

    def state(self, training: bool) -> State:
        """All that is needed to continue training, or (smaller) to decode."""
        if not self.columns.encoders:
            return {"encoders": None}
        return {
            "encoders": self.columns.state(),
            "config": to_state(self.config),
            "read": self.read,
            "learner": self.learner.state() if training else None,
            "network": None if training else dict(self.network.state_dict()),
            "shares": self.shares,
            **({} if self.meant is None else {"meant": self.meant}),
        }

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        if state["encoders"] is None:
            return
        self.config = from_state(CoderConfig, state["config"])
        self.columns.restore(state["encoders"])
        if self.rows:
            self._encode_rows()
        self.join(state["read"])
        if state["learner"] is None:
            self.network.load_state_dict(state["network"])
            self.network.eval()
        else:
            self.learner.restore(state["learner"])
        self.shares = state["shares"].to(self.device)
        self.meant = state["meant"].to(self.device) if "meant" in state else None
        self.calibration = None

    @property
    def _chunk(self) -> int:
        """Rows that are decoded at once."""
        return max(64, min(8192, _MOST_LOGITS // 4 // max(1, self.network.shape.levels)))

    def _calibration(self, z_GL: Tensor, draw: torch.Generator, doubt: float = 0.0) -> Calibration:
        enough = z_GL[: max(64, _MOST_LOGITS // max(1, self.network.shape.levels))]
        logits, means, _ = self.network.decode(enough.to(self.device))
        return calibrate(self.network.buckets, logits, means, self.shares, draw, self.meant, doubt)

    def _encode_rows(self) -> None:
        levels, scores = self.columns.encode()
        self.levels, self.scores = levels.to(self.device), scores.to(self.device)
        train, judge = held_out(len(levels), self.config.held_out, _JUDGES, self.streams.child("held-out").torch())
        self.train_rows, self.judge_rows = train.to(self.device), judge.to(self.device)

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


class JointCoder:
    """The coordinator's part of the autoencoder of joint latents, J: encodings of all silos → latents (B, L)."""

    def __init__(self, rows: int, latents: int, config: CoderConfig, streams: Streams, device: torch.device) -> None:
        self.config = config.sized(rows)
        self.rows, self.streams, self.device = rows, streams, device
        network = build(JointEncoder, latents, self.config.hidden, generator=streams.child("weights").torch())
        self.network = network.to(device)
        self.learner = _learner(self.network, self.config)
        judges = streams.child("held-out").torch()
        self.train_rows, self.judge_rows = held_out(rows, self.config.held_out, _JUDGES, judges)

    def descend(self, z_BL: Tensor, grad_z_BL: Tensor) -> None:
        """One step against the gradient of all silos' losses in ``z_BL``."""
        self.learner.descend(z_BL, grad_z_BL.to(self.device))

    @torch.no_grad()
    def encode(self, e_BL: Tensor) -> Tensor:
        """Latents of silos' encodings, with the statistics of many batches."""
        self.network.eval()
        z_BL: Tensor = self.network(e_BL.to(self.device))
        return z_BL

    def noised(self, z_BL: Tensor, draw: torch.Generator) -> Tensor:
        """Latents through the noise that decoders learn to read them through; on the CPU."""
        noise = torch.randn(z_BL.shape, generator=draw, device=self.device)
        return (z_BL.detach() + self.config.sigma * noise).cpu()


def _learner(network: torch.nn.Module, config: CoderConfig) -> Learner:
    return Learner(
        network, rate=config.rate, steps=config.steps, schedule=config.schedule, decay=config.decay, clip=config.clip
    )
