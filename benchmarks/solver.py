"""How exactly a SiloFuse model's flow is followed, and in how many velocities: the sampler beside Heun's method.

    silosynth run experiment.toml
    python benchmarks/solver.py experiment/model.silosynth

All start from the same noise. *Error* is the root mean square distance, in standard deviations of latents, from where
many small steps of Heun's method lead; decoders learn to read latents through noise of 0.15. Processor seconds are for
as many latents as ``--rows``, without decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import common
import torch
from torch import Tensor

import silosynth as ss
from silosynth.core.streams import Streams
from silosynth.models.denoisers import Network
from silosynth.models.flow import last_time, sample_flow, start_noise, velocity
from silosynth.models.latent import LatentGenerator


def heun(network: Network, noise_BL: Tensor, steps: int, left: float) -> Tensor:
    """What the sampler was until decision 0062: two velocities for each of equal steps."""
    x, times = noise_BL, torch.linspace(0.9995, last_time(left), steps + 1).tolist()
    for now, then in pairwise(times):
        v = velocity(network, x, x.new_full((len(x),), now))
        ahead = velocity(network, x + (then - now) * v, x.new_full((len(x),), then))
        x = x + (then - now) * (v + ahead) / 2
    return x / (1 - times[-1])


def main() -> None:
    """Follow the flow in all ways and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("model", type=Path, help="a model's file")
    parser.add_argument("--rows", type=int, default=320)
    options = parser.parse_args()
    model = ss.load(options.model, device="cpu")
    torch.set_num_threads(1)
    coordinator = model.coordinator
    latents = sum(coordinator["widths"])
    config = model.config.generator()
    generator = LatentGenerator(coordinator["rows"], latents, config, Streams(0), torch.device("cpu"))
    generator.restore(coordinator["generator"])
    noise_BL = start_noise(options.rows, latents, Streams(1).torch())

    def follow(way: Callable[[Network, Tensor, int, float], Tensor], steps: int) -> tuple[Tensor, float]:
        start = time.process_time()
        with torch.no_grad(), generator.arithmetics():
            return way(generator.network, noise_BL, steps, config.left), time.process_time() - start

    exact_BL, _ = follow(heun, 60)
    ways = [("Heun", heun, steps) for steps in (6, 12, 20, 25)] + [("ours", sample_flow, n) for n in (6, 8, 10, 12, 15)]
    rows = []
    for name, way, steps in ways:
        found_BL, seconds = follow(way, steps)
        error = float((found_BL - exact_BL).square().mean().sqrt())
        velocities = 2 * steps if way is heun else steps + 1
        rows.append({"way": name, "steps": steps, "velocities": velocities, "error": error, "processor s": seconds})
    common.keep("solver", rows, f"{model!r}; {latents} latents, {options.rows:,} starting points.\n")


if __name__ == "__main__":
    main()
