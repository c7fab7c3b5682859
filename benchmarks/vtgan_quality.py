"""VT-GAN in two silos against the central GAN of the same sizes: the figures of the paper's section 4.2.

    python benchmarks/vtgan_quality.py                        # Loan, 300 epochs; Adult, 100 epochs; D^2_0 G^0_2
    python benchmarks/vtgan_quality.py --tables loan --rate 2e-4 --betas 0.5 0.9 --average 0    # as published

"all" updates every bottom critic, as in the paper; "contributor" only that of the silo that knows the rows anyway, and
"none" no one (ours). Rate and betas of Adam and the moving average of generators are those of the central GAN too. Rows
are pushed as in the peer-to-peer variant: what is learnt does not depend on how rows are pushed (a test holds it to
that), only time and bytes do, which `vtgan_speed.py` measures.
"""

from __future__ import annotations

import argparse
from typing import Any

import common

import silosynth as ss
from silosynth.data.partition import in_order

TABLES = {"loan": ("personal_loan", 300), "adult": ("income", 100)}
RATE, BETAS, AVERAGE = 1e-3, (0.0, 0.99), 0.999  # published: 2e-4, (0.5, 0.9), none
SETTINGS: dict[str, dict[str, Any]] = {
    "central": {},
    "all": {"index_privacy": "none", "bottom_gradients": "all", "least_rounds": 0},
    "none": {"index_privacy": "none", "bottom_gradients": "none", "least_rounds": 0},
    "contributor": {"index_privacy": "none", "bottom_gradients": "contributor", "least_rounds": 0},
}


def run(table: str, setting: str, seed: int, training: dict[str, Any]) -> dict[str, Any]:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    target, epochs = TABLES[table]
    train, holdout = common.split(common.table(table))
    silos = in_order(list(train.columns), 2)
    federation = ss.simulate(train, silos=silos)
    with common.clock() as fitting:
        if setting == "central":
            options = {"epochs": epochs, **training}
            model = ss.fit("ctgan", federation.central(), "best", seed, options=options)
        else:
            options = {"epochs": epochs, **training, **SETTINGS[setting]}
            model = ss.fit("vtgan", federation, "balanced", seed, options=options)
    report = ss.evaluate(train, holdout, model.sample(len(train)), target=target, silos=silos, figures="gan")
    figures = {score.name: score.value for score in report.scores}
    head = {"table": table, "epochs": epochs, "setting": setting, **training, "seed": seed}
    return head | figures | {"fit s": fitting["seconds"], "commit": common.stamp()["commit"]}


def main() -> None:
    """Run what was asked for; each result replaces its own row of what was kept before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--betas", nargs=2, type=float, default=list(BETAS))
    parser.add_argument("--average", type=float, default=AVERAGE)
    options = parser.parse_args()
    for table in options.tables:
        for seed in options.seeds:
            for setting in options.settings:
                training = {name: getattr(options, name) for name in ("rate", "betas", "average")}
                row = run(table, setting, seed, training)
                old = {_key(kept): kept for kept in common.kept("vtgan_quality")}
                common.keep("vtgan_quality", list((old | {_key(row): row}).values()))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["table"], row["seed"], row["setting"], row["rate"], tuple(row["betas"]), row.get("average", 0.0)


if __name__ == "__main__":
    main()
