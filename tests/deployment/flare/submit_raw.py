"""Started as a process: submits a folder as it is, as somebody would who uses FLARE's own client."""

from __future__ import annotations

import os
import sys


def main() -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    user, root, folder = sys.argv[1:]
    session = new_secure_session(user, root, timeout=30.0)
    print("job", session.submit_job(folder), flush=True)
    os._exit(0)  # FLARE leaves threads behind


if __name__ == "__main__":
    main()
