"""TabVFL's networks: the guests', the host's, what both train and in which batches; and the label.

Section IV-A: a guest (silo) has a batch normalisation and a square layer, and the layer that reconstructs; the host
(coordinator) has a partial encoder and decoder, and the layer that predicts the label. In designs "local" and
"local_encoders" the whole encoder is the guest's, in "local" the decoder too.

Shapes: N rows, B rows of a batch, F features of a silo, W (W_i) numbers a silo sends per row, D latents, P (P_i) a
silo's part of what is decoded, K classes (or 1, for a number).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.algorithms.tabvfl.options import FINETUNING, PRETRAINING, Phase, TabVFLConfig
from silosynth.core.conversation import State
from silosynth.core.errors import ConfigError, DataError, ProtocolError, SchemaError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Kind
from silosynth.core.streams import Streams
from silosynth.models import tabnet
from silosynth.models.encoded import EncodedRows
from silosynth.models.training import Trainee, trainee

Rows: TypeAlias = Literal["held out", "all"]
Value: TypeAlias = "str | int | float | bool"
MOST_EMBEDDED = 4096  # rows that are embedded at once without training
MOST_CLASSES = 20  # a column of integers with more values than this is a number


# Batches, and networks in training.


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """Start and end of the rows embedded at once: parts of nearly equal size, as one row alone has no variance."""
    parts = max(1, -(-rows // MOST_EMBEDDED))
    for i in range(parts):
        yield rows * i // parts, rows * (i + 1) // parts


class Batches:
    """Batches of N rows, some of which are held out. All parties draw the same ones from the seed ``order``.

    Every row is in one batch per epoch: the remainder is spread, so that batches have ``config.batch`` rows or a few
    more (with fewer than twice as many rows as a batch has, there is one batch).
    """

    def __init__(self, rows: int, config: TabVFLConfig, order: int) -> None:
        self.streams, self.shuffle = Streams(order).child("tabvfl"), config.shuffle
        permutation = torch.randperm(rows, generator=self.streams.child("rows").torch())
        aside = min(round(rows * config.validation), rows - 2)
        aside = aside if aside > 1 else 0  # one row has no variance
        self.held_out, self.train = permutation[:aside].sort().values, permutation[aside:]
        self.count = max(1, len(self.train) // config.batch)  # batches per epoch
        self._all, self._epoch, self._split = torch.arange(rows), -1, tuple[Tensor, ...]()

    def steps(self, epoch: int) -> range:
        """Step numbers of an epoch."""
        return range(epoch * self.count, (epoch + 1) * self.count)

    def of(self, step: int) -> Tensor:
        """Row numbers (B,) of a step's batch."""
        epoch, place = divmod(step, self.count)
        epoch = epoch if self.shuffle else 0
        if epoch != self._epoch:
            draw = self.streams.child("epoch", epoch).torch()
            order = torch.randperm(len(self.train), generator=draw)
            self._epoch, self._split = epoch, self.train[order].tensor_split(self.count)
        return self._split[place]

    def rows(self, rows: Rows) -> Tensor:
        """Row numbers of all rows, or of those held out."""
        return self._all if rows == "all" else self.held_out


class PhasedTrainee(Trainee[nn.ModuleDict]):
    """Networks with a fresh Adam in each phase, and copies of the weights that did best."""

    def __init__(self, networks: nn.ModuleDict, config: TabVFLConfig) -> None:
        super().__init__(networks, rate=config.rate, betas=config.betas, decay=config.decay)
        self.config, self.phase = config, ""
        self.kept: dict[int, dict[str, Tensor]] = {}

    def begin_step(self, phase: str) -> None:
        """Be ready for a training step. A new phase starts with the weights as they are, but a new optimiser."""
        if phase != self.phase:
            self.phase, self.kept, self.optimizer = phase, {}, trainee(self.network, self.config).optimizer
        self.network.train()
        self.clear()

    def keep(self, number: int, before: int) -> None:
        """Keep the present weights under ``number``, besides those of number ``before``, and no others."""
        now = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.kept = {old: state for old, state in self.kept.items() if old == before} | {number: now}

    def end_phase(self, number: int) -> None:
        """Go back to the weights kept under this number; -1 leaves them as they are."""
        if number >= 0:
            self.network.load_state_dict(self.kept[number])
        self.kept = {}

    def state(self, training: bool) -> State:
        """All that is needed to continue; or the weights alone."""
        kept = {str(number): state for number, state in self.kept.items()} if training else {}
        return {"phase": self.phase, "kept": kept, **super().state(training)}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.phase = state["phase"]
        super().restore(state)
        device = next(self.network.parameters()).device
        self.kept = {
            int(number): {name: torch.as_tensor(value).to(device) for name, value in kept.items()}
            for number, kept in state["kept"].items()
        }


