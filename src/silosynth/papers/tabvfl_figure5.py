"""How much latent vectors tell of a label (TabVFL's figures 5 and 6.4, table 6.1): four designs, one in
two readings, and two ablations.

Rows are drawn from the table so that classes keep their shares; columns are dealt out evenly, in order. 15 % of the
rows are for tests; the rest trains the representation, and of it preset "paper" holds out as many again to stop early
by. Identifiers, and rows with missing values, are left out. The coordinator has the label.

Six learners judge the latents, in two ways:

* "clean": they learn from the latents of the rows that the representation was trained on, and are tested on the others.
* "paper": latents of all rows are pooled and divided again, 70 % to learn from and 30 % to test on (section V-B). So
  they are tested mostly on rows whose labels have shaped the latents.

The figures beside ours are those of the authors' public code, as figure 5 shows no numbers. TabVFL's and TabVFL-LE's
are what the per cents of tables 6.2 to 6.4 are of; LT's are of other trainings than the paper's, which has TabVFL's F1
ahead of LT's by 26.12 % at most (section V-C1), where they have 33 %. Where table 6.1 of the thesis has TabVFL as well,
it is up to 0.03 below them. Rice MSC, their fifth table, is not among the data
sets here.

"lt-fixed" is LT as the public code trains it. The paper has guests' encoders fine-tuned; there, each guest puts its
pre-trained weights into a new network after the optimiser was given the parameters of an old one. So only the
coordinator's layer learns the label. What the public code has of LT lies between the two.

The paper names the learners and no settings: scikit-learn's and XGBoost's own are taken, but for iterations. "F1" is
the mean over classes weighted by their shares, as in its public code; "macro F1" counts all classes the same, as does
the area, one class against the rest, which the public code weights as well. Latents are not scaled.

Shapes: n rows to learn from, h rows to test on, D latents, K classes.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, f1_score

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.data import datasets
from silosynth.evaluation.scores import Floats, Ints, macro_auc
from silosynth.evaluation.utility import FOREST, LOGISTIC, MLP, SVM, TREE, Classifier, judge
from silosynth.papers import drawings, experiment, results
from silosynth.papers.experiment import Ask, Options, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
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
DIFFERENCES: Mapping[str, Mapping[str, tuple[float, ...]]] = {  # tables 6.2 to 6.4: accuracy, F1 and AUC, in %
    "airline_satisfaction": {
        "lt": (13.74, 14.98, 13.67), "tabvfl-le": (0.33, 0.32, 0.20), "tabvfl": (-0.53, -0.52, -0.30),
    },
    "bank_marketing": {"lt": (-0.75, -1.47, -3.30), "tabvfl-le": (0.28, 0.68, 0.0), "tabvfl": (0.16, 0.45, -0.57)},
    "covertype_50k": {"lt": (7.49, 9.92, 6.04), "tabvfl-le": (0.89, 0.95, 0.46), "tabvfl": (0.88, 0.95, 0.46)},
    "intrusion_nsl_kdd_20pct": {
        "lt": (-4.19, -4.89, -1.19), "tabvfl-le": (5.90, 8.26, 0.30), "tabvfl": (0.26, 0.30, 0.20),
    },
}  # fmt: skip
ABLATIONS: Mapping[str, Mapping[str, tuple[float, ...]]] = {  # table 6.1: accuracy, F1 and AUC
    "airline_satisfaction": {
        "tabvfl": (0.9385, 0.938, 0.976), "without-pretraining": (0.9245, 0.924, 0.968),
        "without-finetuning": (0.5982, 0.583, 0.621),
    },
    "bank_marketing": {
        "tabvfl": (0.8914, 0.881, 0.863), "without-pretraining": (0.8852, 0.869, 0.817),
        "without-finetuning": (0.8682, 0.826, 0.596),
    },
    "covertype_50k": {
        "tabvfl": (0.7204, 0.712, 0.852), "without-pretraining": (0.7102, 0.702, 0.842),
        "without-finetuning": (0.5076, 0.441, 0.627),
    },
    "intrusion_nsl_kdd_20pct": {
        "tabvfl": (0.9823, 0.982, 0.991), "without-pretraining": (0.9823, 0.982, 0.991),
        "without-finetuning": (0.8714, 0.848, 0.898),
    },
}  # fmt: skip
PAPER = {"tables": TABLES, "guests": (5, 2), "repeats": 3, "rows": 50_000, "epochs": None}  # section V-A; 300 epochs
KEPT_OPTIONS = {
    "batch": 256,
    "finetuning_epochs": 100,
    "patience": 20,
    "pretraining_epochs": 30,
    "rate": 0.01,
    "shuffle": True,
}
PUBLIC_CODE = {"net.momentum": 0.9, "sparsity": 0.0001}
QUICKER: Mapping[str, Any] = {"rows": 12_000, "epochs": None, "options": tuple(KEPT_OPTIONS.items())}
WITH_TWO: Mapping[str, Any] = {**QUICKER, "guests": (2,), "methods": ("lt", "tabvfl-le", "tabvfl")}
KEPT = (
    {**QUICKER, "tables": TABLES[:1]}, {**QUICKER, "tables": TABLES[1:], "repeats": 3},
    {**WITH_TWO, "tables": TABLES[:1]}, {**WITH_TWO, "tables": TABLES[1:], "repeats": 3},
    {"tables": ("intrusion_nsl_kdd_20pct",), "methods": ("tabvfl",), "guests": (5, 2), "rows": 50_000, "epochs": None},
    {"tables": ("covertype_50k",), "methods": ("lt",), "rows": 12_000, "epochs": None,
     "options": tuple((KEPT_OPTIONS | PUBLIC_CODE | {"patience": 10, "shuffle": False}).items())},
    {"tables": ("airline_satisfaction",), "methods": ("lt-fixed",), "rows": 12_000, "epochs": None,
     "options": (*PUBLIC_CODE.items(), ("pretraining_epochs", 100))},
)  # fmt: skip
TEST = 0.15
POOLED_TEST = 0.3
EVALUATIONS = ("clean", "paper")
LEGEND = (
    "Accuracy, F1 (weighted by classes' shares), macro F1 and AUC: means over six learners. Clean: they learn from the "
    "rows that the representation was trained on, and are tested on others. Pooled: all rows' latents divided again, "
    "as in the paper. Published: the authors' pooled F1, of 50 000 rows. Epochs: pre-training + fine-tuning."
)
HEADS = (
    "table", "guests", "method", "seeds", "clean acc.", "F1", "macro F1", "AUC", "pooled acc.", "F1", "macro F1", "AUC",
    "published", "epochs", "s", "MB",
)  # fmt: skip
COMPARED = ("accuracy", "F1", "AUC")
FIGURES = tuple(f"{how} {name}" for how in EVALUATIONS for name in ("accuracy", "F1", "macro F1", "AUC"))

TableNames = Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))]
RowCount = Annotated[int | None, Ask("Rows of each table, 15 % of them for tests.", least=100)]
Epochs = Annotated[int | None, Ask("Of each phase, at most.", least=1)]
Batch = Annotated[int | None, Ask("Rows of a batch; the paper's if not given.", least=2)]
Preset = Annotated[str, Ask("Of TabVFL's options.")]


@dataclass(frozen=True)
class LatentsJob(PaperJob):
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
    def configured(self) -> dict[str, Any]:
        """All options of `represent`."""
        epochs = {} if self.epochs is None else {"pretraining_epochs": self.epochs, "finetuning_epochs": self.epochs}
        return {**METHODS[self.method], **epochs, **dict(self.options)}


def jobs(
    tables: TableNames = ("bank_marketing",),
    methods: Annotated[Sequence[str], Ask(f"One of {', '.join(METHODS)}.", ("--method", "-m"))] = tuple(METHODS),
    guests: Annotated[Sequence[int], Ask("How many silos.", ("--guests", "-g"))] = (5,),
    rows: RowCount = 2000,
    epochs: Epochs = 20,
    batch: Batch = None,
    preset: Preset = "paper",
    options: Options = (),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[LatentsJob]:
    """All rows, table by table. One place has no guests: "ct" occurs once.

    Raises:
        ConfigError: there is no such table or method, none at all, or a size is not positive.
    """
    experiment.check_known("table", tables, TABLES)
    experiment.check_known("method", methods, tuple(METHODS))
    if not guests or min(guests) < 2 or repeats < 1:
        raise ConfigError("A comparison has a repeat and at least two guests", (repeats, tuple(guests)))
    options = options if batch is None else (("batch", batch), *options)
    return [
        LatentsJob(table, method, count, preset, rows, epochs, seed + repeat, options)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for count in dict.fromkeys(guests)
        for method in dict.fromkeys(methods)
        if method != "ct" or count == guests[0]
    ]


# A table


@dataclass(frozen=True, eq=False)
class GuestTable:
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

    def label(self, rows: Ints) -> pd.Series[Any]:
        """Their labels, as text."""
        return self.labels.iloc[rows].reset_index(drop=True)


def load(table: str, guests: int, rows: int | None = None, seed: int = 0) -> GuestTable:
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
    return GuestTable(frame[names], frame[target].astype(str), silos, kinds, train, test)


def stratified(codes_n: Ints, count: int, rng: np.random.Generator) -> Ints:
    """``count`` row numbers, sorted, with classes in proportion: one of each stretch of the rows by class."""
    order = np.lexsort((rng.random(len(codes_n)), codes_n))
    places = (np.arange(count) + rng.random()) * (len(codes_n) / count)
    return np.sort(order[places.astype(np.int64)])


def _codes(labels: pd.Series[Any]) -> Ints:
    return np.unique(labels.astype(str).to_numpy(), return_inverse=True)[1].astype(np.int64)


# One row


def measure(job: LatentsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, and judge the latents."""
    task = load(job.table, job.guests, job.rows, job.seed)
    made, costs = train(job, task, tell)
    tests = made.federation(task.frame.iloc[task.test])
    known_ND, new_ND = made.transform().to_numpy(np.float64), made.transform(tests).to_numpy(np.float64)
    each = judged(known_ND, new_ND, task, job.seed)
    averaged = {f"{how} {name}": value for how in EVALUATIONS for name, value in mean_scores(each[how]).items()}
    return {
        **job.identity,
        **averaged,
        "published": published(job),
        **costs,
        "predicted": made.score(tests, task.label(task.test)) if made.config.finetune else None,
        "learners": each,
    }


