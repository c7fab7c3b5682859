from __future__ import annotations

import io

import pytest
from rich.console import Console

from silosynth.core.conversation import Progress
from silosynth.runtime.progress import RichProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool, quiet: bool = False, tick: float = 1.0, first: int = 1) -> str:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with RichProgress(console, quiet, clock) as watch:
        for done in range(first, 101):
            clock.now += tick
            watch(Progress("fit [bank]", done, 100, {"loss": 1 / done}))
    return out.getvalue()


def test_a_log_gets_a_line_now_and_then() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "fit [bank]: 1/100, loss 1"
    assert lines[1] == "fit [bank]: 11/100, 0:01:29 left, loss 0.09091"
    assert lines[-1] == "fit [bank]: 100/100, loss 0.01"
    assert len(lines) == 11


def test_a_resumed_stage_knows_its_pace() -> None:
    assert shown(terminal=False, first=51).splitlines()[1] == "fit [bank]: 61/100, 0:00:39 left, loss 0.01639"


def test_a_terminal_gets_a_bar_with_figures() -> None:
    text = shown(terminal=True)
    for part in ("fit [bank]", "100/100", "loss 0.01", "0:00:00"):
        assert part in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_is_told_once(terminal: bool) -> None:
    out = io.StringIO()
    with RichProgress(Console(file=out, force_terminal=terminal, width=100, color_system=None)) as watch:
        for done in range(20):
            watch(Progress("fit", done, 20, note="half of it [sic]"))
    assert out.getvalue().count("fit: half of it [sic]") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_quiet(terminal: bool) -> None:
    assert shown(terminal, quiet=True) == ""


def test_the_bar_is_gone_after_an_error() -> None:
    out = io.StringIO()
    watch = RichProgress(Console(file=out, force_terminal=True))
    watch.__enter__()
    watch(Progress("fit", 1, 2))
    watch.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_standard_output_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with RichProgress() as watch:
        watch(Progress("fit", 2, 2))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fit: 2/2" in captured.err
