"""How processor time and memory of a federation grow with rows, columns, silos, and the levels of a column.

    python benchmarks/scale.py                       # all of it: an hour of a processor
    python benchmarks/scale.py --only rows silos     # some of the grids
    python benchmarks/scale.py --folder scale        # keeps what each case has measured, and goes on from there

Each silo reads a Parquet file of its own in a process of its own, links its rows with the others' by keyed hashes of an
identifier, trains and publishes 10 000 rows, behind its endpoint, policy and signed ledger and over a local stream, as
deployed silos do; the coordinator is another process. Tables are drawn from a seed: numbers, whole numbers, dates and
texts of 2 to 200 levels, some missing, all hanging together by four normal factors, across silos too. Every silo has
the rows in another order.

Seconds are those of processors, without the start of a process; memory is the largest resident set of a process. Both
are of the silo that takes most. Networks take a tenth of the steps of the preset "fast", so that seconds of training
are a tenth of its. Exponents are slopes of straight lines through logarithms, by least squares; those of memory are of
what a process takes beyond what it took when it had just started.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.special import ndtr

from silosynth import catalog
from silosynth.alignment import AlignConfig
from silosynth.core.conversation import Roster
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.deployment import silo as deployed
from silosynth.deployment.coordinator import Order, run_order
from silosynth.deployment.policy import Releases, SiloPolicy
from silosynth.deployment.protocol import Job
from silosynth.deployment.rows import SILO, read_silo
from silosynth.deployment.silo_ledger import SiloLedger
from silosynth.papers import drawings
from silosynth.privacy.sealed import Seat, seats
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.link import Remote
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority, Certificates

SPAWN = multiprocessing.get_context("spawn")  # processes that begin with nothing of this one's memory
BATCH = 250_000  # rows that are made at a time
KINDS = ("real", "whole", "text 5", "text 30", "date", "money", "text 2", "text 200", "large", "absent")
STAGES = {
    "Greet": "read", "Begin": "read", "RelayedHoldoutKeys": "read", "PrepareRows": "encode", "FitCoder": "encode",
    "AskLatents": "encode", "PrepareSynthesis": "draw", "SynthesiseFromLatents": "draw", "Publish": "draw",
}  # fmt: skip
TIMED = ("read", "link", "encode", "train", "draw", "rest")
STEPS = 0.1  # of those of the preset


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        algorithm: its name.
        rows, columns, silos: of the whole table.
        levels: of one column more, of text; 0 for none.
        sample: share of the rows that the job takes up.
    """

    algorithm: str
    rows: int
    columns: int
    silos: int
    levels: int = 0
    sample: float = 1.0


GRIDS: dict[str, list[Case]] = {
    "rows": [Case(name, 10**k, 20, 2) for name in ("silofuse", "mst") for k in (4, 5, 6)],
    "columns": [
        *(Case("silofuse", 10**4, d, 2) for d in (20, 100, 500)), *(Case("mst", 10**4, d, 2) for d in (20, 100)),
    ],
    "silos": [Case("silofuse", 10**4, 100, m) for m in (2, 5, 10, 20)],
    "levels": [Case("silofuse", 10**6, 5, 2, 10**k) for k in (3, 4, 5)],
    "sample": [Case("silofuse", 10**7, 20, 2, sample=0.02), Case("silofuse", 10**6, 100, 2, sample=0.1)],
}  # fmt: skip


def made(case: Case, folder: Path, seed: int = 0) -> dict[str, Path]:
    """Each silo's folder, with a Parquet file of its columns and a silo.toml that names it."""
    kinds = [KINDS[j % len(KINDS)] for j in range(case.columns)] + [f"text {case.levels}"] * bool(case.levels)
    places = {f"silo{k}": folder / f"silo{k}" for k in range(case.silos)}
    writers: dict[str, pq.ParquetWriter] = {}
    for place in places.values():
        place.mkdir(parents=True)
        (place / SILO).write_text('[data]\npath = "rows.parquet"\nidentifiers = ["person"]\n')
    for start in range(0, case.rows, BATCH):
        draw = np.random.default_rng((seed, start))
        n = min(BATCH, case.rows - start)
        columns = dict(enumerate(table(n, kinds, draw)))
        for k, (silo, place) in enumerate(places.items()):
            order = np.random.default_rng((seed, start, k)).permutation(n)
            own = {f"c{j}": column for j, column in columns.items() if j % case.silos == k}
            batch = pa.table({"person": pa.array(start + np.arange(n)), **own}).take(pa.array(order))
            if silo not in writers:
                writers[silo] = pq.ParquetWriter(place / "rows.parquet", batch.schema)
            writers[silo].write_table(batch)
    for writer in writers.values():
        writer.close()
    return places