def train(job: LatentsJob, task: GuestTable, tell: Tell) -> tuple[Representation, Row]:
    """The representation, and what its training took: each phase's epochs, seconds and bytes."""
    federation = task.federation(task.train)
    federation = federation.central() if job.method == "ct" else federation
    epochs: dict[str, int] = {}

    def fit(name: str, federation: Federation, *, progress: Callable[[Progress], None], **how: Any) -> Representation:
        def count(step: Progress) -> None:
            if step.figures:  # after each epoch
                epochs[step.stage] = epochs.get(step.stage, 0) + 1
            progress(step)

        return represent(name, federation, task.label(task.train), progress=count, **how)

    made, costs = experiment.train("tabvfl", federation, job.preset, job.seed, job.configured, tell, fit)
    return made, {"epochs run": epochs, **costs} | ({"bytes": None} if job.method == "ct" else {})


def judged(known_ND: Floats, new_ND: Floats, task: GuestTable, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Each learner's figures, in both ways; from latents of training rows and of test rows."""
    codes_n = _codes(task.labels)
    size = int(codes_n.max()) + 1
    known_n, new_n = codes_n[task.train], codes_n[task.test]
    clean = scores(known_ND, known_n, new_ND, new_n, size, seed)
    pool_ND, pool_n = np.concatenate([known_ND, new_ND]), np.concatenate([known_n, new_n])
    order = Streams(seed).child("pooled").numpy().permutation(len(pool_n))
    test, learnt = np.split(order, [round(POOLED_TEST * len(order))])
    pooled = scores(pool_ND[learnt], pool_n[learnt], pool_ND[test], pool_n[test], size, seed)
    return {"clean": clean, "paper": pooled}


def published(job: LatentsJob) -> float | None:
    """The authors' F1; they publish that of five guests."""
    return dict(zip(METHODS, PUBLISHED[job.table], strict=True))[job.method] if job.guests == 5 else None


# Learners


def _boosted(seed: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=100, tree_method="hist", n_jobs=1, random_state=seed)


LEARNERS = (LOGISTIC, TREE, FOREST, MLP, Classifier("XGBoost", _boosted), SVM)
SCORES = ("accuracy", "F1", "macro F1", "AUC")


def scores(x_nD: Floats, y_n: Ints, x_hD: Floats, y_h: Ints, size: int, seed: int) -> dict[str, dict[str, float]]:
    """Each learner's figures; labels are class numbers below ``size``."""
    by_learner = {}
    for learner in LEARNERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            judgement = judge(learner, x_nD, y_n, x_hD, size, seed)
        by_learner[learner.name] = prediction_scores(y_h, judgement.predicted_h, judgement.scores_hK)
    return by_learner


def mean_scores(each: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over learners of each figure."""
    return {name: float(np.mean([own[name] for own in each.values()])) for name in SCORES}


def prediction_scores(truth_h: Ints, predicted_h: Ints, scores_hK: Floats) -> dict[str, float]:
    """Predictions against the truth, over the classes that occur there."""
    classes = np.unique(truth_h)
    weighted, macro = (
        float(f1_score(truth_h, predicted_h, labels=classes, average=average, zero_division=0))
        for average in ("weighted", "macro")
    )
    area = macro_auc(truth_h, scores_hK[:, classes], classes)[0]
    return dict(zip(SCORES, (float(accuracy_score(truth_h, predicted_h)), weighted, macro, area), strict=True))


# What is shown


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    return results.means(rows, (*FIGURES, "seconds", "bytes"), ("seed", "predicted"), "seeds", gather=("epochs run",))


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each way to train."""
    ordered = results.in_order(rows, "table", "guests", "method", table=TABLES, method=list(METHODS))
    own = results.sectioned(ordered, HEADS, _cells, heading)
    heads = ("table", "rows", "method", *(head for name in COMPARED for head in (name, "published")))
    more = {
        "Ablations, pooled (table 6.1)": [line for row in ordered if (line := _ablation(row))],
        "Two guests less five, pooled, in % of five's (tables 6.2 to 6.4)": [
            line for row in ordered if (line := _two_less_five(row, ordered))
        ],
    }
    return [*own, *((title, heads, lines) for title, lines in more.items() if lines)]


def _ablation(row: Row) -> list[str] | None:
    """Figures of TabVFL, or of it without a phase, in five guests."""
    published = ABLATIONS[row["table"]].get(row["method"])
    if published is None or row["guests"] != 5:
        return None
    pairs = ((row[f"paper {name}"], value) for name, value in zip(COMPARED, published, strict=True))
    return [*_whose(row), *(f"{value:.3f}" for pair in pairs for value in pair)]


def _whose(row: Row) -> list[str]:
    return [row["table"], results.shown("rows", row["rows"]), row["method"]]


def _two_less_five(two: Row, rows: Sequence[Row]) -> list[str] | None:
    """How much more two guests' latents are worth than five's, for a row of two guests that has its like."""
    alike = ("table", "method", "preset", "rows", "epochs", "options", "version")
    five = [row for row in rows if row["guests"] == 5 and all(row[key] == two[key] for key in alike)]
    if two["guests"] != 2 or two["method"] == "ct" or not five:
        return None
    published = DIFFERENCES[two["table"]].get(two["method"], ())
    more = [100 * (two[f"paper {name}"] / five[0][f"paper {name}"] - 1) for name in COMPARED]
    beside = [f"{value:.2f}" for value in published] or [""] * len(COMPARED)
    return [*_whose(two), *(c for v, p in zip(more, beside, strict=True) for c in (f"{v:.2f}", p))]


def heading(row: Row) -> str:
    """How representations were trained."""
    options = ", ".join(f"{name} {value}" for name, value in json.loads(row["options"]).items())
    size = f"{row['rows'] or 'all'} rows, {row['epochs'] or 'its own'} epochs of each phase"
    return f"Preset {row['preset']}; {size}" + (f"; {options}" if options else "")


def _cells(row: Row) -> list[str]:
    guests = "" if row["method"] == "ct" else str(row["guests"])
    figures = [
        f"{row[n]:.3f}" + (results.deviation(row, n) if n.endswith(" F1") and "macro" not in n else "") for n in FIGURES
    ]
    paper = "" if row["published"] is None else f"{row['published']:.3f}"
    first = [row["table"], guests, row["method"], str(row["seeds"]), *figures, paper]
    return [*first, _span(row["epochs run"]), *results.costs(row)]


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Pooled figures by table and method, as figures 5 and 6.4 show them: a line for each number of guests."""
    found = results.in_order(means(rows), "method", "table", table=TABLES, method=list(METHODS))
    (((size, most), _),) = Counter((row["rows"], json.dumps(_told(row))) for row in found).most_common(1)
    usual = json.loads(most)

    def setting(row: Row) -> str:
        sized = [] if row["rows"] == size else [f"{results.shown('rows', row['rows'])} rows"]
        told = _told(row)
        others = [f"{name} {value}" for name, value in told.items() if usual.get(name) != value] or ["fewer options"]
        own = [] if told == usual else ["as published"] if told == {"preset": "paper"} else others
        return ", ".join([row["method"], *sized, *own])

    lines: list[list[drawings.Panel]] = []
    for guests in dict.fromkeys(row["guests"] for row in rows):
        own = [row for row in found if row["guests"] == guests]
        figures = {f"paper {name}": name for name in ("accuracy", "F1", "AUC")}
        made = drawings.panels(own, figures, lambda row: row["table"], setting, "", f"{guests} guests", zero=False)
        lines += drawings.wrapped(made)
    return drawings.beside(page, lines, "What learners make of latent vectors")


def _told(row: Row) -> dict[str, Any]:
    """The options of a training, its preset and its epochs among them."""
    epochs = {} if row["epochs"] is None else {"epochs": row["epochs"]}
    return {"preset": row["preset"], **epochs, **experiment.options_of(row)}


def _span(epochs: Sequence[Mapping[str, int]]) -> str:
    """Epochs of each phase: the fewest and the most over seeds."""
    counts = [sorted({own[phase] for own in epochs}) for phase in epochs[0]]
    return " + ".join(str(n[0]) if len(n) == 1 else f"{n[0]}-{n[-1]}" for n in counts)


EXPERIMENT = PaperExperiment(
    "latents", "What six learners make of latent vectors (TabVFL, figures 5 and 6.4, table 6.1)", LEGEND, jobs, measure,
    sections, means, kept=KEPT, published=PAPER, pictures=pictures, example="--guests 2 --guests 5 --out latents.md",
    figures=experiment.named(*FIGURES),
)  # fmt: skip
