"""What is recorded: the contracts' settings, and more that only the recorder needs. All of it uses the public face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from tests.contracts import settings
from tests.contracts.settings import DIFFUSION, GDTS, PRIVATE, SILOFUSE, SPLIT, TINY

import silosynth as ss

UNSOUND = {"dp": {"mechanism": "paper-unsound", "noise": 5.0}, "numbers": "standard"}
BOUNDS = {"age": {"low": 18, "high": 80}, "spent": {"low": 0.0, "high": 1000.0}}
PARTITIONED = {"synthesis": "partitioned"}
TABVFL = {"net": {"latent": 6, "attention": 3, "steps": 2, "shared": 2}, "batch": 12, "validation": 0.25,
          "pretraining_epochs": 2, "finetuning_epochs": 2}  # fmt: skip
GENERATORS: dict[str, dict[str, Any]] = {
    **{name: options for name, options in TINY.items() if name != "mst public"},  # rows of "mst private"
    "silofuse partitioned": SILOFUSE | PARTITIONED,
    "silofuse-joint partitioned": SILOFUSE | PARTITIONED,
    "vtgan partitioned": TINY["vtgan"] | PARTITIONED,
    "vtgan decoys": TINY["vtgan"] | {"index_privacy": "decoys", "decoys": 2},
    "vtgan blocks": TINY["vtgan"]
    | {"critic_blocks": [1, 1], "generator_blocks": [1, 1], "bottom_gradients": "all", "index_privacy": "none"},
    "vflgan partitioned": SPLIT | PARTITIONED,
    "vertigan partitioned": SPLIT | PARTITIONED,
    "dplt partitioned": TINY["dplt"] | PARTITIONED,
    "vflgan unsound": SPLIT | UNSOUND,
    "vflgan-base private": SPLIT | PRIVATE,
    "dplt private": TINY["dplt"] | PRIVATE,
    "mst partitioned": TINY["mst"] | PARTITIONED,
    "gdts secure": GDTS | {"secure": True},
    "gdts diffusion secure": GDTS | DIFFUSION | {"secure": True},
    "gdts noised": GDTS | {"numbers": "noised"},
    "gdts absent": GDTS | {"participation": 0.5, "absence": 0.3},
    **{
        f"{name} paper": TINY[name] for name in TINY if " " not in name and name not in ("silofuse-joint", "mst", "aim")
    },  # ours, have none
}
REPRESENTATIONS = {
    "tabvfl": TABVFL,
    "tabvfl paper": TABVFL,
    "tabvfl local": TABVFL | {"design": "local"},
    "tabvfl local_encoders": TABVFL | {"design": "local_encoders"},
}
NAMES = sorted([*GENERATORS, *REPRESENTATIONS])
# Starting silos' processes takes seconds: other presets, and where sampled columns go, say nothing new in them.
APART = [name for name in NAMES if not name.endswith((" paper", " partitioned"))]


def fitted(name: str, runtime: str) -> tuple[Any, dict[str, pd.DataFrame]]:
    """The trained model, and the tables it makes."""
    preset = "paper" if name.endswith(" paper") else "fast"
    how = {"preset": preset, "seed": 0, "runtime": runtime, "progress": False}
    if name in REPRESENTATIONS:
        return _represented(REPRESENTATIONS[name], how)
    options = GENERATORS[name]
    model = ss.fit(settings.algorithm_of(name), _federation(name), options=options, **how)
    if "synthesis" in options:
        return model, model.sample_parts(25)
    return model, {"first": model.sample(25), "second": model.sample(25), "seeded": model.sample(25, seed=4)}


def _federation(name: str) -> ss.Federation:
    if "noised" in name:  # histograms between declared bounds
        rows = {"bank": range(50), "shop": range(50, 90)}
        return ss.simulate(settings.frame().drop(columns="since"), rows=rows, schema=BOUNDS)
    if "secure" in name:  # sums of three silos or more
        rows = {"bank": range(40), "shop": range(40, 65), "club": range(65, 90)}
        return ss.simulate(settings.frame(), rows=rows)
    return settings.federation(name)


def _represented(options: dict[str, Any], how: dict[str, Any]) -> tuple[Any, dict[str, pd.DataFrame]]:
    data = settings.frame(60)
    data["good"] = np.where(data["age"] > 45, "yes", "no")
    federation = ss.simulate(data, {"bank": ["age", "spent", "city"], "shop": ["member", "since", "note", "good"]})
    made = ss.represent("tabvfl", federation, "good", options=options, **how)
    new = made.federation(data.head(20))
    return made, {"training": made.transform(), "new": made.transform(new), "probabilities": made.predict_proba(new)}
