"""Alert rules, read and run by Prometheus' own promtool (Debian's package `prometheus`, or named by PROMTOOL)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.deployment import test_console
from tests.deployment.test_console import KnownSite
from tests.house import ROOT

from silosynth.deployment.metrics import metrics

bank, coordinator = test_console.bank, test_console.coordinator  # fixtures
MONITORING = ROOT / "deploy" / "monitoring"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
by_promtool = [pytest.mark.live, pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")]


def promtool(*words: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(PROMTOOL), *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def test_each_rule_is_tried_with_what_sets_it_off_and_without() -> None:
    rules = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yaml").read_text())
    well, ill = (MONITORING / "alerts_test.yaml").read_text().split("nothing is well")
    for rule in rules:
        assert f"{{alertname: {rule}, eval_time: 60m, exp_alerts: []}}" in well
        assert re.search(rf"alertname: {rule}\n\s+eval_time: \d+m\n\s+exp_alerts:\n\s+- exp_labels", ill), rule


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
class TestByPromtool:
    """What Prometheus itself says."""

    pytestmark = by_promtool

    def test_rules_say_what_they_should(self, words: tuple[str, ...]) -> None:
        done = promtool(*words[:-1], MONITORING / words[-1])
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_wrong_rule_is_found(self, words: tuple[str, ...], tmp_path: Path) -> None:
        for file in MONITORING.glob("*.yaml"):
            text = file.read_text().replace(
                "silosynth_up == 0", "silosynth_up == 2 +" if "check" in words else "up == 1"
            )
            (tmp_path / file.name).write_text(text)
        assert promtool(*words[:-1], tmp_path / words[-1]).returncode != 0


@pytest.mark.live
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_metrics_are_in_order(bank: KnownSite, coordinator: KnownSite) -> None:
    """But for days: they are what people renew certificates by."""
    for site in (bank, coordinator):
        done = promtool("check", "metrics", given=metrics(site.facts(), time.time()))
        said = [line for line in done.stderr.splitlines() if line.strip()]
        assert said == ['silosynth_certificate_days_left use base unit "seconds" instead of "days"'], said
