"""What ``import silosynth`` promises: a sorted list of names, and nothing loaded or printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import silosynth

SURFACE = [
    "Appraisal", "Federation", "Model", "Report", "Representation", "SilosynthError", "__version__", "appraise",
    "count", "datasets", "evaluate", "fit", "impute", "judge", "load", "read", "represent", "rules",
    "simulate", "split",
]  # fmt: skip


def test_the_public_names_are_these_and_sorted() -> None:
    assert silosynth.__all__ == SURFACE
    assert sorted(SURFACE) == SURFACE


@pytest.mark.parametrize("name", SURFACE)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(silosynth, name)
    assert name == "__version__" or value.__doc__
    assert name in dir(silosynth)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        silosynth.fitt  # noqa: B018


@pytest.mark.live
def test_importing_prints_nothing_and_loads_nothing_heavy() -> None:
    done = _python("import silosynth, silosynth.cli", also="'pydantic'")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.live
@pytest.mark.parametrize("command", [(), ("run",), ("submit",)], ids=" ".join)
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    """Typer itself loads pydantic to read a command's words."""
    help_shown = (
        "from silosynth import cli\n"
        f"sys.argv = {['silosynth', *command, '--help']}\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass"
    )
    done = _python(help_shown, also="" if command else "'pydantic'")
    assert f"Example: silosynth {' '.join(command)}".rstrip() in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def _python(code: str, also: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python of its own, which then fails with the names of heavy packages that were loaded."""
    heavy = (
        "'cryptography', 'jinja2', 'numpy', 'nvflare', 'pandas', 'platformdirs', 'pyarrow', 'scipy', 'sklearn', 'torch'"
    )
    told = f"sys.exit(', '.join(sorted({{{heavy}, {also}}} & set(sys.modules))) or None)"
    command = [sys.executable, "-c", f"import sys\n{code}\n{told}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.live
def test_products_do_not_depend_on_where_matrices_lie_in_memory() -> None:
    """MKL's own order of summing does on some processors; on others this passes with any order."""
    code = (
        "import torch, silosynth\n"
        "draw = torch.Generator().manual_seed(0)\n"
        "for m, k, n in torch.randint(1, 41, (300, 3), generator=draw).tolist():\n"
        "    a, b = torch.randn(m, k, generator=draw), torch.randn(n, k, generator=draw)\n"
        "    moved = torch.empty(n * k + 1)[1:].view(n, k).copy_(b)\n"
        "    assert torch.equal(a @ b.T, a @ moved.T), (m, k, n)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
