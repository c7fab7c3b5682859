"""Whether rows that are balanced by a column help a classifier to find its rare level.

    python benchmarks/balancing.py

Of each table 4000 rows are learnt from by MST, with columns dealt to two silos; XGBoost learns from as many rows, and
is judged by rows that nobody has seen. Rows: *real*; *synthetic*, as learnt; *balanced*, drawn with ``balance``;
*real and rare*, the real ones and synthetic ones of the rare level until both are equally many. Percent, means over
seeds with their standard errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import common
import numpy as np
import pandas as pd
from sklearn.metrics import f1_score
from xgboost import XGBClassifier

import silosynth as ss
from silosynth.data import datasets
from silosynth.simulation.federation import in_order

TARGETS = {"adult": "income", "bank_marketing": "y", "loan": "personal_loan"}
ROWS, JUDGES, SILOS = 4000, 5000, 2


def scores(rows: pd.DataFrame, judges: pd.DataFrame, target: str, rare: Any, seed: int) -> tuple[float, float]:
    """Macro F1, and F1 of the rare level."""
    both = pd.concat([rows, judges], ignore_index=True)
    truth = (both.pop(target).astype(str) == str(rare)).to_numpy()
    numbers = both.select_dtypes("number").columns
    both = both.astype({name: "category" for name in both if name not in numbers})
    model = XGBClassifier(n_estimators=100, max_depth=5, enable_categorical=True, n_jobs=1, random_state=seed)
    model.fit(both[: len(rows)], truth[: len(rows)])
    found, truth = model.predict(both[len(rows) :]), truth[len(rows) :]
    return 100 * f1_score(truth, found, average="macro"), 100 * f1_score(truth, found)


def run(name: str, target: str, algorithm: str, seed: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """The scores of each kind of rows."""
    real = datasets.load(name)
    real = real.sample(min(len(real), ROWS + JUDGES), random_state=seed).reset_index(drop=True)
    train, judges = real[:ROWS], real[ROWS:]
    rare = train[target].value_counts().index[-1]
    model = ss.fit(
        algorithm, ss.simulate(train, in_order(list(real.columns), SILOS)), "fast", seed=seed, progress=False
    )
    lacking = len(train) - 2 * int((train[target] == rare).sum())
    more = model.sample(lacking, seed=seed, given={target: rare})
    rows = {
        "real": train,
        "synthetic": model.sample(ROWS, seed=seed),
        "balanced": model.sample(ROWS, seed=seed, balance=target),
        "real and rare": pd.concat([train, more], ignore_index=True),
    }
    for kind, frame in rows.items():
        yield kind, scores(frame, judges, target, rare, seed)


def main() -> None:
    """Compare."""
    options = common.parser(__doc__)
    options.add_argument("--algorithm", default="mst")
    options.add_argument("--seeds", type=int, default=5)
    chosen, rows = options.parse_args(), []
    for name, target in TARGETS.items():
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(chosen.seeds):
            for kind, both in run(name, target, chosen.algorithm, seed):
                found.setdefault(kind, []).append(both)
        for kind, each in found.items():
            means, errors = np.mean(each, axis=0), np.std(each, axis=0, ddof=1) / np.sqrt(len(each))
            row = {"set": name, "rows": kind, "macro F1": float(means[0]), "±": float(errors[0]),
                   "F1 of the rare level": float(means[1]), "± ": float(errors[1])}  # fmt: skip
            print(row, flush=True)
            rows.append(row)
    common.keep("balancing", rows, "Classifiers that learn from balanced rows (`benchmarks/balancing.py`).")


if __name__ == "__main__":
    main()
