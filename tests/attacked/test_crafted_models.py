"""A model file that somebody made to break whoever opens it: no foreign error, and no memory to speak of."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts import settings
from tests.fuzz.damage import checked
from tests.fuzz.model import Original, closed, opened, read

import silosynth as ss
from silosynth.core.errors import ConfigError, SilosynthError, StorageError
from silosynth.core.messages import Struct, from_state, to_state
from silosynth.core.streams import Streams
from silosynth.models import training
from silosynth.models.graphical import GraphicalModel
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.models.tabddpm import TabDDPMConfig
from silosynth.models.training import build
from silosynth.runtime.wire import DEPTH, MAGIC, pack, unpack

TINY = ("tvae", "dplt")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What files of some small models hold."""
    path, held = tmp_path_factory.mktemp("models") / "m.silosynth", {}
    for name in TINY:
        settings.fitted(name).save(path)
        held[name] = opened(path.read_bytes())
    return held


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def _put(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


CRAFTED = {
    "no head": _drop("about"),
    "no seed": _drop("about", "seed"),
    "a seed in words": _put("x", "about", "seed"),
    "no silos": _put([], "about", "silos"),
    "other silos": _put(["x"], "about", "silos"),
    "a ledger of numbers": _put("[1]", "about", "ledger"),
    "a ledger that is no JSON": _put("[", "about", "ledger"),
    "options of another algorithm": _put({"struct": "core.Done", "fields": {}}, "config"),
    "a struct without fields": _put({"struct": "core.Done"}, "config"),
    "a struct with a list for a name": _put({"struct": [], "fields": {}}, "config"),
    "no part": _put({}, "parts"),
    "parts in a list": _put([], "parts"),
    "another flavour": _put("x", "about", "flavour"),
    "columns that are not there": _put(["x"], "about", "columns"),
    "a struct in a struct, and so on": _put({"struct": "core.Done", "fields": nested(DEPTH - 5)}, "config"),
}


@pytest.mark.parametrize("name", CRAFTED, ids=str)
def test_crafted_heads_are_refused(name: str, contents: dict[str, Any], tmp_path: Path) -> None:
    content = unpack(pack(contents["tvae"]))
    CRAFTED[name](content)
    path = tmp_path / "m.silosynth"
    path.write_bytes(closed(content))
    with pytest.raises(SilosynthError):
        ss.load(path).sample(3)
    assert read(path) != "read"


@pytest.mark.parametrize("width", [2**20, 2**40])
def test_networks_of_any_size_take_no_memory(width: int, contents: dict[str, Any], tmp_path: Path) -> None:
    """Two layers of 2²⁰ are 4 TB."""
    content = unpack(pack(contents["tvae"]))
    content["config"]["fields"]["decoder"] = [width, width]
    path = tmp_path / "m.silosynth"
    path.write_bytes(closed(content))
    tracemalloc.start()
    with pytest.raises(SilosynthError, match=r"weights|at most 1,048,576"):
        ss.load(path).sample(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25


@pytest.mark.parametrize("steps", [2**15, 2**40])
@pytest.mark.parametrize("options", [LatentConfig(), TabDDPMConfig()], ids=lambda options: type(options).__name__)
def test_rows_are_not_drawn_in_steps_without_end(options: Struct, steps: int) -> None:
    held = unpack(pack({"config": to_state(options)}))["config"]
    held["fields"]["sample_steps"] = steps
    with pytest.raises(SilosynthError, match="at most 10,000"):
        from_state(type(options), held)


def test_deep_files_are_refused(tmp_path: Path) -> None:
    skeleton = b'{"d":[["form",' + b"[" * 900 + b"]" * 900 + b"]]}"
    body = len(skeleton).to_bytes(8, "little") + skeleton
    (tmp_path / "m").write_bytes(MAGIC + (1).to_bytes(4, "little") + checked(bytes(28) + body)[16:])
    with pytest.raises(StorageError, match=f"at most {DEPTH} levels deep"):
        ss.load(tmp_path / "m")
    with pytest.raises(StorageError, match=f"at most {DEPTH} levels deep"):
        pack({"a": nested(DEPTH + 1)})
    assert unpack(pack({"a": nested(DEPTH - 2)}))


def test_networks_that_are_too_large_are_refused_before_they_are_made() -> None:
    with pytest.raises(ConfigError, match="at most 268,435,456 weights"):
        build(torch.nn.Linear, 2**20, 2**20, generator=torch.Generator())


def test_images_of_any_number_of_channels_take_no_memory() -> None:
    coded = settings.federation("ctabgan")
    with pytest.raises(ConfigError, match="at most 268,435,456 weights"):
        ss.fit("ctabgan", coded, "fast", options=settings.TINY["ctabgan"] | {"channels": 2**14}, progress=False)


def test_layers_without_number_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million layers of one weight each are 4 GB."""
    monkeypatch.setattr(training, "MOST_TENSORS", 200)
    made = 0

    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            nonlocal made
            super().__init__()
            for _ in range(2**20):
                torch.nn.Linear(1, 1)
                made += 1

    with pytest.raises(ConfigError, match="at most 200 tensors of weights"):
        build(Deep, generator=torch.Generator())
    assert made <= 100


def test_latents_that_are_too_many_are_refused_before_they_take_memory() -> None:
    for latents in (2**34, 6 * 2**20):  # more weights than a network may have; and 400 GB for 16,384 rows
        with pytest.raises(ConfigError, match="at most 65,536 latents"):
            LatentGenerator(100, latents, LatentConfig(width=8), Streams(0), torch.device("cpu"))


@pytest.mark.parametrize("attributes", [[2**40], [-1], [0, 1]])
def test_a_term_is_of_a_models_attributes(attributes: list[int]) -> None:
    term = {"attributes": attributes, "numbers": torch.zeros(2)}
    with pytest.raises(StorageError, match="of its attributes"):
        GraphicalModel.restored({"sizes": [2, 3], "terms": [term]})


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([2, 2**40], []),
        ([2, 0], []),
        ([2, 3], [[2], [1, 2**40]]),
        ([2, 3], [[2], [3, 3]]),
        ([2, 3], [[2]]),
        ([2, 3], [[], [3]]),
    ],
)
def test_groups_divide_a_models_levels(sizes: list[int], ends: list[list[int]]) -> None:
    with pytest.raises(StorageError, match="divide the levels"):
        GraphicalModel.restored({"sizes": sizes, "terms": [], "ends": ends})


def test_a_private_models_number_of_rows_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "m.silosynth"
    settings.fitted("mst rows private").save(path)
    content = opened(path.read_bytes())
    content["coordinator"]["rows"] = "pandas"
    path.write_bytes(closed(content))
    with pytest.raises(StorageError, match="its head"):
        ss.load(path)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 400))])
def test_changed_models_are_read_or_refused(name: str, seed: int, contents: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.silosynth"
    path.write_bytes(closed(Original(contents[name]).changed(random.Random(seed))))
    read(path)