def table(n: int, kinds: Sequence[str], draw: np.random.Generator) -> Iterator[pa.Array]:
    """Columns of ``n`` rows, of these kinds, which hang together by four factors."""
    factors = draw.standard_normal((4, n))
    for j, kind in enumerate(kinds):
        score = 0.75 * factors[j % 4] + 0.66 * draw.standard_normal(n)
        name, _, levels = kind.partition(" ")
        match name:
            case "text":
                code = (ndtr(score) ** 2 * int(levels)).astype(np.int32)
                names = pa.array([f"level {level}" for level in range(int(levels))])
                yield pa.DictionaryArray.from_arrays(pa.array(code), names).cast(pa.string())
            case "whole":
                yield pa.array(np.rint(45 + 15 * score).clip(0, 99).astype(np.int64))
            case "date":
                yield pa.array((15_000 + 1500 * score).astype("datetime64[D]").astype("datetime64[ms]"))
            case "money":
                yield pa.array(np.round(np.exp(7 + score), 2))
            case "large":
                yield pa.array(np.rint(np.exp(10 + score)).astype(np.int64))
            case "absent":
                yield pa.array(score, mask=draw.random(n) < 0.1)
            case _:
                yield pa.array(score)


class Stages:
    """Processor seconds of this process by stage, and its largest resident set in each (Linux tells it anew)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.gigabytes = {"start": resident("VmRSS")}
        self._since = time.process_time()

    def end(self, stage: str) -> None:
        """What this process has done since the last end was ``stage``."""
        now = time.process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self.gigabytes[stage] = max(self.gigabytes.get(stage, 0.0), resident("VmHWM"))
        self._since = now
        Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> float:
    """A figure of this process's memory, in gigabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what))) / 2**20


def stage_of(ask: Message) -> str:
    """To which stage an ask belongs."""
    kind = type(ask)
    if kind.__module__.startswith(("silosynth.alignment", "silosynth.privacy.agreement")):
        return "link"
    training = kind.__module__.startswith(("silosynth.algorithms", "silosynth.counting"))
    return STAGES.get(kind.__name__, "train" if training else "rest")


class Silo(deployed.DeploymentSilo):
    """A deployed silo that says what each stage took."""

    stages: Stages

    def answer(self, ask: Message) -> Message:
        """See `DeploymentSilo.answer`."""
        reply = super().answer(ask)
        self.stages.end(stage_of(ask))
        return reply


def serve(seat: Seat, place: Path, address: str, certificates: Certificates, told: Any) -> None:
    """A silo's process."""
    torch.set_num_threads(1)
    algorithms = [*catalog.names("generator")]
    policy = SiloPolicy(algorithms=algorithms, keyed_hash=True, open_tables="exact")
    book, releases = SiloLedger(place / "job", "job", seat), Releases(place / "releases")
    silo = Silo(seat, read_silo(place), policy, place / "job", releases, torch.device("cpu"), book=book)
    silo.stages = Stages()
    endpoint = PartyEndpoint(seat.name, silo, place / "job" / "checkpoints", book)
    serve_endpoint(endpoint, address=address, certs=certificates, patience=60.0)
    silo.stages.end("rest")
    told.put((silo.stages.seconds, silo.stages.gigabytes))


def asked(case: Case) -> Job:
    """The job of a case, with a part of the preset's steps."""
    entry = catalog.algorithm(case.algorithm)
    config: Any = entry.configure("fast", {})
    fewer = {}
    if case.algorithm == "silofuse":
        fewer = {f"{part}.steps": round(getattr(config, part).steps * STEPS) for part in ("coder", "latent")}
    return Job(
        "job", case.algorithm, "fast", entry.configure("fast", fewer), tuple(f"silo{k}" for k in range(case.silos)),
        None, AlignConfig("keyed-hash"), 10_000, "bench", sample=case.sample,
    )  # fmt: skip


