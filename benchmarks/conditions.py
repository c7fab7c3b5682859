"""Rows that fulfil random conditions, led to them, beside those that are drawn without conditions and thrown away.

    python benchmarks/conditions.py                            # four tables, 30 conditions each
    python benchmarks/conditions.py --sets adult --conditions 5
    python benchmarks/conditions.py --sets adult --most 10000 --pool 200000   # of large tables
    python benchmarks/conditions.py --sets adult my_table.parquet

Columns are dealt to four silos in their order. Conditions are on one to three columns, whichever silos hold them, a
level or a range around a row drawn at random, so that at least 300 real rows fulfil them; and a few that about one row
in 1000 fulfils. Rate: of rows drawn without conditions that fulfil it. Trend: error of pairs of the other columns, in
percent, against real rows that fulfil the condition, of led rows. Thrown: the mean of that error over up to ten tables,
each of as many rows, of those that fulfil the condition of all that were drawn without. Ratio: one over the
other; ±: its standard error, from how much equal tables of thrown rows differ (0 where there are too few to tell).
Time: of the processor, for the led rows, over the mean of as many without conditions. Violated: rows that do not fulfil
the condition. With ``--folder`` a run that was stopped goes on where it was, and each row has the commit that made it;
with ``--rarer`` as well, a run that ended measures those conditions anew that fewer percent of rows fulfil.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.core.conditions import fulfils, parse
from silosynth.core.files import make_folder, write_atomic
from silosynth.data import datasets, frames, sources
from silosynth.papers import results
from silosynth.simulation.federation import in_order

SETS = ("adult", "bank_marketing", "covertype_50k", "heloc")
ROWS, POOL, MOST, SILOS = 20_000, 60_000, 1000, 4
LEAST, RARE = 300, 0.001
TINY = 1e-12
PLAIN = 3  # conditions for each timing of rows without
PARTS = 10  # tables of thrown rows, at most


def discrete(column: pd.Series) -> bool:
    """Whether a column is compared level by level."""
    return not pd.api.types.is_float_dtype(column) and (
        not pd.api.types.is_integer_dtype(column) or column.nunique() <= 20
    )


class Trends:
    """Pair-trend errors against a table, in percent, over all pairs of columns."""

    def __init__(self, real: pd.DataFrame) -> None:
        self.numbers = [name for name in real if not discrete(real[name])]
        self.edges = {name: np.linspace(real[name].min(), real[name].max(), 11)[1:-1] for name in self.numbers}
        self.lowest, self.real = real[self.numbers].min(), real

    def error(self, made: pd.DataFrame) -> float:
        """Of one table."""
        codes, widths = {}, {}
        for name in self.real:
            pair = self.real[name], made[name]
            if name in self.numbers:
                codes[name] = [np.searchsorted(self.edges[name], one.fillna(self.lowest[name])) for one in pair]
            else:
                both, _ = pd.factorize(pd.concat(pair).astype("object"), use_na_sentinel=False)
                codes[name] = [both[: len(self.real)], both[len(self.real) :]]
            widths[name] = 1 + max(int(code.max(initial=0)) for code in codes[name])
        rho = [table[self.numbers].corr().fillna(0.0).to_numpy() for table in (self.real, made)]
        place = {name: number for number, name in enumerate(self.numbers)}
        errors = []
        for a, b in itertools.combinations(self.real.columns, 2):
            if a in place and b in place:
                errors.append(abs(rho[0][place[a], place[b]] - rho[1][place[a], place[b]]) / 2)
            else:
                cells = [x.astype(np.int64) * widths[b] + y for x, y in zip(codes[a], codes[b], strict=True)]
                shares = [np.bincount(cell, minlength=widths[a] * widths[b]) / len(cell) for cell in cells]
                errors.append(np.abs(shares[0] - shares[1]).sum() / 2)
        return float(100 * np.mean(errors))


def asked(count: int) -> int:
    """How many conditions there are of a table: ``count``, and a tenth of that of rare ones."""
    return count + max(1, count // 10)


def conditions(real: pd.DataFrame, count: int, rng: np.random.Generator) -> Iterator[tuple[dict[str, Any], int]]:
    """Random conditions, with how many real rows fulfil them: `count`, and a tenth of that of rare ones."""
    found = 0
    while found < asked(count):
        names, row = rng.choice(real.columns, rng.integers(1, 4), replace=False), real.iloc[rng.integers(len(real))]
        given, held = dict[str, Any](), np.ones(len(real), dtype=bool)
        for name in names:
            value = row[name]
            if discrete(real[name]) or pd.isna(value):
                given[name] = None if pd.isna(value) else value
                held &= real[name].isna() if pd.isna(value) else real[name] == value
            else:
                width = rng.uniform(0.1, 0.6)
                rank = real[name].rank(pct=True)[row.name]
                ends = np.clip([rank - width / 2, rank + width / 2], 0, 1)
                given[name] = tuple(float(end) for end in real[name].quantile(ends))
                held &= real[name].between(*given[name])
        share = held.mean()
        fits = held.sum() >= LEAST and share < 0.5 if found < count else 0.5 * RARE < share < 2 * RARE
        if fits:
            found += 1
            yield given, int(held.sum())


def violated(model: ss.Model, made: pd.DataFrame, given: Mapping[str, Any]) -> int:
    """How many rows do not fulfil a condition."""
    return int((~fulfils(frames.to_table(made, model.schema), parse(given, model.makes()))).sum())


def timed(model: ss.Model, rows: int, seed: int, **how: Any) -> tuple[pd.DataFrame, float]:
    """A sample, and the processor's seconds that it took."""
    start = time.process_time()
    made = model.sample(rows, seed=seed, **how)
    return made, time.process_time() - start


