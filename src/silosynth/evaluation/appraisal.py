"""What columns of other silos are worth to one's own, from noised tables of their groups: the value of `ss.appraise`.

`appraise_tables` makes an `Appraisal` of what `silosynth.counting.appraise.coordinate` returns: the association of each
two columns of different silos (`silosynth.evaluation.association`), and for each column and each partner how much
better it could be predicted by the partner's column that tells most of it. That is all that tables of two columns can
say: several columns together tell at least as much as the best one, and how much more is not in these tables.

The best one is found by the same noise that it is judged by. So its interval covers all of a partner's columns at once
(Bonferroni): from the greatest lower end to the greatest upper end, of intervals that miss with 5 % over their number.

Everything here follows from tables that were opened with noise, and costs no more than these.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from silosynth.core import notebook
from silosynth.core.errors import nearest
from silosynth.core.files import REPORTS, check_suffix, write_atomic
from silosynth.core.version import VERSION
from silosynth.evaluation import svg
from silosynth.evaluation.association import Margins, PairEstimate, Told, strength
from silosynth.evaluation.pages import page, source
from silosynth.evaluation.scores import Floats, Score
from silosynth.privacy.events import Target

NAMED = 10  # pairs that a summary names, the strongest first
LISTED = 200  # pairs that the page lists
UNKNOWN = "cannot be said"
_LEVEL = 0.95
_VAGUE = 0.5  # upper end, with a lower one of 0, from which an association is not drawn
_SEEN = 0.0005  # of a share: less is written as 0.0 %
SEEN = (
    ("each silo", "names and kinds of all columns; the number of rows that is public; and this appraisal"),
    (
        "the coordinator",
        "the same, and tables of groups before it added noise of its own: with that of both silos",
    ),
    ("nobody", "what values a group holds; how many rows a silo counted on its own; any row's group; any exact count"),
    ("the coordinator together with a silo", "groups of each row, of all silos that share a table with that one"),
)


@dataclass(frozen=True, slots=True)
class AppraisedPair:
    """The association of two columns in different silos.

    ``association`` is Cramér's V of their groups, from 0 to 1; not a number where nothing can be said. ``low`` and
    ``high`` are its 95 % interval: with a low end of 0 they may be independent.
    """

    first: str
    first_silo: str
    second: str
    second_silo: str
    association: float
    low: float
    high: float

    @property
    def vague(self) -> bool:
        """Whether they may be independent as well as strongly associated, so that it is not drawn."""
        return not math.isfinite(self.association) or (self.low == 0 and self.high > _VAGUE)


@dataclass(frozen=True, slots=True)
class Prediction:
    """How much better a column could be predicted by the partner's column that tells most of it.

    ``explained`` is the share of the entropy of the column's groups that knowing the other's group takes away;
    ``guessed`` the share of rows whose group is guessed right without, as the most frequent one; ``gain`` the share
    that is guessed right in addition, by the column that helps to guess it most. Each with its 95 % interval, for the
    best of all the partner's columns. ``best`` is None where nothing can be said, and ``why`` says why.
    """

    column: str
    silo: str
    partner: str
    best: str | None
    explained: float
    explained_low: float
    explained_high: float
    guessed: float
    gain: float
    gain_low: float
    gain_high: float
    why: str = ""

    @property
    def clear(self) -> bool:
        """Whether the partner's columns tell anything of it that would be seen in a figure."""
        return self.explained_low >= _SEEN


