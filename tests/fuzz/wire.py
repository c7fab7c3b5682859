"""Fuzz everything that reads bytes from a network or a file.

    python -m tests.fuzz.wire --runs 1000000             # guided by coverage, with atheris
    python -m tests.fuzz.wire --runs 1000000 --plain     # valid inputs damaged at random; no atheris needed
    python -m tests.fuzz.wire --input crash-1234         # one input again, from a file

Run it from the repository's root. What inputs are, how they are damaged and what must hold: `tests.fuzz.damage`. An
input that takes longer than five seconds, or makes the process grow beyond a gigabyte, is a finding as well. The plain
run says how many inputs ended how, and repeats for the same ``--seed``.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--input", type=Path)
    parser.add_argument("--corpus", type=Path, help="a folder in which inputs that reach new code are kept")
    given = parser.parse_args()
    if given.input:
        from tests.fuzz.damage import read

        print(read(given.input.read_bytes()))
    elif given.plain:
        _plain(given.runs, given.seed)
    else:
        _guided(given.runs, given.seed, given.corpus)


def _plain(runs: int, seed: int) -> None:
    from tests.fuzz.damage import damage, read, seeds

    rng, ends, slowest = random.Random(seed), collections.Counter[str](), 0.0
    valid = seeds(rng)
    begun = time.monotonic()
    for _ in range(runs):
        data = damage(rng.choice(valid), rng, valid)
        start = time.monotonic()
        try:
            ends[read(data)] += 1
        except BaseException:
            Path("crash-plain").write_bytes(data)
            print(f"finding: {data!r}", flush=True)
            raise
        slowest = max(slowest, time.monotonic() - start)
    print(f"{runs} inputs in {time.monotonic() - begun:.0f} s, the slowest {1000 * slowest:.1f} ms: {dict(ends)}")


def _guided(runs: int, seed: int, corpus: Path | None) -> None:
    import atheris

    with atheris.instrument_imports(
        include=["silosynth.runtime", "silosynth.core", "silosynth.privacy.sealed", "json"]
    ):
        from tests.fuzz.damage import damage, read, seeds
    valid = seeds(random.Random(seed))

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        way = rng.random()
        if way < 0.3:
            return bytes(atheris.Mutate(data, most))
        return damage(rng.choice(valid) if way < 0.4 else data, rng, valid)[:most]

    def one(data: bytes) -> None:
        read(data)

    options = [f"-runs={runs}", f"-seed={seed}", "-timeout=5", "-rss_limit_mb=1024", "-max_len=20000"]
    options += ["-print_final_stats=1"] + ([] if corpus is None else [str(corpus)])
    arguments: Any = [sys.argv[0], *options]
    if corpus is not None:
        corpus.mkdir(exist_ok=True)
        for i, data in enumerate(valid):
            (corpus / f"seed-{i:04}").write_bytes(data)
    atheris.Setup(arguments, one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
