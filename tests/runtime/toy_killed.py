"""Started as a process: drives the toy again and again, each time in a fork that gets SIGKILL at a random moment.

Forking is cheap where a new interpreter would load torch for seconds. The last attempt runs to the end. Prints how
often it was killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch
    from tests.runtime.toy import run

    torch.set_num_threads(1)
    folder, rounds, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dice = random.Random(seed)
    killed = 0
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            run(folder, rounds, resume=True)
            os._exit(0)
        if attempt < kills:
            time.sleep(dice.uniform(0.0, 0.1))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
            sys.exit(f"attempt {attempt} failed")
    print(killed)


if __name__ == "__main__":
    main()