@dataclass(frozen=True, slots=True, eq=False)
class Appraisal:
    """What partners are worth to each other. `print(appraisal)` shows a summary; `save` writes HTML or JSON.

    Attributes:
        silos: the columns of each that took part.
        pairs: of columns in different silos: those that are clearly associated, and then the others, the strongest
            first.
        predictions: of each column by each other silo, silo by silo, in the same order.
        rows, rows_low, rows_high: how many rows the silos have in common, as the noised tables say, with a 95 %
            interval.
        groups: most groups of a column.
        epsilon, delta: what all of it cost, for each row; None where the noise follows from a seed that was given.
        noise: standard deviation of the noise on each cell of a table.
    """

    silos: Mapping[str, tuple[str, ...]]
    pairs: tuple[AppraisedPair, ...]
    predictions: tuple[Prediction, ...]
    rows: float
    rows_low: float
    rows_high: float
    groups: int
    epsilon: float | None
    delta: float | None
    noise: float

    def pair(self, first: str, second: str) -> AppraisedPair:
        """The pair of these columns, in any order.

        Raises:
            KeyError: there is none; names the nearest column.
        """
        for pair in self.pairs:
            if {pair.first, pair.second} == {first, second}:
                return pair
        known = [name for names in self.silos.values() for name in names]
        strange = [name for name in (first, second) if name not in known]
        hint = nearest(strange[0], known) if strange else "Both are in the same silo."
        raise KeyError(f"no pair of columns in different silos is {first!r} and {second!r}. {hint}")

    def to_frame(self) -> pd.DataFrame:
        """One row for each pair of columns, the strongest association first."""
        return pd.DataFrame([asdict(pair) for pair in self.pairs], columns=list(AppraisedPair.__slots__))

    def predictions_frame(self) -> pd.DataFrame:
        """One row for each column and each other silo."""
        return pd.DataFrame([asdict(one) for one in self.predictions], columns=list(Prediction.__slots__))

    def to_dict(self) -> dict[str, Any]:
        """The appraisal as dicts, lists, strings and numbers, ready for `json.dumps`."""
        found: dict[str, Any] = _plain(asdict(self))
        return found | {"sentences": list(sentences(self)), "version": VERSION}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as HTML or JSON (``.html``, ``.json``); never half a file. Returns the path.

        Raises:
            StorageError: the name ends in anything else, or the file cannot be written.
        """
        target = Path(path)
        as_json = check_suffix(target, REPORTS) == ".json"
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) if as_json else render(self)
        write_atomic(target, text.encode("utf-8"))
        return target

    def __repr__(self) -> str:
        clear = sum(pair.low > 0 for pair in self.pairs)
        return f"Appraisal of {len(self.pairs)} pairs of columns across {len(self.silos)} silos: {clear} associated"

    def __str__(self) -> str:
        head = ("column", "silo", "best partner column", "silo", "uncertainty explained", "guessed right")
        lines = [head, *((*_names(one), explained(one), guessed(one)) for one in self.predictions)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        cells = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        table = ["  ".join(line).rstrip() for line in cells]
        strongest = [f"  {pair.first} × {pair.second}: {association(pair)}" for pair in self.pairs[:NAMED]]
        parts = [*sentences(self), "", *table, "", "strongest associations (Cramér's V of groups):", *strongest]
        return "\n".join(["silosynth appraisal", *parts, "", cost(self)])

    def _repr_html_(self) -> str:
        head = ("column", "silo", "best partner column", "silo", "uncertainty explained", "guessed right")
        rows = [(*_names(one), explained(one), guessed(one)) for one in self.predictions]
        lines = [*sentences(self), cost(self)]
        return notebook.table(head, rows, repr(self)) + "".join(map(notebook.paragraph, lines))


def appraise_tables(found: Mapping[str, Any], dp: Target, groups: int, seeded: bool = False) -> Appraisal:
    """Conclude from tables that opened.

    Args:
        found: of `silosynth.counting.appraise.coordinate`.
        dp: the target that it kept.
        groups: most groups of a column.
        seeded: whether the noise follows from a seed that was given: then no epsilon is stated.
    """
    columns = found["columns"]
    pairs = [(int(a), int(b)) for a, b in found["pairs"]]
    tables = [np.asarray(table, np.float64) for table in found["tables"]]
    margins = Margins(pairs, tables, found["noise"])
    held = _Held(columns, pairs, tables, margins, found["noise"])
    silos = tuple(dict.fromkeys(column["silo"] for column in columns))
    predictions = [
        held.prediction(place, partner)
        for silo in silos
        for partner in silos
        for place, column in enumerate(columns)
        if partner != silo == column["silo"]
    ]
    predictions.sort(key=lambda one: (silos.index(one.silo), silos.index(one.partner), *_most_told(one)))
    reach = 1.96 * margins.error
    return Appraisal(
        {silo: tuple(column["name"] for column in columns if column["silo"] == silo) for silo in silos},
        tuple(sorted(held.pairs(), key=_strongest)),
        tuple(predictions),
        max(0.0, margins.rows), max(0.0, margins.rows - reach), max(0.0, margins.rows + reach),
        groups, None if seeded else dp.epsilon, None if seeded else dp.delta, found["noise"],
    )  # fmt: skip


def _strongest(pair: AppraisedPair) -> tuple[bool, float, str, str]:
    """Those that are clearly associated before those that may be; by strength."""
    return pair.low == 0, -_known(pair.association), pair.first, pair.second


def _most_told(one: Prediction) -> tuple[bool, float]:
    return not one.clear, -_known(one.explained)


def _known(number: float) -> float:
    return number if math.isfinite(number) else -1.0


@dataclass(frozen=True, slots=True)
class _Held:
    """What estimates are made from."""

    columns: Sequence[Mapping[str, Any]]
    places: Sequence[tuple[int, int]]
    tables: Sequence[Floats]
    margins: Margins
    noise: float

    def pairs(self) -> list[AppraisedPair]:
        found = []
        for number, (a, b) in enumerate(self.places):
            one, (first, second) = self._estimate(number, _LEVEL), (self.columns[a], self.columns[b])
            found.append(
                AppraisedPair(first["name"], first["silo"], second["name"], second["silo"], one.v, one.low, one.high)
            )
        return found

    def prediction(self, place: int, partner: str) -> Prediction:
        """Of one column, by the columns of one silo."""
        names = self.columns[place]["name"], self.columns[place]["silo"], partner
        beside = {
            number: other
            for number, (a, b) in enumerate(self.places)
            for other in ((b,) if a == place else (a,) if b == place else ())
            if self.columns[other]["silo"] == partner
        }
        level = 1 - (1 - _LEVEL) / max(1, len(beside))
        estimates = {number: self._estimate(number, level) for number in beside}
        sides = {number: int(self.places[number][1] == place) for number in beside}
        known = [number for number, one in estimates.items() if math.isfinite(one.v)]
        if not known:
            nan = math.nan
            return Prediction(*names, None, nan, nan, nan, nan, nan, nan, nan, self._why(place))
        told = {number: estimates[number].bits(sides[number]) for number in known}
        gains = {number: estimates[number].gain(sides[number]) for number in known}
        best = max(known, key=lambda number: (told[number].low, told[number].value))
        guess = max(gains.values(), key=lambda one: (one.low, one.value))
        shares = self.margins.shares[place][self.margins.kept(place)]
        explained, gain = _best_of(told.values(), told[best]), _best_of(gains.values(), guess)
        base = float(shares.max() / shares.sum())
        return Prediction(
            *names, self.columns[beside[best]]["name"], explained.value, explained.low, explained.high, base,
            gain.value, gain.low, gain.high,
        )  # fmt: skip

    def _estimate(self, number: int, level: float) -> PairEstimate:
        a, b = self.places[number]
        return strength(self.tables[number], self.margins, a, b, self.noise, level)

    def _why(self, place: int) -> str:
        if not self.margins.clear:
            return "the rows are too few to stand out from the noise"
        kept = int(self.margins.kept(place).sum())
        if kept == 0:
            return "none of its groups stands out from the noise"
        return (
            "all but few rows are in one of its groups"
            if kept == 1
            else "the partner's columns have no two clear groups"
        )


def _best_of(told: Any, best: Told) -> Told:
    """The best one's figure, with ends for the best of all."""
    ends = [(one.low, one.high) for one in told]
    low, high = max(low for low, _ in ends), max(high for _, high in ends)
    return Told(min(max(best.value, low), high), low, high)


