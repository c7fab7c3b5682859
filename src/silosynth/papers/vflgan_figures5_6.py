"""MNIST halves (VFLGAN, section 5.2.1, figures 5 and 6): two silos hold the upper and the lower half of each image.

Pixels are numbers between 0 and 1, column by column as in any table. Those that hardly any image has ink in are left
blank: standardised, their few values would be hundreds of deviations. Sizes of networks, learning rate, batches
and the penalty's weight are the public code's; the rest is preset `balanced`'s: VFLGAN's critics are of orthonormal
layers, nothing is normalised by batch, and generators are averaged. The public code's output layer is a tanh of values
scaled to [-1, 1], which tables have no counterpart for. Bounds of pixels are not declared: where declared ones are
exceeded, as by half of what is made of a black pixel, other images' values of it are drawn, which are never black.

Images are judged in the space of an autoencoder's latents, by Fréchet distance, and by the inception score of a
classifier. Both are trained on all images, small, and kept in the output folder: 784-256-64 and back, and 784-256-10
(the public code's are convolutional; the paper says only that the classifier is an MLP).

Shapes: N images, P their 784 pixels, L latents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from silosynth import catalog
from silosynth.core import files
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.data import datasets
from silosynth.evaluation.scores import Floats
from silosynth.models.training import batches, build
from silosynth.papers import curves, drawings, experiment, results
from silosynth.papers.drawings import Panel
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.papers.vflgan_scores import frechet, inception_score
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.federation import Federation, simulate

TABLE = "mnist_test_10k"
SIDE, HALF = 28, 392  # pixels of a side, of a silo
INK = 0.02  # least share of images that have some in a pixel
ALGORITHMS = ("wgan-gp", "vertigan", "vflgan-base", "vflgan")
NETWORKS: dict[str, Any] = {  # of the public code: see above
    "noise": 100, "generator": [128, 256, 512, 1024], "critic": [512, 256], "shared": [256], "penalty": 40.0,
    "rate": 2e-4, "batch": 64, "least_rounds": 0, "numbers": "standard", "select": "last",
}  # fmt: skip
WITHOUT_NUMBERS = {"encoders.most_levels": 0, "encoders.atom_count": 10**9, "encoders.pool_rare": False}
JUDGE_EPOCHS, JUDGE_BATCH, JUDGE_RATE = 12, 128, 1e-3
GRID = 10  # images of a side of the picture
LEGEND = (
    "FD: Fréchet distance of an autoencoder's latents to those of the real images that were trained on, 0 is best; "
    "real FD: between two halves of these in the file's order, which differ. IS: inception score of a classifier, 10 "
    "is best, 1 the least; real IS: of the real images."
)
CURVES = {"FD": "Fréchet distance", "IS": "inception score"}
HEADS = ("algorithm", "images", "epochs", "seed", "FD", "real FD", "IS", "real IS", "s", "MB")


@dataclass(frozen=True)
class DigitsJob(PaperJob):
    """One training.

    Attributes:
        rows: images, the first ones.
        folder: for pictures, and for the networks that judge; None to keep neither.
        curve: whether both figures are taken along the training.
    """

    unidentified: ClassVar[tuple[str, ...]] = ("folder", "curve")
    algorithm: str
    rows: int = 1000
    epochs: int = 5
    seed: int = 0
    folder: Path | None = None
    curve: bool = False


def jobs(
    algorithms: Annotated[Sequence[str], Ask("One of those compared.", ("--algorithm", "-a"))] = ALGORITHMS,
    rows: Annotated[int, Ask("Images, at most 10000.", least=GRID**2)] = 1000,
    epochs: Annotated[int, Ask("Of each training; the paper has 300.", least=1)] = 5,
    curve: Annotated[bool, Ask("Take both figures along each training.")] = False,
    repeats: Repeats = 1,
    seed: Seed = 0,
    folder: Path | None = None,
) -> list[DigitsJob]:
    """A training of each algorithm with each seed.

    Raises:
        ConfigError: there is no such algorithm, or a size is too small.
    """
    experiment.check_known("algorithm", algorithms, ALGORITHMS)
    experiment.check_positive(repeats=repeats)
    if epochs < 1 or rows < GRID**2:
        raise ConfigError(f"Digits take an epoch and {GRID**2} images at least", (epochs, rows))
    return [
        DigitsJob(algorithm, rows, epochs, seed + repeat, folder, curve)
        for repeat in range(repeats)
        for algorithm in algorithms
    ]


def images() -> tuple[Floats, Floats]:
    """All images (N, P) between 0 and 1, and their digits (N,)."""
    frame = datasets.load(TABLE)
    return frame.drop(columns="label").to_numpy(np.float64) / 255, frame["label"].to_numpy(np.int64)


def table(pixels_NP: Floats) -> pd.DataFrame:
    """Images as a table, without pixels of hardly any ink."""
    inked = (pixels_NP > 0).mean(axis=0) >= INK
    return pd.DataFrame(np.where(inked, pixels_NP, 0.0), columns=[f"pixel_{i}" for i in range(pixels_NP.shape[1])])


def measure(job: DigitsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, draw as many images, judge them, and (with a folder) picture some."""
    judges = Judges.of(job.folder, JUDGE_EPOCHS)
    real = judges.pixels_NP[: job.rows]
    model, costs = train(job, judges, table(real), tell)
    drawn = model.sample(len(real), seed=job.seed).to_numpy(np.float64)
    if job.folder is not None:
        files.write_atomic(job.folder / picture(job.identity), drawings.png(grid(drawn)))
    watched = model.extra if isinstance(model, curves.Watched) else {"curve": []}
    return {**job.identity, **judged(judges, real, drawn), **costs, **watched}


