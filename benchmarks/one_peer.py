"""One training for `peers.py`, and as many synthetic rows, in the environment of the generator that is trained.

    python benchmarks/one_peer.py "CTGAN (sdv)" train.csv income synthetic.csv --seconds 60

It trains for the default number of epochs, or for as many of them as end within the seconds of the processor, which
short trainings foretell. One line of JSON says what it took: epochs, seconds of the processor for training and for
sampling, and the largest memory in gigabytes. Settings are the generator's own, apart from epochs.

This is the only file that knows a peer's Python interface. silosynth imports nothing of it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

Sampler = Callable[[int], pd.DataFrame]
Training = Callable[[pd.DataFrame, str, Any, int], Sampler]  # of rows, target, epochs or preset, and seed

MISSING = "(missing)"
SILOS = 4


class Generator(NamedTuple):
    """What is trained: of which package, how, and for how long unless told otherwise."""

    package: str
    load: Callable[[], Training]
    epochs: int | str  # or the preset
    probe: int = 1  # epochs of the first of two short trainings


def silosynth() -> Training:
    """Columns dealt to silos, in the order of the table."""
    import silosynth as ss
    from silosynth.papers import tables

    def train(rows: pd.DataFrame, target: str, preset: str, seed: int) -> Sampler:
        return ss.fit("silofuse", tables.in_silos(rows, SILOS), preset, seed=seed, progress=False, threads=1).sample

    return train


def mostlyai() -> Training:
    """MOSTLY AI's autoregressive network; it ends before its last epoch where its validation rows gain no more."""
    from mostlyai.engine import TabularARGN

    def train(rows: pd.DataFrame, target: str, epochs: int, seed: int) -> Sampler:
        return TabularARGN(max_epochs=epochs, random_state=seed, device="cpu").fit(rows).sample

    return train


def synthcity(plugin: str, **settings: Any) -> Callable[[], Training]:
    """One of synthcity's generators, which take no missing cells: these are a level of their own."""

    def load() -> Training:
        from synthcity.plugins import Plugins
        from synthcity.plugins.core.dataloader import GenericDataLoader

        def train(rows: pd.DataFrame, target: str, epochs: int, seed: int) -> Sampler:
            given = {"n_iter": epochs, "random_state": seed, "device": torch.device("cpu"), **settings}
            model = Plugins(categories=["generic"]).get(plugin, **given)
            texts = rows.select_dtypes(exclude="number").columns
            model.fit(GenericDataLoader(rows.fillna(dict.fromkeys(texts, MISSING)), target_column=target))
            return lambda count: model.generate(count=count).dataframe().replace(MISSING, None)

        return train

    return load


def sdv(synthesizer: str) -> Callable[[], Training]:
    """One of SDV's generators, with columns as SDV itself describes them."""

    def load() -> Training:
        from sdv import single_table
        from sdv.metadata import Metadata

        def train(rows: pd.DataFrame, target: str, epochs: int, seed: int) -> Sampler:
            np.random.seed(seed)  # it takes no seed: this process is its own
            torch.manual_seed(seed)
            described = Metadata.detect_from_dataframes({"rows": rows}, infer_keys=None)
            model = getattr(single_table, synthesizer)(described, epochs=epochs, enable_gpu=False)
            model.fit({"rows": rows})
            return lambda count: model.sample(count)["rows"]

        return train

    return load


GENERATORS = {
    "silosynth fast": Generator("silosynth", silosynth, "fast"),
    "silosynth balanced": Generator("silosynth", silosynth, "balanced"),
    "MOSTLY AI": Generator("mostlyai-engine", mostlyai, 100),
    "TabDDPM (synthcity)": Generator("synthcity", synthcity("ddpm"), 1000, 5),
    "CTGAN (synthcity)": Generator("synthcity", synthcity("ctgan"), 2000),
    "TVAE (synthcity)": Generator("synthcity", synthcity("tvae"), 1000),
    "CTGAN (sdv)": Generator("sdv", sdv("CTGANSynthesizer"), 300),
    "TVAE (sdv)": Generator("sdv", sdv("TVAESynthesizer"), 300),
}


def processor() -> float:
    """Seconds of the processor so far, of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and seconds of the processor."""
    start = processor()
    found = work()
    return found, processor() - start


def within(seconds: float, most: int, probe: int, takes: Callable[[int], float]) -> int:
    """How many epochs, from one to ``most``, end within the seconds, if two short trainings tell how long they take."""
    takes(probe)  # the first one of a process takes longer
    short, longer = takes(probe), takes(3 * probe)
    each = max(longer - short, 1e-9) / (2 * probe)
    return max(1, min(most, math.floor(probe + (seconds - short) / each)))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, write as many rows as it was trained on, and say what it took."""
    torch.set_num_threads(1)
    generator, rows = GENERATORS[options.name], pd.read_csv(options.train)
    train, epochs = generator.load(), generator.epochs
    fit = lambda length: train(rows.copy(), options.target, length, options.seed)  # noqa: E731
    if options.seconds is not None and isinstance(epochs, int):
        epochs = within(options.seconds, epochs, generator.probe, lambda length: timed(lambda: fit(length))[1])
    sampler, training = timed(lambda: fit(epochs))
    synthetic, sampling = timed(lambda: sampler(len(rows)))
    synthetic.to_csv(options.synthetic, index=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    version = importlib.metadata.version(generator.package)
    return {"version": version, "epochs": epochs, "train s": training, "sample s": sampling, "peak GB": peak}


def main() -> None:
    """Train what is named, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=GENERATORS)
    parser.add_argument("train", type=Path, help="CSV file of rows")
    parser.add_argument("target", help="the column to predict")
    parser.add_argument("synthetic", type=Path, help="CSV file to write")
    parser.add_argument("--seconds", type=float, help="of the processor, that training is to take at most")
    parser.add_argument("--limit", type=int, help="seconds of the processor after which it is killed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (options.limit, options.limit))
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
