from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Three sites that run for as long as tests do; they are not to be harmed."""
    pytest.importorskip("nvflare")
    from tests.deployment.flare.deployment import Deployment

    made = Deployment(tmp_path_factory.mktemp("federation"))
    try:
        yield made.start()
    finally:
        made.end()
