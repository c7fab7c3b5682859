"""What it takes to average many silos' models: seconds and memory, plain and under secure aggregation.

    python benchmarks/aggregation.py                        # 100 silos, 5 MB each
    python benchmarks/aggregation.py --silos 10 --megabytes 1

The coordinator's side is driven by hand; each silo's weights are made when they are asked for and then forgotten, so
that what grows is what the coordinator holds. Seconds are of all silos' masking, one after the other, as well.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import common
import torch

from silosynth.algorithms.gdts.protocol import LocalWeights, SendWeights, averaged
from silosynth.core.conversation import Conversation, Exchange
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.privacy.aggregation import secure_sum
from silosynth.privacy.masker import Masker
from silosynth.privacy.sealed import seats


def drive(talk: Conversation[torch.Tensor], answer: Callable[[str, Message], Message]) -> None:
    """Answer until the conversation ends."""
    step = next(talk)
    while True:
        assert isinstance(step, Exchange)
        try:
            step = talk.send({silo: answer(silo, ask) for silo, ask in step.asks.items()})
        except StopIteration:
            return


def measure(setting: str, silos: int, width: int) -> dict[str, object]:
    """Average models of so many numbers."""
    names = tuple(f"silo{i}" for i in range(silos))
    maskers = {name: Masker(seat) for name, seat in seats(names, Streams(0)).items()} if setting == "secure" else {}
    draw = torch.Generator().manual_seed(0)

    def answer(silo: str, ask: Message) -> Message:
        if not isinstance(ask, SendWeights):
            reply = maskers[silo].answer(ask)
            assert reply is not None
            return reply
        weights_W = torch.randn(width, generator=draw)
        return maskers[silo].mask(weights_W, ask.weight, ask.part, b"") if maskers else LocalWeights(weights_W)

    asks = {name: SendWeights(1, 1 / silos) for name in names}
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    drive(secure_sum(asks, 1, width) if maskers else averaged(asks, width), answer)  # type: ignore[arg-type]
    return {
        "setting": setting,
        "silos": silos,
        "MB each": round(4 * width / 1e6, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "grown, MB": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3),
        "all of them, MB": round(4 * width * silos / 1e6),
    }


def main() -> None:
    """Plain first: memory that was freed is not seen to grow again."""
    parser = common.parser(__doc__)
    parser.add_argument("--silos", type=int, default=100)
    parser.add_argument("--megabytes", type=float, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    width = round(options.megabytes * 1e6 / 4)
    common.keep("aggregation", [measure(setting, options.silos, width) for setting in ("plain", "secure")])


if __name__ == "__main__":
    main()