# In words.


def association(pair: AppraisedPair) -> str:
    """A pair's figure and interval."""
    if not math.isfinite(pair.association):
        return UNKNOWN
    return f"{pair.association:.2f} ({pair.low:.2f} to {pair.high:.2f})"


def explained(one: Prediction) -> str:
    """The share of a column's entropy, with its interval."""
    if one.best is None:
        return UNKNOWN
    return f"{_percent(one.explained)} ({_percent(one.explained_low)} to {_percent(one.explained_high)})"


def guessed(one: Prediction) -> str:
    """What share of rows is guessed right, without and with, and the interval of the difference."""
    if one.best is None:
        return UNKNOWN
    gain = f"+{100 * one.gain:.1f} ({100 * one.gain_low:.1f} to {100 * one.gain_high:.1f}) points"
    return f"{100 * one.guessed:.0f} % → {100 * (one.guessed + one.gain):.0f} %: {gain}"


def sentences(appraisal: Appraisal) -> tuple[str, ...]:
    """What was found, in plain words."""
    found = [_rows(appraisal)]
    for silo in appraisal.silos:
        for partner in appraisal.silos:
            own = [one for one in appraisal.predictions if one.silo == silo and one.partner == partner]
            if own:
                found.append(_worth(silo, partner, own))
    return tuple(found)


def _rows(appraisal: Appraisal) -> str:
    if appraisal.rows_low <= 0:
        most = f"{appraisal.rows_high:,.0f}"
        return f"The silos have at most about {most} rows in common: too few to stand out from the noise."
    low, high = appraisal.rows_low, appraisal.rows_high
    return f"The silos have about {appraisal.rows:,.0f} rows in common (95 % interval {low:,.0f} to {high:,.0f})."