def judged(judges: Judges, real_NP: Floats, drawn_NP: Floats) -> Row:
    """Both figures of drawn images, and of the real ones."""
    half, latents = len(real_NP) // 2, judges.latents(real_NP)
    return {
        "FD": frechet(latents, judges.latents(drawn_NP)),
        "real FD": frechet(latents[:half], latents[half:]),
        "IS": inception_score(judges.probabilities(drawn_NP)),
        "real IS": inception_score(judges.probabilities(real_NP)),
    }


def federation(frame: pd.DataFrame, **bounds: float) -> Federation:
    """Images whose halves are in two silos; ``bounds`` of pixels are declared where differential privacy needs them."""
    columns = [str(column) for column in frame.columns]
    kinds = {column: {"kind": "continuous", **bounds} for column in columns}
    silos = {"upper": columns[:HALF], "lower": columns[HALF:]}
    return simulate(frame.set_axis(columns, axis=1), silos, kinds)


def train(job: DigitsJob, judges: Judges, frame: pd.DataFrame, tell: Tell) -> tuple[Any, Row]:
    """The model (with a curve: and what was taken along its training), and what its training took."""
    config = catalog.algorithm(job.algorithm).configure("balanced")
    options = {name: value for name, value in NETWORKS.items() if hasattr(config, name)} | {"epochs": job.epochs}
    options |= {} if "numbers" in options else WITHOUT_NUMBERS
    look = partial(curves.fit, real=frame, compare=partial(_figures_along, judges)) if job.curve else None
    return experiment.train(job.algorithm, federation(frame), "balanced", job.seed, options, tell, look)


def _figures_along(judges: Judges, real: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, float | None]:
    """Of a look."""
    found = judged(judges, *(frame.to_numpy(np.float64) for frame in (real, drawn)))
    return {name: found[name] for name in CURVES}


