"""Asks of any type, shape and content, between those that a silo is owed: answered, or refused by errors of our own."""

from __future__ import annotations

import pytest
from tests.attacked.asks import meddle
from tests.contracts.settings import TINY


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TINY)
def test_no_ask_raises_a_foreign_error(name: str, seed: int) -> None:
    foreign, answered, refused = meddle(name, seed)
    assert not foreign
    assert answered + refused
