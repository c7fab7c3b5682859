"""A GPU beside this machine's processor: seconds of training and sampling of SiloFuse's presets on Adult, and figures.

    python benchmarks/gpu.py                                              # fast and balanced, on cuda and cpu
    python benchmarks/gpu.py --presets paper --devices cuda               # the published iterations
    python benchmarks/gpu.py --presets fast --devices cpu --rows 2000     # without a GPU: only shows that it runs

Four silos hold the columns in their order; coordinator and silos compute on the same device. Where there is no GPU,
nothing is measured but what ``--devices cpu`` asks for. That rows do not hang on the device is for tests
(`tests/contracts/test_cuda.py`, and `test_faraway.py` without a GPU).
"""

from __future__ import annotations

import sys
from typing import Any

import common
import torch

import silosynth as ss
from silosynth.papers import tables

FIGURES = ("column_shape_error", "pair_trend_error", "pair_trend_error_across", "two_sample_auc_xgboost")


def run(preset: str, device: str, rows: int | None, seed: int) -> dict[str, Any]:
    """Train, sample as many rows, evaluate."""
    train, holdout = tables.thirds(tables.modelled("adult").head(rows) if rows else tables.modelled("adult"))
    federation = tables.in_silos(train, 4)
    with common.clock() as fitting:
        model = ss.fit("silofuse", federation, preset, seed=seed, device=device)
    with common.clock() as sampling:  # it ends when rows are on the CPU
        synthetic = model.sample(len(train), seed=seed)
    report = ss.evaluate(train, holdout, synthetic, target="income", silos=federation.silos)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    chip = torch.cuda.get_device_name() if device == "cuda" else f"processor, {model.threads} threads"
    taken = {"fit s": fitting["seconds"], "sample s": sampling["seconds"], "GPU GB": memory}
    about = {"preset": preset, "device": device, "chip": chip, "rows": len(train)}
    return about | taken | {name: report.score(name).value for name in FIGURES}


def main() -> None:
    """Run all presets on all devices, and keep the table where a GPU was among them."""
    parser = common.parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=["fast", "balanced"])
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu"], choices=["cuda", "cpu"])
    parser.add_argument("--rows", type=int, help="of the table, two thirds of which are for training (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "cuda" in options.devices and not torch.cuda.is_available():
        sys.exit("There is no GPU that PyTorch can use: nothing was measured. On the processor: --devices cpu.")
    plan = [(preset, device) for preset in options.presets for device in options.devices]
    rows = [run(preset, device, options.rows, options.seed) for preset, device in plan]
    if "cuda" in options.devices:
        common.keep("gpu", rows, "Adult, four silos.\n")
    else:
        print(common.markdown(rows))


if __name__ == "__main__":
    main()
