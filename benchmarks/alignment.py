"""What it takes to align silos: seconds per stage, and bytes, by method.

    python benchmarks/alignment.py                          # 100 000 identifiers each, 2 and 3 silos, half in common
    python benchmarks/alignment.py --rows 10000 --silos 5

The conversation is driven by hand, and messages cross borders as bytes. Stages are of all silos' work, one after the
other, each on all cores; "a machine each" is what it takes if those that are asked at once work at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import common
import torch

from silosynth.alignment import AlignConfig, Aligner, Matched, align, canonical
from silosynth.core.conversation import Conversation, Exchange, Roster
from silosynth.core.messages import Message
from silosynth.core.schema import Column
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode

STAGES = {
    "OfferShares": "agree", "RelayedShares": "agree", "Confirmations": "agree", "TagRows": "tag and encrypt",
    "Answer": "compare", "Narrow": "compare", "PlaceSealed": "order", "PlacePseudonyms": "order",
    "ConfirmOrder": "order",
}  # fmt: skip


@dataclass
class Costs:
    """Seconds by stage, seconds if silos work at once, and bytes both ways."""

    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    at_once: float = 0.0
    sent: int = 0


def tables(silos: int, rows: int) -> list[list[bytes | None]]:
    """Identifiers such that each silo has half of its rows in common with all others, and the rest with none."""
    half, draw = rows // 2, torch.Generator().manual_seed(0)
    held = []
    for silo in range(silos):
        own = torch.arange(rows - half) + half + silo * rows
        numbers = torch.cat([torch.arange(half), own])[torch.randperm(rows, generator=draw)]
        held.append(canonical([Column("id", "int64", numbers + 10**9, torch.zeros(rows, dtype=torch.bool))]))
    return held


def drive(talk: Conversation[dict[str, Matched]], silos: Mapping[str, Aligner], costs: Costs) -> dict[str, Matched]:
    """Answer until the conversation ends; the coordinator's own work counts too."""
    replies: dict[str, Message] = {}
    step, stage = next(talk), "agree"
    while True:
        longest = 0.0
        if isinstance(step, Exchange):
            replies = {}
            for silo, ask in step.asks.items():
                stage, start = STAGES[type(ask).__name__], time.perf_counter()
                replies[silo] = _across(silos[silo].answer, ask, costs)
                took = time.perf_counter() - start
                costs.stages[stage] += took
                longest = max(longest, took)
        start = time.perf_counter()
        try:
            step = talk.send(replies)
        except StopIteration as end:
            return end.value
        finally:
            own = time.perf_counter() - start
            costs.stages[stage] += own
            costs.at_once += longest + own


def _across(answer: Callable[[Message], Message], ask: Message, costs: Costs) -> Message:
    sent = encode(ask)
    back = encode(answer(decode(sent)))  # type: ignore[arg-type]
    costs.sent += len(sent) + len(back)
    return decode(back)  # type: ignore[return-value]


def measure(method: str, count: int, rows: int) -> dict[str, object]:
    """One alignment."""
    costs, names = Costs(), tuple(f"silo{i}" for i in range(count))
    held, start = tables(count, rows), time.perf_counter()
    made = seats(names, Streams(0).child("seats"))
    silos = {name: Aligner(held[i], made[name], Streams(0), AlignConfig(method)) for i, name in enumerate(names)}
    took = time.perf_counter() - start  # finding duplicates
    costs.stages["tag and encrypt"], costs.at_once = took, took / count
    matched = drive(align(Roster(names), AlignConfig(method)), silos, costs)  # type: ignore[arg-type]
    assert all(one.common == rows // 2 for one in matched.values())
    orders = [[own[row] for row in silo.rows.tolist()] for own, silo in zip(held, silos.values(), strict=True)]
    assert all(order == orders[0] for order in orders)
    stages = {f"{name}, s": round(costs.stages[name], 2) for name in dict.fromkeys(STAGES.values())}
    total = {"all, s": round(sum(costs.stages.values()), 1), "a machine each, s": round(costs.at_once, 1)}
    return {"method": method, "silos": count, "rows each": rows, **stages, **total, "MB": round(costs.sent / 1e6, 1)}


def main() -> None:
    """Each method with each number of silos."""
    parser = common.parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--silos", type=int, nargs="+", default=[2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(method, count) for method in ("psi", "keyed-hash") for count in options.silos]
    common.keep("alignment", [measure(method, count, options.rows) for method, count in cases])


if __name__ == "__main__":
    main()
