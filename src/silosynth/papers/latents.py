"""How much latent vectors tell of a label (TabVFL's figures 5 and 6.4, table 6.1): five designs and two ablations.

Rows are drawn from the table so that classes keep their shares; columns are dealt out evenly, in order. 15 % of the
rows are for tests; the rest trains the representation, and of it preset "paper" holds out as many again to stop early
by. Identifiers, and rows with missing values, are left out. The coordinator has the label.

Six learners judge the latents, in two ways:

* "clean": they learn from the latents of the rows that the representation was trained on, and are tested on the others.
* "paper": latents of all rows are pooled and divided again, 70 % to learn from and 30 % to test on (section V-B). So
  they are tested mostly on rows whose labels have shaped the latents.

The figures beside ours are those of the authors' public code, which go with figure 5 (it shows no numbers); where table
6.1 of the thesis has TabVFL as well, it is up to 0.03 below them. Rice MSC, their fifth table, is not among the data
sets here.

"lt-fixed" is LT as the public code trains it. The paper has guests' encoders fine-tuned; there, each guest puts its
pre-trained weights into a new network after the optimiser was given the parameters of an old one. So only the
coordinator's layer learns the label. What is published of LT lies between the two.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.data import datasets
from silosynth.evaluation.coding import Ints
from silosynth.evaluation.scores import Floats
from silosynth.papers import learners
from silosynth.papers.common import TRAINING, Row, Tell, in_turn
from silosynth.papers.results import shown, stamp
from silosynth.simulation.federation import Federation, simulate
from silosynth.simulation.representation import Representation
from silosynth.simulation.training import represent

TABLES = ("airline_satisfaction", "bank_marketing", "covertype_50k", "intrusion_nsl_kdd_20pct")
METHODS: Mapping[str, Mapping[str, Any]] = {  # what a method is called -> options; "ct" has all columns in one place
    "ct": {"design": "local"},
    "lt": {"design": "local"},
    "lt-fixed": {"design": "local", "label_gradients": False},
    "tabvfl-le": {"design": "local_encoders"},
    "tabvfl": {"design": "tabvfl"},
    "without-pretraining": {"design": "tabvfl", "pretrain": False},
    "without-finetuning": {"design": "tabvfl", "finetune": False},
}
PUBLISHED = {  # F1 with five guests: of the first five methods the public code's results, of ablations table 6.1
    "airline_satisfaction": (0.952, 0.903, 0.903, 0.940, 0.953, 0.924, 0.583),
    "bank_marketing": (0.892, 0.880, 0.880, 0.883, 0.885, 0.869, 0.826),
    "covertype_50k": (0.735, 0.555, 0.555, 0.736, 0.740, 0.702, 0.441),
    "intrusion_nsl_kdd_20pct": (0.993, 0.986, 0.986, 0.920, 0.993, 0.982, 0.848),
}
PAPER_ROWS, PAPER_REPEATS = 50_000, 3  # section V-A
TEST = 0.15
POOLED_TEST = 0.3
EVALUATIONS = ("clean", "paper")
FORM = "silosynth bench latents"
TITLE = "What six learners make of latent vectors (TabVFL, figures 5 and 6.4, table 6.1)"
LEGEND = (
    "Accuracy, F1 (weighted by classes' shares), macro F1 and AUC: means over six learners. Clean: they learn from the "
    "rows that the representation was trained on, and are tested on others. Pooled: all rows' latents divided again, "
    "as in the paper. Published: the authors' pooled F1, of 50 000 rows. Epochs: pre-training + fine-tuning."
)
HEADS = (
    "table", "guests", "method", "seed", "clean acc.", "F1", "macro F1", "AUC", "pooled acc.", "F1", "macro F1", "AUC",
    "published", "epochs", "s", "MB",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One representation that is to be trained and judged.

    Attributes:
        rows: of the table, training and test together; None for all.
        epochs: of each phase, at most; None for those of the preset.
        options: besides.
    """

    table: str
    method: str = "tabvfl"
    guests: int = 5
    preset: str = "paper"
    rows: int | None = None
    epochs: int | None = None
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def identity(self) -> Row:
        """Everything that decides the figures: a row with the same identity is not computed again."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "options"}
        return {**told, "options": json.dumps(dict(self.options), sort_keys=True), "version": VERSION}

    @property
    def title(self) -> str:
        """For people who wait for it."""
        more = [f"{name} {value}" for name, value in self.options]
        return " · ".join([self.table, f"{self.guests} guests", self.method, *more, f"seed {self.seed}"])

    @property
    def configured(self) -> dict[str, Any]:
        """All options of `represent`."""
        epochs = {} if self.epochs is None else {"pretraining_epochs": self.epochs, "finetuning_epochs": self.epochs}
        return {**METHODS[self.method], **epochs, **dict(self.options)}


@dataclass(frozen=True, eq=False)
class Task:
    """A table as guests hold it; ``labels`` are of all rows, as text; ``train`` and ``test`` are row numbers."""

    frame: pd.DataFrame
    labels: pd.Series[Any]
    silos: Mapping[str, list[str]]
    kinds: Mapping[str, str]
    train: Ints
    test: Ints

    def federation(self, rows: Ints) -> Federation:
        """These rows."""
        return simulate(self.frame.iloc[rows].reset_index(drop=True), self.silos, self.kinds)

    def told(self, rows: Ints) -> pd.Series[Any]:
        """Their labels, as text."""
        return self.labels.iloc[rows].reset_index(drop=True)


def jobs(
    tables: Sequence[str], methods: Sequence[str] = tuple(METHODS), guests: Sequence[int] = (5,), repeats: int = 1,
    seed: int = 0, **each: Any,
) -> list[Job]:  # fmt: skip
    """All rows, table by table; ``each`` is what they have in common. One place has no guests: "ct" occurs once.

    Raises:
        ConfigError: there is no such table or method, none at all, or a size is not positive.
    """
    for name, known in (("table", TABLES), ("method", tuple(METHODS))):
        for value in tables if name == "table" else methods:
            if value not in known:
                raise ConfigError(f"There is no such {name} in this comparison", value, nearest(value, known))
    if not tables or not methods or not guests or min(guests) < 2 or repeats < 1:
        raise ConfigError(
            "A comparison has a table, a method, a repeat, and at least two guests",
            (tuple(tables), tuple(methods), repeats, tuple(guests)),
        )
    return [
        Job(table, method, count, seed=seed + repeat, **each)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for count in dict.fromkeys(guests)
        for method in dict.fromkeys(methods)
        if method != "ct" or count == guests[0]
    ]


def load(table: str, guests: int, rows: int | None = None, seed: int = 0) -> Task:
    """A table, its columns dealt out, its rows divided.

    Raises:
        UnavailableError: it is not on this machine and cannot be fetched.
    """
    frame, info = datasets.load(table, return_info=True)
    target = info.target
    names = [name for name in frame.columns if name != target and info.kinds.get(name) != "identifier"]
    frame = frame.dropna().reset_index(drop=True)
    rng = Streams(seed).child("latents", table).numpy()
    if rows is not None and rows < len(frame):
        frame = frame.iloc[stratified(_codes(frame[target]), rows, rng)].reset_index(drop=True)
    silos = {f"guest_{i + 1}": list(part) for i, part in enumerate(np.array_split(np.array(names, object), guests))}
    test = stratified(_codes(frame[target]), round(TEST * len(frame)), rng)
    train = np.setdiff1d(np.arange(len(frame)), test)
    kinds = {name: kind for name, kind in info.kinds.items() if name in names}
    return Task(frame[names], frame[target].astype(str), silos, kinds, train, test)


def stratified(codes_n: Ints, count: int, rng: np.random.Generator) -> Ints:
    """So many row numbers, in order, with classes in proportion: one of each stretch of the rows in order of class."""
    order = np.lexsort((rng.random(len(codes_n)), codes_n))
    places = (np.arange(count) + rng.random()) * (len(codes_n) / count)
    return np.sort(order[places.astype(np.int64)])


def _codes(labels: pd.Series[Any]) -> Ints:
    return np.unique(labels.astype(str).to_numpy(), return_inverse=True)[1].astype(np.int64)


# One row.


def measure(job: Job, tell: Tell = lambda stage, share: None) -> Row:
    """Train, and judge the latents."""
    task = load(job.table, job.guests, job.rows, job.seed)
    epochs: dict[str, int] = {}
    start = time.perf_counter()
    made = train(job, task, epochs, lambda stage, share: tell(stage, TRAINING * share))
    seconds, sent = time.perf_counter() - start, sum(record["bytes"] for record in made.ledger)
    tell("evaluating", TRAINING)
    tests = made.federation(task.frame.iloc[task.test])
    known_ND, new_ND = made.transform().to_numpy(np.float64), made.transform(tests).to_numpy(np.float64)
    each = judged(known_ND, new_ND, task, job.seed)
    averaged = {f"{how} {name}": value for how in EVALUATIONS for name, value in learners.means(each[how]).items()}
    return {
        **job.identity,
        **averaged,
        "published": published(job),
        "epochs run": epochs,
        "seconds": seconds,
        "bytes": None if job.method == "ct" else sent,
        "predicted": made.score(tests, task.told(task.test)) if made.config.finetune else None,
        "learners": each,
    }


def train(job: Job, task: Task, epochs: dict[str, int], tell: Tell) -> Representation:
    """The representation; notes how many epochs each phase had. What a stopped training leaves goes with it."""
    federation = task.federation(task.train)
    federation = federation.central() if job.method == "ct" else federation

    def told(progress: Progress) -> None:
        if progress.figures:  # after each epoch
            epochs[progress.stage] = epochs.get(progress.stage, 0) + 1
        tell(progress.stage, progress.done / max(1, progress.total))

    with tempfile.TemporaryDirectory(prefix="silosynth-bench-") as folder:
        return represent(
            "tabvfl", federation, task.told(task.train), preset=job.preset, seed=job.seed, options=job.configured,
            folder=folder, progress=told,
        )  # fmt: skip


def judged(known_ND: Floats, new_ND: Floats, task: Task, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Each learner's figures, in both ways; from latents of training rows and of test rows."""
    codes_n = _codes(task.labels)
    size = int(codes_n.max()) + 1
    known_n, new_n = codes_n[task.train], codes_n[task.test]
    clean = learners.scores(known_ND, known_n, new_ND, new_n, size, seed)
    pool_ND, pool_n = np.concatenate([known_ND, new_ND]), np.concatenate([known_n, new_n])
    order = Streams(seed).child("pooled").numpy().permutation(len(pool_n))
    test, learnt = np.split(order, [round(POOLED_TEST * len(order))])
    pooled = learners.scores(pool_ND[learnt], pool_n[learnt], pool_ND[test], pool_n[test], size, seed)
    return {"clean": clean, "paper": pooled}


