"""Who a silo is reaches its party, and nobody else's key does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

import silosynth as ss
from silosynth.catalog import ALGORITHMS
from silosynth.core.files import read
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import Seat, seats
from silosynth.runtime.tls import Authority
from silosynth.runtime.wire import unpack
from silosynth.simulation import silos as processes
from silosynth.simulation.silos import ProcessKit

TINY = {"coder.steps": 2, "coder.hidden": [4], "latent.width": 4, "latent.steps": 2, "latent.batch": 8,
        "latent.sample_steps": 2, "least_rows": 8}  # fmt: skip


def federation() -> ss.Federation:
    frame = pd.DataFrame({"age": [i % 7 for i in range(40)], "spent": [i % 9 * 0.5 for i in range(40)]})
    return ss.simulate(frame, silos={"bank": ["age"], "shop": ["spent"]})


def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The folders that processes would be started with."""
    places = {name: tmp_path / name for name in ("bank", "shop")}

    def start(roster, command, folder, limit):
        for name in roster:
            places[name].mkdir()
            ProcessKit(name, "127.0.0.1:1", None, 1, Authority().party(name)).write(places[name])
            command(name, places[name])

    monkeypatch.setattr(processes, "Processes", start)
    made = seats(("bank", "shop"), Streams(3).child("seats"))
    config = ALGORITHMS["silofuse"].configure("fast", TINY)
    processes.spawn("silofuse", config, federation(), made, 3, "cpu", tmp_path)
    return places


def test_a_process_is_given_its_own_private_key_and_everybodys_public_one(tmp_path, monkeypatch):
    made = seats(("bank", "shop"), Streams(3).child("seats"))
    given = {name: unpack(read(place / "silo")) for name, place in kits(tmp_path, monkeypatch).items()}
    for name, other in (("bank", "shop"), ("shop", "bank")):
        assert given[name]["private"] == made[name].private
        assert tuple(given[name]["keys"]) == made[name].roster.keys
        assert made[other].private not in (tmp_path / name / "silo").read_bytes()


def test_a_process_sits_down_as_the_silo_that_its_kit_names(tmp_path, monkeypatch):
    seen: list[Seat] = []
    monkeypatch.setattr(ProcessKit, "serve", lambda self, party: None)
    _watch(monkeypatch, seen)
    for place in kits(tmp_path, monkeypatch).values():
        processes.serve(place)
        assert not (place / "silo").exists()
    assert seen == list(seats(("bank", "shop"), Streams(3).child("seats")).values())


def test_silos_keep_their_keys_from_training_to_sampling(monkeypatch, tmp_path):
    seen: list[Seat] = []
    _watch(monkeypatch, seen)
    model = ss.fit("silofuse", federation(), preset="fast", options=TINY, seed=5, progress=False)
    trained = len(seen)
    model.save(tmp_path / "model")
    ss.load(tmp_path / "model").sample(3)
    assert 0 < trained < len(seen)
    expected = seats(("bank", "shop"), Streams(5).child("seats"))
    assert all(seat == expected[seat.name] for seat in seen)
    assert {seat.name for seat in seen[trained:]} == {"bank", "shop"}
    kept = (tmp_path / "model").read_bytes()
    assert not any(seat.private in kept for seat in seen)


def _watch(monkeypatch: pytest.MonkeyPatch, seen: list[Seat]) -> None:
    entry = ALGORITHMS["silofuse"]

    def watched(table, schema, seat, streams, device, config):
        seen.append(seat)
        return entry.party(table, schema, seat, streams, device, config)

    monkeypatch.setitem(ALGORITHMS, "silofuse", dataclasses.replace(entry, party=watched))  # type: ignore[arg-type]
