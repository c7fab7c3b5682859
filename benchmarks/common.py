"""What benchmarks share: options, a clock, the largest memory, and where results go.

Data sets come from the folder that the environment variable SILOSYNTH_DATA names. Results are JSON files in
``benchmarks/results``, stamped with commit and machine, with a Markdown table beside them.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from silosynth.core.conversation import Conversation, Exchange
from silosynth.core.files import write_atomic
from silosynth.papers import results

RESULTS = Path(__file__).parent / "results"
Measured = TypeVar("Measured")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
"""Environment of a process that is to use no later instructions; its networks then need float32."""


def parser(text: str | None) -> argparse.ArgumentParser:
    """For a benchmark's options; its help begins with ``text``, the benchmark's docstring."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


@contextmanager
def clock() -> Iterator[dict[str, float]]:
    """Seconds that the block took, in ``["seconds"]``."""
    taken: dict[str, float] = {}
    start = time.perf_counter()
    yield taken
    taken["seconds"] = time.perf_counter() - start


def seconds(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    with clock() as taken:
        work()
    return taken["seconds"]


def converse(talk: Conversation[Any], parties: Mapping[str, Any], at_once: int = 1) -> None:
    """Run a conversation without a runtime: parties answer on one thread each, and nothing is encoded."""
    before, got = torch.get_num_threads(), None
    torch.set_num_threads(1)
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool, suppress(StopIteration):
        while True:
            step = talk.send(got)
            asks = step.asks if isinstance(step, Exchange) else {}
            answers = {silo: pool.submit(parties[silo].answer, ask) for silo, ask in asks.items()}
            got = {silo: answer.result() for silo, answer in answers.items()}
    torch.set_num_threads(before)


def peak_gigabytes() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def keep(
    name: str, rows: Sequence[dict[str, Any]], above: str = "", shown: Sequence[dict[str, Any]] | None = None
) -> None:
    """Write ``results/<name>.json`` and ``.md``, and print the table; ``above`` stands over it.

    In it are all rows, with one stamp; or else what is ``shown``, of rows of which each has its own.
    """
    RESULTS.mkdir(exist_ok=True)
    stamp = results.stamp()
    content = {"stamp": stamp, "rows": list(rows)} if shown is None else {"rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    stamped = [stamp] if shown is None else rows
    text = results.page("", above, results.plain(rows if shown is None else shown), stamped=stamped)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text, flush=True)


def kept(name: str) -> list[dict[str, Any]]:
    """The rows of ``results/<name>.json``."""
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def kept_at(folder: Path, *given: Any) -> Path:
    """Where `once` keeps the measurement of what is given."""
    return folder / f"{' '.join(map(str, given))}.json"


def once(folder: Path | None, work: Callable[..., Measured], *given: Any) -> Measured:
    """What a measurement returns for what is given: from the folder, where another run has kept it there."""
    kept = None if folder is None else kept_at(folder, *given)
    if kept is not None and kept.exists():
        found: Measured = json.loads(kept.read_text(encoding="utf-8"))
        return found
    measured = work(*given)
    if kept is not None:
        write_atomic(kept, json.dumps(measured).encode())
    return measured


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table."""
    ((_, heads, lines),) = results.plain(rows)
    return results.table(heads, lines)
