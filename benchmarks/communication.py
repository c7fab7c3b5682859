"""Bytes sent in training against iterations: SiloFuse's are constant, E2EDistr's grow (the paper's figure 10).

    python benchmarks/communication.py               # 50, 500 and 2 000 iterations, measured
    python benchmarks/communication.py --iterations 50000 500000 5000000

Abalone and Intrusion in four silos. Bytes are counted by the ledger from encoded messages; networks are narrow, since
their width does not show in any message.
"""

from __future__ import annotations

from typing import Any

import common

import silosynth as ss
from silosynth.papers import tables


def measure(algorithm: str, data: str, iterations: int) -> dict[str, Any]:
    """Train for ``iterations`` and read the ledger."""
    options = {
        "coder.steps": iterations, "coder.hidden": [16, 16], "latent.steps": iterations, "latent.width": 16,
        "latent.depth": 2, "latent.checks": 4, "coder.calibrate": False,
    }  # fmt: skip
    federation = tables.in_silos(tables.modelled(data), 4)
    ledger = ss.fit(algorithm, federation, preset="paper", options=options, progress=False).ledger
    return {
        "data": data,
        "algorithm": algorithm,
        "iterations": iterations,
        "messages": len(ledger),
        "bytes": sum(record["bytes"] for record in ledger),
    }


def main() -> None:
    """Measure both algorithms on both tables."""
    parser = common.parser(__doc__)
    parser.add_argument("--iterations", nargs="+", type=int, default=[50, 500, 2000])
    parser.add_argument("--tables", nargs="+", default=["abalone", "intrusion_nsl_kdd_20pct"])
    options = parser.parse_args()
    rows = [
        measure(algorithm, data, iterations)
        for data in options.tables
        for algorithm in ("silofuse", "e2edistr")
        for iterations in options.iterations
    ]
    common.keep("communication", rows)


if __name__ == "__main__":
    main()
