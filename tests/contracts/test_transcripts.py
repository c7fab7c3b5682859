"""No raw value, identifier or category name reaches the coordinator, but where the ledger says that it may.

What is looked for: `tests.contracts.transcripts`. Every algorithm of silos together is trained, and synthesises, and
all replies are searched as the bytes that they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.transcripts import (
    ALONE,
    CITIES,
    COMMON,
    DATES,
    HEAP,
    IDENTIFIERS,
    NAMES,
    NUMBERS,
    RARE,
    Heard,
    Tap,
    federation,
    frame,
    leaks,
    secrets,
    transcript,
)

from silosynth.algorithms.silofuse.protocol import Latents
from silosynth.catalog import ALGORITHMS, names
from silosynth.core.conversation import COORDINATOR
from silosynth.core.messages import STRUCTS, Message, Release, wire_name
from silosynth.runtime.ledger import Record
from silosynth.runtime.wire import encode

COLUMNS = {"coder.steps": 20, "coder.hidden": [16, 8], "latent.width": 16, "latent.steps": 12, "latent.checks": 3,
           "latent.batch": 32, "latent.sample_steps": 3, "least_rows": 50}  # fmt: skip
SPLIT = {
    "width": 16,
    "generator_width": 16,
    "noise": 8,
    "batch": 30,
    "epochs": 2,
    "least_rounds": 1,
    "encoders.modes": 3,
}
LOCAL = {"generator": [16, 16], "critic": [16, 8], "noise": 8, "batch": 30, "epochs": 10, "least_rounds": 4}
GAN = {"generator": "ctgan", "ctgan.generator": [16, 16], "ctgan.critic": [16, 16], "ctgan.noise": 8,
       "ctgan.batch": 30, "ctgan.epochs": 2, "ctgan.least_rounds": 6, "ctgan.encoders.modes": 3,
       "rounds": 3}  # fmt: skip
DIFFUSION = {"generator": "diffusion", "rounds": 5, "diffusion.steps": 20, "diffusion.hidden": [16, 8],
             "diffusion.latent.width": 16, "diffusion.latent.steps": 12, "diffusion.latent.batch": 32,
             "diffusion.latent.sample_steps": 3}  # fmt: skip
NOISED = {"numbers": "noised", "epsilon": 50.0}
BOUNDS = {"balance": (4e7, 6e7), "turnover": (4e7, 6e7), "units": (1e14, 5e14), "opened": ("2020-09-14", "2027-01-14")}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "silofuse": ("fast", COLUMNS),
    "silofuse-joint": ("fast", COLUMNS),
    "e2edistr": ("fast", COLUMNS),
    "vtgan full": ("fast", SPLIT | {"index_privacy": "full"}),
    "vtgan decoys": ("fast", SPLIT | {"index_privacy": "decoys"}),
    "vtgan none": ("fast", SPLIT | {"index_privacy": "none"}),
    "vtgan as in the paper": ("paper", SPLIT | {"index_privacy": "none", "critic_steps": 2}),
    "dplt": ("fast", {}),
    "dplt as in the paper": ("paper", {"dp": {"epsilon": 50.0, "delta": 1e-3}}),
    "mst": ("fast", {}),
    "mst private": ("fast", {"dp": {"epsilon": 1.0, "delta": 1e-3}}),
    "aim": ("fast", {}),
    "aim private": ("fast", {"dp": {"epsilon": 1.0, "delta": 1e-3}}),
    "vflgan": ("fast", LOCAL),
    "vflgan as in the paper": ("paper", LOCAL),
    "vflgan private": ("fast", LOCAL | {"dp": {"epsilon": 1.0, "delta": 1e-5, "encoders": 0.5}}),
    "vflgan-base": ("fast", LOCAL),
    "vertigan": ("fast", LOCAL),
    "gdts": ("fast", GAN),
    "gdts noised": ("fast", GAN | NOISED),
    "gdts secure": ("fast", GAN | NOISED | {"secure": True}),
    "gdts md": ("fast", GAN | NOISED | {"mode": "md"}),
    "gdts without noise": ("fast", GAN | {"epsilon": math.inf}),
    "gdts as in the paper": ("paper", GAN | {"ctgan.pac": 1}),
    "gdts diffusion": ("fast", GAN | DIFFUSION),
    "gdts diffusion noised": ("fast", GAN | DIFFUSION | NOISED),
}
# Which replies may hold raw values, and of which groups. All others hold none, whatever the algorithm and its options.
# None may hold an identifier, a number that few rows have, or a date.
MAY_HOLD = {
    # Levels of synthetic columns, of which a number that most rows have is one.
    "core.SyntheticColumns": {NAMES, COMMON},
    # Categories by name, where enough rows hold them.
    "algorithms.gdts.NoisedSummaries": {NAMES},
    # Encoders fitted to a silo's rows, un-noised: categories, and numbers that many rows have.
    "algorithms.gdts.ExactSummaries": {NAMES, COMMON},
}
# And what the paper's settings tell beyond that: categories that few rows hold.
PAPER = {"algorithms.gdts.NoisedSummaries": {RARE}, "core.SyntheticColumns": {RARE}}
LISTED = {Release.SYNTHETIC, Release.NOISED, Release.STATISTICS}


@cache
def heard_of(case: str, party: type[Tap] = Tap) -> tuple[list[Heard], list[Record]]:
    entry, (preset, options) = ALGORITHMS[case.partition(" ")[0]], CASES[case]
    config = entry.configure(preset, options)
    bounded = "noised" in options.values() or options.get("dp", {}).get("epsilon")
    divided = federation(entry.horizontal, BOUNDS if bounded else None)
    return transcript(entry, config, divided, party=party)


@pytest.mark.parametrize("case", CASES)
def test_no_raw_value_is_heard_but_where_the_ledger_lists_it(case: str) -> None:
    heard, records = heard_of(case)
    assert {one.silo for one in heard} >= {"bank", "clinic"}
    found = leaks(heard, secrets(frame()))
    for kind, groups in found.items():
        more = PAPER.get(kind, set()) if "paper" in case else set()
        assert groups <= MAY_HOLD.get(kind, set()) | more, f"{kind} holds {groups}"
    said = {record.type: record.privacy for record in records if record.receiver == COORDINATOR}
    assert {one.type for one in heard} == set(said)
    assert all(said[kind] in {release.value for release in LISTED} for kind in found)


def test_every_federated_algorithm_is_here() -> None:
    assert {case.partition(" ")[0] for case in CASES} == {
        name for name in names("generator") if not ALGORITHMS[name].central
    }


def test_what_may_hold_values_says_so() -> None:
    kinds = STRUCTS
    assert set(PAPER) <= set(MAY_HOLD) <= set(kinds)
    assert {kinds[name].release for name in MAY_HOLD} <= LISTED  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("case", "kind", "group"),
    [
        ("silofuse", "core.SyntheticColumns", NAMES),
        ("gdts noised", "algorithms.gdts.NoisedSummaries", NAMES),
        ("gdts", "algorithms.gdts.ExactSummaries", COMMON),
        ("gdts as in the paper", "algorithms.gdts.NoisedSummaries", RARE),
    ],
)
def test_what_is_listed_is_found(case: str, kind: str, group: str) -> None:
    """The search finds what is known to be there, in messages of real algorithms."""
    assert group in leaks(heard_of(case)[0], secrets(frame()))[kind]


# A leak that is put in is found.


NOTHING = torch.zeros(0)


class Note(Message, release=Release.ROWS):
    text: str = ""
    blob: bytes = b""
    values: torch.Tensor = NOTHING


def cell(column: str) -> Any:
    table = frame()
    return table.loc[table["balance"] != HEAP, column].iloc[5]


LEAKS: dict[str, tuple[Callable[[], Note], str]] = {
    "a name": (lambda: Note(text=f"no such level: {CITIES[0]}"), NAMES),
    "a rare name": (lambda: Note(text=ALONE[0]), RARE),
    "a name in UTF-8": (lambda: Note(blob=b"\0" + CITIES[1].encode()), NAMES),
    "a name in UTF-16": (lambda: Note(blob=CITIES[2].encode("utf-16")), NAMES),
    "an identifier": (lambda: Note(text=cell("account")), IDENTIFIERS),
    "a number as text": (lambda: Note(text=f"out of range: {cell('balance')}"), NUMBERS),
    "float64": (lambda: Note(values=torch.tensor([0.0, cell("balance")], dtype=torch.float64)), NUMBERS),
    "float64 as float32": (lambda: Note(values=torch.tensor(cell("balance"), dtype=torch.float32)), NUMBERS),
    "float32": (lambda: Note(values=torch.from_numpy(frame()["turnover"].to_numpy(copy=True))[5:9]), NUMBERS),
    "float32 as float64": (lambda: Note(values=torch.tensor([float(cell("turnover"))]).double()), NUMBERS),
    "int64": (lambda: Note(values=torch.tensor([[1, int(cell("units"))]])), NUMBERS),
    "int64 as float64": (lambda: Note(values=torch.tensor([int(cell("units"))]).double()), NUMBERS),
    "a number of many": (lambda: Note(values=torch.full((2, 2), HEAP, dtype=torch.float64)), COMMON),
    "nanoseconds": (lambda: Note(values=torch.tensor([cell("opened").value])), DATES),
    "a date as text": (lambda: Note(text=str(cell("opened"))), DATES),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_toy_that_tells_is_found(leak: str) -> None:
    make, group = LEAKS[leak]
    told = Heard("bank", wire_name(Note), encode(make()))
    assert leaks([told], secrets(frame())) == {wire_name(Note): {group}}


def test_a_toy_that_tells_nothing_is_not_found() -> None:
    values = torch.randn(30_000, generator=torch.Generator().manual_seed(1))
    told = Note("all is well", np.random.default_rng(1).bytes(300_000), values)
    assert not leaks([Heard("bank", wire_name(Note), encode(told))], secrets(frame()))


class Telling(Tap):
    """A silo of SiloFuse that lets a raw column through in place of a latent."""

    def answer(self, ask: Message) -> Message:
        reply = self.party.answer(ask)
        if isinstance(reply, Latents) and self.name == "bank":
            z_NL = reply.z_NL.clone()
            z_NL[:, 0] = self.party.coder.columns.table["balance"].values  # type: ignore[attr-defined]
            reply = dataclasses.replace(reply, z_NL=z_NL)
        self.heard.append(Heard(self.name, wire_name(type(reply)), encode(reply)))
        return reply


def test_an_algorithm_that_tells_is_found() -> None:
    heard, _ = heard_of("silofuse", Telling)
    assert leaks(heard, secrets(frame()))[wire_name(Latents)] == {NUMBERS, COMMON}
