"""No coordinator, whatever it sends, gets un-noised values under a budget, noise that is not charged, or a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.attacked.coordinators import JUDGE, OPEN as OPENEST, OPTIONS, WAYS, attack, conversations, draws
from tests.contracts import settings
from tests.fuzz.damage import KINDS

from silosynth.deployment.policy import SiloPolicy

OPEN = {"least_rows": 10, "require_alignment": False, "share_decoders": True}
POLICIES = {
    "open": OPEN,
    "budget": OPEN | {"largest_epsilon": 5.0},
    "small budget": OPEN | {"largest_epsilon": 0.3, "require_dp": True, "most_rows_drawn": 10},
}
NAMES = sorted(name for name in OPTIONS if not settings.entry_of(name).central)
DRAWING = sorted(name for name in NAMES if name not in JUDGE)
pytestmark = pytest.mark.live  # copies processes


def broken(name: str, policy: str, count: int, folder: Path, talks: Any = conversations) -> list[str]:
    given = POLICIES[policy] | ({"open_tables": "exact", "min_count": 1} if name in JUDGE else {})
    chosen = SiloPolicy(algorithms=[settings.algorithm_of(name)], **given)  # type: ignore[arg-type]
    heard = list(attack(name, chosen, count, folder, talks))
    assert len(heard) == count
    return [f"{seed}: {said}" for seed, said, _ in heard if said.startswith(("BROKEN", "DIED"))]


@pytest.mark.parametrize("policy", POLICIES)
def test_some_coordinators(policy: str, tmp_path: Path) -> None:
    assert broken("silofuse upload", policy, 12, tmp_path) == []


@pytest.mark.parametrize(("name", "policy"), [("judge", "open"), ("judge private", "budget"), ("appraise", "budget")])
def test_some_coordinators_that_count(name: str, policy: str, tmp_path: Path) -> None:
    assert broken(name, policy, 12, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_coordinators(name: str, policy: str, tmp_path: Path) -> None:
    assert broken(name, policy, 200, tmp_path) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("silofuse upload", "condition"),
        ("silofuse upload", "groups"),
        ("silofuse upload", "framed"),
        ("silofuse", "compared"),
    ],
)
def test_some_coordinators_that_draw(name: str, way: str, policy: str, tmp_path: Path) -> None:
    assert broken(name, policy, 12, tmp_path, WAYS[way]) == []


@pytest.mark.parametrize(
    ("way", "kind"), [("groups", "PrepareGroup"), ("framed", "PrepareGroup"), ("compared", "AskCodes")]
)
def test_coordinators_deviate_at_every_kind_of_message(way: str, kind: str, tmp_path: Path) -> None:
    asked = list[str]()
    WAYS[way]("silofuse", OPENEST, tmp_path, lambda _, __, ask: asked.append(type(ask).__name__))
    assert kind in asked and f"deployment.{kind}" in KINDS


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["groups", "framed", "compared"])
def test_two_hundred_coordinators_that_draw_groups_or_compare(way: str, policy: str, tmp_path: Path) -> None:
    assert broken("silofuse", policy, 200, tmp_path, WAYS[way]) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", DRAWING)
def test_two_hundred_coordinators_that_draw(name: str, policy: str, tmp_path: Path) -> None:
    assert broken(name, policy, 200, tmp_path, draws) == []
