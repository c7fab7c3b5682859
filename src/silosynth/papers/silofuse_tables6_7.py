"""SiloFuse's tables VI and VII: privacy as one score, by model, and by the number of denoising steps.

The score is 100 less the mean risk, in %, of three attacks on the synthetic table: singling out by predicates of
several columns, linking the first half of the columns with the second, and inferring each column from all others (the
mean). A risk is what an attacker learns about training rows beyond what it learns about others, as in
`silosynth.attacks.questions`. The paper names its attacks' frameworks, not their settings, nor how risks become scores.

Table VII varies the steps of the sampler. It does not name its model; at 25 steps it has table VI's scores of
LatentDiff, beside which it stands here. Preset "paper" has the Gaussian path, whose steps these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from silosynth.attacks import questions
from silosynth.papers import experiment, results, silofuse_tables3_4
from silosynth.papers.experiment import Ask, PaperExperiment, Repeats, Row, Section, Seed, Tell
from silosynth.papers.silofuse_tables3_4 import METHODS, READINGS, TABLES, NineTablesJob, Preset, TableNames, published

COMPARED = ("silofuse", "latentdiff", "tabddpm")
_PRIVACY = {  # table VI: means and deviations, tables in the order of the paper
    "silofuse": "55.9±0.46 92.1±0.60 93.2±4.97 92.3±1.84 65.1±2.25 78.1±2.40 56.4±1.58 70.5±2.46 79.3±5.35",
    "latentdiff": "50.3±0.58 73.7±2.29 88.7±2.82 78.1±4.18 55.7±1.81 62.4±1.32 51.9±1.46 70.5±2.89 64.8±2.36",
    "tabddpm": "48.2±0.48 70.1±2.61 76.1±2.19 86.7±0.24 59.1±3.85 46.2±0.69 56.7±1.60 92.1±2.62 57.9±1.87",
}
_BY_STEPS = {  # table VII
    "abalone": {2: "58.15 ± 0.90", 5: "51.6 ± 0.41", 25: "50.3 ± 0.58"},
    "heloc": {2: "66.1 ± 1.15", 5: "53.4 ± 0.56", 25: "51.9 ± 1.46"},
}
STEPS = "latent.sample_steps"
PARTS = {"singling out": "singling_out_multivariate", "linking": "linkability", "inference": "inference_"}
HEADS = (
    "table", "model", "reading", "steps", "seeds", "privacy", "published", *(f"{part}, risk %" for part in PARTS),
    "fit s",
)  # fmt: skip


def jobs(
    tables: TableNames = TABLES,
    methods: Annotated[Sequence[str], Ask(f"One of {', '.join(COMPARED)}.", ("--method", "-m"))] = COMPARED,
    preset: Preset = "balanced",
    steps: Annotated[Sequence[int], Ask("Of denoising; the preset's if not given.", ("--steps",))] = (),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[NineTablesJob]:
    """One row for each table, model, number of steps and seed.

    Raises:
        ConfigError: there is no such table or model, or a number is not positive.
    """
    experiment.check_known("model", methods, COMPARED)
    experiment.check_positive(steps=min(steps, default=None))
    sized: list[tuple[tuple[str, int], ...]] = [((STEPS, count),) for count in steps] or [()]
    return [
        replace(job, options=options)
        for job in silofuse_tables3_4.jobs(tables, methods, preset, repeats=repeats, seed=seed)
        for options in sized
    ]


def measure(job: NineTablesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, attack them."""
    real, holdout, _, model, costs = silofuse_tables3_4.fitted(job, tell)
    findings = questions.ask(real, holdout, model.sample(len(real), seed=job.seed), job.seed)
    risks = {
        part: float(np.mean([one.score.value for one in findings if one.score.name.startswith(prefix)]))
        for part, prefix in PARTS.items()
    }
    return {**job.identity, "privacy": 100 - float(np.mean(list(risks.values()))), **risks, "fit s": costs["seconds"]}


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    return results.means(rows, ("privacy", *PARTS, "fit s"), count="seeds")


def sections(rows: Sequence[Row]) -> list[Section]:
    """One, tables in order and models below each other."""
    counted = [{**row, "steps": experiment.options_of(row).get(STEPS, 0)} for row in rows]
    ordered = results.in_order(counted, "table", "method", "preset", "steps", table=TABLES, method=METHODS)
    return [("", HEADS, [_cells(row) for row in ordered])] if rows else []


def _cells(row: Row) -> list[str]:
    steps = row["steps"] or None
    beside = published(_PRIVACY, row["table"], row["method"])
    if steps is not None:
        beside = _BY_STEPS.get(row["table"], {}).get(steps, "") if row["method"] == "latentdiff" else ""
    first = [row["table"], row["method"], READINGS.get(row["preset"], row["preset"]), results.short(steps)]
    figures = [f"{row[name]:.1f}{results.deviation(row, name, 1)}" for name in PARTS]
    score = f"{row['privacy']:.1f}{results.deviation(row, 'privacy', 1)}"
    return [*first, str(row["seeds"]), score, beside, *figures, f"{row['fit s']:.0f}"]


LEGEND = (
    "Privacy: 100 less the mean risk of three attacks; 100 is best. A risk is what is learnt of training rows beyond "
    "what is learnt of others, in %. Published: means and standard deviations, of how many trials is not said, by "
    "attacks whose settings are not published."
)
EXPERIMENT = PaperExperiment(
    "privacy", "Privacy as one score (SiloFuse, table VI)", LEGEND, jobs, measure, sections, means,
    small={"tables": ("diabetes_pima",), "preset": "fast"},
    kept=({"preset": "fast", "repeats": 3},),
    published={"preset": "paper", "repeats": 5}, example="--table abalone --preset fast --method silofuse",
    figures=experiment.named("privacy", "singling out", "linking", "inference"),
)  # fmt: skip
TABLE_7 = {"tables": ("abalone", "heloc"), "methods": ("latentdiff", "silofuse"), "steps": (2, 5, 25)}
BY_STEPS = PaperExperiment(
    "privacy-by-steps", "Privacy by the number of denoising steps (SiloFuse, table VII)", LEGEND, jobs, measure,
    sections, means,
    small={"tables": ("abalone",), "methods": ("latentdiff",), "preset": "fast", "steps": (2, 25)},
    kept=({**TABLE_7, "methods": ("latentdiff",), "preset": "fast", "repeats": 3},),
    published={**TABLE_7, "preset": "paper", "repeats": 5},
    example="--table abalone --steps 2 --steps 5 --steps 25",
    figures=experiment.named("privacy", "singling out", "linking", "inference"),
)  # fmt: skip
