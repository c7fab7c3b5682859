"""What errors tell people to write, install or pass exists."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
import typer

import silosynth
from silosynth.cli import app
from silosynth.core.rules import KINDS
from silosynth.data.infer import ColumnOverride
from silosynth.deployment.rows import SiloData
from silosynth.experiment.grammar import ColumnRules, CsvKeys, DataSection, SiloSection

ROOT = Path(silosynth.__file__).parent
COMMANDS = [f"commands/{name}.py" for name in ("run", "inspect", "tables", "audit", "federation")]
CSV = {"separator", "decimal", "encoding", "missing"}


def texts(*rooms: str) -> Iterator[str]:
    """All string literals of the code that are no docstrings, the pieces of formatted ones included."""
    places = [ROOT / room for room in rooms]
    for path in sorted(path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield node.value


def found(pattern: str, *rooms: str) -> set[str]:
    return {hit for text in texts(*rooms) for hit in re.findall(pattern, text)}


def options(command: click.Command) -> set[str]:
    """The options of a command and of those below it."""
    below = getattr(command, "commands", {}).values()
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"--help", "--version"}, *(options(one) for one in below))


def test_keys_for_files_and_columns_exist_in_toml_and_in_python() -> None:
    columns = {field.name for field in fields(ColumnOverride)}
    assert set(ColumnRules.model_fields) == columns
    assert (
        CsvKeys.model_fields.keys() == inspect.signature(silosynth.read).parameters.keys() - {"path", "columns"} == CSV
    )
    assert all(section.model_fields.keys() >= CSV for section in (DataSection, SiloSection, SiloData))
    assert {f"--{key}" for key in CSV} <= options(typer.main.get_command(app))


@pytest.mark.parametrize("room", ["data", "simulation"])
def test_keys_that_remedies_name_exist(room: str) -> None:
    keys = set(ColumnRules.model_fields) | set(SiloData.model_fields)
    keys |= {field.name for kind in KINDS.values() for field in fields(kind)}
    named = found(r"\b([a-z_]+) = [\"\[]", room)
    assert named <= keys, named - keys
    assert room != "data" or {"format", "decimal", "missing", "encoding", "separator", "kind"} <= named


def test_extras_that_errors_name_exist() -> None:
    extras = (ROOT.parents[1] / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    named = found(r"silosynth\[(\w+)\]", ".")
    assert {"excel", "names"} <= named
    assert all(f"\n{extra} = [" in extras for extra in named), named


def test_options_that_errors_name_exist() -> None:
    named = found(r"(?<![\w-])(--[a-z][a-z-]+)\b", "simulation", "runtime", "evaluation", *COMMANDS)
    assert named <= options(typer.main.get_command(app)), named - options(typer.main.get_command(app))
