"""VFLGAN's comparison (its paper's table 1, figure 7 and appendix A.6): five tables, two silos, five algorithms.

A table is trained on as a whole, without a hold-out, and as many rows are drawn; `silosynth.papers.vflgan_scores`
compares the two. The first half of the columns, the odd one among them, is one silo's, the rest the other's, as in the
public code (red and white wine 6 and 6, Adult 8 and 7; of Credit and HCV it shows none). Rows with missing values are
left out, as in its Adult. Categories are those that the data set's description declares; the paper has 16 in HCV and
does not say which. Categories that are integers become text of equal length, so that rare ones can be pooled.

With differential privacy epsilon and delta are those of section 5.3.2; algorithms that have no option ``dp`` are left
out. The least and the greatest number of each column then count as public, as in the public code's own descriptions of
tables, unless ``bounds`` = "found": no budget here covers their disclosure. The best of all epochs, by Fréchet
distance, is what the paper reports: preset "paper" does that where it is not private; noise covers no such choice.
With ``dp`` = "published" the noise is the paper's own, as much as its propositions ask for; it gives no differential
privacy, so that no epsilon stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from silosynth import catalog
from silosynth.core.errors import ConfigError
from silosynth.data import datasets
from silosynth.papers import curves, drawings, experiment, results
from silosynth.papers.experiment import Ask, Options, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.papers.tables import bounded
from silosynth.papers.vflgan_gs_wgan import calibrated
from silosynth.papers.vflgan_scores import ForestScore, Protocol, averaged, coded, figures, table_frechet
from silosynth.privacy.events import UNSOUND
from silosynth.privacy.statement import statement
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
PAPER = {  # table 1: total difference without and with differential privacy, of each of the `ALGORITHMS`
    "wine_quality_red": ((0.09, 0.13), (0.58, 0.74), (0.23, 0.13), (0.11, 0.19), (None, 0.87)),
    "wine_quality_white": ((0.04, 0.08), (0.28, 0.51), (0.04, 0.10), (0.12, 0.16), (None, 0.42)),
    "adult": ((0.17, 0.16), (1.47, 1.32), (0.19, 0.05), (0.38, 0.16), (None, 1.94)),
    "south_german_credit": ((0.60, 0.19), (0.92, 0.89), (0.51, 0.93), (0.79, 0.45), (None, 1.08)),
    "hcv_egypt": ((0.15, 0.22), (0.19, 0.22), (0.22, 0.26), (0.22, 0.14), (None, 0.44)),
}
PAPER_NUMBER = {  # table 5: the total difference where wines' quality is learnt as a number, without privacy
    "wine_quality_red": (0.42, 1.14, 0.28, 0.44),
    "wine_quality_white": (0.22, 0.86, 0.24, 0.18),
}
_WINE: Mapping[str, Any] = {
    "generator": (16, 32, 64), "critic": (16, 32), "shared": (32,), "noise": 10, "batch": 16, "epochs": 150,
    "penalty": 10.0, "tau": 0.2,
}  # fmt: skip
OWN: Mapping[str, Mapping[str, Any]] = {  # the public code's settings of tables, where it has them beside Adult's
    "wine_quality_red": _WINE,
    "wine_quality_white": {**_WINE, "batch": 64, "epochs": 400, "rate": 4e-4},
}
BETWEEN = 10_000  # between seeds of a generator's tables; rows of other seeds have others
LEGEND = (
    "Accuracy and F1 of a random forest trained and tested on real rows (TRTR), synthetic rows (TSTS), real and "
    "synthetic (TRTS), synthetic and real (TSTR). Total: the six absolute differences from TRTR, 0 is best. FD: "
    "Fréchet distance of encoded rows, 0 is best. Of several tables of a generator: means, and the total of these. "
    "Paper: its total, of one table."
)
HEADS = ("table", "algorithm", "epsilon", "seeds", "TRTR", "TSTS", "TRTS", "TSTR", "total", "paper", "FD", "s", "MB")
SCORES = (
    *(f"{which} {what}" for which in ("trtr", "tsts", "trts", "tstr") for what in ("accuracy", "f1")),
    "total difference", "FD",
)  # fmt: skip
AVERAGED = (*SCORES, "seconds", "side by side", "bytes")
COMPARED = ALGORITHMS[:4]  # without privacy, and along their trainings; DPLT has neither
SMALLER = tuple(name for name in DELTAS if name != "adult")
PRIVATE_KEPT: Mapping[str, Any] = {"tables": tuple(DELTAS), "draws": 5, "dp": "on"}
AS_PUBLISHED: Mapping[str, Any] = {
    "tables": ("wine_quality_red",), "algorithms": COMPARED, "preset": "paper", "own": True,
}  # fmt: skip
KEPT: Sequence[Mapping[str, Any]] = (
    {"tables": SMALLER, "draws": 5, "algorithms": COMPARED, "repeats": 3},
    {"tables": ("adult",), "draws": 5, "algorithms": COMPARED},
    {**PRIVATE_KEPT, "tables": ("adult",), "algorithms": ("vflgan", "vflgan-base"), "preset": "private", "repeats": 3},
    {**PRIVATE_KEPT, "tables": SMALLER, "algorithms": COMPARED, "preset": "private", "repeats": 3},
    {**PRIVATE_KEPT, "algorithms": ("dplt",), "repeats": 3},
    *({**AS_PUBLISHED, "dp": dp, "repeats": 3} for dp in ("off", "published")),
    {**AS_PUBLISHED, "algorithms": ("wgan-gp",), "dp": "published", "repeats": 6},
)  # fmt: skip
PRIVATE = {"select": "last", "numbers": "quantile"}  # what a private training needs, whatever the preset
MECHANISM = ("dp.mechanism", UNSOUND)  # the option of rows whose noise is the paper's
Privacy = Literal["off", "on", "both", "published"]
Bounds = Literal["public", "found"]  # of numbers, with differential privacy: known beforehand, or at its cost
Target = Literal["classes", "number"]  # how a target of integers is learnt: one-hot, or normalised (appendix A.6)
TableNames = Annotated[Sequence[str], Ask(f"One of {', '.join(DELTAS)}.", ("--table", "-t"))]


# Tables


@dataclass(frozen=True, eq=False)
class TwoSiloTable:
    """A table as two silos hold it.

    Attributes:
        kinds: of its columns, as they are declared to silos.
        categories: columns that are one-hot in the Fréchet distance.
    """

    frame: pd.DataFrame
    target: str
    silos: Mapping[str, list[str]]
    kinds: Mapping[str, Any]
    categories: frozenset[str]


def load(
    table: str, rows: int | None = None, seed: int = 0, target: Target = "classes", bounds: bool = False
) -> TwoSiloTable:
    """A table of the comparison; with ``bounds`` those of its numbers are declared. A target of regression is a number.

    Raises:
        UnavailableError: it is not on this machine and cannot be fetched.
    """
    frame, info = datasets.load(table, return_info=True)
    frame = frame.dropna().reset_index(drop=True)
    if rows is not None and rows < len(frame):
        chosen = np.sort(np.random.default_rng(seed).choice(len(frame), rows, replace=False))
        frame = frame.iloc[chosen].reset_index(drop=True)
    regression = info.task == "regression"
    number = (target == "number" or regression) and pd.api.types.is_integer_dtype(frame[info.target])
    kinds: dict[str, Any] = {**info.kinds, info.target: "integer" if number else "categorical"}
    categories = frozenset(column for column, kind in kinds.items() if kind == "categorical")
    if bounds:
        numbers = [str(column) for column in frame if column not in categories]
        kinds |= {column: bounded(frame[column], kinds.get(column)) for column in numbers}
    words = {column: _text(frame[column]) for column in categories if frame[column].dtype.kind in "iu"}
    columns = list(frame.columns)
    half = -(-len(columns) // 2)
    silos = {"first": columns[:half], "second": columns[half:]}
    return TwoSiloTable(frame.assign(**words), info.target, silos, kinds, categories)


def _text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Digits, padded so that their order is that of the numbers."""
    words = values.astype(str)
    return words.str.zfill(int(words.str.len().max()))


