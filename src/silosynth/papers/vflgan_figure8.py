"""VFLGAN's figure 8: synthetic digits under differential privacy, epsilon 10 and delta 1e-5 (section 5.3.1).

*dp-vflgan*: VFLGAN in two silos with DP-SGD, as this project trains it. *dpsgd-gan*: WGAN-GP in one place with DP-SGD
on the whole critic. *gs-wgan*: `silosynth.papers.vflgan_gs_wgan`. *as published*: VFLGAN, or WGAN-GP, with the paper's
mechanism, which noises the first layers of critics only; its noise is what the paper's propositions ask for, and it
gives no differential privacy, so that no epsilon stands beside it.

Networks, images and judges are those of `silosynth.papers.vflgan_figures5_6`; but every pixel is learnt, since which
have hardly any ink is known from the images only. A pixel's bounds count as public; one that is drawn as missing, which
noise makes possible, has no ink. The judges are trained on the real images, without privacy: they are not part of what
is released.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import torch

from silosynth import catalog
from silosynth.core import files
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.evaluation.scores import Floats
from silosynth.papers import drawings, experiment, results, vflgan_figures5_6 as digits
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.papers.vflgan_gs_wgan import SanitisedConfig, SanitisedTraining, calibrated, spent
from silosynth.privacy.statement import statement

BOUNDS = {"low": 0.0, "high": 1.0}  # of pixels
PUBLISHED = {"as published": "vflgan", "wgan-gp as published": "wgan-gp"}
MECHANISMS = {"dp-vflgan": "vflgan", "dpsgd-gan": "wgan-gp", "gs-wgan": "", **PUBLISHED}
PRIVATE = {"select": "last", "numbers": "quantile", "average": 0.99}
HEADS = ("mechanism", "images", "epochs", "seed", "epsilon", "FD", "real FD", "IS", "real IS", "s", "MB")
LEGEND = (
    f"{digits.LEGEND} Epsilon: of delta 1e-5, under addition or removal of an image; of gs-wgan under substitution."
)


@dataclass(frozen=True)
class PrivateDigitsJob(PaperJob):
    """One training; ``folder`` as in `digits.DigitsJob`, ``critics`` are those of gs-wgan."""

    unidentified: ClassVar[tuple[str, ...]] = ("folder",)
    mechanism: str
    rows: int = 1000
    epochs: int = 5
    seed: int = 0
    epsilon: float = 10.0
    delta: float = 1e-5
    critics: int = 100
    folder: Path | None = None

    @property
    def identity(self) -> Row:
        """With the settings of the trainings."""
        return {**super().identity, "settings": json.dumps({**digits.NETWORKS, **PRIVATE}, sort_keys=True)}


def jobs(
    mechanisms: Annotated[Sequence[str], Ask(f"One of {', '.join(MECHANISMS)}.", ("--mechanism", "-m"))] = tuple(
        MECHANISMS
    ),
    rows: Annotated[int, Ask("Images, at most 10000.", least=digits.GRID**2)] = 1000,
    epochs: Annotated[int, Ask("Of each training; the public code has 300.", least=1)] = 5,
    epsilon: Annotated[float, Ask("Of differential privacy; delta is 1e-5.")] = 10.0,
    critics: Annotated[int, Ask("Of gs-wgan, each with its part of the images.", least=1)] = 100,
    repeats: Repeats = 1,
    seed: Seed = 0,
    folder: Path | None = None,
) -> list[PrivateDigitsJob]:
    """A training with each mechanism and each seed.

    Raises:
        ConfigError: there is no such mechanism, or a size is too small.
    """
    experiment.check_known("mechanism", mechanisms, tuple(MECHANISMS))
    experiment.check_positive(repeats=repeats)
    if epochs < 1 or rows < digits.GRID**2 or not epsilon > 0:
        rule = f"Private digits take an epoch, {digits.GRID**2} images and an epsilon above 0 at least"
        raise ConfigError(rule, (epochs, rows, epsilon))
    return [
        PrivateDigitsJob(one, rows, epochs, seed + repeat, epsilon, critics=critics, folder=folder)
        for repeat in range(repeats)
        for one in mechanisms
    ]


def measure(job: PrivateDigitsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, draw as many images, judge them, and (with a folder) picture some."""
    judges = digits.Judges.of(job.folder, digits.JUDGE_EPOCHS)
    real = judges.pixels_NP[: job.rows]
    model, told, costs = (sanitised if job.mechanism == "gs-wgan" else catalogued)(job, real, tell)
    drawn = np.nan_to_num(np.asarray(model.sample(len(real), seed=job.seed), np.float64), nan=0.0)
    if job.folder is not None:
        files.write_atomic(job.folder / picture(job.mechanism, job.seed), drawings.png(digits.grid(drawn)))
    return {**job.identity, **digits.judged(judges, real, drawn), **costs, "privacy": told}


