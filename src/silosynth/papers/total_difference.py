"""VFLGAN's comparison (its paper's table 1, figure 7 and appendix A.6): five tables, two silos, five algorithms.

A table is trained on as a whole, without a hold-out, and as many rows are drawn; `silosynth.papers.vflgan_figures`
compares the two. How tables are prepared: `five_tables`.

With differential privacy epsilon and delta are those of section 5.3.2; algorithms that have no option ``dp`` are left
out. The least and the greatest number of each column then count as public, as in the public code's own descriptions of
tables, unless ``bounds`` = "found": no budget here covers their disclosure. The best of all epochs, by Fréchet
distance, is what the paper reports: preset "paper" does that where it is not private; noise covers no such choice.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import pandas as pd

from silosynth import catalog
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.version import VERSION
from silosynth.evaluation.coding import code_tables
from silosynth.papers import watching
from silosynth.papers.common import TRAINING, Row, Tell, in_turn
from silosynth.papers.five_tables import Target, Task, load
from silosynth.papers.results import shown, stamp
from silosynth.papers.vflgan_figures import Judged, Protocol, averaged, figures, table_frechet
from silosynth.privacy.statement import statement
from silosynth.simulation import training as api
from silosynth.simulation.federation import simulate

ALGORITHMS = ("wgan-gp", "vertigan", "vflgan-base", "vflgan", "dplt")
DELTAS = {
    "wine_quality_red": 5e-4,
    "wine_quality_white": 2e-4,
    "adult": 1e-5,
    "south_german_credit": 1e-3,
    "hcv_egypt": 8e-4,
}  # section 5.3.2
EPSILON = 10.0
PAPER = {  # table 1: total difference without and with differential privacy
    "wine_quality_red": {
        "wgan-gp": (0.09, 0.13), "vertigan": (0.58, 0.74), "vflgan-base": (0.23, 0.13), "vflgan": (0.11, 0.19),
        "dplt": (None, 0.87),
    },
    "wine_quality_white": {
        "wgan-gp": (0.04, 0.08), "vertigan": (0.28, 0.51), "vflgan-base": (0.04, 0.10), "vflgan": (0.12, 0.16),
        "dplt": (None, 0.42),
    },
    "adult": {
        "wgan-gp": (0.17, 0.16), "vertigan": (1.47, 1.32), "vflgan-base": (0.19, 0.05), "vflgan": (0.38, 0.16),
        "dplt": (None, 1.94),
    },
    "south_german_credit": {
        "wgan-gp": (0.60, 0.19), "vertigan": (0.92, 0.89), "vflgan-base": (0.51, 0.93), "vflgan": (0.79, 0.45),
        "dplt": (None, 1.08),
    },
    "hcv_egypt": {
        "wgan-gp": (0.15, 0.22), "vertigan": (0.19, 0.22), "vflgan-base": (0.22, 0.26), "vflgan": (0.22, 0.14),
        "dplt": (None, 0.44),
    },
}  # fmt: skip
BETWEEN = 10_000  # seeds of a generator's tables; rows of other seeds have others
FORM = "silosynth bench total-difference"
TITLE = "Total difference and Fréchet distance (VFLGAN, table 1)"
LEGEND = (
    "Accuracy and F1 of a random forest trained and tested on real rows (TRTR), synthetic rows (TSTS), real and "
    "synthetic (TRTS), synthetic and real (TSTR). Total: the six absolute differences from TRTR, 0 is best. FD: "
    "Fréchet distance of encoded rows, 0 is best. Of several tables of a generator: means, and the total of these. "
    "Paper: its total, of one table."
)
HEADS = ("table", "algorithm", "epsilon", "seed", "TRTR", "TSTS", "TRTS", "TSTR", "total", "paper", "FD", "s", "MB")
Privacy = Literal["off", "on", "both"]
Bounds = Literal["public", "found"]  # of numbers, with differential privacy: known beforehand, or at its cost


@dataclass(frozen=True)
class Job:
    """One row that is to be computed.

    Attributes:
        epsilon: 0 for no differential privacy.
        rows: of the table, drawn at random; None for all.
        epochs: None for those of the preset.
        options: besides; those that the algorithm does not have are left out.
        draws: tables that the trained generator makes; figures are means over them. The paper has one.
        curve: whether the Fréchet distance is taken along the training; not of DPLT, which has none.
    """

    table: str
    algorithm: str
    epsilon: float = 0.0
    target: Target = "classes"
    preset: str = "balanced"
    rows: int | None = None
    epochs: int | None = None
    seed: int = 0
    protocol: Protocol = "splits"
    bounds: Bounds = "public"
    options: tuple[tuple[str, Any], ...] = ()
    draws: int = 1
    curve: bool = False

    @property
    def identity(self) -> Row:
        """Everything that decides the figures: a row with the same identity is not computed again."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("options", "curve")}
        more = json.dumps(dict(self.options), sort_keys=True)
        return {**told, "options": more, "settings": self.settings, "version": VERSION}

    @property
    def settings(self) -> str:
        """Options that differ from the defaults of their class, as JSON: presets change, and keep their name."""
        config = catalog.algorithm(self.algorithm).configure(self.preset, options(self))
        plain = asdict(type(config)())
        return json.dumps({name: v for name, v in asdict(config).items() if v != plain[name]}, sort_keys=True)

    @property
    def title(self) -> str:
        """For people who wait for it."""
        private = [f"epsilon {self.epsilon:g}"] if self.epsilon else []
        return " · ".join([self.table, self.algorithm, *private, f"seed {self.seed}"])


