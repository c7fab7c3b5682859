"""Started as a process: one site, until it is told to leave. ``serve_site.py NAME KIT [WORKSPACE]``"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    from silosynth.core.conversation import COORDINATOR
    from silosynth.core.errors import SilosynthError
    from silosynth.deployment.flare.daemon import serve_coordinator, serve_party

    name, kit, workspace = sys.argv[1], Path(sys.argv[2]), (Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    serve = serve_coordinator if name == COORDINATOR else serve_party
    try:
        serve(kit, workspace=workspace, say=lambda line: print(f"{time.strftime('%T')} {line}", flush=True))
    except SilosynthError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    print("goodbye", flush=True)


if __name__ == "__main__":
    main()
