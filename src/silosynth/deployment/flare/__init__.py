"""NVIDIA FLARE as the engine: provisioning, daemons, jobs, and a relay for frames. Needs ``silosynth[flare]``.

`provisioning` writes start kits, `daemon` runs a site, `console` is the operator's, and describes what is submitted;
`relay` carries frames between the coordinator's job and the parties' (docs/decisions/0016). `components` and `engine`
are imported by FLARE's own processes only.
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
