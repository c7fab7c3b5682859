"""Started as a process: one adder, with the kit that its coordinator wrote."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.runtime.toy import Adder

    from silosynth.core.streams import Streams
    from silosynth.simulation.silos import open_process_kit

    kit = open_process_kit(sys.argv[1])
    kit.serve(Adder(kit.name, Streams(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
