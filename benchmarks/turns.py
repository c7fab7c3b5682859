"""Time beside another commit, or of two threads beside one: both in turns, in one run.

    python benchmarks/turns.py steps --against 04939a79^         # training balanced, before decision 0071
    python benchmarks/turns.py steps --against 04939a79^ --avx2  # with AVX2 instructions, in float32
    python benchmarks/turns.py draws --against a8c138ae^         # drawing rows, before decision 0062
    python benchmarks/turns.py threads                           # on one core and on two: needs both free

Adult, four silos in column order; a process for each source, which waits while the other works. "steps" takes a few
hundred of the generator's steps after the fiftieth, when roots of whitened steps are renewed as in most of a training,
and counts all steps of the preset at their price; autoencoders and all else are timed whole. In processor seconds;
"threads" is of whole trainings, in seconds of a clock. Each row is the medians over all turns, and the median, the
least and the most of the ratios within a turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import common

from silosynth.papers import results

Ask = Callable[..., dict[str, float]]
ROOT = Path(__file__).parent.parent
TURNS, SKIPPED, TAKEN = 3, 60, 260  # turns; the generator's steps before those that are timed, and altogether
ROWS = 50_000  # drawn in a turn
WORKER = '''
import json, sys, time, warnings
warnings.simplefilter("ignore")
import silosynth as ss
from silosynth.catalog import algorithm
from silosynth.data import datasets

preset, threads, precision = json.loads(sys.argv[1])
table = datasets.load("adult")
names = list(table.columns)
federation = ss.simulate(table, {f"silo{i + 1}": names[first:last] for i, (first, last) in enumerate(
    ((0, 4), (4, 8), (8, 12), (12, len(names))))})
preset_s = algorithm("silofuse").configure(preset, {}).latent
whole = preset_s.steps
model, looks = None, []

def fit(**changes):
    """Train; looks are what is done of a stage, and the processor's seconds until then."""
    looks.clear()
    return ss.fit("silofuse", federation, preset, seed=0, threads=threads,
        progress=lambda now: looks.append((now.stage, now.done, time.process_time())),
        options={"latent.checks": 4, "latent.precision": precision, **changes})

for line in sys.stdin:
    what, *numbers = json.loads(line)
    started, wall = time.process_time(), time.perf_counter()
    if what == "draws":
        model = model or fit(**{"coder.steps": 60, "latent.steps": 100})
        started = time.process_time()
        for batch in model.sample_batches(numbers[0]):
            pass
        said = {"seconds": time.process_time() - started}
    elif what == "steps":
        skipped, taken = numbers
        fit(**{"latent.steps": taken})
        total = time.process_time() - started
        own = [look for look in looks if look[0] == looks[-1][0]]
        first = next(look for look in own if look[1] >= skipped)
        step = (own[-1][2] - first[2]) / (own[-1][1] - first[1])
        said = {"step": step, "steps": step * whole, "all": total + step * (whole - taken)}
    else:
        fit(**{"latent.checks": preset_s.checks})
        said = {"seconds": time.perf_counter() - wall}
    print(json.dumps(said), flush=True)
'''


@contextmanager
def source(commit: str | None) -> Iterator[Path]:
    """The folder of this source, or of that of a commit."""
    if commit is None:
        yield ROOT / "src"
        return
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], stdout=subprocess.PIPE, check=True)
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
            packed.extractall(place, filter="data")
        yield Path(place) / "src"


@contextmanager
def worker(
    folder: Path, preset: str, threads: int, precision: str, environment: dict[str, str],
    before: Callable[[], None] | None = None,
) -> Iterator[Ask]:  # fmt: skip
    """A process with the source in a folder; call it with what it is to do."""
    given = json.dumps([preset, threads, precision])
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": str(threads)} | environment,
        preexec_fn=before,
    )  # fmt: skip

    def ask(*what: Any) -> dict[str, float]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        if not (line := process.stdout.readline()):
            sys.exit("A process has ended; what it said stands above.")
        said: dict[str, float] = json.loads(line)
        return said

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


def in_turns(first: Ask, other: Ask, *what: Any) -> list[dict[str, Any]]:
    """A row for each figure of which both say seconds: medians, and ratios of the first to the other within a turn."""
    said = []
    for turn in range(TURNS):
        said.append((first(*what), other(*what)))
        print(f"turn {turn + 1} of {TURNS}: {said[-1]}", file=sys.stderr, flush=True)
    rows = []
    for figure in said[0][0]:
        pairs = [(one[figure], two[figure]) for one, two in said]
        before, now = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [one / two for one, two in pairs]
        of = {"of": figure, "before, s": before, "now, s": now, "turns": TURNS}
        rows.append(of | {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)})
    return rows


def one_core() -> None:
    """Pin a process to one of the cores that it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    """Time what was asked for, and keep its rows in place of earlier ones of the same kind."""
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=["steps", "draws", "threads"])
    parser.add_argument("--against", help="a commit; with steps and draws")
    parser.add_argument("--preset", default="balanced", choices=["fast", "balanced", "best"])
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--avx2", action="store_true", help="hold the processor to AVX2 instructions, in float32")
    options = parser.parse_args()
    threads = options.what == "threads"
    if threads != (options.against is None):
        sys.exit("steps and draws compare with a commit, --against; threads do not.")
    precision = "float32" if options.avx2 else options.precision
    ask = {"steps": ("steps", SKIPPED, TAKEN), "draws": ("draws", ROWS), "threads": ("threads",)}[options.what]
    environment = (common.AVX2 if options.avx2 else {}) | ({"GOMP_SPINCOUNT": "10000"} if threads else {})
    with (
        source(options.against) as folder,
        worker(folder, options.preset, 1, precision, environment, one_core if threads else None) as first,
        worker(ROOT / "src", options.preset, 2 if threads else 1, precision, environment) as other,
    ):
        rows = in_turns(first, other, *ask)
    head = {"what": options.what, "preset": options.preset, "precision": precision, "AVX2": options.avx2}
    head["beside"] = "one core" if threads else options.against
    stamp = results.stamp()
    rows = [row for row in common.kept("turns") if any(row[key] != head[key] for key in head)] + [
        head | row | stamp for row in rows
    ]
    common.keep("turns", rows, shown=[{key: row[key] for key in row if key not in stamp} for row in rows])


if __name__ == "__main__":
    main()
