"""How long preset "paper" of each algorithm takes to its published end, on the smallest table that it is published on.

Two short trainings are timed by the processor; what the longer one takes more, per step, is the pace. What comes before
and after steps cancels out; a training that is not timed goes first, since a process's first one takes longer. A step
is what an option counts: an iteration (of SiloFuse: one of the silos' autoencoders and one of the latents' model), or
an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from silosynth.papers import experiment, settings, silofuse_tables3_4, tabvfl_figure5, vflgan_table1
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Row, Section, Tell
from silosynth.simulation import training

HEADS = ("algorithm", "table", "steps", "a step is", "s a step", "hours", "command, to its end")
LEGEND = (
    "Hours of one thread of the machine below, from the pace of a few steps, timed by the processor. Where there is a "
    "GPU the same command uses it. VT-GAN's trains all nine partitions and the central GAN; hours are of one."
)


@dataclass(frozen=True)
class End:
    """A training to its published end.

    Attributes:
        steps: of the whole training.
        timed: steps of the two short ones.
        train: (steps) -> nothing.
    """

    table: str
    steps: int
    step: str
    timed: tuple[int, int]
    train: Callable[[int, Tell], object]
    command: str


def _silofuse(steps: int, tell: Tell) -> object:
    options = (("coder.steps", steps), ("latent.steps", steps))
    job = silofuse_tables3_4.NineTablesJob("diabetes_pima", "paper", 0, options=options)
    return silofuse_tables3_4.fitted(job, tell)


def _setting(name: str, table: str, setting: str, epochs: int, tell: Tell) -> object:
    """A setting of VT-GAN or GDTS, without looks along the training."""
    sized = experiment.load(name).sized("published", {"tables": (table,), "repeats": 1, "epochs": epochs})
    job = next(one for one in sized if setting in one.setting.labels.values())
    return settings.train(job, job.split, job.setting.divide(job.split, job.seed), training.fit, tell)


def _vflgan(epochs: int, tell: Tell) -> object:
    (job,) = vflgan_table1.jobs(algorithms=("vflgan",), preset="paper", own=True, epochs=epochs)
    return vflgan_table1.train(job, vflgan_table1.load(job.table), tell)


def _tabvfl(epochs: int, tell: Tell) -> object:
    (job,) = tabvfl_figure5.jobs(("intrusion_nsl_kdd_20pct",), ("tabvfl",), rows=50_000, epochs=epochs)
    return tabvfl_figure5.train(job, tabvfl_figure5.load(job.table, job.guests, job.rows, job.seed), tell)


ENDS: Mapping[str, End] = {
    "silofuse": End("diabetes_pima", 500_000, "an iteration of both", (50, 150), _silofuse,
                    "silofuse/table-3 --table diabetes_pima --preset paper"),
    "vtgan": End("loan", 300, "an epoch", (6, 18),
                 lambda n, tell: _setting("partitions", "loan", "D^2_0 G^0_2", n, tell),
                 "vtgan/figure-7 --table loan --rows 5000 --epochs 300"),
    "vflgan": End("wine_quality_red", 150, "an epoch", (1, 3), _vflgan,
                  "vflgan/table-1 --table wine_quality_red --algorithm vflgan --preset paper --own"),
    "gdts": End("adult", 500, "an epoch", (1, 2), lambda n, tell: _setting("copies", "adult", "fl", n, tell),
                "gdts/table-1 --size published --table adult --setting fl --repeats 1"),
    "tabvfl": End("intrusion_nsl_kdd_20pct", 300, "an epoch of both phases", (1, 2), _tabvfl,
                  "tabvfl/figure-5 --size published --table intrusion_nsl_kdd_20pct --method tabvfl --repeats 1"),
}  # fmt: skip


@dataclass(frozen=True)
class EndJob(PaperJob):
    """One algorithm."""

    algorithm: str


def jobs(
    algorithms: Annotated[Sequence[str], Ask(f"One of {', '.join(ENDS)}.", ("--algorithm", "-a"))] = tuple(ENDS),
) -> list[EndJob]:
    """A row for each algorithm.

    Raises:
        ConfigError: there is no such algorithm.
    """
    experiment.check_known("algorithm", algorithms, tuple(ENDS))
    return [EndJob(algorithm) for algorithm in algorithms]


def measure(job: EndJob, tell: Tell = lambda stage, share: None) -> Row:
    """Time both trainings."""
    end = ENDS[job.algorithm]
    end.train(end.timed[0], tell)  # warms up
    marks = [time.process_time()]
    for steps in end.timed:
        end.train(steps, tell)
        marks.append(time.process_time())
    start, middle, stop = marks
    pace = ((stop - middle) - (middle - start)) / (end.timed[1] - end.timed[0])
    told: Row = {"table": end.table, "steps": end.steps, "a step is": end.step, "timed": list(end.timed)}
    return {**job.identity, **told, "seconds a step": pace, "hours": end.steps * pace / 3600}


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each algorithm."""
    return [("", HEADS, [_cells(row) for row in rows])] if rows else []


def _cells(row: Row) -> list[str]:
    what = [row["algorithm"], row["table"], f"{row['steps']:_}".replace("_", " "), row["a step is"]]
    command = f"`silosynth papers run {ENDS[row['algorithm']].command}`"
    return [*what, f"{row['seconds a step']:.3g}", f"{row['hours']:.2g}", command]


EXPERIMENT = PaperExperiment(
    "ends", "Preset paper to its published end", LEGEND, jobs, measure, sections,
    small={"algorithms": ("vtgan",)}, kept=({},), example="--algorithm silofuse",
)  # fmt: skip
