"""Runs a module as FLARE would, and ends the process when its parent is gone, even during a computation.

``python -m silosynth.deployment.flare.child MODULE ARGUMENTS``
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time

from silosynth.deployment.flare.pinning import pin
from silosynth.deployment.flare.site import revoked_at, this_site

_POLL = 0.5  # seconds between checks of the parent


def leave_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="silosynth-flare-parent").start()


def main() -> None:
    """Run the module named by the first argument."""
    leave_with_parent()
    pin(this_site().kit, revoked_at(this_site()))
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
