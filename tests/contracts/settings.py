"""Every algorithm's settings at a tiny size, a table for them, and how they are fitted.

Fitting uses only the public face (`ss.simulate`, `ss.fit`), so that `tests.recorded` can fit an older source tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import silosynth as ss

if TYPE_CHECKING:
    from silosynth.catalog import Algorithm

SILOFUSE = {"coder.steps": 20, "coder.hidden": [16, 8], "latent.width": 16, "latent.steps": 12, "latent.checks": 3,
            "latent.batch": 32, "latent.sample_steps": 3, "least_rows": 50}  # fmt: skip
GDTS = {"generator": "ctgan", "ctgan.generator": [16, 16], "ctgan.critic": [16, 16], "ctgan.noise": 8,
        "ctgan.batch": 30, "ctgan.epochs": 2, "ctgan.least_rounds": 6, "ctgan.encoders.modes": 3, "rounds": 3,
        "epsilon": 50.0}  # fmt: skip
DIFFUSION = {"generator": "diffusion", "rounds": 5, "diffusion.steps": 20, "diffusion.hidden": [16, 8],
             "diffusion.latent.width": 16, "diffusion.latent.steps": 12, "diffusion.latent.batch": 32,
             "diffusion.latent.sample_steps": 3}  # fmt: skip
SPLIT = {"generator": [16, 16], "critic": [16, 8], "noise": 8, "batch": 30, "epochs": 10,
         "least_rounds": 1, "average": 0.9}  # fmt: skip
PRIVATE = {"dp": {"epsilon": 5.0, "delta": 1e-5, "encoders": 0.5}}
PRIVATE_TRAINING = {"dp_training.autoencoders": 0.8, "dp_training.coder_steps": 10, "dp_training.latent_steps": 4,
                    "dp_training.hidden": [8], "dp_training.width": 8}  # fmt: skip
TINY = {
    **dict.fromkeys(("silofuse", "silofuse-joint", "latentdiff", "e2e", "e2edistr"), SILOFUSE),
    "silofuse private": SILOFUSE | PRIVATE | {"dp_mode": "release"} | PRIVATE_TRAINING,
    "silofuse upload": SILOFUSE | PRIVATE | PRIVATE_TRAINING,
    "vtgan": {
        "width": 16,
        "generator_width": 16,
        "noise": 8,
        "batch": 30,
        "epochs": 2,
        "least_rounds": 1,
        "bottom_gradients": "contributor",
        "encoders.modes": 3,
    },
    "vtgan private": PRIVATE
    | {
        "width": 16,
        "generator_width": 16,
        "noise": 8,
        "batch": 30,
        "epochs": 1,
        "least_rounds": 4,
        "encoders.modes": 3,
    },
    **dict.fromkeys(("vflgan", "vflgan-base", "vertigan", "wgan-gp"), SPLIT),
    "vflgan frechet": SPLIT | {"select": "frechet"},
    "vflgan private": SPLIT | PRIVATE | {"start": "shares"},
    "vertigan private": SPLIT | PRIVATE,
    "wgan-gp private": SPLIT | PRIVATE | {"start": "shares"},
    "ctgan": {"generator": [16, 16], "critic": [16, 16], "noise": 8, "batch": 30, "epochs": 2, "least_rounds": 1},
    "ctabgan": {"channels": 4, "noise": 8, "batch": 30, "epochs": 1, "least_rounds": 1},
    "tvae": {"encoder": [16, 16], "decoder": [16, 16], "embedding": 8, "batch": 30, "epochs": 2, "least_steps": 1},
    "tabddpm": {"layers": [16, 16], "steps": 25, "batch": 30, "diffusion_steps": 10, "sample_steps": 5},
    "dplt": {"bins": 4, "states": 3, "fits": 5},
    "mst": {"bins": 5, "groups": 3},
    "mst private": {"bins": 5, "groups": 3} | PRIVATE,
    "mst public": {"bins": 5, "groups": 3, "synthesis": "public"} | PRIVATE,
    "aim": {"bins": 4, "groups": 3},
    "aim private": {"bins": 4, "groups": 3} | PRIVATE,
    "mst rows": {"bins": 5, "groups": 3},
    "mst rows private": {"bins": 5, "groups": 3} | PRIVATE,
    "aim rows private": {"bins": 5, "groups": 3, "rounds": 1, "cells": 300} | PRIVATE,
    "mst groups": {"bins": 5, "groups": 3},
    "aim groups private": {"bins": 5, "groups": 3, "rounds": 1, "cells": 300} | PRIVATE,
    "gdts": GDTS,
    "gdts md": GDTS | {"mode": "md"},  # what follows the algorithm's name says which of its modes
    "gdts diffusion": GDTS | DIFFUSION,
}

BOUNDS = {  # which differential privacy takes as known
    "age": {"low": 18, "high": 80},
    "spent": {"low": 0.0, "high": 1000.0},
    "since": {"low": "2020-01-01", "high": "2022-12-31"},
}
CENTRAL = ("ctabgan", "ctgan", "e2e", "latentdiff", "tabddpm", "tvae", "wgan-gp")
HORIZONTAL = ("gdts",)


def algorithm_of(name: str) -> str:
    """The algorithm of a setting: "vflgan private" is a setting of "vflgan"."""
    return name.partition(" ")[0]


def entry_of(name: str) -> Algorithm:
    from silosynth.catalog import ALGORITHMS

    return ALGORITHMS[algorithm_of(name)].divided(across_rows(name))


def across_rows(name: str) -> bool:
    """Whether silos of a setting hold different rows, of an algorithm that is for both."""
    return not {"rows", "groups"}.isdisjoint(name.split())


def frame(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    spent = rng.gamma(2.0, 50.0, rows).round(2)
    data = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows).astype("int16"),
            "spent": np.where(rng.random(rows) < 0.5, 0.0, spent),
            "city": pd.Categorical(rng.choice(["Delft", "Bern", "Oslo"], rows)),
            "member": rng.random(rows) < 0.3,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D"),
            "note": rng.choice(["a", "b"], rows),
        }
    )
    data.loc[rng.random(rows) < 0.2, "note"] = None
    return data


def federation(name: str) -> ss.Federation:
    if algorithm_of(name) in HORIZONTAL:
        return ss.simulate(frame(), rows={"bank": range(50), "shop": range(50, 90)})
    silos = {"bank": ["age", "spent", "city"], "shop": ["member", "since", "note"]}
    private = "dp" in TINY.get(name, {}) or name.endswith(" private")
    if "groups" in name.split():
        return grouped(BOUNDS if private else None, frame())
    if across_rows(name):
        rows = {"bank": range(40), "shop": range(40, 65), "club": range(65, 90)}
        return ss.simulate(frame(), rows=rows, schema=BOUNDS if private else None)
    whole = ss.simulate(frame(), silos=silos, schema=BOUNDS if private else None)
    return whole.central() if algorithm_of(name) in CENTRAL else whole


GROUPS = {
    "north": {"bank": ["age", "spent", "city"], "shop": ["member", "since", "note"]},
    "south": {"club": ["note", "age"], "fund": ["city", "member"], "gym": ["since", "spent"]},
    "west": {"mill": ["age", "spent", "city", "member", "since", "note"]},
}


def grouped(bounds: dict | None, data: pd.DataFrame, names: tuple[str, ...] = tuple(GROUPS)) -> ss.Federation:
    """Groups of two, three and one silo, or some of them, that hold different rows, each divided in another way."""
    rows = dict(zip(names, np.split(np.arange(len(data)), [4 * len(data) // 9, 13 * len(data) // 18]), strict=False))
    held = {group: GROUPS[group] for group in names}
    return ss.simulate(data, silos=held, rows={group: own.tolist() for group, own in rows.items()}, schema=bounds)


def fit(name: str, federation: ss.Federation, **more) -> ss.Model:
    options = {"preset": "fast", "options": TINY[name], "progress": False, "seed": 0, **more}
    return ss.fit(algorithm_of(name), federation, **options)


def fitted(name: str, **more) -> ss.Model:
    return fit(name, federation(name), **more)
