"""What keeps the code findable: see `tests.house` for the terms, and CONTRIBUTING.md for the picture."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.house import ROOT, House, circles, room_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIVE = {"__init__", "protocol", "silo", "networks", "private", "options"}


@pytest.fixture(scope="module")
def house() -> House:
    return House(ROOT)


def layers() -> list[list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]


def test_no_file_and_no_room_imports_in_a_circle(house):
    assert circles(house.files) == circles(house.rooms) == []


def test_a_newcomer_meets_few_rooms_and_floors(house):
    assert len(house.rooms) <= 21 and max(house.floors.values()) <= 13


def test_a_class_name_stands_for_one_class(house):
    assert house.repeated == {}


def test_an_algorithm_is_at_most_five_files_with_the_same_names(house):
    algorithms = {name: name.split(".")[2:] for name in house.trees if name.startswith("silosynth.algorithms.")}
    assert {parts[1] for parts in algorithms.values() if len(parts) > 1} <= FIVE


def test_the_picture_in_contributing_is_the_contract():
    (picture,) = re.findall(r"```text\n(cli .*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    drawn = [[room.strip() for room in layer.split("|")] for layer in picture.split("→")]
    assert drawn == layers()[1:]  # without __main__


def test_every_room_is_explained_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert [room for layer in layers()[1:] for room in layer if f"| `{room}" not in text] == []


def test_figures_are_measured_as_described(tmp_path):
    files = {
        "src/silosynth/__init__.py": "",
        "src/silosynth/core/a.py": "class Twin: ...\n",
        "src/silosynth/core/b.py": "from silosynth.core import c\n\nclass Twin: ...\n",
        "src/silosynth/core/c.py": "def late():\n    from silosynth.core.b import Twin\n    return Twin\n",
        "src/silosynth/cli.py": "from silosynth.core.a import (\n    Twin,\n)\n",
        "benchmarks/speed.py": "import silosynth.cli\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path / name).write_text(text, "utf-8")
    small = House(tmp_path)
    assert circles(small.files) == [["silosynth.core.b", "silosynth.core.c"]]
    assert small.floors == {"silosynth": 1, "silosynth.core": 1, "silosynth.cli": 2, "benchmarks": 3}
    assert small.repeated == {"Twin": ["silosynth.core.a", "silosynth.core.b"]}
    assert (small.lines, small.import_lines) == (11, 6)
    assert room_of("silosynth.core.a") == "silosynth.core"
