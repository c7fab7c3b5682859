"""A conditional tabular Wasserstein GAN: networks, losses, conditions (CTGAN, Xu et al. 2019; VT-GAN, section 4.1).

A generator is residual blocks (FC, batch normalisation, ReLU) and a linear layer; a critic is hidden blocks (FC, leaky
ReLU, dropout) and a linear layer. Both are made of parts, so that the same parts stand in one place or in several.

A row of a table is a level per levelled column and some scores (`silosynth.encoders`). Networks see it as one vector:
its levels one-hot, then its scores.

A condition names one level of one column (CTGAN, section 4.3; VT-GAN, section 3.1.4). Training by sampling: the column
is drawn uniformly, its level by the logarithm of one plus its count, the row uniformly among those that have it. So
rare levels are seen more often than they occur. All draws are vectorised: no loop over rows.

Shapes: N rows of a table, B rows or conditions of a batch, C columns with levels (or those that conditions name), K
levels of all of them, P positions: the levels that conditions name, S scores, W features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.core.streams import Streams
from silosynth.models.encoded import RowShape, chunks, joined
from silosynth.models.training import AdamConfig, MovingAverage, build, trainee

C = TypeVar("C", bound=nn.Module)
SLOPE = 0.2  # of the critic's leaky ReLU
Law = Literal["log", "frequency"]


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation with running statistics of its own for each kind of batch."""

    def __init__(self, width: int, kinds: int) -> None:
        super().__init__(width)
        self.running_mean, self.running_var = torch.zeros(kinds, width), torch.ones(kinds, width)

    def forward(self, x_BW: Tensor, kind: int = 0) -> Tensor:
        """Normalised by the batch while training, and by the running statistics of its kind afterwards."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        mean, var = self.running_mean[kind], self.running_var[kind]  # views: they are updated in place
        return F.batch_norm(x_BW, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps)


class GeneratorPart(nn.Module):
    """Residual blocks of the given widths, then a linear layer. A block's input is kept beside its output."""

    def __init__(self, inputs: int, blocks: Sequence[int], outputs: int, kinds: int = 1) -> None:
        super().__init__()
        self.linears, self.norms = nn.ModuleList(), nn.ModuleList()
        for width in blocks:
            self.linears.append(nn.Linear(inputs, width))
            self.norms.append(BatchNorm(width, kinds))
            inputs += width
        self.last = nn.Linear(inputs, outputs)

    def forward(self, x_BI: Tensor, kind: int = 0) -> Tensor:
        """Outputs (B, O) for a batch of this kind."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x_BI = torch.cat([F.relu(norm(linear(x_BI), kind)), x_BI], dim=1)
        out: Tensor = self.last(x_BI)
        return out


class CriticPart(nn.Module):
    """Hidden blocks of the given widths, then a linear layer where ``outputs`` are wanted.

    Blocks whose rows are ``normalised`` have no gates that do not depend on the weights: see `input_gradient`.
    """

    def __init__(
        self, inputs: int, blocks: Sequence[int], outputs: int | None, dropout: float, normalised: bool = False
    ) -> None:
        super().__init__()
        self.blocks, self.dropout = tuple(blocks), dropout
        widths = [inputs, *blocks] + ([] if outputs is None else [outputs])
        self.linears = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in blocks if normalised)
        self.outputs = widths[-1]

    def masks(self, rows: int, generator: torch.Generator) -> list[Tensor]:
        """What dropout keeps, for each block (rows, width); drawn beforehand, so that a pass can be made again."""
        if self.dropout == 0:
            return []
        shapes = [(rows, width) for width in self.blocks]
        return [torch.rand(shape, generator=generator, device=generator.device) >= self.dropout for shape in shapes]

    def forward(self, x_BI: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Features (B, W) of vectors."""
        return self._onwards(self.linears[0](x_BI), masks)

    def of_codes(self, shape: RowShape, levels_BC: Tensor, scores_BS: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Features (B, W) of encoded rows: what `forward` gives for their vectors, which are never built."""
        first: nn.Linear = self.linears[0]  # type: ignore[assignment]
        if not shape.levels:
            return self._onwards(first(scores_BS), masks)
        table, rest = first.weight.t().split([shape.levels, shape.scores])
        h = F.embedding_bag(levels_BC + shape.starts.to(levels_BC.device), table.contiguous(), mode="sum")
        h.addmm_(scores_BS, rest).add_(first.bias)  # in place: another array of all rows costs more than the sum
        return self._onwards(h, masks)

    def input_gradient(self, x_BI: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Gradient (B, I) of the only output in the input, as a function of the weights.

        Between its kinks the critic is linear: the gradient is a product of its matrices and of gates that do not
        depend on the weights. Written out, the penalty needs no second backward pass. Normalised, it is not linear.
        """
        if self.norms:
            x_BI = x_BI.detach().requires_grad_()
            (slope_BI,) = torch.autograd.grad(self(x_BI, masks).sum(), x_BI, create_graph=True)
            return slope_BI
        gates = []
        with torch.no_grad():
            for i in range(len(self.blocks)):
                h_BW = self.linears[i](x_BI)
                gate = torch.where(h_BW > 0, 1.0, SLOPE)
                gates.append(gate * masks[i] / (1 - self.dropout) if masks else gate)
                x_BI = h_BW * gates[-1]
        gradient_BW: Tensor = self.linears[-1].weight.expand(len(x_BI), -1)  # type: ignore[operator]
        for linear, gate in zip(reversed(self.linears[:-1]), reversed(gates), strict=True):
            gradient_BW = (gradient_BW * gate) @ linear.weight  # type: ignore[operator]
        return gradient_BW

    def _onwards(self, h_BW: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """From the outputs of the first linear layer to the end."""
        for i in range(len(self.linears)):
            if i > 0:
                h_BW = self.linears[i](h_BW)
            if i < len(self.blocks):
                h_BW = F.leaky_relu(self.norms[i](h_BW) if self.norms else h_BW, SLOPE)
                h_BW = h_BW * masks[i] / (1 - self.dropout) if masks else h_BW
        return h_BW


class AveragedGAN(Generic[C]):
    """Generator and critic in training; rows are made with a moving average of the generator's weights."""

    def __init__(
        self, generator: nn.Module, critic: C, config: AdamConfig, average: float, device: torch.device
    ) -> None:
        self.device = device
        self.generator, self.critic = trainee(generator.to(device), config), trainee(critic.to(device), config)
        self.average = MovingAverage(generator, average)

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; to sample, the generator alone, averaged where that is wanted."""
        if not training:
            return {"generator": {"network": self.average.weights, "moments": None}, "average": None, "critic": None}
        return {
            "generator": self.generator.state(training),
            "average": self.average.state(),
            "critic": self.critic.state(training),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.generator.restore(state["generator"])
        self.average.restore(state["average"])
        if state["critic"] is not None:
            self.critic.restore(state["critic"])


class ConditionedGAN(AveragedGAN[C]):
    """A GAN whose networks see rows beside the conditions that they are made for.

    Attributes:
        noise: numbers of fresh noise that the generator gets.
        width: P; 0 without conditions.
        conditional: numbers, among C, of the columns that conditions are on.
        law: by which conditions are drawn to sample.
        activation: from the generator's outputs to rows.
    """

    noise: int
    width: int
    conditional: tuple[int, ...]
    law: ConditionLaw
    activation: Activation

    def restrict(self, levels: Mapping[int, Tensor]) -> None:
        """Sample under conditions on one column that allow these of its levels (L,): see `ConditionLaw.restricted`.

        ``levels`` has columns by their numbers among C.
        """
        place = {column: number for number, column in enumerate(self.conditional)}
        self.law = self.law.restricted({place[c]: level_L for c, level_L in levels.items() if c in place})

    def drawn(self, n: int, streams: Streams, size: int) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S) under conditions as frequent as in the law; ``size`` numbers are held for each."""
        draw, pick = streams.child("noise").torch(self.device), streams.child("rows").torch()
        drawn = []
        for rows in chunks(n, size):
            conditions = self.law.draw(rows, pick, "frequency").to(self.device)
            drawn.append(self.activation.draw(self.outputs(conditions, draw), draw))
        return joined(drawn)

    def outputs(self, given_B: Tensor, draw: torch.Generator) -> Tensor:
        """The generator's outputs (B, K + S) for fresh noise beside the conditional vectors."""
        noise = torch.randn(len(given_B), self.noise, generator=draw, device=self.device)
        out: Tensor = self.generator.network(self.with_condition(noise, given_B))
        return out

    def with_condition(self, x_BI: Tensor, given_B: Tensor) -> Tensor:
        """Vectors beside their conditional vectors (B, I + P)."""
        return torch.cat([x_BI, one_hot(given_B, self.width)], dim=1) if self.width else x_BI


class Activation(nn.Module):
    """From a generator's outputs to rows: tanh for scores, a softmax per column for levels (CTGAN, section 4.4)."""

    def __init__(self, shape: RowShape) -> None:
        super().__init__()
        self.shape = shape
        self.column_of: Tensor
        self.member_KC: Tensor
        self.register_buffer("column_of", shape.column_of, persistent=False)
        self.register_buffer("member_KC", shape.member_KC, persistent=False)

    def forward(self, out_BO: Tensor, tau: float, generator: torch.Generator) -> Tensor:
        """Differentiable rows (B, K + S): levels by the Gumbel-softmax at temperature ``tau``."""
        levels = self.shape.levels
        logits = (out_BO[:, :levels] + gumbel((len(out_BO), levels), generator)) / tau
        return torch.cat([self._softmax(logits), out_BO[:, levels:].tanh()], dim=1)

    def draw(self, out_BO: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Levels (B, C), drawn from their softmax (``generator`` None: the most probable), and scores (B, S)."""
        levels, logits = self.shape.levels, out_BO[:, : self.shape.levels]
        if generator is not None:
            logits = logits + gumbel(logits.shape, generator)
        columns = logits.split(list(self.shape.widths), dim=1) if levels else ()
        drawn = [column.argmax(dim=1) for column in columns]
        levels_BC = torch.stack(drawn, dim=1) if drawn else logits.new_zeros(len(logits), 0, dtype=torch.int64)
        return levels_BC, out_BO[:, levels:].tanh()

    def log_likelihood(self, out_BO: Tensor, level_B: Tensor) -> Tensor:
        """Log-probability (B,) of one level per row, ``level_B`` counted among all K, within its column."""
        logits = out_BO[:, : self.shape.levels]
        same = self.column_of[level_B][:, None] == self.column_of
        right = logits.gather(1, level_B[:, None]).squeeze(1)
        return right - logits.masked_fill(~same, -torch.inf).logsumexp(dim=1)

    def _softmax(self, logits_BK: Tensor) -> Tensor:
        """Softmax within each column, without a loop over columns: sums are products with the membership matrix."""
        if not self.shape.levels:
            return logits_BK
        with torch.no_grad():
            index = self.column_of.expand_as(logits_BK)
            top = logits_BK.new_full((len(logits_BK), len(self.shape.widths)), -torch.inf)
            top = top.scatter_reduce(1, index, logits_BK, "amax")[:, self.column_of]
        parts = (logits_BK - top).exp()
        return parts / (parts @ self.member_KC @ self.member_KC.T)


@contextmanager
def frozen(*networks: nn.Module) -> Iterator[None]:
    """No gradients for the weights of these networks while the block runs; they flow through all the same."""
    for network in networks:
        network.requires_grad_(False)
    try:
        yield
    finally:
        for network in networks:
            network.requires_grad_(True)


def make_generator(
    inputs: int, blocks: Sequence[int], outputs: int, generator: torch.Generator, kinds: int = 1
) -> GeneratorPart:
    """A generator's part with weights from ``generator``, for ``kinds`` kinds of batches."""
    return build(GeneratorPart, inputs, tuple(blocks), outputs, kinds, generator=generator)


def make_critic(
    inputs: int, blocks: Sequence[int], outputs: int | None, dropout: float, generator: torch.Generator,
    normalised: bool = False,
) -> CriticPart:  # fmt: skip
    """A critic's part with weights from ``generator``."""
    return build(CriticPart, inputs, tuple(blocks), outputs, dropout, normalised, generator=generator)


@torch.no_grad()
def orthonormalise(critic: CriticPart, exactly: bool = False) -> None:
    """Bring each layer's matrix to the nearest one with orthonormal rows (or columns, if these are fewer), in place.

    After a step of training `nearer_orthonormal` is enough: it takes singular values s to (3 - s²) s / 2, closer to 1.
    """
    for linear in critic.linears:
        weight: Tensor = linear.weight  # type: ignore[assignment]
        if exactly:
            u, _, v = torch.linalg.svd(weight, full_matrices=False)
            weight.copy_(u @ v)
        else:
            weight.copy_(nearer_orthonormal(weight))


def nearer_orthonormal(weight: Tensor) -> Tensor:
    """Newton-Schulz: a step from matrices (..., O, I) to the nearest ones with orthonormal rows or columns.

    It converges below singular values of √3 (and blows up beyond √5): matrices that might have such are scaled first,
    so that none is above √2.
    """
    wide = weight.shape[-2] <= weight.shape[-1]
    gram = weight @ weight.mT if wide else weight.mT @ weight
    off = (gram - torch.eye(gram.shape[-1], device=gram.device)).norm(dim=(-2, -1), keepdim=True)
    shrink = torch.where(off > 1, 2 / (1 + off), 1.0)  # squares of singular values are at most 1 + off
    weight, gram = weight * shrink.sqrt(), gram * shrink
    return 1.5 * weight - 0.5 * (gram @ weight if wide else weight @ gram)


def critic_loss(of_fake_B: Tensor, of_real_B: Tensor) -> Tensor:
    """What the critic descends, before the penalty (Gulrajani et al. 2017, Algorithm 1)."""
    return of_fake_B.mean() - of_real_B.mean()


def gradient_penalty(critic: Callable[[Tensor], Tensor], fake_BW: Tensor, real_BW: Tensor, mix_B1: Tensor) -> Tensor:
    """Mean over rows of (|gradient| - 1)² at points ``mix_B1`` of the way from fake to real (Gulrajani et al. 2017)."""
    between = fake_BW + mix_B1 * (real_BW - fake_BW)
    if not between.requires_grad:
        between.requires_grad_()
    (gradient_BW,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return norm_penalty(gradient_BW).mean()


def norm_penalty(gradient_BW: Tensor) -> Tensor:
    """(|gradient| - 1)² (B,) of each row, given the gradients."""
    penalty: Tensor = (gradient_BW.norm(dim=1) - 1).square()
    return penalty


def one_hot(position_B: Tensor, width: int) -> Tensor:
    """Conditional vectors (B, width); -1 stands for no condition, a vector of zeros."""
    wider = torch.zeros(len(position_B), width + 1, device=position_B.device)
    return wider.scatter_(1, position_B[:, None] + 1, 1.0)[:, 1:]


def gumbel(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise."""
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device)
    return -torch.log(-torch.log(uniform.clamp_(1e-9, 1 - 1e-7)))


def proportions(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` dealt out in proportion to ``weights`` by largest remainders, each at least 1 (VT-GAN's P_r).

    Where ``total`` is below the number of weights, each gets 1.
    """
    shares = [total * weight / sum(weights) for weight in weights]
    parts = [1] * len(weights)
    while sum(parts) < total:
        parts[max(range(len(parts)), key=lambda i: shares[i] - parts[i])] += 1
    return parts


class ConditionLaw:
    """The law of conditions: all that drawing them takes.

    Args:
        counts_P: rows that hold each level of each conditional column.
        widths: numbers of levels of these columns.
    """

    def __init__(self, counts_P: Tensor, widths: tuple[int, ...]) -> None:
        self.counts, self.widths, self._columns = counts_P, widths, torch.arange(len(widths))
        column_of = RowShape(widths).column_of
        self._lines = {
            "log": _cumulative(counts_P.double().log1p(), column_of, len(widths)),
            "frequency": _cumulative(counts_P.double(), column_of, len(widths)),
        }

    def draw(self, size: int, generator: torch.Generator, law: Law = "log") -> Tensor:
        """Positions (B,) of the drawn levels among all P; -1, for no condition, where there is no column to draw on."""
        if not self.widths:
            return torch.full((size,), -1)
        column = self._columns[torch.randint(len(self._columns), (size,), generator=generator)]
        share = torch.rand(size, generator=generator, dtype=torch.float64)
        position = torch.searchsorted(self._lines[law], column + share, right=True)
        return position.clamp_(max=len(self.counts) - 1)  # a sum that was rounded up to the line's end

    def restricted(self, levels: Mapping[int, Tensor]) -> ConditionLaw:
        """The law of conditions on one column and no other: of those in ``levels``, by their numbers, the one in which
        the fewest rows hold a level that is allowed there; this law, where none does in any.
        """
        counts = list(self.counts.split(list(self.widths)))
        allowed = {column: counts[column] * level_L for column, level_L in levels.items()}
        held = {column: int(counts_L.sum()) for column, counts_L in allowed.items() if counts_L.any()}
        if not held:
            return self
        column = min(held, key=held.__getitem__)
        counts[column] = allowed[column]
        law = ConditionLaw(torch.cat(counts), self.widths)
        law._columns = torch.tensor([column])
        return law


class Conditions:
    """Draws conditions, and rows of a table that fulfil them.

    Args:
        levels_NC: levels of the conditional columns.
        widths: their numbers of levels.
    """

    def __init__(self, levels_NC: Tensor, widths: tuple[int, ...]) -> None:
        self.rows, self.columns, self.width = len(levels_NC), len(widths), sum(widths)
        position_NC = levels_NC.cpu() + RowShape(widths).starts
        counts = torch.bincount(position_NC.flatten(), minlength=self.width)
        self.law = ConditionLaw(counts, widths)
        self._row_of = position_NC.flatten().argsort(stable=True) // max(1, self.columns)  # rows, by position
        self._first = counts.cumsum(0) - counts

    def draw(self, size: int, generator: torch.Generator, law: Law = "log") -> Tensor:
        """Positions (B,): see `ConditionLaw.draw`."""
        return self.law.draw(size, generator, law)

    def matching(self, position_B: Tensor, generator: torch.Generator) -> Tensor:
        """A row (B,) for each position, uniformly among those that have the level; where none has, or for -1, any."""
        return self.rows_at(position_B, torch.rand(len(position_B), generator=generator, dtype=torch.float64))

    def rows_at(self, position_B: Tensor, share_B: Tensor) -> Tensor:
        """`matching`, given how far down (from 0 to below 1) among the rows that have the level each one is."""
        any_B = (share_B * self.rows).long()
        if not self.columns:
            return any_B
        held_B = self.law.counts[position_B]
        at_B = self._first[position_B] + (share_B * held_B).long()
        return torch.where(held_B > 0, self._row_of[at_B.clamp(max=len(self._row_of) - 1)], any_B)


def _cumulative(weight_P: Tensor, column_of: Tensor, columns: int) -> Tensor:
    """Cumulative shares (P,) within each column, plus the column's number: one sorted line for all columns."""
    if not columns:
        return weight_P
    totals = torch.zeros(columns, dtype=torch.float64).index_add_(0, column_of, weight_P)
    share = weight_P / totals[column_of]
    line = share.cumsum(0)
    before = torch.arange(columns, dtype=torch.float64)
    lasts = torch.searchsorted(column_of, torch.arange(columns), right=True) - 1
    line = line - torch.cat([line.new_zeros(1), line[lasts][:-1]])[column_of] + before[column_of]
    highest = torch.where(weight_P > 0, torch.arange(len(weight_P)), -1)
    last_used = torch.full((columns,), -1).scatter_reduce(0, column_of, highest, "amax")
    after = torch.arange(len(weight_P)) >= last_used[column_of]  # rounding must not leave a gap above the last level
    return torch.where(after, before[column_of] + 1, line)
