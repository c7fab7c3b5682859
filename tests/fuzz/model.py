"""Model files whose content is changed as a tree, with lengths and checksum put right; what is read must be refused.

python -m tests.fuzz.model --runs 100000     # from the repository's root
python -m tests.fuzz.model --numbers         # instead of chance: each number of each file, by each of `NUMBERS`

Every model is trained at a tiny size, and few rows are drawn to calibrate it by. What its ledger says, which a file
holds as text, is changed as a tree too. A file that is read for longer than `LONGEST` ends the run with what every
thread was doing; it stays in the run's temporary folder.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import itertools
import json
import random
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import silosynth as ss
from silosynth.algorithms.vflgan import networks
from silosynth.core.errors import SilosynthError
from silosynth.models import latent_table
from silosynth.runtime.wire import pack, unpack

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2, 2**20, 2**31, 2**40, 2**62, -(2**62), 1.5, float("nan"), float("inf"), 1e300, "", "x"),
    *("pandas", "é" * 50, b"", b"\0abc", [], {}, [[]], [1, 2], {"a": 1}, {"struct": "core.Done", "fields": {}}),
    *(
        {"struct": [], "fields": {}},
        {"struct": "x"},
        torch.zeros(0),
        torch.zeros(3, 2),
        torch.ones(2, dtype=torch.bool),
    ),
    *(torch.full((5,), float("nan")), torch.arange(4), torch.zeros(())),
)
NUMBERS = (0, -1, 2**14, 2**20, 2**31, 2**40, 2**62, 1e300, float("nan"))
MEMORY = 4 << 30
"""Bytes of address space that reading may take beyond what the process has: to run out of them is a finding."""
LONGEST = 300
"""Seconds that reading one file may take on a busy machine, instead of milliseconds: to take longer is a finding."""
PLAIN = ("tvae", "ctgan", "silofuse", "vtgan", "vflgan", "dplt", "mst", "aim", "gdts", "gdts diffusion")
PRIVATE = ("silofuse private", "vflgan private", "mst rows private", "aim private")


def opened(blob: bytes) -> dict[str, Any]:
    """What a file holds, with its ledger as a tree, each kind of record once."""
    content = unpack(blob)
    lines = json.loads(content["about"]["ledger"])
    records = {json.dumps(record | {"bytes": 0, "step": 0}): record for record in lines}
    content["about"]["ledger"] = list(records.values())
    return content


def closed(content: dict[str, Any]) -> bytes:
    """A file that holds it."""
    about = content.get("about")
    if isinstance(about, dict) and isinstance(about.get("ledger"), (list, dict)):
        content = content | {"about": about | {"ledger": json.dumps(about["ledger"], default=repr)}}
    return pack(content)


class Original:
    """What a file holds, to be changed: places of all its nodes are looked up once."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content, self._places = content, _places(content)

    def changed(self, rng: random.Random) -> dict[str, Any]:
        """The same with one to three places changed; what is not on the way to one of them is not copied."""
        content, places = self.content, self._places
        for number in range(rng.choice((1, 1, 1, 2, 3))):
            if number:
                places = _places(content)
            if not places:
                break
            path, at = rng.choice(places)
            content = _with(content, path, _once(at, places, rng))
        return content

    def numbers(self) -> Iterator[dict[str, Any]]:
        """The same with one number replaced by another: each by each of `NUMBERS`; of long lists the first ones."""
        for path, at in self._places:
            keys = list(at) if isinstance(at, dict) else range(min(len(at), 4))
            for key, number in itertools.product(keys, NUMBERS):
                if type(at[key]) in (int, float):
                    made: Any = at.copy()
                    made[key] = number
                    yield _with(self.content, path, made)


def _once(at: Any, places: Sequence[tuple[tuple[Any, ...], Any]], rng: random.Random) -> Any:
    """A node with one place changed."""
    key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
    made: Any = at.copy()
    match rng.randrange(5):
        case 0:
            del made[key]
        case 1 if isinstance(at[key], torch.Tensor):
            made[key] = _tensor(at[key], rng)
        case 2:
            made[key] = rng.choice([node for _, holder in places for node in _values(holder)])
        case 3 if isinstance(at, list):
            made.append(at[key])
        case _:
            made[key] = rng.choice(ODD)
    return made


def _with(tree: Any, path: Sequence[Any], node: Any) -> Any:
    """The tree with another node at the end of a path of keys."""
    if not path:
        return node
    made = tree.copy()
    made[path[0]] = _with(tree[path[0]], path[1:], node)
    return made


def _tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    flat = tensor.reshape(-1)
    ways = (flat, flat[:-1], tensor[None], torch.cat([flat, flat]), torch.zeros_like(tensor), tensor.double() * 1e300)
    return rng.choice((*ways, tensor.to(torch.int64)))


def _places(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """All nodes that hold something, each with the keys that lead to it."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    todo: list[tuple[tuple[Any, ...], Any]] = [((), tree)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, (dict, list)) and node:
            found.append((path, node))
            keys = node.keys() if isinstance(node, dict) else range(len(node))
            todo += [((*path, key), node[key]) for key in keys if isinstance(node[key], (dict, list))]
    return found


def _values(node: Any) -> list[Any]:
    return list(node.values() if isinstance(node, dict) else node)


def read(path: Path) -> str:
    """Load the file, let it describe itself, and draw rows: what became of it. Any error but ours is raised."""
    try:
        model = ss.load(path)
        model.describe()
        model.sample(3)
    except SilosynthError as error:
        if "allocate memory" in str(error) or "MemoryError" in str(error):
            raise MemoryError(str(error)) from error
        return type(error).__name__
    return "read"


def _again(path: Path) -> str:
    """As `read`; where memory runs out, once more without what earlier files have left."""
    with contextlib.suppress(MemoryError):
        return read(path)
    gc.collect()
    return read(path)


def fuzz(name: str, runs: int | None, seed: int, path: Path) -> collections.Counter[str]:
    """Read changed files of one model, so many at random, or all of `Original.numbers`: how many ended how.

    Findings are printed.
    """
    from tests.contracts import settings

    settings.fitted(name).save(path)
    content, ends = Original(opened(path.read_bytes())), collections.Counter[str]()
    gc.freeze()
    chance = (content.changed(random.Random(f"{seed} {name} {number}")) for number in range(runs or 0))
    for number, changed in enumerate(content.numbers() if runs is None else chance):
        path.write_bytes(closed(changed))
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        try:
            ends[_again(path)] += 1
        except Exception as error:
            print(f"finding: seed {seed}, {name} {number}: {type(error).__name__}: {error}", flush=True)
            ends["finding"] += 1
    faulthandler.cancel_dump_traceback_later()
    return ends


def main(given: Sequence[str] | None = None) -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="inputs in all, as many of each model")
    parser.add_argument("--numbers", action="store_true", help="each number of each file by each of NUMBERS, instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithms", nargs="*", default=[*PLAIN, *PRIVATE], help="settings of tests.contracts")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    networks.MATCHING, latent_table._CALIBRATED_BY = 64, 1  # rows; and numbers, of at least 64 rows
    gc.set_threshold(100_000)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    with tempfile.TemporaryDirectory(prefix="silosynth-fuzz-") as folder:
        for name in args.algorithms:
            start = time.process_time()
            runs = None if args.numbers else args.runs // len(args.algorithms)
            ends = fuzz(name, runs, args.seed, Path(folder) / "model.silosynth")
            print(f"{name}: {ends.total()} inputs, {time.process_time() - start:.0f} s: {dict(ends)}", flush=True)


if __name__ == "__main__":
    main()