# Guests.


class Front(nn.Module):
    """f_bottom_repr: what is between a silo's columns and the host (thesis, 5.1 and 5.2)."""

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=tabnet.INPUT_MOMENTUM)
        self.mix = tabnet.plain_layer(features, features, generator)

    def forward(self, x_BF: Tensor, prior_BF: Tensor | None, phase: Phase) -> tuple[Tensor, Tensor]:
        """What is sent (B, F), and the entropy of masks, 0: none are made here."""
        return self.mix(self.norm(x_BF)), x_BF.new_zeros(())


class LocalEncoder(nn.Module):
    """TabNet's whole encoder in the silo."""

    def __init__(self, features: int, config: TabVFLConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=tabnet.INPUT_MOMENTUM)
        self.encoder = tabnet.TabNetEncoder(features, config.net, generator)

    def forward(self, x_BF: Tensor, prior_BF: Tensor | None, phase: Phase) -> tuple[Tensor, Tensor]:
        """In pre-training all steps' decisions side by side, for decoders; else latents. And the masks' entropy."""
        decisions, entropy = self.encoder(self.norm(x_BF), prior_BF)
        return torch.cat(decisions, dim=1) if phase == PRETRAINING else tabnet.latent(decisions), entropy


@dataclass
class PendingBatch:
    """What was computed of a batch that waits for its gradient."""

    step: int
    x_BF: Tensor
    mask_BF: Tensor
    sent_BW: Tensor
    entropy: Tensor


