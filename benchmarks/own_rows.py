"""What it gains to train silos' autoencoders on rows too that only they have (`own_rows`), by how many all have.

    python benchmarks/own_rows.py                                 # half an hour of a processor
    python benchmarks/own_rows.py --rows 2000 --folder kept       # what is in the folder is not trained again

Of each table so many rows are known to two silos, with half of the columns each. A share of the rows is in both, and
linked; each of the others is in one of them alone. SiloFuse trains on the linked rows, without and with ``own_rows``;
at 100 % there are no others. *at random*: linked rows are any; *chosen*: those with large values of the first number
are linked more often, so that rows of one silo alone are other people than those linked. A third as many rows are
drawn, and compared with as many others that nobody has trained on, chosen as the linked ones. Errors are in percent,
and as the area by which XGBoost tells the two apart; means over seeds with their standard errors.
"""

from __future__ import annotations

import itertools
from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.core.files import make_folder
from silosynth.data import datasets

TABLES = ("adult",)
SHARES = (0.1, 0.25, 0.5, 1.0)
SCORES = {
    "column_shape_error": "column shapes", "pair_trend_error_within": "pairs within",
    "pair_trend_error_across": "pairs across", "two_sample_auc_xgboost": "two-sample AUC",
}  # fmt: skip


def dealt(
    name: str, rows: int, share: float, chosen: bool, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, list[pd.DataFrame]]:
    """Rows that are linked, others that were chosen like these, and the rows of one silo alone, for both silos."""
    rng, judges = np.random.default_rng(seed), rows // 3
    real = datasets.load(name).sample(rows + 4 * judges, random_state=seed).reset_index(drop=True)
    number = real.select_dtypes("number").columns[0]
    odds = np.exp(2 * real[number].rank(pct=True)) if chosen else np.ones(len(real))
    known, rest = real[:rows], real[rows:]
    linked = rng.choice(rows, round(share * rows), replace=False, p=odds[:rows] / odds[:rows].sum())
    others = rest.sample(judges, random_state=seed, weights=odds[rows:])
    alone = np.setdiff1d(rng.permutation(rows), linked)
    rng.shuffle(alone)
    halves = [known.iloc[places] for places in np.array_split(alone, 2)]
    return known.iloc[linked].reset_index(drop=True), others.reset_index(drop=True), halves


def federation(linked: pd.DataFrame, alone: list[pd.DataFrame]) -> ss.Federation:
    """Two silos with half of the columns each, of linked rows and of their own."""
    names = list(linked.columns)
    parts = names[: len(names) // 2], names[len(names) // 2 :]
    tables = {}
    for silo, columns, own in zip(("a", "b"), parts, alone, strict=True):
        table = pd.concat([linked, own], ignore_index=True)[columns]
        ids = [*range(len(linked)), *(f"{silo}{k}" for k in range(len(own)))]
        tables[silo] = table.assign(person=[str(one) for one in ids])
    return ss.simulate(tables, identifier="person")


def run(
    name: str, rows: int, share: float, chosen: bool, preset: str, seed: int
) -> dict[str, dict[str, float]]:  # fmt: skip
    """The errors of each kind of training."""
    linked, judges, alone = dealt(name, rows, share, chosen, seed)
    silos, found = federation(linked, alone), {}
    for kind, own in (("linked rows", False), ("own rows too", True))[: 1 + (share < 1)]:
        model = ss.fit("silofuse", silos, preset, seed=seed, options={"own_rows": own}, progress=False)
        made = model.sample(len(judges), seed=seed)[list(linked.columns)]
        report = ss.evaluate(judges, None, made, silos=silos.silos, seed=seed)
        found[kind] = {title: report.score(score).value for score, title in SCORES.items()}
    return found


def main() -> None:
    """Compare."""
    options = common.parser(__doc__)
    options.add_argument("--preset", default="fast")
    options.add_argument("--rows", type=int, default=6000)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--tables", nargs="*", default=TABLES)
    options.add_argument("--folder", type=make_folder, help="where figures of each seed are kept for another run")
    given, rows = options.parse_args(), []
    settings = [(chosen, share) for chosen in (False, True) for share in SHARES if share < 1 or not chosen]
    for name, (chosen, share) in itertools.product(given.tables, settings):
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(given.seeds):
            measured = common.once(given.folder, run, name, given.rows, share, chosen, given.preset, seed)
            for kind, errors in measured.items():
                found.setdefault(kind, []).append(errors)
        for kind, each in found.items():
            row: dict[str, Any] = {"set": name, "rows": given.rows, "linked": "chosen" if chosen else "at random",
                                   "share": f"{100 * share:g} %", "trained on": kind}  # fmt: skip
            for key in each[0]:
                values = [errors[key] for errors in each]
                row |= {key: float(np.mean(values)),
                        f"± {key}": float(np.std(values, ddof=1) / np.sqrt(len(values)))}  # fmt: skip
            print(row, flush=True)
            rows.append(row)
        common.keep("own_rows", rows, "Autoencoders trained on rows of one silo too (`benchmarks/own_rows.py`).")


if __name__ == "__main__":
    main()