# Rows


@dataclass(frozen=True)
class TotalDifferenceJob(PaperJob):
    """One row that is to be computed.

    Attributes:
        epsilon: 0 for no differential privacy.
        rows: of the table, drawn at random; None for all.
        epochs: None for those of the preset.
        options: besides; those that the algorithm does not have are left out. With "dp.mechanism" noise is the paper's.
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

    unidentified: ClassVar[tuple[str, ...]] = ("curve",)

    @property
    def identity(self) -> Row:
        """Everything that decides the figures, the preset's present options among it."""
        return {**super().identity, "settings": self.settings}

    @property
    def settings(self) -> str:
        """Options that differ from the defaults of their class, as JSON: presets change, and keep their name."""
        config = catalog.algorithm(self.algorithm).configure(self.preset, algorithm_options(self))
        plain = asdict(type(config)())
        return json.dumps({name: v for name, v in asdict(config).items() if v != plain[name]}, sort_keys=True)

    @property
    def title(self) -> str:
        """What progress calls it."""
        private = [f"epsilon {self.epsilon:g}"] if self.epsilon else []
        return " · ".join([self.table, self.algorithm, *private, f"seed {self.seed}"])


def jobs(
    tables: TableNames = ("wine_quality_red",),
    algorithms: Annotated[Sequence[str], Ask("One of those compared.", ("--algorithm", "-a"))] = ALGORITHMS,
    dp: Annotated[Privacy, Ask("Differential privacy: off, on, both; published: the paper's noise, none.")] = "off",
    epsilon: Annotated[float, Ask("Of differential privacy; delta is the paper's.")] = EPSILON,
    target: Annotated[Target, Ask("Learn a target of integers as classes, or as a number (appendix A.6).")] = "classes",
    preset: Annotated[str, Ask("Of each algorithm.")] = "balanced",
    rows: Annotated[int | None, Ask("Rows of each table; all if not given.", least=20)] = None,
    epochs: Annotated[int | None, Ask("Of each training; the preset's if not given.", least=1)] = None,
    draws: Annotated[int, Ask("Tables of each generator, averaged over.", least=1)] = 1,
    protocol: Annotated[Protocol, Ask("How forests' test rows are parted: splits or folds.")] = "splits",
    bounds: Annotated[Bounds, Ask("With privacy, bounds of numbers are public, or found at its cost.")] = "public",
    options: Options = (),
    own: Annotated[bool, Ask("Tables have their settings of the public code, where there are any.")] = False,
    curve: Annotated[bool, Ask("Take the Fréchet distance along each training.")] = False,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[TotalDifferenceJob]:
    """All rows, table by table and seed by seed.

    Raises:
        ConfigError: there is no such table, algorithm or preset, no table at all, or a size is not positive.
    """
    experiment.check_known("table", tables, tuple(DELTAS))
    experiment.check_known("algorithm", algorithms, ALGORITHMS)
    experiment.check_positive(rows=rows, epochs=epochs, draws=draws, repeats=repeats)
    if not epsilon > 0:
        raise ConfigError("Epsilon is above 0", epsilon)
    for algorithm in algorithms:
        if preset not in catalog.algorithm(algorithm).presets:
            raise ConfigError(f"Algorithm {algorithm!r} has no such preset", preset, "Compare it by itself.")
    if dp == "published":
        options = (*options, MECHANISM)
    return [
        TotalDifferenceJob(
            table, algorithm, spent, target, preset, rows, epochs, seed + repeat, protocol, bounds,
            with_own(table, epochs, options) if own else options, draws, curve,
        )
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for algorithm in dict.fromkeys(algorithms)
        for spent in {"off": (0.0,), "both": (0.0, epsilon)}.get(dp, (epsilon,))
        if not spent or _private(algorithm, preset, dp)
    ]  # fmt: skip


def _private(algorithm: str, preset: str, dp: Privacy) -> bool:
    """Whether the algorithm can be trained so; the paper's noise is for critics."""
    config = catalog.algorithm(algorithm).configure(preset)
    return hasattr(config, "unsound" if dp == "published" else "dp")


def with_own(table: str, epochs: int | None, options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """These options over those that the table has `OWN`; so are ``epochs``."""
    own = {name: value for name, value in OWN.get(table, {}).items() if name != "epochs" or epochs is None}
    return tuple({**own, **dict(options)}.items())


def measure(job: TotalDifferenceJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, draw as many rows, and compare."""
    task = load(job.table, job.rows, job.seed, job.target, bool(job.epsilon) and job.bounds == "public")
    model, costs = train(job, task, tell)
    drawn = (model.sample(len(task.frame), seed=job.seed + BETWEEN * i) for i in range(job.draws))
    scores = list(_figures(job, task, drawn))
    return {
        **job.identity,
        **averaged(scores),
        "totals": [one["total difference"] for one in scores],
        "paper": published(job),
        **costs,
        "privacy": statement(model.ledger, assume_secret=True)["summary"] if job.epsilon else "",
        "curve": [],
        **(model.extra if isinstance(model, curves.Watched) else {}),
    }


def published(job: TotalDifferenceJob) -> float | None:
    """The paper's total, of table 1 or (where the target is a number) table 5; None where it has none."""
    place = ALGORITHMS.index(job.algorithm)
    if job.epsilon not in (0.0, EPSILON):
        return None
    if job.target == "number" and job.table in PAPER_NUMBER:  # elsewhere targets are classes anyway
        found = PAPER_NUMBER[job.table]
        return None if job.epsilon or place >= len(found) else found[place]
    return PAPER[job.table][place][job.epsilon > 0]


def _figures(job: TotalDifferenceJob, task: TwoSiloTable, drawn: Iterable[pd.DataFrame]) -> Iterator[dict[str, float]]:
    real = None  # what real rows say of real ones is the same beside every table
    for table in drawn:
        scores = figures(task.frame, table, task.target, task.categories, job.protocol, real)
        real = ForestScore(scores["trtr accuracy"], scores["trtr f1"])
        yield scores


def train(job: TotalDifferenceJob, task: TwoSiloTable, tell: Tell = lambda stage, share: None) -> tuple[Any, Row]:
    """The model (with a curve: and what was taken along its training), and what its training took."""
    federation = simulate(task.frame, task.silos, task.kinds)
    watched = partial(curves.fit, real=task.frame, compare=partial(_distance, task))
    fit = watched if job.curve and job.algorithm != "dplt" else None  # which is learnt in four steps
    options = with_published_noise(job, algorithm_options(job), len(task.frame))
    return experiment.train(job.algorithm, federation, job.preset, job.seed, options, tell, fit)


def algorithm_options(job: TotalDifferenceJob) -> dict[str, Any]:
    """The algorithm's options: epochs count as they are, whatever floor a preset has."""
    config = catalog.algorithm(job.algorithm).configure(job.preset)
    options: dict[str, Any] = {
        name: value for name, value in job.options if hasattr(config, name.split(".")[0]) and name != MECHANISM[0]
    }
    if job.epochs is not None and hasattr(config, "epochs"):
        options = {"epochs": job.epochs, "least_rounds": 0} | options
    if MECHANISM in job.options:
        options["dp"] = {"mechanism": MECHANISM[1]}
    elif job.epsilon:
        options["dp"] = {"epsilon": job.epsilon, "delta": DELTAS[job.table]}
        options |= {name: value for name, value in PRIVATE.items() if hasattr(config, name) and name not in options}
    return options


def with_published_noise(job: TotalDifferenceJob, options: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The options with as much of the paper's noise as its propositions ask for; the others have none of it."""
    if MECHANISM not in job.options:
        return dict(options)
    config = catalog.algorithm(job.algorithm).configure(job.preset, options)
    steps = config.rounds(rows) * config.critic_steps
    noise = calibrated(rows, min(config.batch, rows), steps, job.epsilon, DELTAS[job.table])
    return {**options, "dp": {**options["dp"], "noise": noise}}


def _distance(task: TwoSiloTable, real: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, float | None]:
    return {"FD": table_frechet(*coded(real, drawn, task.categories))}


# What is shown


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds, of rows that today's presets would give; those of what a preset was before stay in the file."""
    current = [row for row in rows if row["settings"] == _settings(row)]
    return results.means(current, AVERAGED, ("seed", "privacy"), "seeds", gather=("totals",))


def _settings(row: Row) -> str | None:
    """Of a row's preset and options, as they are now; None if there are none such any longer."""
    names = [name for name in TotalDifferenceJob.__dataclass_fields__ if name in row and name != "options"]
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(row["options"]).items()}
    try:
        return TotalDifferenceJob(**{n: row[n] for n in names if n != "curve"}, options=tuple(options.items())).settings
    except ConfigError:
        return None


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each way to train and to judge."""
    ordered = results.in_order(rows, "table", "epsilon", "algorithm", table=list(DELTAS), algorithm=ALGORITHMS)
    return results.sectioned(ordered, HEADS, cells, _heading)


def _heading(row: Row) -> str:
    more = "" if row["options"] == "{}" else f", {row['options']}"
    size = f"{row['rows'] or 'all'} rows, {row['epochs'] or 'its own'} epochs, {row['protocol']}"
    judged = f"target as {row['target']}; bounds {row['bounds']}; tables drawn of each generator: {row['draws']}"
    return f"Preset {row['preset']}{more}; {size}; {judged}"


def cells(row: Row) -> list[str]:
    """Accuracy, then F1; in brackets mean and deviation of the totals of single tables."""
    pairs = [f"{row[f'{name} accuracy']:.2f} {row[f'{name} f1']:.2f}" for name in ("trtr", "tsts", "trts", "tstr")]
    first = [row["table"], row["algorithm"], _privacy(row).removeprefix("epsilon "), str(row["seeds"])]
    totals = [total for own in row["totals"] for total in own]
    single = f" ({np.mean(totals):.2f} ± {np.std(totals):.2f})" if row["draws"] > 1 else ""
    paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
    return [*first, *pairs, f"{row['total difference']:.2f}{single}", paper, f"{row['FD']:.3f}", *results.costs(row)]


def _privacy(row: Row) -> str:
    """No epsilon for the paper's noise, which earns none."""
    published = MECHANISM[0] in json.loads(row["options"])
    return "published noise" if published else f"epsilon {row['epsilon']:g}" if row["epsilon"] else ""


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Fréchet distances along trainings, a panel for each table, with and without privacy; nothing without curves."""
    found: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        if row.get("curve"):
            own = "" if set(json.loads(row["options"])) <= {MECHANISM[0]} else ", its own settings"
            sizes = "".join(f", {row[size]} {size}" for size in ("rows", "epochs") if row[size])
            title = f"{row['table']}{own}{sizes}" + (f", {_privacy(row)}" if row["epsilon"] else "")
            found.setdefault(title, {}).setdefault(f"{row['algorithm']}, {row['preset']}", []).append(row["curve"])
    every = [
        drawings.Panel(title, "epoch", {name: drawings.along(own, "round", "FD") for name, own in settings.items()})
        for title, settings in found.items()
    ]
    return drawings.beside(page, drawings.wrapped(every), "Fréchet distance along trainings, means over seeds")


EXPERIMENT = PaperExperiment(
    "total-difference", "Total difference and Fréchet distance (VFLGAN, table 1)", LEGEND, jobs, measure, sections,
    means, small={"rows": 300, "epochs": 5, "dp": "both"},
    kept=KEPT,
    published={"tables": tuple(DELTAS), "dp": "both", "preset": "paper", "own": True}, pictures=pictures,
    example="--table adult --dp both",
    figures=experiment.named(*SCORES),
)  # fmt: skip
NUMBER: Mapping[str, Any] = {
    "tables": tuple(PAPER_NUMBER), "algorithms": COMPARED, "target": "number", "preset": "paper", "curve": True,
    "own": True,
}  # fmt: skip
AS_NUMBER = replace(
    EXPERIMENT, name="quality-as-number", title="Quality of wines learnt as a number (VFLGAN, table 5, figure 13)",
    small={**NUMBER, "tables": ("wine_quality_red",), "rows": 300, "epochs": 5},
    kept=({**NUMBER, "repeats": 3}, {**NUMBER, "tables": ("wine_quality_red",), "own": False, "repeats": 3}),
    published=NUMBER, example="--table wine_quality_red",
)  # fmt: skip
ALONG: Mapping[str, Any] = {"algorithms": COMPARED, "preset": "paper", "curve": True}
DISTANCES = replace(
    EXPERIMENT, name="distances", title="Fréchet distance along trainings (VFLGAN, figure 7)",
    small={**ALONG, "rows": 300, "epochs": 5, "dp": "both"},
    kept=tuple({**ALONG, "tables": ("wine_quality_red",), "dp": dp, "repeats": 3} for dp in ("off", "on")),
    published={**ALONG, "tables": tuple(DELTAS), "dp": "both", "own": True}, example="--table south_german_credit",
)  # fmt: skip


# What perfect generators would score


@dataclass(frozen=True)
class FloorJob(PaperJob):
    """Totals of ``count`` pairs of tables: halves of the real one, or two of one generator."""

    table: str
    kind: str
    count: int
    preset: str
    seed: int = 0


def floor_jobs(
    tables: TableNames = ("wine_quality_red",),
    kind: Annotated[Literal["halves", "perfect"], Ask("Halves of the real table, or tables of one VFLGAN.")] = "halves",
    count: Annotated[int, Ask("Pairs of tables.", least=1)] = 4,
    preset: Annotated[str, Ask("Of the generator.")] = "balanced",
) -> list[FloorJob]:
    """One row for each table."""
    experiment.check_known("table", tables, tuple(DELTAS))
    experiment.check_positive(count=count)
    return [FloorJob(table, kind, count, preset) for table in tables]


def measure_floor(job: FloorJob, tell: Tell = lambda stage, share: None) -> Row:
    """The total differences of all pairs."""
    task, pairs = load(job.table), list[Sequence[pd.DataFrame]]()
    if job.kind == "perfect":
        model, _ = train(TotalDifferenceJob(job.table, "vflgan", preset=job.preset), task, tell)
        pairs = [[model.sample(len(task.frame), seed=2 * i + side) for side in (0, 1)] for i in range(job.count)]
    for seed in range(job.count) if job.kind == "halves" else ():
        order = np.random.default_rng(seed).permutation(len(task.frame))
        pairs.append([task.frame.iloc[part].reset_index(drop=True) for part in np.array_split(order, 2)])
    scores = [figures(one, other, task.target, task.categories) for one, other in pairs]
    return {**job.identity, "totals": [score["total difference"] for score in scores]}


def floor_sections(rows: Sequence[Row]) -> list[Section]:
    """All totals, and their mean."""
    lines = [
        [row["table"], row["kind"], row["preset"], ", ".join(f"{total:.3f}" for total in row["totals"]),
         f"{np.mean(row['totals']):.3f}"]
        for row in rows
    ]  # fmt: skip
    return [("", ("table", "kind", "preset", "totals", "mean"), lines)]


FLOOR = PaperExperiment(
    "total-difference-floor", "Total differences between equally good tables (beside VFLGAN's table 1)",
    "What halves of the real table, or two tables of one generator, score: no generator can be expected to score less.",
    floor_jobs, measure_floor, floor_sections, small={"count": 2},
    kept=({"tables": SMALLER},
          {"tables": ("wine_quality_white",), "kind": "perfect", "count": 8, "preset": "fast"}),
    example="--table wine_quality_white --kind perfect --preset fast",
    figures=lambda row: {f"total {number}": total for number, total in enumerate(row["totals"])},
)  # fmt: skip
