"""The report: summary, JSON, tables for notebooks, and one HTML page that needs nothing else: no network, no fonts.

`render` turns a `Report` into views (plain values, numbers already formatted) and passes them to ``template.html.j2``,
which holds the structure; ``report.css`` has the styles for screens and for paper, ``report.js`` what the page can do
besides being read. Everything from data or from a ledger is escaped, and a browser that keeps to the page's security
policy runs no script but this one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from silosynth.core import notebook
from silosynth.core.errors import nearest
from silosynth.core.files import REPORTS, check_suffix, write_atomic
from silosynth.data.infer import MUCH
from silosynth.evaluation import svg
from silosynth.evaluation.about import About
from silosynth.evaluation.combinations import Combination, Combinations
from silosynth.evaluation.pages import page, source
from silosynth.evaluation.predictors import Predictor
from silosynth.evaluation.scores import ColumnScore, Floats, Pairs, Premise, Rows, Score, SiloScores, Skipped
from silosynth.privacy.statement import budget_rows, cell, mechanism, statement, totals

MOST_COMBINATIONS = 50  # pairs of columns that are listed, those broken most often
MAX_OVERLAYS = 60  # columns drawn, worst first
MAX_ROWS = 1000  # rows of the table of all columns
MAX_PAIRS = 10  # pairs named, worst first
MAX_PREDICTORS = 20  # columns, and pairs of them, that a label is predicted from, best first
MAX_BLOCKS = 8  # silos in the table of silo pairs
COORDINATOR = "coordinator"
_SUMMED = ("from", "type", "privacy")  # a line of the ledger sums over receivers
ABSENT = "–"

GROUPS = {
    "fidelity": ("Fidelity", "Do columns, and pairs of columns, look like the real ones?"),
    "two-sample": ("Telling apart", "Do synthetic rows pass for real ones with a classifier?"),
    "utility": ("Utility", "Do models learn as much from synthetic rows as from real ones?"),
    "resemblance": ("Resemblance", "Does it do as well as real samples on the papers' measures?"),
    "disclosure": ("Disclosure", "What does it give away about people in the training table?"),
}
NOTHING_FOUND = "No figure is measurably worse than its floor, which does not prove that nothing leaks."
WITHHELD = "No verdict: the real rows are not what these figures presuppose. See above."
POOLED = "Declare format, decimal or missing if it holds dates or numbers; kind pseudonym if it says who somebody is."
NO_VERDICT = {"distance_to_closest_record"}  # shown but never judged: data that pass can still be attacked


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """All results of `evaluate`. `print(report)` shows a summary; `save` writes HTML or JSON.

    ``premises`` say what was found of the real rows that figures are judged by; where one fails, nothing is concluded
    (`withheld` says why). ``about`` says what was evaluated, who holds what, and which columns were left out or pooled;
    ``by_silo`` has figures per silo, where silos hold different rows.
    """

    premises: tuple[Premise, ...] = field(default=(), kw_only=True)
    about: About = field(default_factory=About, kw_only=True)
    by_silo: tuple[SiloScores, ...] = field(default=(), kw_only=True)
    scores: tuple[Score, ...]
    skipped: tuple[Skipped, ...]
    columns: tuple[ColumnScore, ...]
    pairs: Pairs
    rows: Rows
    target: str | None = None
    ledger: tuple[Mapping[str, Any], ...] | None = None
    combinations: Combinations = field(default_factory=Combinations)
    predictors: tuple[Predictor, ...] = ()

    @property
    def withheld(self) -> str | None:
        """Why no verdicts are given: the premises that fail, each with its remedy; None if none fails."""
        failed = [p for p in self.premises if p.holds is False]
        return " ".join(f"{p.label}: no, {p.finding}. {p.remedy}" for p in failed) or None

    def score(self, name: str) -> Score:
        """The score called `name`. Raises KeyError with the reason for skipping it, or with the names that exist."""
        for score in self.scores:
            if score.name == name:
                return score
        for skipped in self.skipped:
            if skipped.name == name:
                raise KeyError(f"{name} was not computed: {skipped.why}")
        raise KeyError(f"no score is called {name!r}; there are {', '.join(s.name for s in self.scores)}")

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers, ready for `json.dumps`."""
        return {f.name: _json_value(getattr(self, f.name)) for f in fields(self)}

    def to_frame(self) -> pd.DataFrame:
        """One row per score, indexed by its name."""
        names = [f.name for f in fields(Score)]
        rows = [{name: getattr(score, name) for name in names} for score in self.scores]
        return pd.DataFrame(rows, columns=names).set_index("name")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as HTML or JSON (``.html``, ``.json``); never half a file. Returns the path.

        Raises:
            StorageError: the name ends in anything else, or the file cannot be written.
        """
        target = Path(path)
        if check_suffix(target, REPORTS) == ".json":
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        else:
            text = render(self)
        write_atomic(target, text.encode("utf-8"))
        return target

    def plot(self, column: str) -> svg.Picture:
        """The picture of a column: real and synthetic distribution. Notebooks show it; `Picture.save` writes an SVG.

        Raises:
            KeyError: there is no such column; names the nearest one.
        """
        for score in self.columns:
            if score.name == column:
                return svg.picture(score)
        raise KeyError(f"no column is called {column!r}. {nearest(column, [score.name for score in self.columns])}")

    def __repr__(self) -> str:
        states = [relate(score).state for score in self.scores]
        worse = f"{states.count('short')} of {_count(len(states) - states.count('none'))} worse than the floor"
        verdict = "verdicts withheld" if self.withheld else worse
        return f"Report on {self.about.data or 'a table'} of {_columns_of(self)} columns: {verdict}"

    def _repr_html_(self) -> str:
        head = ("figure", "value", "95 % interval", "floor", "unit", "")
        views = [_view(score, self.withheld is not None) for score in self.scores]
        rows = [(*_cells(view), view["score"].unit, view["relation"].text) for view in views]
        lines = [_heading(self), *_made_by(self.about), *_examined(self), *_skips(self.skipped)]
        return notebook.table(head, rows, lines[0]) + "".join(notebook.paragraph(line) for line in lines[1:] if line)

    def __str__(self) -> str:
        head = [_heading(self), *_made_by(self.about), "", *_examined(self), ""]
        return "\n".join([*head, *_summary(self.scores), *_made_up(self.combinations), *_skips(self.skipped)])


def _heading(report: Report) -> str:
    rows = report.rows
    holdout = "no" if rows.n_holdout is None else f"{rows.n_holdout:,}"
    return (
        f"silosynth evaluation: {_columns_of(report)} columns, {rows.n_train:,} training, "
        f"{holdout} hold-out and {rows.n_synthetic:,} synthetic rows"
    )


def _columns_of(report: Report) -> int:
    """How many columns are compared, each or at least in pairs."""
    return len(report.columns) or len(report.pairs.names)


def _examined(report: Report) -> list[str]:
    """What was found of the real rows, and what was left out."""
    lines = ["VERDICTS ARE WITHHELD: read no figure below as one"] if report.withheld else []
    for premise in report.premises:
        answer = {True: "yes", False: "NO", None: "?"}[premise.holds]
        lines.append(f"{premise.label}: {answer}, {premise.finding}")
        lines += [f"  {premise.remedy}"] if premise.remedy else []
    lines += [f"left out: {name} ({why})" for name, why in report.about.left_out.items()]
    pooled = (f'pooled: {name}: {share:.0%} of its rows are "(rare)". ' for name, share in _mostly_rare(report.about))
    return lines + [text + POOLED for text in pooled]


def _mostly_rare(about: About) -> list[tuple[str, float]]:
    """The columns much of which is "(rare)", and how much."""
    return [(name, share) for name, share in about.pooled.items() if share is not None and share > MUCH]


def _made_by(about: About) -> list[str]:
    """Who made the synthetic table, and what may be claimed of it, if that is known."""
    maker = [] if about.algorithm is None else [f"made by {_generator(about)}"]
    return maker + ([] if about.guarantee is None else [f"privacy guarantee: {about.guarantee}"])


def _generator(about: About) -> str:
    unkept = {"secret": "a secret seed", "given": "a given seed, which is not kept"}
    seed = unkept.get(str(about.seed), f"seed {about.seed}")
    return f"{about.algorithm}, preset {about.preset}, {seed}"


def _summary(scores: Sequence[Score]) -> list[str]:
    head = ("figure", "value", "95 % interval", "floor", "")
    body = [(*_cells(_view(score)), score.unit) for score in scores]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:4], widths[1:4], strict=True)), row[4]]
        )
        for row in [head, *body]
    ]
    simulated = any("perfect generator" in score.floor_note for score in scores)
    of = "of a perfect generator, in simulations" if simulated else "between real samples"
    return [line.rstrip() for line in lines] + [f"floor: the same figure {of}"]


def _view(score: Score, withheld: bool = False) -> dict[str, Any]:
    """A figure in words."""
    low, high = figure(score, score.low), figure(score, score.high)
    return {
        "score": score,
        "value": figure(score, score.value),
        "interval": _interval(low, high),
        "floor": figure(score, score.floor),
        "relation": Relation("none", "verdict withheld") if withheld else relate(score),
    }


def _cells(view: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return view["score"].label, view["value"], view["interval"] or ABSENT, view["floor"]


def _made_up(combinations: Combinations) -> list[str]:
    """Which rules there are, declared or kept by training rows, and how often others break them."""
    if not combinations.found:
        return []
    lines = [
        f"  {_rule_in_words(one)}: {_rates(one.rate, one.holdout)}"
        + (f" ({'; '.join(one.examples)})" if one.examples else "")
        for one in combinations.found[:MOST_COMBINATIONS]
    ]
    more = len(combinations.found) - len(lines)
    rates = _rates(combinations.rate, combinations.holdout)
    whole = f"rows that break a rule which was declared, or which training rows keep: {rates}"
    return ["", whole, *lines, *([f"  and {more} more"] if more else [])]


def _rule_in_words(one: Combination) -> str:
    if one.rule:
        return f"{one.rule} (declared)" if one.declared else one.rule
    return f"{one.first} {'→' if one.kind == 'dependency' else '+'} {one.second}"


def _rates(rate: float, holdout: float | None) -> str:
    real = "" if holdout is None else f", {holdout:.2%} of hold-out rows"
    return f"{rate:.2%} of synthetic rows{real}"


def _skips(skipped: Sequence[Skipped]) -> list[str]:
    return ["", "not computed:", *(f"  {s.name}: {s.why}" for s in skipped)] if skipped else []


def _json_value(value: Any) -> Any:
    """Dataclasses, named tuples, arrays and NumPy scalars as JSON values; non-finite numbers become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item) for item in value]
    return str(value)