def run(
    name: str, model: ss.Model, real: pd.DataFrame, pool: pd.DataFrame, count: int, seed: int, most: int = MOST,
    numbers: Collection[int] = (),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row for each of the conditions with these numbers."""
    table, whole, facts = frames.to_table(pool, model.schema), frames.to_table(real, model.schema), model.makes()
    timed(model, most, seed)  # the first sample takes longer
    every = enumerate(conditions(real, count, np.random.default_rng(seed)))
    for place, (given, support) in enumerate(one for number, one in every if number in numbers):
        wanted = parse(given, facts)
        held = fulfils(table, wanted).numpy()
        size = min(most, max(100, int(held.sum())))
        if place % PLAIN == 0:
            plain = timed(model, most, seed + place)[1]
        made, seconds = timed(model, most, seed, given=given)
        rest = [column for column in real if column not in given]
        trends = Trends(real[fulfils(whole, wanted).numpy()][rest])
        thrown = pool[held][rest]
        starts = range(0, max(1, len(thrown) - size + 1), size)[:PARTS]
        parts = [trends.error(thrown[at : at + size]) for at in starts]
        error, mean = trends.error(made[rest][:size]), float(np.mean(parts))
        spread = float(np.std(parts, ddof=1)) * (1 + 1 / len(parts)) ** 0.5 if len(parts) > 2 else 0.0
        yield {
            "set": name, "condition": ", ".join(f"{key}={value}" for key, value in given.items()), "real": support,
            "rate %": 100 * float(held.mean()), "rows": size, "violated": violated(model, made, given),
            "trend": error, "thrown": mean, "ratio": error / max(TINY, mean), "±": spread / max(TINY, mean),
            "same rows %": 100 * float(made.duplicated().mean()), "time": seconds / plain,
            "commit": results.stamp()["commit"],
        }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """What all conditions that enough real rows fulfil come to, and the rare ones."""
    words = []
    for what, some in (
        ("that at least 300 real rows fulfil", [row for row in rows if row["real"] >= LEAST]),
        ("that about one real row in 1000 fulfils", [row for row in rows if row["real"] < LEAST]),
    ):
        ratio, times = (np.array([row[key] for row in some]) for key in ("ratio", "time"))
        words.append(
            f"Of {len(some)} conditions {what}: {sum(row['violated'] for row in some)} rows violated one; the ratio of "
            f"errors was {ratio.mean():.2f} on average and {ratio.max():.2f} at most, above 1.25 for "
            f"{(ratio > 1.25).sum()}; time was {times.mean():.1f} on average and {times.max():.1f} at most, above 3 "
            f"for {(times > 3).sum()}."
        )
    return " ".join(words)


def main() -> None:
    """Fit and draw, or load what was, and compare."""
    options = common.parser(__doc__)
    options.add_argument("--sets", nargs="+", default=SETS, help="names of data sets, or files")
    options.add_argument("--conditions", type=int, default=30)
    options.add_argument("--preset", default="fast")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--pool", type=int, default=POOL, help="rows that are drawn without conditions")
    options.add_argument("--most", type=int, default=MOST, help="rows of a condition")
    options.add_argument("--folder", type=make_folder, help="where models, rows and results are kept for another run")
    options.add_argument("--rarer", type=float, default=0.0, help="percent; conditions to measure anew, in a folder")
    chosen, rows = options.parse_args(), []
    for name in chosen.sets:
        real = sources.read(name) if Path(name).suffix else datasets.load(name)
        real, name = real.sample(min(len(real), ROWS), random_state=0).reset_index(drop=True), Path(name).stem
        kept = None if chosen.folder is None else chosen.folder / f"{name}.rows.json"
        own = [] if kept is None or not kept.exists() else json.loads(kept.read_text(encoding="utf-8"))
        anew = {number for number, row in enumerate(own) if row["rate %"] < chosen.rarer}
        if numbers := sorted(anew | {*range(len(own), asked(chosen.conditions))}):
            model, pool = prepared(name, real, chosen.preset, chosen.seed, chosen.pool, chosen.folder)
            made = run(name, model, real, pool, chosen.conditions, chosen.seed, chosen.most, numbers)
            for number, row in zip(numbers, made, strict=True):
                print(common.markdown([row]).splitlines()[-1], flush=True)
                own[number : number + 1] = [row]
                if kept is not None:
                    write_atomic(kept, json.dumps(own).encode())
        rows += own
    about = f"{ROWS:,} training rows, preset {chosen.preset}, {chosen.pool:,} rows drawn without conditions, one seed"
    many = "" if chosen.most == MOST else f"_{chosen.most}"
    common.keep(f"conditions{many}", rows, f"Conditions (`benchmarks/conditions.py`; {about}). {summary(rows)}")


def prepared(
    name: str, real: pd.DataFrame, preset: str, seed: int, drawn: int, folder: Path | None
) -> tuple[ss.Model, pd.DataFrame]:
    """A model of a table, and rows drawn from it without conditions."""
    kept = None if folder is None else folder / f"{name}.silosynth"
    if kept is not None and kept.exists():
        model = ss.load(kept)
    else:
        federation = ss.simulate(real, in_order(list(real.columns), SILOS))
        model = ss.fit("silofuse", federation, preset, seed=seed, progress=False)
        if kept is not None:
            model.save(kept)
    pool = None if kept is None else kept.with_suffix(f".{drawn}.parquet")
    if pool is not None and pool.exists():
        return model, pd.read_parquet(pool)
    made = model.sample(drawn, seed=seed)
    if pool is not None:
        made.to_parquet(pool)
    return model, made


if __name__ == "__main__":
    main()