def jobs(
    tables: Sequence[str], algorithms: Sequence[str] = ALGORITHMS, dp: Privacy = "off", repeats: int = 1,
    epsilon: float = EPSILON, **each: Any,
) -> list[Job]:  # fmt: skip
    """All rows, table by table and seed by seed; ``each`` is what they have in common.

    Raises:
        ConfigError: there is no such table, algorithm or preset, no table at all, or a size is not positive.
    """
    for name, known in (("table", DELTAS), ("algorithm", ALGORITHMS)):
        for value in tables if name == "table" else algorithms:
            if value not in known:
                raise ConfigError(f"There is no such {name} in this comparison", value, nearest(value, known))
    if not tables or not algorithms or min(repeats, each.get("draws", 1)) < 1 or not epsilon > 0:
        raise ConfigError(
            "A comparison has a table, an algorithm, a repeat, a draw and an epsilon above 0",
            (tuple(tables), tuple(algorithms), repeats, each.get("draws", 1), epsilon),
        )
    first, preset = each.pop("seed", 0), each.get("preset", Job.preset)
    for algorithm in algorithms:
        if preset not in catalog.algorithm(algorithm).presets:
            raise ConfigError(f"Algorithm {algorithm!r} has no such preset", preset, "Compare it by itself.")
    return [
        Job(table, algorithm, spent, seed=first + repeat, **each)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for algorithm in dict.fromkeys(algorithms)
        for spent in {"off": (0.0,), "on": (epsilon,), "both": (0.0, epsilon)}[dp]
        if not spent or hasattr(catalog.algorithm(algorithm).configure(preset), "dp")
    ]


def measure(job: Job, tell: Tell = lambda stage, share: None) -> Row:
    """Train, draw as many rows, and compare."""
    task = load(job.table, job.rows, job.seed, job.target, bool(job.epsilon) and job.bounds == "public")
    start = time.perf_counter()
    model = train(job, task, lambda stage, share: tell(stage, TRAINING * share))
    seconds, sent = time.perf_counter() - start, sum(record["bytes"] for record in model.ledger)
    tell("evaluating", TRAINING)
    drawn = (model.sample(len(task.frame), seed=job.seed + BETWEEN * i) for i in range(job.draws))
    found = list(_figures(job, task, drawn))
    published = PAPER[job.table][job.algorithm][job.epsilon > 0]
    told = statement(model.ledger)["summary"] if job.epsilon else ""
    return {
        **job.identity,
        **averaged(found),
        "totals": [one["total difference"] for one in found],
        "paper": published if job.epsilon in (0.0, EPSILON) else None,
        "seconds": seconds,
        "bytes": None if catalog.algorithm(job.algorithm).central else sent,
        "privacy": told,
        "curve": [],
        **(model.beside if isinstance(model, watching.Watched) else {}),
    }


