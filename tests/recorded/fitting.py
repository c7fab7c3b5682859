"""`python -m tests.recorded.fitting RUNTIME NAME…` prints one line of JSON per setting."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.recorded.digests import digests

import silosynth


def main(runtime: str, *names: str) -> None:
    for name in names:
        start = time.perf_counter()
        line = {"name": name, "digests": digests(name, runtime), "seconds": time.perf_counter() - start}
        print(json.dumps(line | {"source": str(Path(silosynth.__file__).resolve().parents[1])}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
