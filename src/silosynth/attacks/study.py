"""An audit: which attacks are carried out, on what, what they find, and the page that shows it.

The page is one HTML file that needs nothing else: no script, no network, no fonts of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from silosynth.attacks import canaries, generators, membership, questions, rivals, shadows
from silosynth.attacks.findings import Finding
from silosynth.attacks.membership import Trainings
from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.files import REPORTS, check_suffix, make_folder, write_atomic
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.data import sources
from silosynth.evaluation import premises, svg
from silosynth.evaluation.coding import Coded, code_tables, schema_of
from silosynth.evaluation.scores import Premise, Score, Skipped

ATTACKS: Mapping[str, str] = {
    "assd": "Trains many generators with and without the two most vulnerable records, and tells their tables apart.",
    "asif": "The same from the intermediate features that silos send; vertical GANs of the catalogue only.",
    "rivals": "LOGAN, MC, GAN-leaks, DOMIAS: tells training records from others by one synthetic table.",
    "questions": "Singling out, linkability and attribute inference by one synthetic table.",
    "canaries": "A lower bound on epsilon, from many trainings with and without a made-up record.",
    "one-run": "A lower bound on epsilon, from one training with many made-up records.",
}
TRAINS = ("assd", "asif", "canaries", "one-run")
COMPARES = ("rivals", "questions")


@dataclass(frozen=True)
class Subject:
    """What is attacked.

    Attributes:
        train: the training records.
        fit: (records, seed) -> synthetic table; None where only ``synthetic`` is there.
        synthetic: a table made from all of ``train``; None to have ``fit`` make one.
        others: records of the same population that were not trained on; None for none.
        reference: further ones, which attackers know; None for none.
        silos: columns of two silos or more, for linkability.
        claim: what the generator's accountant states.
        schema: column kinds instead of the inferred ones, or a schema, as for `silosynth.evaluate`. Attackers do not
            look at identifiers.
    """

    train: pd.DataFrame
    fit: generators.Fit | None = None
    synthetic: pd.DataFrame | None = None
    others: pd.DataFrame | None = None
    reference: pd.DataFrame | None = None
    silos: Sequence[Sequence[str]] | None = None
    claim: canaries.Claim | None = None
    schema: Schema | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Audit:
    """What attacks found. ``print`` shows a table; `save` writes HTML or JSON."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    premises: tuple[Premise, ...] = ()

    @property
    def doubts(self) -> list[str]:
        """Premises of rivals and questions that fail: what these find may be no trace of training."""
        return [f"{p.label}: no, {p.finding}. {p.remedy}" for p in self.premises if p.holds is False]

    def finding(self, name: str) -> Finding:
        """The finding whose score is called ``name``.

        Raises:
            KeyError: there is none; names those that there are.
        """
        for finding in self.findings:
            if finding.score.name == name:
                return finding
        raise KeyError(f"no finding is called {name!r}; there are {', '.join(f.score.name for f in self.findings)}")

    def to_dict(self) -> dict[str, Any]:
        """As dicts, lists, strings and numbers."""
        return {
            "premises": [asdict(premise) for premise in self.premises],
            "findings": [finding.to_dict() for finding in self.findings],
            "skipped": [{"name": s.name, "why": s.why} for s in self.skipped],
            "about": dict(self.about),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the audit as HTML or JSON (``.html``, ``.json``); never half a file. Returns the path.

        Raises:
            StorageError: the name ends in anything else, or the file cannot be written.
        """
        target = Path(path)
        if check_suffix(target, REPORTS) == ".json":
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        else:
            text = render(self)
        write_atomic(target, text.encode())
        return target


def audit(
    subject: Subject, attacks: Sequence[str] = ("assd",), how: Trainings | None = None, canaries_in_one: int = 100
) -> Audit:
    """Carry out attacks, one after the other.

    Args:
        subject: what is attacked.
        attacks: names of `ATTACKS`.
        how: how many trainings, with which seed, and where they are kept: the same call again continues there.
        canaries_in_one: how many made-up records "one-run" uses.

    Raises:
        ConfigError: there is no such attack, or it lacks something that it needs.
        DataError: a table cannot be coded, or has too few rows.
        StorageError: see `shadows.train`.
    """
    how = how or Trainings()
    _check(subject, attacks)
    schema = schema_of(subject.train, subject.schema)
    findings, skipped = list[Finding](), list[Skipped]()
    if "assd" in attacks or "asif" in attacks:
        findings += _leave_one_out(subject, how, "asif" in attacks, schema)
    if "rivals" in attacks or "questions" in attacks:
        synthetic = _synthetic(subject, how)
        if "rivals" in attacks:
            assert subject.others is not None  # checked
            findings += rivals.attack(subject.train, subject.others, synthetic, subject.reference, how.seed, schema)
            skipped += _unreferenced(subject)
        if "questions" in attacks:
            assert subject.others is not None
            findings += questions.ask(subject.train, subject.others, synthetic, how.seed, subject.silos, schema=schema)
    if subject.fit is not None and "canaries" in attacks:
        findings.append(canaries.many(subject.train, subject.fit, how, subject.claim, schema))
    if subject.fit is not None and "one-run" in attacks:
        findings.append(canaries.one_run(subject.train, subject.fit, canaries_in_one, how, subject.claim, schema))
    about = {"records": len(subject.train), "trainings": how.count, "seed": how.seed, "attacks": list(attacks)}
    about["left_out"] = [name for name in schema.names if name not in schema.modelled]
    return Audit(tuple(findings), tuple(skipped), about, _premises(subject, attacks, how.seed, schema))


def _premises(subject: Subject, attacks: Sequence[str], seed: int, schema: Schema) -> tuple[Premise, ...]:
    """Whether training records and others differ in nothing but training, for attacks that compare them."""
    if subject.others is None or not set(attacks) & set(COMPARES):
        return ()
    frames, rng = {"training": subject.train, "hold-out": subject.others}, Streams(seed).child("premises").numpy()
    tables = code_tables(frames, schema)
    apart = premises.independent(frames, tables, schema, rng)
    return premises.examine(tables["training"], tables["hold-out"], rng, apart)


def _check(subject: Subject, attacks: Sequence[str]) -> None:
    """Refuse what cannot work before hours of training."""
    if not attacks:
        raise ConfigError("An audit needs an attack", remedy=f"Known: {', '.join(ATTACKS)}.")
    for name in attacks:
        if name not in ATTACKS:
            raise ConfigError("There is no such attack", name, nearest(name, ATTACKS))
        if name in TRAINS and subject.fit is None:
            raise ConfigError(f"Attack {name!r} trains generators", "no generator", "Say how to train one.")
        if name in COMPARES and subject.others is None:
            rule = f"Attack {name!r} compares training records with records that were not trained on"
            raise ConfigError(rule, "none", "Hold rows out.")
        if name in COMPARES and subject.fit is None and subject.synthetic is None:
            raise ConfigError(f"Attack {name!r} looks at a synthetic table", "none", "Give one, or say how to make it.")


def vulnerable(train: Coded) -> dict[str, int]:
    """The two records that are tried: by neighbours (VFLGAN's record 1), and by outliers (record 2)."""
    records = {"isolated record": membership.most_isolated(train)}
    if any(not field.categorical for field in train.fields):
        records["outlying record"] = membership.most_outlying(train)
    return records


def _leave_one_out(subject: Subject, how: Trainings, intermediate: bool, schema: Schema) -> list[Finding]:
    assert subject.fit is not None  # checked
    if len(subject.train) < 3:
        raise DataError("Leaving one record out needs three or more", len(subject.train))
    chosen = vulnerable(code_tables({"training": subject.train}, schema)["training"])
    return membership.play(subject.train, subject.fit, chosen, _within(how, "shadows"), intermediate, schema)


def _synthetic(subject: Subject, how: Trainings) -> pd.DataFrame:
    """The table that is given; or one made from all records, which is kept as well."""
    if subject.synthetic is not None:
        return subject.synthetic
    assert subject.fit is not None  # checked
    seed = Streams(how.seed).child("released").integer() % 2**31
    if how.folder is None:
        return subject.fit(subject.train, seed)
    folder = make_folder(how.folder) / "released"
    shadows.claim(folder, shadows.fingerprint(subject.train, f"{generators.described(subject.fit)} {seed}"))
    made = folder / "synthetic.parquet"
    if not made.exists():
        sources.write(subject.fit(subject.train, seed), made, raw_text=True)
    return sources.read(made)


def _unreferenced(subject: Subject) -> list[Skipped]:
    why = "needs reference rows: further records of the population that the generator has not seen"
    needy = [name for name, (_, compares, _) in rivals.ATTACKS.items() if compares and subject.reference is None]
    return [Skipped(name, why) for name in needy]


def _within(how: Trainings, name: str) -> Trainings:
    return how if how.folder is None else replace(how, folder=make_folder(how.folder) / name)


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
{% for doubt in found.doubts %}
<p class="alarm">{{ doubt }} What rivals and questions find may be no trace of training.</p>
{% endfor %}
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
{% for absent in found.skipped %}<p class="soft">{{ absent.name }} was not carried out: {{ absent.why }}.</p>
{% endfor %}
</body>
</html>
"""


def render(found: Audit) -> str:
    """The whole page. It carries no date: the same audit gives the same bytes."""
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    facts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in found.about.items()}
    setting = " · ".join(f"{name}: {value}" for name, value in facts.items() if value != "")
    cards = [
        {
            "score": finding.score, "value": number(finding.score, finding.score.value),
            "interval": interval(finding.score), "plot": Markup(_plot(finding.score)), "roc": Markup(_roc(finding)),
            "rates": rates(finding), "claim": claim(finding), "refuted": finding.refuted,
        }
        for finding in found.findings
    ]  # fmt: skip
    return environment.from_string(PAGE).render(side=SIDE, setting=setting, cards=cards, found=found)


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