def published(job: Job) -> float | None:
    """The authors' F1; they publish that of five guests."""
    return dict(zip(METHODS, PUBLISHED[job.table], strict=True))[job.method] if job.guests == 5 else None


each = partial(in_turn, measure)
"""The rows of jobs, one after the other."""


# Rows as people see them.


def cells(row: Row) -> list[str]:
    """A row as people see it."""
    guests = "" if row["method"] == "ct" else str(row["guests"])
    figures = [f"{row[f'{how} {name}']:.3f}" for how in EVALUATIONS for name in learners.FIGURES]
    paper = "" if row["published"] is None else f"{row['published']:.3f}"
    epochs = " + ".join(str(count) for count in row["epochs run"].values())
    sent = "" if row["bytes"] is None else shown("bytes", row["bytes"])
    seconds = shown("seconds", row["seconds"])
    return [row["table"], guests, row["method"], str(row["seed"]), *figures, paper, epochs, seconds, sent]


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table, sorted, with a stamp."""
    place = {name: i for i, name in enumerate((*TABLES, *METHODS))}
    ordered = sorted(rows, key=lambda r: (place[r["table"]], r["guests"], r["seed"], place[r["method"]]))
    return page(TITLE, LEGEND, HEADS, [cells(row) for row in ordered])


def page(title: str, legend: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A heading, what figures mean, a table, and a stamp."""
    table = "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *lines])
    said = ", ".join(f"{key} {value}" for key, value in stamp().items())
    return f"# {title}\n\n{legend}\n\n{table}\n\n{said}\n"