class Guest:
    """The networks of one silo, and their training.

    Args:
        rows: the silo's encoded rows.
        partition: P, the silo's part of what is decoded.
    """

    def __init__(
        self, rows: EncodedRows, config: TabVFLConfig, partition: int, batches: Batches, streams: Streams,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.rows, self.batches, self.streams, self.device = rows, batches, streams, device
        self.local = config.design == "local"
        if self.local:  # the latent vector is made of all silos' parts
            config = replace(config, net=replace(config.net, latent=partition))
        self.config = config
        self.pending: PendingBatch | None = None
        draw = {name: streams.child(name).torch() for name in ("rebuild", "front", "decoder")}
        networks = nn.ModuleDict({"rebuild": tabnet.plain_layer(partition, self.n_features, draw["rebuild"])})
        if config.design == "tabvfl":
            networks["front"] = Front(self.n_features, draw["front"])
        else:
            networks["front"] = LocalEncoder(self.n_features, config, draw["front"])
        if self.local:
            networks["decoder"] = tabnet.TabNetDecoder(config.net, draw["decoder"])
        self.trainee = PhasedTrainee(networks.to(device), config)

    @property
    def n_features(self) -> int:
        """F; a table of constants has one feature, always 0."""
        shape = self.rows.shape
        return max(1, shape.scores + sum(1 if width == 2 else width for width in shape.widths))

    @property
    def width(self) -> int:
        """W, how many numbers of a row are sent in fine-tuning."""
        return self.n_features if self.config.design == "tabvfl" else self.config.net.latent

    def features(self, rows_B: Tensor) -> Tensor:
        """Features (B, F) of some rows: scores, a flag per column of two levels, one-hot levels of the others."""
        levels, scores = self.rows.levels[rows_B], self.rows.scores[rows_B]
        columns = zip(self.rows.shape.widths, levels.T, strict=True)
        parts = [level[:, None] if width == 2 else F.one_hot(level, width) for width, level in columns]
        x = torch.cat([scores, *(part.float() for part in parts)], dim=1)
        return F.pad(x, (0, self.n_features - x.shape[1]))

    # Training.

    def embed(self, phase: Phase, step: int) -> tuple[Tensor, Tensor | None]:
        """Algorithm 1, lines 4 to 6; Algorithm 2, line 4. What is sent, and the mask where it goes with it."""
        self.trainee.begin_step(phase)
        x_BF = self.features(self.batches.of(step).to(self.device))
        masked_BF, mask_BF = x_BF, torch.zeros_like(x_BF)
        if phase == PRETRAINING:
            draw = self.streams.child("mask", step).torch(self.device)
            masked_BF, mask_BF = tabnet.obfuscate(x_BF, self.config.mask, draw)
        prior_BF = 1 - mask_BF if phase == PRETRAINING else None
        sent_BW, entropy = self.trainee.network["front"](masked_BF, prior_BF, phase)
        self.pending = PendingBatch(step, x_BF, mask_BF, sent_BW, entropy)
        with_mask = phase == PRETRAINING and self.config.design == "tabvfl"
        return sent_BW.detach().cpu(), mask_BF.bool().cpu() if with_mask else None

    def reconstruct(self, step: int, out_BP: Tensor) -> tuple[float, Tensor]:
        """Algorithm 1, lines 22 to 24: the loss of this silo's columns, and its gradient (B, P)."""
        if self.pending is None or self.pending.step != step:
            raise ProtocolError("A batch is embedded before it is reconstructed", f"step {step}")
        out_BP = out_BP.to(self.device).requires_grad_()
        loss = self._loss(out_BP, self.pending.x_BF, self.pending.mask_BF)
        loss.backward()
        assert out_BP.grad is not None
        return loss.item(), out_BP.grad.cpu()

    def descend(self, step: int, grad_BW: Tensor) -> None:
        """Update all networks by the gradient of a batch, in what was sent; ignored if that batch is not pending."""
        pending, self.pending = self.pending, None
        if pending is None or pending.step != step:
            return
        roots, grads = [pending.sent_BW], [grad_BW.to(self.device)]
        if self.trainee.phase == FINETUNING and pending.entropy.requires_grad:
            roots.append(pending.entropy)
            grads.append(torch.full_like(pending.entropy, self.config.sparsity))
        torch.autograd.backward(roots, grads)
        self.trainee.step()

    def train_alone(self, epoch: int) -> float:
        """Design "local": an epoch of pre-training; returns the mean loss."""
        losses = []
        for step in self.batches.steps(epoch):
            self.embed(PRETRAINING, step)
            assert self.pending is not None
            loss = self._loss(self._decode(self.pending.sent_BW), self.pending.x_BF, self.pending.mask_BF)
            loss.backward()
            self.trainee.step()
            losses.append(loss.item())
        self.pending = None
        return sum(losses) / len(losses)

    # Without training.

    @torch.no_grad()
    def embed_rows(self, phase: Phase, rows_B: Tensor) -> Tensor:
        """What is sent (B, W) of rows as they are."""
        self.trainee.network.eval()
        sent_BW: Tensor = self.trainee.network["front"](self.features(rows_B.to(self.device)), None, phase)[0]
        return sent_BW.cpu()

    @torch.no_grad()
    def reconstruction_loss(self, rows_B: Tensor, out_BP: Tensor | None) -> float:
        """Loss of all features of rows as they are; ``out_BP`` None: decoded here, of design "local"."""
        if out_BP is None:
            out_BP = self._decode(self.embed_rows(PRETRAINING, rows_B).to(self.device))
        self.trainee.network.eval()
        x_BF = self.features(rows_B.to(self.device))
        return self._loss(out_BP.to(self.device), x_BF, torch.ones_like(x_BF)).item()

    def _loss(self, out_BP: Tensor, x_BF: Tensor, mask_BF: Tensor) -> Tensor:
        return tabnet.reconstruction_loss(self.trainee.network["rebuild"](out_BP), x_BF, mask_BF)

    def _decode(self, sent_BW: Tensor) -> Tensor:
        out_BP: Tensor = self.trainee.network["decoder"](sent_BW.split(self.config.net.latent, dim=1))
        return out_BP


# The host.


@dataclass
class Embeddings:
    """What silos sent of a batch, or what stands in for it, in roster order.

    Attributes:
        z: (B, W_i) of each silo; with gradients for those present.
        masks: (B, W_i) of each, in pre-training.
        present: which silos sent theirs.
    """

    z: list[Tensor]
    masks: list[Tensor]
    present: list[bool]


class Host:
    """The coordinator's networks, and their training. ``widths`` (W_i) is what each silo sends in fine-tuning."""

    def __init__(
        self, widths: Sequence[int], classes: int, config: TabVFLConfig, streams: Streams, device: torch.device
    ) -> None:
        self.config, self.device, self.classes = config, device, classes
        self.partitions = partitions(config, len(widths))
        size = config.net.latent
        networks = nn.ModuleDict({"mapping": tabnet.plain_layer(size, classes or 1, streams.child("mapping").torch())})
        if config.design == "tabvfl":
            networks["encoder"] = tabnet.TabNetEncoder(sum(widths), config.net, streams.child("encoder").torch())
        if config.design != "local":
            networks["decoder"] = tabnet.TabNetDecoder(config.net, streams.child("decoder").torch())
        self.trainee = PhasedTrainee(networks.to(device), config)

    @classmethod
    def restored(cls, config: TabVFLConfig, model: State, device: torch.device) -> Host:
        """The networks of a trained model's coordinator part."""
        host = cls(model["widths"], model["classes"], config, Streams(0), device)
        host.trainee.restore(model["host"])
        return host

    def take(self, sent: Embeddings) -> Embeddings:
        """The same on the device, where those of silos that are present can have gradients."""
        z = [part.to(self.device).requires_grad_(present) for part, present in zip(sent.z, sent.present, strict=True)]
        return Embeddings(z, [mask.to(self.device) for mask in sent.masks], sent.present)

    # Pre-training: Algorithm 1, lines 15 to 21 and 25 to 32.

    def decode(self, sent: Embeddings) -> Tensor:
        """out_intermediate (B, D), with its graph."""
        self.trainee.begin_step(PRETRAINING)
        return self._decode(sent)

    def descend(self, sent: Embeddings, out_BD: Tensor, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Update by the gradients (B, P_i) of silos' losses, None where one is lost.

        Returns gradients in what silos sent, None for those that are not present.
        """
        parts = zip(grads, out_BD.split(self.partitions, dim=1), strict=True)
        grad_out = [torch.zeros_like(part) if grad is None else grad.to(self.device) for grad, part in parts]
        out_BD.backward(torch.cat(grad_out, dim=1))
        self.trainee.step()
        return [None if part.grad is None else part.grad.cpu() for part in sent.z]

    # Fine-tuning: Algorithm 2, lines 12 to 18.

    def classify(self, sent: Embeddings, labels_B: Tensor) -> tuple[list[Tensor | None], float]:
        """Update by the loss of the labels; gradients in what silos sent, None where not present, and the loss."""
        self.trainee.begin_step(FINETUNING)
        latent_BD, entropy = self._latent(sent.z)
        loss = self._loss(latent_BD, labels_B)
        (loss + self.config.sparsity * entropy).backward()
        self.trainee.step()
        return [None if part.grad is None else part.grad.cpu() for part in sent.z], loss.item()

    # Without training.

    @torch.no_grad()
    def predict(self, z: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Latents (B, D) and predictions (B, K) of rows as they are; on the CPU."""
        self.trainee.network.eval()
        latent_BD, _ = self._latent([part.to(self.device) for part in z])
        out_BK: Tensor = self.trainee.network["mapping"](latent_BD)
        return latent_BD.cpu(), out_BK.cpu()

    @torch.no_grad()
    def decode_rows(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Each silo's part (B, P_i) of what is decoded of rows as they are."""
        self.trainee.network.eval()
        parts = [part.to(self.device) for part in z]
        out_BD = self._decode(Embeddings(parts, [torch.zeros_like(part) for part in parts], [True] * len(parts)))
        return [part.contiguous() for part in out_BD.cpu().split(self.partitions, dim=1)]

    @torch.no_grad()
    def label_loss(self, z: Sequence[Tensor], labels_B: Tensor) -> float:
        """The label's loss of rows as they are."""
        self.trainee.network.eval()
        latent_BD, _ = self._latent([part.to(self.device) for part in z])
        return self._loss(latent_BD, labels_B).item()

    def _decode(self, sent: Embeddings) -> Tensor:
        if self.config.design == "tabvfl":
            prior_BW = 1 - torch.cat(sent.masks, dim=1).float()
            decisions, _ = self.trainee.network["encoder"](torch.cat(sent.z, dim=1), prior_BW)
        else:  # step by step, the sum of silos' decisions
            decisions = torch.stack(sent.z).sum(dim=0).split(self.config.net.latent, dim=1)
        out_BD: Tensor = self.trainee.network["decoder"](decisions)
        return out_BD

    def _latent(self, z: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if self.config.design == "tabvfl":
            decisions, entropy = self.trainee.network["encoder"](torch.cat(list(z), dim=1))
            return tabnet.latent(decisions), entropy
        none = z[0].new_zeros(())
        return (torch.cat(list(z), dim=1) if self.config.design == "local" else torch.stack(list(z)).sum(0)), none

    def _loss(self, latent_BD: Tensor, labels_B: Tensor) -> Tensor:
        out_BK, labels_B = self.trainee.network["mapping"](latent_BD), labels_B.to(self.device)
        return F.cross_entropy(out_BK, labels_B) if self.classes else F.mse_loss(out_BK[:, 0], labels_B)


def partitions(config: TabVFLConfig, silos: int) -> list[int]:
    """P_i: how the D numbers of a latent vector, or of what is decoded, are divided among silos, nearly equally.

    Raises:
        ConfigError: there are fewer numbers than silos.
    """
    size = config.net.latent
    if size < silos:
        rule = "The latent dimension is at least the number of silos: each gets a part of what is decoded"
        raise ConfigError(rule, f"{size} for {silos} silos", f"Set net.latent = {silos} or more.")
    return [len(part) for part in torch.arange(size).tensor_split(silos)]


# The label.


@dataclass(frozen=True)
class Labels:
    """The values to be predicted.

    Attributes:
        values: (N,) int64 class numbers, or float32 numbers with mean 0 and deviation 1.
        classes: how many classes there are; 0 where labels are numbers.
    """

    values: Tensor
    classes: int


class Label(Struct):
    """How a label is coded.

    Attributes:
        name: of the column.
        kind: of the column, a value of `Kind`.
        silo: whose column it was; "" if labels were passed by themselves.
        classes: the classes, in order; none if the label is a number.
        mean, deviation: of the number.
    """

    name: str
    kind: str
    silo: str = ""
    classes: tuple[Value, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    def targets(self, column: Column) -> Tensor:
        """(N,) int64 class numbers, K for a class unknown in training; or float32 standardised numbers."""
        if not self.classes:
            return ((_numbers(column) - self.mean) / self.deviation).float()
        place = {value: i for i, value in enumerate(self.classes)}
        return torch.tensor([place.get(value, len(place)) for value in values_of(column)], dtype=torch.int64)

    def labels(self, column: Column) -> Labels:
        """What the coordinator learns from."""
        return Labels(self.targets(column), len(self.classes))


def fit_label(column: Column, kind: str, silo: str = "") -> Label:
    """Classes, or mean and deviation of a number. Integers of few values are classes, unless declared continuous.

    Raises:
        DataError: a label is missing, or all are the same.
        SchemaError: labels are instants, or texts that differ in nearly all rows.
    """
    if kind == Kind.DATETIME.value or (kind == Kind.IDENTIFIER.value and column.levels is not None):
        raise SchemaError(f"Label {column.name!r} is a category or a number", kind, "Declare another kind.")
    check_labels(column)
    values = set(values_of(column))
    if len(values) < 2:
        raise DataError(f"Label {column.name!r} has at least two values", len(values), "There is nothing to predict.")
    integer = kind == Kind.INTEGER.value and not column.values.is_floating_point()
    if column.levels is not None or (integer and len(values) <= MOST_CLASSES):
        order = column.levels if column.levels is not None else sorted(values)
        return Label(column.name, kind, silo, tuple(value for value in order if value in values))
    numbers = _numbers(column)
    return Label(column.name, kind, silo, (), numbers.mean().item(), numbers.std().item())


def check_labels(column: Column) -> None:
    """Check that no label is missing.

    Raises:
        DataError: says how many are.
    """
    missing = int(column.missing.sum())
    if missing:
        raise DataError(f"Label {column.name!r} has a value in each row", f"missing in {missing}", "Drop those rows.")


def values_of(column: Column) -> Sequence[Value]:
    """The values as they are in frames."""
    codes: list[int | float] = column.values.tolist()
    return codes if column.levels is None else [column.levels[int(code)] for code in codes]


def _numbers(column: Column) -> Tensor:
    """(N,) float64, also of a column with so few values that they were read as categories.

    Raises:
        SchemaError: they are texts.
    """
    if column.levels is None:
        return column.values.double()
    if any(isinstance(level, str) for level in column.levels):
        raise SchemaError(f"Label {column.name!r} is a number, as in training", "text", "Convert it.")
    return torch.tensor([float(value) for value in values_of(column)], dtype=torch.float64)