class Relation(NamedTuple):
    """A figure in relation to its floor.

    ``state`` is "level" (no worse), "unsure" (worse, but the floor lies inside the interval), "short" or "none".
    """

    state: str
    text: str


def render(report: Report) -> str:
    """The HTML page: the same report gives the same bytes."""
    style, script = (source(name) for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    divided = report.about.partition
    known = {} if divided is None else {"horizontal": divided != "vertical", "grouped": divided == "mixed"}
    privacy = statement(report.ledger or (), **known)
    if report.about.counted is not None:  # the ledger is of the counting, and what opened is all that it released
        privacy |= {"summary": report.about.counted["cost of judging"], "rest": ""}
    silos = tuple(report.about.silos or ())
    return page(
        "template.html.j2",
        report=report,
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
        running=_css_text(" · ".join(filter(None, ("silosynth evaluation", report.about.data, report.about.date)))),
        head=_head(report),
        compared=_columns_of(report),
        noised="noise" in (report.about.counted or {}).get("opened", ""),
        predictors=[(one, _plain(one.accuracy), _plain(one.floor)) for one in report.predictors[:MAX_PREDICTORS]],
        spiky=svg.spiky,
        groups=_groups(report.scores, report.withheld is not None),
        by_silo=[_silo(silo, report.withheld is not None) for silo in report.by_silo],
        columns=_columns(report.columns),
        mostly_rare=_mostly_rare(report.about),
        pairs=_pairs(report.pairs, silos, known=bool(report.columns)),
        ledger=None if report.ledger is None else _ledger(report.ledger, silos),
        privacy=privacy,
        combinations=report.combinations.found[:MOST_COMBINATIONS],
        budget=budget_rows(privacy),
        cell=cell,
        mechanism=mechanism,
    )


def _css_text(text: str) -> str:
    """Text for a string in a style sheet, where HTML's escapes mean nothing."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\{ord(c):x} " for c in text)


UNKNOWN = "unknown: the evaluation was given no model"


class Fact(NamedTuple):
    """A line of the report's head, and its details, which are folded on screens."""

    label: str
    text: str
    details: Sequence[tuple[str, str]] = ()


def _head(report: Report) -> list[Fact]:
    """What somebody who files the report must know first."""
    about, left = report.about, report.about.left_out
    return [
        Fact("data", about.data or "not named"),
        Fact("generator", UNKNOWN if about.algorithm is None else _generator(about)),
        Fact("evaluated", f"{about.date or 'date unknown'}, with silosynth {about.version}"),
        Fact("privacy guarantee", about.guarantee or UNKNOWN + " and no ledger" * (about.counted is None)),
        _silos_held(report),
        *(Fact(label, text) for label, text in (about.counted or {}).items()),
        _pooled(about),
        Fact("left out", _plural(len(left), "column") if left else "nothing", [*left.items()]),
        *([_clamped(report)] if about.counted is None else []),
    ]


def _silos_held(report: Report) -> Fact:
    silos = report.about.silos
    if not silos:
        return Fact("silos", "not given")
    rows = {silo.name: f"{_plural(silo.rows, 'training row')}, " for silo in report.by_silo}
    details = [(s, f"{rows.get(s, '')}{_plural(len(c), 'column')}: {', '.join(c)}") for s, c in silos.items()]
    alike = len(silos) > 1 and len({frozenset(columns) for columns in silos.values()}) == 1
    how = ", with different rows of the same columns" if alike else ""
    return Fact("silos", _plural(len(silos), "silo") + how, details)


def _pooled(about: About) -> Fact:
    known = about.algorithm is not None
    if not about.pooled:
        return Fact("pooled", "nothing: no category is too rare to be released by name" if known else UNKNOWN)
    label = "which are drawn as other levels"
    details = [
        (name, label if share is None else f"{100 * share:.1f} % of the synthetic rows")
        for name, share in about.pooled.items()
    ]
    text = f"rare categories of {_plural(len(details), 'column')}, merged into “(rare)”"
    return Fact("pooled", text if known else f"{text}; more is {UNKNOWN}", details)


def _clamped(report: Report) -> Fact:
    ranges = report.about.ranges
    if ranges is None:
        return Fact("clamped", UNKNOWN)
    kinds = {column.name: column.kind for column in report.columns}
    details = []
    for name, held in ranges.items():
        low, high = svg.end_labels(kinds[name], held.low, held.high)
        cut = [f"{100 * held.below:.2g} % of the training values lie below {low}"] if held.below else []
        cut += [f"{100 * held.above:.2g} % of the training values lie above {high}"] if held.above else []
        details += [(name, ", ".join(cut) + ", a declared bound" * held.declared)] if cut else []
    if not details:
        return Fact("clamped", "nothing: all training values lie within the ranges of synthetic columns")
    return Fact("clamped", f"{_plural(len(details), 'column')}, whose synthetic values end earlier", details)


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _silo(silo: SiloScores, withheld: bool) -> dict[str, Any]:
    return {"name": silo.name, "rows": f"{silo.rows:,}", "scores": [_view(score, withheld) for score in silo.scores]}


def _groups(scores: Sequence[Score], withheld: bool) -> list[dict[str, Any]]:
    """Scores by group, known groups first; a group shares its scales."""
    order = [*GROUPS, *dict.fromkeys(s.group for s in scores if s.group not in GROUPS)]
    members = {name: [s for s in scores if s.group == name] for name in order}
    return [_group(name, own, withheld) for name, own in members.items() if own]


def _group(name: str, scores: Sequence[Score], withheld: bool) -> dict[str, Any]:
    title, question = GROUPS.get(name, (name.capitalize(), name.capitalize()))
    scales = {scale: [s for s in scores if (s.unit, s.ideal) == scale] for scale in {(s.unit, s.ideal) for s in scores}}
    domains = {scale: svg.round_domain(x for s in own for x in _drawn(s)) for scale, own in scales.items()}
    views = [_score(score, domains[score.unit, score.ideal], withheld) for score in scores]
    answer = WITHHELD if withheld else _answer(name, scores)
    return {"slug": name, "title": title, "question": question, "answer": answer, "scores": views}


def _score(score: Score, domain: tuple[float, float], withheld: bool) -> dict[str, Any]:
    view, ideal = _view(score, withheld), figure(score, score.ideal)
    interval = view["interval"] or "no interval"
    caption = f"{score.label}: {view['value']} {score.unit}, {interval}, floor {view['floor']}, ideal {ideal}"
    return view | {
        "ideal": ideal,
        "interval": interval,
        "unit": "" if score.unit == "score" or score.unit in score.label else score.unit,
        "ends": [figure(score, end) for end in domain],
        "plot": svg.range_plot(score, domain, caption),
    }


def _interval(low: str, high: str) -> str | None:
    return None if ABSENT in (low, high) else f"{low} to {high}"


def relate(score: Score) -> Relation:
    """A figure in relation to its floor, in words that claim no more than the numbers and the interval do."""
    if score.floor is None or not math.isfinite(score.floor):
        return Relation("none", "no floor: " + (score.floor_note.removeprefix("no floor: ") or "none was given"))
    if score.name in NO_VERDICT or not math.isfinite(score.value):
        return Relation("none", "to compare, not a verdict" if math.isfinite(score.value) else "not a number")
    floor = _badness(score, score.floor)
    if _badness(score, score.value) <= floor:
        return Relation("level", "no worse than its floor")
    if min((_badness(score, end) for end in (score.low, score.high) if end is not None), default=math.inf) <= floor:
        return Relation("unsure", "floor inside the interval")
    if score.unit == "%" and score.ideal == 0 and score.floor > 0:
        ratio = score.value / score.floor
        return Relation("short", f"{ratio:.2f} times its floor" if ratio < 10 else f"{ratio:.0f} times its floor")
    gap = figure(score, abs(score.value - score.floor)) + {"%": " points", "bits": " bits"}.get(score.unit, "")
    return Relation("short", f"{gap} {'below' if score.better == 'higher' else 'above'} its floor")


def _badness(score: Score, number: float) -> float:
    """Distance from the good end.

    A figure whose ideal lies in the middle is worse above it only: below, a classifier guesses, and synthetic rows keep
    away from training rows.
    """
    if score.better == "near":
        return max(number - score.ideal, 0.0)
    return number if score.better == "lower" else -number


def _answer(group: str, scores: Sequence[Score]) -> str:
    """One sentence that counts the figures worse than their floors, and claims no more."""
    states = [relate(score).state for score in scores]
    n = len(states) - states.count("none")
    worse = states.count("short")
    if n == 0:
        return "No figure here has a floor to be judged by."
    if group == "disclosure":
        which = f"{worse} of {_count(n)} {'is' if worse == 1 else 'are'} worse than the floor"
        return f"{which}: a sign that training rows show through." if worse else NOTHING_FOUND
    if worse == 0:
        rows = min(score.n for score in scores)
        return f"Yes, as far as {_count(n)} on {rows:,} rows can tell: at the floor, or indistinguishable from it."
    if worse == n:
        which = {1: "the figure is", 2: "both figures are"}.get(n, f"all {n} figures are")
        return f"Short of real rows: {which} worse than the floor, by the margins shown."
    return f"In part: {n - worse} of {_count(n)} are level with the floor or indistinguishable from it, {worse} worse."


def _count(n: int) -> str:
    return "1 figure" if n == 1 else f"{n} figures"


def figure(score: Score, number: float | None) -> str:
    """A number in the score's precision: two decimals for percentages and for scores up to 100, three otherwise."""
    if number is None or not math.isfinite(number):
        return ABSENT
    text = f"{number:.3f}" if abs(score.ideal) <= 1 and score.unit not in ("%", "bits") else f"{number:.2f}"
    return "0" if float(text) == 0 else text


def _drawn(score: Score) -> list[float]:
    return [x for x in (score.value, score.low, score.high, score.floor, score.ideal) if x is not None]


def _columns(columns: Sequence[ColumnScore]) -> dict[str, Any]:
    """Columns, worst first: the first `MAX_OVERLAYS` with a picture, the first `MAX_ROWS` in the table."""
    ranked = sorted(columns, key=lambda c: (-c.error if math.isfinite(c.error) else math.inf, c.name))
    views = [_column(column) for column in ranked[:MAX_ROWS]]
    for view in views[:MAX_OVERLAYS]:
        view["plot"] = svg.column_overlay(view["score"])
    return {"cards": views[:MAX_OVERLAYS], "rows": views, "total": len(ranked)}


def _column(column: ColumnScore) -> dict[str, Any]:
    error, floor, low, high = (_plain(x) for x in (column.error, column.floor, column.low, column.high))
    ends = svg.axis_ends(column)
    return {"score": column, "error": error, "floor": floor, "interval": _interval(low, high), "ends": ends}


def _plain(number: float | None) -> str:
    return ABSENT if number is None or not math.isfinite(number) else f"{number:.2f}"


def _pairs(pairs: Pairs, order: Sequence[str], known: bool = True) -> dict[str, Any] | None:
    """Heat maps, and tables of errors; ``known`` is whether there are associations, or distances only."""
    if len(pairs.names) < 2:
        return None
    keep, groups = svg.by_silo(pairs.silos, order)
    names = [pairs.names[i] for i in keep]
    drawn = _associations(pairs) if known else _distances(pairs)
    heats = [_heat(title, m[np.ix_(keep, keep)], names, groups, scale) for title, (m, scale) in drawn.items()]
    return {
        "heats": heats,
        "known": known,
        "order": [(silo, count) for silo, count in groups if silo],
        "named": len(names) <= svg.NAMED_CELLS,
        "shapes": len(names) <= svg.VECTOR_CELLS,
        "merged": len(names) > svg.RASTER_CELLS,
        "blocks": _blocks(pairs, [silo for silo, _ in groups if silo]),
        "worst": _worst(pairs),
    }


def _associations(pairs: Pairs) -> dict[str, tuple[Floats, float]]:
    """Matrices that are drawn, and their scales."""
    difference = pairs.synthetic - pairs.real
    scale = min(2.0, _scale(difference))
    return {
        "Real": (pairs.real, 1.0),
        "Synthetic": (pairs.synthetic, 1.0),
        "Difference (synthetic − real)": (difference, scale),
    }


def _distances(pairs: Pairs) -> dict[str, tuple[Floats, float]]:
    scale = max(_scale(pairs.real), _scale(pairs.synthetic))
    return {
        "Synthetic from real, %": (pairs.error, _scale(pairs.error)),
        "Real from independence": (pairs.real, scale),
        "Synthetic from independence": (pairs.synthetic, scale),
    }


def _scale(matrix: Floats) -> float:
    """A round number that no absolute value off the diagonal exceeds."""
    off = ~np.eye(len(matrix), dtype=bool)
    return svg.round_up(float(np.nanmax(np.abs(matrix[off]), initial=0.0)) or 0.01)


def _heat(title: str, matrix: Floats, names: Sequence[str], groups: svg.Groups, scale: float) -> dict[str, Any]:
    def tip(i: int, j: int) -> str:
        return f"{names[i]} × {names[j]}: {matrix[i, j]:.3f}"

    label = f"{title}: associations of {len(names)} columns, on a scale from -{scale:g} to {scale:g}"
    return {"title": title, "scale": f"{scale:g}", "plot": svg.heatmap(matrix, names, groups, scale, label, tip)}


def _blocks(pairs: Pairs, silos: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Mean error and floor of each pair of silos (lower triangle with diagonal); empty for one silo or too many."""
    if not 2 <= len(silos) <= MAX_BLOCKS:
        return []
    owner = np.array([silo or "" for silo in pairs.silos])
    off = ~np.eye(len(owner), dtype=bool)
    masks = [[off & np.outer(owner == a, owner == b) for b in silos[: i + 1]] for i, a in enumerate(silos)]
    return [
        (a, [(_mean(pairs.error, m), _mean(pairs.floor, m)) for m in row]) for a, row in zip(silos, masks, strict=True)
    ]


def _mean(matrix: Floats | None, mask: NDArray[np.bool_]) -> str:
    chosen = None if matrix is None else matrix[mask & np.isfinite(matrix)]
    return _plain(float(chosen.mean()) if chosen is not None and len(chosen) else None)


def _worst(pairs: Pairs) -> list[dict[str, Any]]:
    """The pairs with the largest error: names, silos, error and floor."""
    rows, columns = np.triu_indices(len(pairs.names), 1)
    ranked = np.argsort(-np.nan_to_num(pairs.error[rows, columns], nan=-1.0), kind="stable")[:MAX_PAIRS]
    return [_pair(pairs, int(rows[k]), int(columns[k])) for k in ranked]


def _pair(pairs: Pairs, i: int, j: int) -> dict[str, Any]:
    floor = None if pairs.floor is None else float(pairs.floor[i, j])
    shown = {"names": (pairs.names[i], pairs.names[j]), "silos": (pairs.silos[i], pairs.silos[j])}
    return shown | {"error": _plain(float(pairs.error[i, j])), "floor": _plain(floor)}


def _ledger(records: Iterable[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Any]:
    """Messages summed by sender, type and what they give away; silos in order, the coordinator separately."""
    sums, routes = totals(records, _SUMMED), totals(records)
    for line in sums:
        line["to"] = sorted({route["to"] for route in routes if all(route[key] == line[key] for key in _SUMMED)})
    top = max((line["bytes"] for line in sums), default=0) or 1
    rank = {name: i for i, name in enumerate(order)}
    names = sorted({line["from"] for line in sums}, key=lambda name: (rank.get(name, len(rank)), name))
    senders = [_sender(name, [line for line in sums if line["from"] == name], top) for name in names]
    own, others = ([s for s in senders if (s["name"] == COORDINATOR) is apart] for apart in (False, True))
    return {"silos": own, "others": others}


def _sender(name: str, sums: Sequence[Mapping[str, Any]], top: int) -> dict[str, Any]:
    rows = [
        {
            "type": line["type"].rsplit(".", 1)[-1],
            "full": line["type"],
            "privacy": line["privacy"],
            "to": ", ".join(line["to"]),
            "count": f"{line['messages']:,}",
            "bytes": human_bytes(line["bytes"]),
            "bar": svg.share_bar(line["bytes"] / top),
        }
        for line in sorted(sums, key=lambda line: (-line["bytes"], line["type"], line["privacy"]))
    ]
    size, count = (sum(line[key] for line in sums) for key in ("bytes", "messages"))
    return {"name": name, "total": human_bytes(size), "count": f"{count:,}", "rows": rows}


def human_bytes(count: int) -> str:
    """A byte count in decimal units: 1 kB is 1000 bytes."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
