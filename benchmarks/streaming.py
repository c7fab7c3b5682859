"""Sampling a million rows to Parquet in bounded memory.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --rows 200000

A narrow model of Adult is trained first; what counts is the memory that sampling adds, whatever the number of rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import common
import pyarrow.parquet as pq

import silosynth as ss
from silosynth.data.sources import write_batches
from silosynth.papers import tables


def main() -> None:
    """Sample at two sizes and compare peaks."""
    parser = common.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    federation = tables.in_silos(tables.modelled("adult").head(10_000), 4)
    steps = {"coder.steps": 200, "latent.steps": 200, "latent.width": 128, "latent.sample_steps": 10}
    model = ss.fit("silofuse", federation, preset="fast", options=steps)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (options.rows // 10, options.rows):
            path = Path(folder) / "synthetic.parquet"
            with common.clock() as taken:
                write_batches(model.sample_batches(n), path)
            held = pq.ParquetFile(path).metadata.num_rows
            rows.append({"rows": held, "seconds": taken["seconds"], "peak GB": common.peak_gigabytes()})
    common.keep("streaming", rows)


if __name__ == "__main__":
    main()
