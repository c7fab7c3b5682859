"""What ``import silosynth`` promises: a sorted list of names, and nothing loaded or printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import silosynth

SURFACE = [
    "Appraisal", "Federation", "Model", "Report", "Representation", "SilosynthError", "__version__", "appraise",
    "count", "datasets", "evaluate", "fit", "judge", "load", "read", "represent", "rules", "simulate",
    "split",
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
    code = (
        "import sys, silosynth, silosynth.cli;"
        "heavy = {'torch', 'pandas', 'numpy', 'pyarrow', 'sklearn', 'pydantic'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