def _worth(silo: str, partner: str, own: Sequence[Prediction]) -> str:
    clear = [one for one in own if one.clear]
    known = [one for one in own if one.best is not None]
    if not known:
        return f"Of what {partner} is worth to {silo} nothing can be said at this epsilon."
    if not clear:
        return f"None of {silo}'s {_columns(known)} is clearly told by any column of {partner}."
    top = max(clear, key=lambda one: one.explained)
    better = f"{partner} would help {silo} to predict {len(clear)} of its {_columns(own)}"
    low, high = _percent(top.explained_low), _percent(top.explained_high)
    return (
        f"{better}; most of all {top.column}: knowing {top.best} explains {_percent(top.explained)} of its uncertainty "
        f"({low} to {high}), and its group is guessed right in {100 * top.guessed:.0f} of 100 rows without {partner}, "
        f"in {100 * (top.guessed + top.gain):.0f} with the column that helps most."
    )


def cost(appraisal: Appraisal) -> str:
    """What it cost, and what for."""
    if appraisal.epsilon is None:
        return "cost: no epsilon can be stated, since the noise follows from a seed that was given"
    return (
        f"cost: at most epsilon {appraisal.epsilon:g} at delta {appraisal.delta:g} for each row, for all groups "
        f"and all {len(appraisal.pairs):,} tables together"
    )


def _columns(own: Sequence[Prediction]) -> str:
    return f"{len(own)} columns" if len(own) != 1 else "1 column"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _names(one: Prediction) -> tuple[str, str, str, str]:
    return one.column, one.silo, one.best or "–", one.partner


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# The page.


def render(appraisal: Appraisal) -> str:
    """The HTML page, which needs nothing else: the same appraisal gives the same bytes."""
    return page(
        "appraisal.html.j2",
        appraisal=appraisal,
        style=source("report.css"),
        version=VERSION,
        sentences=sentences(appraisal),
        cost=cost(appraisal),
        heat=heat_map(appraisal),
        scale=f"{_scale(appraisal):g}",
        sections=_sections(appraisal),
        pairs=[(pair, association(pair)) for pair in appraisal.pairs[:LISTED]],
        seen=SEEN,
    )


def heat_map(appraisal: Appraisal) -> str:
    """Associations of all columns of different silos, as inline SVG."""
    names = [name for own in appraisal.silos.values() for name in own]
    order = [(silo, name) for silo, own in appraisal.silos.items() for name in own]
    place = {column: i for i, column in enumerate(order)}
    matrix = np.zeros((len(names), len(names)))  # a pair in one silo is left blank
    words: dict[tuple[int, int], str] = {}
    for pair in appraisal.pairs:
        i, j = place[pair.first_silo, pair.first], place[pair.second_silo, pair.second]
        matrix[i, j] = matrix[j, i] = math.nan if pair.vague else pair.association
        words[i, j] = words[j, i] = association(pair)

    def tip(i: int, j: int) -> str:
        return f"{names[i]} × {names[j]}: {words.get((i, j), 'both in one silo')}"

    groups = [(silo, len(own)) for silo, own in appraisal.silos.items()]
    scale = _scale(appraisal)
    label = f"Associations of {len(names)} columns across silos, on a scale from 0 to {scale:g}"
    return svg.heatmap(matrix, names, groups, scale, label, tip)


def _scale(appraisal: Appraisal) -> float:
    return min(1.0, svg.round_up(max([0.05, *(pair.association for pair in appraisal.pairs if not pair.vague)])))


def _sections(appraisal: Appraisal) -> list[dict[str, Any]]:
    """For each silo and partner, the silo's columns with a picture of what is explained."""
    ends = svg.round_domain([0.0, *(100 * one.explained_high for one in appraisal.predictions)])
    found = []
    for silo in appraisal.silos:
        for partner in appraisal.silos:
            own = [one for one in appraisal.predictions if (one.silo, one.partner) == (silo, partner)]
            if own:
                rows = [_row(one, ends) for one in own]
                found.append({"silo": silo, "partner": partner, "rows": rows, "ends": [f"{end:g} %" for end in ends]})
    return found


def _row(one: Prediction, ends: tuple[float, float]) -> dict[str, Any]:
    if one.best is None:
        return {"one": one, "plot": "", "explained": UNKNOWN, "guessed": one.why}
    name = f"{one.column}: {explained(one)} of its uncertainty explained by {one.best}"
    score = Score(
        one.column, one.column, "appraisal", 100 * one.explained, None, "", 100 * one.explained_low,
        100 * one.explained_high, "%", "higher", 0.0, 0, "", "",
    )  # fmt: skip
    return {"one": one, "plot": svg.range_plot(score, ends, name), "explained": explained(one), "guessed": guessed(one)}
