"""NVIDIA FLARE as the engine: provisioning, daemons, jobs, and a relay for frames. Needs ``silosynth[flare]``.

What stands where: `kits` writes start kits, `daemon` runs a site, `admin` is the operator's console, `job` describes
what is submitted, `hub` carries frames from the coordinator's job to the parties' (docs/decisions/0016).
`components`, `engine` and `launchers` are imported by FLARE's own processes only.
"""

from __future__ import annotations

import importlib.util

from silosynth.core.errors import UnavailableError


def require_flare() -> None:
    """Check that the engine is installed, without importing it.

    Raises:
        UnavailableError: it is not.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise UnavailableError(
            "A federation across organisations runs on NVIDIA FLARE",
            "nvflare is not installed",
            "Install it: pip install 'silosynth[flare]'.",
        )
