"""Batches are drawn until enough rows are accepted, and no longer than the bound."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Column, Table
from silosynth.simulation.accepting import Parts, SampleBatch, accepted, where_all


def numbers(first: int, rows: int) -> Table:
    """A silo's column of running numbers."""
    return Table((Column("x", "int64", torch.arange(first, first + rows), torch.zeros(rows, dtype=torch.bool)),))


def drawn(batch: SampleBatch) -> Parts:
    return {"a": numbers(batch.first, batch.rows), "b": numbers(batch.first, batch.rows)}


def test_rows_that_all_silos_accept_come_in_order() -> None:
    watched: list[Progress] = []

    def accepts(parts: Parts) -> Tensor:
        return where_all({"a": parts["a"]}, lambda table: table["x"].values % 4 == 0) & (
            parts["b"]["x"].values % 6 == 0
        )

    batches = list(accepted(drawn, 1000, accepts, "is a multiple of 12", largest=4096, watch=watched.append))
    assert torch.cat([parts["a"]["x"].values for parts in batches]).tolist() == list(range(0, 12_000, 12))
    assert torch.equal(batches[0]["a"]["x"].values, batches[0]["b"]["x"].values)
    assert watched[-1].done == watched[-1].total == 1000
    assert watched[-1].figures["rate"] == pytest.approx(1 / 12, rel=0.01)


def test_where_all_asks_every_silo() -> None:
    parts = {"a": numbers(0, 6), "b": numbers(1, 6)}
    assert where_all(parts, lambda table: table["x"].values % 3 != 0).tolist() == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_too_rare_rows_end_it_with_the_rate() -> None:
    calls: list[int] = []

    def none(parts: Parts) -> Tensor:
        calls.append(len(parts["a"]))
        return torch.zeros(len(parts["a"]), dtype=torch.bool)

    with pytest.raises(ConfigError, match=r"100 would take too long: .* is odd and even.*\(got: 0 of"):
        list(accepted(drawn, 100, none, "is odd and even", largest=16_384))
    assert sum(calls) <= 300_000


def test_a_rate_that_suffices_is_not_stopped() -> None:
    def rare(parts: Parts) -> Tensor:
        return parts["a"]["x"].values % 1000 == 999

    assert sum(len(parts["a"]) for parts in accepted(drawn, 60, rare, "is rare", largest=16_384)) == 60