def conducted(case: Case, places: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """A whole job, of which this process is the coordinator."""
    torch.set_num_threads(1)
    job, authority, chairs = asked(case), Authority(), seats(places, Streams(0))
    hub, told = StreamHub(job.silos, authority.coordinator(), "127.0.0.1:0", 60.0), SPAWN.Queue()
    processes = {
        silo: SPAWN.Process(target=serve, args=(chairs[silo], place, hub.address, authority.party(silo), told))
        for silo, place in places.items()
    }
    for process in processes.values():
        process.start()

    def dead(silo: str) -> str | None:
        """Whether a silo's process has ended."""
        return None if processes[silo].exitcode is None else "its process has ended"

    hub.wait_for_all(300.0, dead)
    stages = Stages()
    with Remote(Roster(job.silos), hub, dead) as link:
        run_order(Order(job), link, folder)
    stages.end("all")
    found = [told.get() for _ in processes]
    for process in processes.values():
        process.join()
    return figures(case, found, stages)


def figures(case: Case, silos: Sequence[Any], coordinator: Stages) -> dict[str, Any]:
    """A line of the table."""
    of_silo = {stage: max(seconds.get(stage, 0.0) for seconds, _ in silos) for stage in TIMED}
    gigabytes = [(peaks.pop("start"), max(peaks.values())) for _, peaks in silos]
    idle = coordinator.gigabytes["start"]
    return {
        **asdict(case), **{f"{stage}, s": round(seconds, 2) for stage, seconds in of_silo.items()},
        "silo, s": round(max(sum(seconds.values()) for seconds, _ in silos), 2),
        "coordinator, s": round(coordinator.seconds["all"], 2),
        "silo, GB": round(max(peak for _, peak in gigabytes), 3),
        "coordinator, GB": round(coordinator.gigabytes["all"], 3),
        "silo, GB more": round(max(peak - start for start, peak in gigabytes), 3),
        "coordinator, GB more": round(coordinator.gigabytes["all"] - idle, 3),
    }  # fmt: skip


def measured(*given: Any) -> dict[str, Any]:
    """A case, with processes of its own for all that it does."""
    case = Case(*given)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, SPAWN, max_tasks_per_child=1) as pool:
        places = pool.submit(made, case, Path(folder)).result()
        return pool.submit(conducted, case, places, Path(folder) / "coordinator").result()


FITTED = ("read, s", "link, s", "encode, s", "train, s", "draw, s", "silo, s", "coordinator, s")
BEYOND = ("silo, GB more", "coordinator, GB more")
LEAST = 0.05  # seconds and gigabytes: less says nothing of growth


def exponents(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By what grows and algorithm, the slope of the logarithm of each figure; None where a case has next to nothing."""
    lines = []
    for grid, cases in GRIDS.items():
        for algorithm in dict.fromkeys(case.algorithm for case in cases if grid != "sample"):
            own = [row for row in rows if any(asdict(case).items() <= row.items() for case in cases)]
            own = [row for row in own if row["algorithm"] == algorithm]
            slopes = {key: slope([(row[grid], row[key]) for row in own]) for key in (*FITTED, *BEYOND)}
            lines.append({"growth with": grid, "algorithm": algorithm, **slopes})
    return lines


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The exponent of a power law through the points, by least squares of logarithms."""
    if len(points) < 2 or min(y for _, y in points) < LEAST:
        return None
    x, y = np.log([*zip(*points, strict=True)])
    return round(float(np.polyfit(x, y, 1)[0]), 2)


def panels(rows: Sequence[dict[str, Any]]) -> list[list[drawings.Panel]]:
    """Seconds above gigabytes, side by side what grows."""
    lines = []
    for unit in ("s", "GB"):
        line = []
        for grid, cases in GRIDS.items():
            settings: dict[str, list[drawings.Point]] = {}
            for case in cases if grid != "sample" else ():
                row = next((row for row in rows if asdict(case).items() <= row.items()), None)
                for who in ("silo", "coordinator") if row else ():
                    settings.setdefault(f"{case.algorithm}, {who}", []).append((row[grid], row[f"{who}, {unit}"], 0.0))
            if settings:
                line.append(drawings.Panel(unit, grid, settings, log=True))
        lines.append(line)
    return lines


def figure(rows: Sequence[dict[str, Any]]) -> Any:
    """The panels, all of a line between the same ends."""
    lines = panels(rows)
    drawn = drawings.drawn(lines)
    for place, panel in zip(drawn.axes, (panel for line in lines for panel in line), strict=True):
        place.set_ylim((0.5, 200) if panel.title == "s" else (0.4, 5))
        place.tick_params(which="minor", labelleft=False, labelbottom=False)
    return drawn


def main() -> None:
    """Measure those that were asked for; keep all if all were."""
    options = common.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[*GRIDS], choices=GRIDS)
    options.add_argument("--folder", type=Path, help="where what each case has measured is kept")
    args = options.parse_args()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    cases = dict.fromkeys(case for grid in args.only for case in GRIDS[grid])
    rows = []
    for case in cases:
        rows.append(common.once(args.folder, measured, *asdict(case).values()))
        print(rows[-1], flush=True)
    found = exponents(rows)
    print(common.markdown(found), flush=True)
    if args.only == [*GRIDS]:
        common.RESULTS.mkdir(exist_ok=True)
        shown = drawings.written(common.RESULTS / "scale.md", figure(rows), "Seconds and gigabytes by what grows")
        common.keep("scale", rows, "\n\n".join([*shown, "Exponents:", common.markdown(found), "Measured:"]))


if __name__ == "__main__":
    main()