def catalogued(job: PrivateDigitsJob, real_NP: Floats, tell: Tell) -> tuple[Any, str, Row]:
    """A model of the catalogue, what may be claimed of its privacy, and what its training took."""
    columns = [f"pixel_{i}" for i in range(real_NP.shape[1])]
    algorithm, frame = MECHANISMS[job.mechanism], pd.DataFrame(real_NP, columns=columns)
    config = catalog.algorithm(algorithm).configure("private")
    options = {**digits.NETWORKS, **PRIVATE, "epochs": job.epochs, "dp": budget(job, len(frame))}
    options = {name: value for name, value in options.items() if hasattr(config, name)}
    model, costs = experiment.train(algorithm, digits.federation(frame, **BOUNDS), "private", job.seed, options, tell)
    return model, statement(model.ledger, assume_secret=True)["summary"], costs


def budget(job: PrivateDigitsJob, rows: int) -> dict[str, Any]:
    """The option ``dp``: a budget, or the noise that the paper's propositions give for it."""
    if job.mechanism not in PUBLISHED:
        return {"epsilon": job.epsilon, "delta": job.delta}
    batch = min(digits.NETWORKS["batch"], rows)
    noise = calibrated(rows, batch, job.epochs * max(1, rows // batch), job.epsilon, job.delta)
    return {"mechanism": "paper-unsound", "noise": noise}


def sanitised(job: PrivateDigitsJob, real_NP: Floats, tell: Tell) -> tuple[Any, str, Row]:
    """The same of GS-WGAN, with as many steps of critics."""
    usual = SanitisedConfig(0, 0.0)
    rounds = max(1, job.epochs * (len(real_NP) // usual.batch) // usual.critic_steps)
    noise = calibrated(job.critics, 1, rounds, job.epsilon, job.delta)
    config = SanitisedConfig(rounds, noise, job.critics, penalty=digits.NETWORKS["penalty"])
    training = SanitisedTraining(torch.from_numpy(real_NP).float(), config, Streams(job.seed).child("gs-wgan"))
    timed = SimpleNamespace(ledger=[], sample=training.sample)

    def fit(*arguments: Any, **more: Any) -> Any:
        training.train(lambda share: tell("training", experiment.TRAINING * share))
        return timed

    federation = digits.federation(pd.DataFrame(real_NP), **BOUNDS)
    model, costs = experiment.train("wgan-gp", federation, "private", job.seed, {}, tell, fit)
    epsilon = spent(job.critics, 1, noise, rounds, job.delta)
    told = (
        f"epsilon at most {epsilon:.3g} at delta {job.delta:g}, under substitution of an image, against whoever does "
        "not know the seed"
    )
    return model, told, costs


def picture(mechanism: str, seed: int) -> str:
    """The name of its image file."""
    return f"{mechanism.replace(' ', '-')}-{seed}.png"


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each training, and what may be claimed of each mechanism."""
    if not rows:
        return []
    claims = list(dict.fromkeys((row["mechanism"], row["privacy"]) for row in rows))
    return [("", HEADS, [_cells(row) for row in rows]), ("What may be claimed", ("mechanism", "privacy"), claims)]


def _cells(row: Row) -> list[str]:
    epsilon = "none" if row["mechanism"] in PUBLISHED else f"{row['epsilon']:g}"
    first = [row["mechanism"], str(row["rows"]), str(row["epochs"]), str(row["seed"]), epsilon]
    figures = [f"{row[name]:.2f}" for name in ("FD", "real FD", "IS", "real IS")]
    return [*first, *figures, *results.costs(row)]


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Links to the images of the first seed that lie beside the page."""
    first = min((row["seed"] for row in rows), default=0)
    names = dict.fromkeys(picture(row["mechanism"], first) for row in rows if row["seed"] == first)
    return [f"![{name}]({name})" for name in names]


EXPERIMENT = PaperExperiment(
    "private-digits", "Digits under differential privacy (VFLGAN, figure 8)", LEGEND, jobs, measure, sections,
    pictures=pictures, small={"rows": 500, "epochs": 2, "critics": 10},
    kept=({"rows": 2000, "epochs": 3, "repeats": 3},),
    published={"rows": 10_000, "epochs": 300}, folder=True, example="--mechanism gs-wgan --rows 10000 --epochs 50",
    figures=experiment.named("FD", "IS"),
)  # fmt: skip