# Judges.


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Judges:
    """An autoencoder and a classifier, trained on all images, from a fixed seed; kept in ``folder`` if there is one."""

    def __init__(self, folder: Path | None = None, epochs: int | None = None) -> None:
        epochs = epochs or JUDGE_EPOCHS
        self.pixels_NP, digits_N = images()
        streams, pixels = Streams(0).child("digits"), self.pixels_NP.shape[1]
        weights = streams.child("weights").torch()
        self.encoder = build(_mlp, (pixels, 256, 64), generator=weights)
        self.decoder = build(_mlp, (64, 256, pixels), generator=weights)
        self.classifier = build(_mlp, (pixels, 256, 10), generator=weights)
        networks = nn.ModuleList([self.encoder, self.decoder, self.classifier])
        place = None if folder is None else folder / f"judges-{epochs}.bin"
        if place is not None and place.exists():
            networks.load_state_dict(unpack(files.read(place)))
            return
        x_NP, y_N = torch.from_numpy(self.pixels_NP).float(), torch.from_numpy(digits_N)
        _learn(networks, len(x_NP), epochs, streams, lambda rows: self._loss(x_NP[rows], y_N[rows]))
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(place, pack(dict(networks.state_dict())))

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, folder: Path | None, epochs: int) -> Judges:
        """The judges that all rows of one comparison share."""
        return cls(folder, epochs)

    def _loss(self, x_BP: Tensor, y_B: Tensor) -> Tensor:
        """Of both: they share no weights."""
        again_BP = self.decoder(self.encoder(x_BP)).sigmoid()
        return 10 * nn.functional.mse_loss(again_BP, x_BP) + nn.functional.cross_entropy(self.classifier(x_BP), y_B)

    def latents(self, pixels_NP: Floats) -> Floats:
        """(N, L)."""
        return self._output(self.encoder, pixels_NP)

    def probabilities(self, pixels_NP: Floats) -> Floats:
        """Of the ten digits (N, 10)."""
        return self._output(nn.Sequential(self.classifier, nn.Softmax(dim=1)), pixels_NP)

    @torch.no_grad()
    def _output(self, network: nn.Module, pixels_NP: Floats) -> Floats:
        return np.asarray(network(torch.tensor(pixels_NP, dtype=torch.float32)).double().numpy())


def _learn(
    networks: nn.Module, count: int, epochs: int, streams: Streams, loss: Callable[[Tensor], Tensor]
) -> None:  # fmt: skip
    adam = torch.optim.Adam(networks.parameters(), JUDGE_RATE)
    order = batches(count, JUDGE_BATCH, streams.child("order").torch())
    for _ in range(epochs * (count // JUDGE_BATCH)):
        adam.zero_grad()
        loss(next(order)).backward()
        adam.step()


# What is shown


def grid(pixels_NP: Floats, side: int = GRID) -> Floats:
    """The first images as one, ``side`` by ``side``."""
    parts = pixels_NP[: side * side].reshape(side, side, SIDE, SIDE)
    return np.asarray(parts.transpose(0, 2, 1, 3).reshape(side * SIDE, side * SIDE))


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each training."""
    return [("", HEADS, [_cells(row) for row in rows])]


def _cells(row: Row) -> list[str]:
    first = [row["algorithm"], results.shown("rows", row["rows"]), str(row["epochs"]), str(row["seed"])]
    figures = [f"{row[name]:.2f}" for name in ("FD", "real FD", "IS", "real IS")]
    return [*first, *figures, *results.costs(row)]


def picture(row: Row) -> str:
    """The file of a training's images."""
    return f"{row['algorithm']}-{row['rows']}-{row['epochs']}-{row['seed']}.png"


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Curves, a line of panels for each size; and links to images of the largest one, of its first seed."""
    sizes = sorted({(row["rows"], row["epochs"]) for row in rows})
    own = [[row for row in rows if (row["rows"], row["epochs"]) == size] for size in sizes]
    lines = [_curves(of_size) for of_size in own if any(row.get("curve") for row in of_size)]
    first = min(row["seed"] for row in own[-1])
    names = dict.fromkeys(picture(row) for row in own[-1] if row["seed"] == first)
    shown = drawings.beside(page, lines, "Figures along trainings, means over seeds")
    return [*shown, *(f"![{name}]({name})" for name in names)]


def _curves(rows: Sequence[Row]) -> list[Panel]:
    """A panel for each figure, of trainings of one size."""
    curves: dict[str, list[Any]] = {}
    for row in rows:
        if row.get("curve"):
            curves.setdefault(row["algorithm"], []).append(row["curve"])
    axis = f"epoch of {rows[0]['epochs']}, {rows[0]['rows']} images"
    return [
        Panel(what, axis, {name: drawings.along(own, "round", key) for name, own in curves.items()})
        for key, what in CURVES.items()
    ]


EXPERIMENT = PaperExperiment(
    "digits", "MNIST halves in two silos (VFLGAN, figures 5 and 6)", LEGEND, jobs, measure, sections, pictures=pictures,
    small={"rows": 500, "epochs": 2},
    kept=({"rows": 2000, "epochs": 20, "repeats": 3}, {"rows": 10_000, "epochs": 300}),
    published={"rows": 10_000, "epochs": 300}, folder=True, example="--rows 10000 --epochs 100 --out digits",
    figures=experiment.named("FD", "IS"),
)  # fmt: skip
