"""A site's own copy of its kit."""

from __future__ import annotations

import json
from pathlib import Path

from silosynth.core.files import make_folder
from silosynth.deployment.flare.provisioning import CLASSES, client_resources
from silosynth.deployment.flare.site import site_of


def test_a_kit_of_an_earlier_release_names_todays_classes_once_it_is_used(tmp_path: Path) -> None:
    today = json.dumps(client_resources())
    earlier = today.replace("deployment.flare.engine.PartyLauncher", "runtime.flare.launchers.PartyLauncher")
    earlier = earlier.replace("silosynth.deployment.flare", "silosynth.runtime.flare")
    assert earlier.count("silosynth.runtime.flare") == 2 + sum(name.startswith("silosynth.") for name in CLASSES)
    for part in ("startup", "local"):
        make_folder(tmp_path / "engine" / part)
    (tmp_path / "engine" / "local" / "resources.json").write_text(earlier)
    site = site_of(tmp_path)
    make_folder(site.root)
    site.prepare()
    assert (site.root / "local" / "resources.json").read_text() == today
    assert (tmp_path / "engine" / "local" / "resources.json").read_text() == earlier
