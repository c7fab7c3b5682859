from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # so that the toy is `tests.runtime.toy` here and in the processes that tests start
    sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The toy's tensors are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
