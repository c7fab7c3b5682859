"""An audit as one HTML page that needs nothing else: no script, no network, no fonts of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jinja2 import Environment, StrictUndefined

from silosynth.attacks.findings import Finding
from silosynth.evaluation import svg
from silosynth.evaluation.scores import Score, Skipped

DOMAINS = {"AUC": (0.0, 1.0), "%": (0.0, 100.0)}
SIDE = 150  # pixels of an ROC curve

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit</title>
<style>
:root { color-scheme: light dark; --ink: light-dark(#1b1f24, #e6e8ea); --soft: light-dark(#6b7480, #98a1ab);
  --line: light-dark(#d5dae0, #3a4048); --hue: light-dark(#1a6fb0, #5fb0ee); }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.card { display: grid; grid-template-columns: 1fr {{ side }}px; gap: 1rem; border-top: 1px solid var(--line);
  padding: .8rem 0; }
h2 { font-size: 1rem; margin: 0; }
p { margin: .2rem 0; }
.soft { color: var(--soft); font-size: .875rem; }
.alarm { font-weight: 700; }
.axis, .frame { stroke: var(--line); fill: none; }
.interval { stroke: var(--hue); stroke-width: 4; opacity: .5; }
.floor { stroke: var(--soft); stroke-width: 2; }
.value { fill: var(--hue); }
.ideal { fill: none; stroke: var(--soft); }
.curve { fill: none; stroke: var(--hue); stroke-width: 2; }
</style>
</head>
<body>
<h1>What attacks found</h1>
<p>{{ setting }}</p>
<p class="soft">Ticks mark what guessing gets, bands 95 % intervals. An attack that finds nothing proves
nothing: a better one may find something.</p>
{% for card in cards %}
<section class="card"><div>
<h2>{{ card.score.label }}: {{ card.value }}</h2>
<p>{{ card.score.explanation }}</p>
{{ card.plot }}
<p class="soft">{{ card.interval }}; {{ card.score.method }}; n = {{ card.score.n }}.</p>
{% if card.rates %}<p class="soft">{{ card.rates }}</p>{% endif %}
{% if card.claim %}<p class="{{ 'alarm' if card.refuted else 'soft' }}">{{ card.claim }}</p>{% endif %}
</div><div>{{ card.roc }}</div></section>
{% endfor %}
{% for absent in skipped %}<p class="soft">{{ absent.name }} was not carried out: {{ absent.why }}.</p>
{% endfor %}
</body>
</html>
"""


def render(findings: Sequence[Finding], skipped: Sequence[Skipped], about: Mapping[str, Any]) -> str:
    """The whole page. It carries no date: the same audit gives the same bytes."""
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    facts = {**about, "attacks": ", ".join(about.get("attacks", ()))}
    setting = " · ".join(f"{name}: {value}" for name, value in facts.items())
    cards = [
        {
            "score": finding.score, "value": number(finding.score, finding.score.value),
            "interval": interval(finding.score), "plot": Markup(_plot(finding.score)), "roc": Markup(_roc(finding)),
            "rates": rates(finding), "claim": claim(finding), "refuted": finding.refuted,
        }
        for finding in findings
    ]  # fmt: skip
    return environment.from_string(PAGE).render(side=SIDE, setting=setting, cards=cards, skipped=skipped)


def number(score: Score, value: float | None) -> str:
    """A figure with its unit."""
    if value is None:
        return "–"
    return f"{value:.1f} %" if score.unit == "%" else f"{value:.2f}"


def interval(score: Score) -> str:
    """The interval in words."""
    if score.high is None:
        return f"at least {number(score, score.low)}"
    return f"{number(score, score.low)} to {number(score, score.high)}"


def rates(finding: Finding) -> str:
    """The rates behind a risk, and the spread over repeats."""
    parts = [f"{name} {value:.1f} % ({low:.1f} to {high:.1f})" for name, (value, low, high) in finding.rates.items()]
    return ", ".join(
        parts if finding.spread is None else [*parts, f"standard deviation over repeats {finding.spread:.2f}"]
    )


def claim(finding: Finding) -> str:
    """A lower bound beside the accountant's upper one."""
    if finding.claimed is None:
        return ""
    verdict = "REFUTED: one of the two is wrong" if finding.refuted else "not refuted"
    return f"stated upper bound: epsilon {finding.claimed:g}, {verdict}"


def _plot(score: Score) -> str:
    label = f"{score.label}: {number(score, score.value)}, {interval(score)}"
    return svg.range_plot(score, DOMAINS.get(score.unit, (0.0, max(1.0, 1.2 * score.value))), label)


def _roc(finding: Finding) -> str:
    """By hand, so that its colours follow the page's, light or dark."""
    if not finding.roc:
        return ""
    points = " ".join(f"{SIDE * x:.1f},{SIDE * (1 - y):.1f}" for x, y in finding.roc)
    body = f'<rect class="frame" width="{SIDE}" height="{SIDE}"/><polyline class="curve" points="{points}"/>'
    body += f'<line class="axis" x1="0" y1="{SIDE}" x2="{SIDE}" y2="0"/>'
    label = escape(f"ROC curve of {finding.score.label}: true over false positive rate")
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {SIDE} {SIDE}" width="100%">{body}</svg>'