def _figures(job: Job, task: Task, drawn: Iterable[pd.DataFrame]) -> Iterator[dict[str, float]]:
    real = None  # what real rows say of real ones is the same beside every table
    for table in drawn:
        found = figures(task.frame, table, task.target, task.categories, job.protocol, real)
        real = Judged(found["trtr accuracy"], found["trtr f1"])
        yield found


def train(job: Job, task: Task, tell: Tell) -> Any:
    """The model, or (with a curve) what was seen of its training. What a stopped training leaves goes with it."""
    entry = catalog.algorithm(job.algorithm)
    federation = simulate(task.frame, task.silos, task.kinds)
    federation = federation.central() if entry.central else federation
    watched = partial(watching.fit, real=task.frame, compare=partial(_distance, task))
    usual = watched if job.curve and job.algorithm != "dplt" else api.fit  # which is learnt in four steps
    with tempfile.TemporaryDirectory(prefix="silosynth-bench-") as folder:

        def told(progress: Progress) -> None:
            tell(progress.stage, progress.done / max(1, progress.total))

        return usual(
            job.algorithm, federation, preset=job.preset, seed=job.seed, options=options(job), folder=folder,
            progress=told,
        )  # fmt: skip


def options(job: Job) -> dict[str, Any]:
    """The algorithm's options: epochs count as they are, whatever floor a preset has."""
    config = catalog.algorithm(job.algorithm).configure(job.preset)
    found: dict[str, Any] = {name: value for name, value in job.options if hasattr(config, name.split(".")[0])}
    if job.epochs is not None and hasattr(config, "epochs"):
        found = {"epochs": job.epochs, "least_rounds": 0} | found
    if job.epsilon:
        found["dp"] = {"epsilon": job.epsilon, "delta": DELTAS[job.table]}
        found |= {name: value for name, value in PRIVATE.items() if hasattr(config, name) and name not in found}
    return found


PRIVATE = {"select": "last", "numbers": "quantile"}  # what a private training needs, whatever the preset


def _distance(task: Task, real: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, float | None]:
    kinds: dict[Any, Any] = {c: "category" if c in task.categories else "float64" for c in real}
    coded = code_tables({"training": real.astype(kinds), "synthetic": drawn.astype(kinds)})
    return {"FD": table_frechet(coded["training"], coded["synthetic"])}


each = partial(in_turn, measure)
"""The rows of jobs, one after the other."""


# Rows as people see them.


def cells(row: Row) -> list[str]:
    """A row as people see it; accuracy, then F1."""
    pairs = [f"{row[f'{name} accuracy']:.2f} {row[f'{name} f1']:.2f}" for name in ("trtr", "tsts", "trts", "tstr")]
    first = [row["table"], row["algorithm"], f"{row['epsilon']:g}" if row["epsilon"] else "", str(row["seed"])]
    paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
    costs = [shown(name, row[name]) for name in ("seconds", "bytes")]
    costs[1] = costs[1] if row["bytes"] is not None else ""
    return [*first, *pairs, f"{row['total difference']:.2f}", paper, f"{row['FD']:.3f}", *costs]


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table, sorted, with a stamp."""
    place = {name: i for i, name in enumerate((*DELTAS, *ALGORITHMS))}
    ordered = sorted(rows, key=lambda r: (place[r["table"]], r["epsilon"], place[r["algorithm"]], r["seed"]))
    lines = [list(HEADS), ["---"] * len(HEADS), *map(cells, ordered)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    said = ", ".join(f"{key} {value}" for key, value in stamp().items())
    return f"# {TITLE}\n\n{LEGEND}\n\n{table}\n\n{said}\n"
