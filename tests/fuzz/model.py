"""Model files whose content is changed as a tree, with lengths and checksum put right; what is read must be refused.

python -m tests.fuzz.model --runs 100000     # from the repository's root
"""

from __future__ import annotations

import argparse
import collections
import copy
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import silosynth as ss
from silosynth.core.errors import SilosynthError
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


def changed(content: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three places changed."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = [node for node in _nodes(content) if node]
        at = rng.choice(holders)
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        match rng.randrange(5):
            case 0:
                del at[key]
            case 1 if isinstance(at[key], torch.Tensor):
                at[key] = _tensor(at[key], rng)
            case 2:
                others = [node for holder in holders for node in _values(holder)]
                at[key] = copy.deepcopy(rng.choice(others))
            case 3 if isinstance(at, list):
                at.append(copy.deepcopy(at[key]))
            case _:
                at[key] = copy.deepcopy(rng.choice(ODD))
    return content


def _tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    flat = tensor.reshape(-1)
    ways = (flat, flat[:-1], tensor[None], torch.cat([flat, flat]), torch.zeros_like(tensor), tensor.double() * 1e300)
    return rng.choice((*ways, tensor.to(torch.int64)))


def _nodes(tree: Any) -> list[Any]:
    found, todo = [], [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            todo += _values(node)
    return found


def _values(node: Any) -> list[Any]:
    return list(node.values() if isinstance(node, dict) else node)


def read(path: Path) -> str:
    """Load the file, let it describe itself, and draw rows: what became of it. Any error but ours is raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ss.load(path)
            model.describe()
            model.sample(3)
    except SilosynthError as error:
        return type(error).__name__
    return "read"


def main() -> None:
    """Fuzz as the command line says."""
    from tests.contracts import settings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithms", nargs="*", default=["tvae", "silofuse", "vtgan", "vflgan", "dplt", "gdts"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.silosynth"
        for name in given.algorithms:
            settings.fitted(name).save(path)
            content, ends = unpack(path.read_bytes()), collections.Counter[str]()
            for number in range(given.runs // len(given.algorithms)):
                path.write_bytes(pack(changed(content, random.Random(f"{given.seed} {name} {number}"))))
                try:
                    ends[read(path)] += 1
                except Exception as error:
                    print(f"finding: {name} {number}: {type(error).__name__}: {error}", flush=True)
                    ends["finding"] += 1
            print(f"{name}: {dict(ends)}", flush=True)


if __name__ == "__main__":
    main()
