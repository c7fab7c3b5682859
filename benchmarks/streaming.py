"""Sampling a million rows to Parquet in bounded memory.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --presets fast --rows 200000

Models of Adult with the networks of SiloFuse's presets, trained for a few steps only: neither the time that drawing
takes nor its memory depends on the weights. Peaks are of the process so far, with training and earlier presets;
"before" is the peak before rows are drawn.
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
    """Sample at two sizes of each preset, and compare peaks."""
    parser = common.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--presets", nargs="+", default=["fast", "balanced"])
    options = parser.parse_args()
    federation = tables.in_silos(tables.thirds(tables.modelled("adult"))[0], 4)
    rows = []
    for preset in options.presets:
        model = ss.fit("silofuse", federation, preset, options={"coder.steps": 100, "latent.steps": 100})
        for n in (options.rows // 10, options.rows):
            before = common.peak_gigabytes()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "synthetic.parquet"
                with common.clock() as taken:
                    write_batches(model.sample_batches(n), path)
                held = pq.ParquetFile(path).metadata.num_rows
            row = {"preset": preset, "rows": held, "seconds": taken["seconds"]}
            rows.append(row | {"peak GB before": before, "peak GB": common.peak_gigabytes()})
    common.keep("streaming", rows, "Adult, four silos, one thread.\n")


if __name__ == "__main__":
    main()
