"""A GPU beside this machine's processor: seconds of training and sampling of SiloFuse's presets on Adult, and figures.

    python benchmarks/gpu.py                                              # fast and balanced, on cuda, cpu and mixed
    python benchmarks/gpu.py --presets paper --devices cuda               # the published iterations
    python benchmarks/gpu.py --presets fast --devices cpu --rows 2000     # without a GPU: only shows that it runs

Four silos hold the columns in their order; coordinator and silos compute on the same device. "mixed" is training
alone, with two silos on the processor and all else on the GPU. Each has a short training first, which starts the
device. Where there is no GPU, nothing is measured but what ``--devices cpu`` asks for. That rows do not depend on
the device is for tests (`tests/contracts/test_cuda.py`, and `test_faraway.py` without a GPU).
"""

from __future__ import annotations

import sys
from typing import Any

import common
import pandas as pd
import torch

import silosynth as ss
from silosynth.catalog import algorithm
from silosynth.core.streams import Streams
from silosynth.core.threads import usable_cores
from silosynth.papers import tables
from silosynth.simulation.silos import make_parties

FIGURES = ("column_shape_error", "pair_trend_error", "pair_trend_error_across", "two_sample_auc_xgboost")


def split(rows: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Adult's first rows, or all of them: to train on, and held out."""
    return tables.thirds(tables.modelled("adult").iloc[:rows])


def run(preset: str, device: str, rows: int | None, seed: int) -> dict[str, Any]:
    """Train, sample as many rows, evaluate."""
    train, holdout = split(rows)
    federation = tables.in_silos(train, 4)
    start(federation, device)
    with common.clock() as fitting:
        model = ss.fit("silofuse", federation, preset, seed=seed, device=device)
    with common.clock() as sampling:  # it ends when rows are on the CPU
        synthetic = model.sample(len(train), seed=seed)
    report = ss.evaluate(train, holdout, synthetic, target="income", silos=federation.silos)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    chip = torch.cuda.get_device_name() if device == "cuda" else f"processor, {usable_cores()} cores"
    taken = {"fit s": fitting["seconds"], "sample s": sampling["seconds"], "GPU GB": memory}
    about = {"preset": preset, "device": device, "chip": chip, "rows": len(train)}
    return about | taken | {name: report.score(name).value for name in FIGURES}


def start(federation: ss.Federation, device: str) -> None:
    """A training of a few steps, and a count of memory that begins after it."""
    ss.fit("silofuse", federation, "fast", options={"coder.steps": 5, "latent.steps": 5}, device=device, progress=False)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def mixed(preset: str, device: str, rows: int | None, seed: int) -> dict[str, Any]:
    """Train with the first two silos on the processor, and the others and the coordinator on the device."""
    federation = tables.in_silos(split(rows)[0], 4)
    start(federation, device)
    entry, where = algorithm("silofuse"), torch.device(device)
    config = entry.configure(preset, {})
    with common.clock() as fitting:
        here, there = (
            make_parties(entry, config, federation, Streams(seed), at) for at in (torch.device("cpu"), where)
        )
        parties = {silo: (here if number < 2 else there)[silo] for number, silo in enumerate(federation.silos)}
        talk = entry.coordinate(federation.roster, config, Streams(seed).child("coordinator"), where)
        common.converse(talk, parties, at_once=2)
    return {"preset": preset, "device": "mixed", "rows": federation.rows, "fit s": fitting["seconds"]}


def main() -> None:
    """Run all presets on all devices, and keep the table where a GPU was among them."""
    parser = common.parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=["fast", "balanced"])
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu", "mixed"], choices=["cuda", "cpu", "mixed"])
    parser.add_argument("--rows", type=int, help="of the table, two thirds of which are for training (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.devices != ["cpu"] and not torch.cuda.is_available():
        sys.exit("There is no GPU that PyTorch can use: nothing was measured. On the processor: --devices cpu.")
    plan = [(preset, device) for preset in options.presets for device in options.devices]
    rows = [
        mixed(preset, "cuda", options.rows, options.seed) if device == "mixed"
        else run(preset, device, options.rows, options.seed)
        for preset, device in plan
    ]  # fmt: skip
    if options.devices != ["cpu"]:
        common.keep("gpu", rows, "Adult, four silos.\n")
    else:
        print(common.markdown(rows))


if __name__ == "__main__":
    main()
