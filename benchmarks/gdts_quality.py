"""GDTS's two experiments at bench size: a full copy in every silo, and a silo that repeats one row (tables I and II).

    python benchmarks/gdts_quality.py                             # Adult 40k/8k and NSL-KDD 20k/5k, 20 epochs, seed 0
    python benchmarks/gdts_quality.py --tables adult --experiments odd --settings fl md --seeds 0 1 2
    python benchmarks/gdts_quality.py --gan paper --epochs 500    # as the paper trains its GANs

The settings, the figures and both counts of time are those of `silosynth bench copies` and `silosynth bench odd`; so
are the epochs of each setting (`silosynth.papers.horizontal`). All GANs, the central one among them, are trained as the
preset "balanced" does: five critic steps, each row judged by itself, rate 5e-4. So they need far fewer epochs than as
the paper trains them, which ``--gan paper`` does. Each result replaces its own row of what was kept before. Beside the
rows: means and standard deviations over seeds, and a picture of the figures along the training.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import common
import numpy as np

import silosynth as ss
from silosynth.papers import copies, curves, odd, results
from silosynth.papers.common import Experiment, Job, Setting, Sizes, jobs, measure
from silosynth.papers.tables import Split

GANS: dict[str, dict[str, Any]] = {"balanced": {"critic_steps": 5, "pac": 1, "rake": True}, "paper": {}}
RATES = {"balanced": 5e-4, "paper": 2e-4}
OURS = {"diffusion.latent.width": 256, "diffusion.latent.batch": 512}  # half as wide as "best"
TABLES = {"adult": (40_000, 8_000), "intrusion_nsl_kdd_20pct": (20_000, 5_000)}  # training rows, held out
EXPERIMENTS = {e.name: e for e in (copies.EXPERIMENT, odd.EXPERIMENT)}
SETTINGS = list(dict.fromkeys(str(s.labels["setting"]) for e in EXPERIMENTS.values() for s in e.settings))
HIDDEN = ("scores", "skipped", "curve", "version", "machine")  # in the JSON file only


def split(table: str, rows: int | None, seed: int) -> Split:
    """Random rows of a table: as many as `TABLES` says, or ``rows`` to train on and as large a share held out."""
    train, held = TABLES[table]
    train, held = (train, held) if rows is None else (rows, max(2, rows * held // train))
    frame, info = common.table(table), ss.datasets.info(table)
    order = np.random.default_rng(seed).permutation(len(frame))[: train + held]
    parts = (frame.iloc[order[:train]].reset_index(drop=True), frame.iloc[order[train:]].reset_index(drop=True))
    kinds = {column: kind for column, kind in info.kinds.items() if column in frame.columns}
    return Split(*parts, info.target, kinds)


def name_of(gan: str) -> str:
    """Of the file that results are kept in."""
    return "gdts_quality" + ("" if gan == "balanced" else f"_{gan}")


def trained_as(gan: str, rate: float, setting: Setting) -> Setting:
    """The setting with its GAN trained so; ours, which has none, with a network small enough for one machine."""
    prefix, options = "" if setting.central else "ctgan.", {**GANS[gan], "rate": rate}
    options |= {"rake": False} if setting.central and "rake" in options else {}  # a baseline is as it was published
    given = OURS if setting.preset == "best" else {prefix + key: x for key, x in options.items()}
    return replace(setting, options={**setting.options, **given})


def run(experiment: Experiment, job: Job, data: Split) -> dict[str, Any]:
    """Train one setting, and evaluate it on the rows that were held out."""
    stamp = common.stamp()
    row = {"experiment": experiment.name} | measure(job, data) | {k: stamp[k] for k in ("commit", "machine")}
    return row | {"rows": len(data.train)}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--experiments", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rows", type=int, help="of training, instead of 40 000 and 20 000")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--gan", choices=list(GANS), default="balanced", help="how GANs are trained")
    parser.add_argument("--rate", type=float, help="of their learning, instead of 5e-4 (paper: 2e-4)")
    options = parser.parse_args()
    rate = options.rate or RATES[options.gan]
    for table in options.tables:
        for seed in options.seeds:
            data = split(table, options.rows, seed)
            for experiment in map(EXPERIMENTS.__getitem__, options.experiments):
                sizes = Sizes((table,), len(data.train) + len(data.holdout), options.epochs, 1, seed)
                for job in jobs(experiment, sizes):
                    if job.setting.labels["setting"] in options.settings:
                        trained = replace(job, setting=trained_as(options.gan, rate, job.setting))
                        own = "" if job.setting.preset == "best" else f"{rate:g}"  # ours is not a GAN
                        keep(name_of(options.gan), run(experiment, trained, data) | {"rate": own})


def keep(name: str, row: dict[str, Any]) -> None:
    """Put a row in the place of the one before, and write all rows, their means, and a picture."""
    rows = list(({_key(old): old for old in common.kept(name)} | {_key(row): row}).values())
    common.keep(name, rows, HIDDEN, _means(name, rows))
    for experiment in {row["experiment"] for row in rows}:
        drawn = curves.picture([row for row in rows if row["experiment"] == experiment])
        (common.RESULTS / f"{name}_{experiment}.svg").write_text(drawn, encoding="utf-8")


def _means(kept_as: str, rows: list[dict[str, Any]]) -> str:
    """Means and standard deviations over seeds, experiment by experiment, and the figures read off at equal times."""
    parts = []
    for name, experiment in EXPERIMENTS.items():
        own = [row for row in rows if row["experiment"] == name]
        bare = [{k: v for k, v in row.items() if k not in ("experiment", "commit", "machine")} for row in own]
        means = [mean for mean in results.means(bare) if mean["table"] != "mean"] if own else []
        if means:
            image = f"{kept_as}_{name}.svg"
            parts += [f"# {experiment.title}", experiment.legend, curves.lined(*results.table(means))]
            parts += curves.markdown(bare, experiment.until, image, points=False)
    return "\n\n".join(parts)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["experiment"], row["table"], row["setting"], row["seed"], row["rate"], row["epochs"]


if __name__ == "__main__":
    main()
