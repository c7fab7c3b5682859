"""Rows that fulfil random conditions, guided, beside those that are drawn without conditions and thrown away.

    python benchmarks/conditions.py                            # Adult and Bank Marketing, 30 conditions each
    python benchmarks/conditions.py --sets adult --conditions 5

Columns are dealt to four silos in their order. Conditions are on one to three columns, whichever silos hold them, a
level or a range around a row drawn at random, so that at least 300 real rows fulfil them; and a few that about one row
in 1000 fulfils. Trend: error of pairs of the other columns, in percent, against real rows that fulfil the condition, of
as many guided rows as were found among those drawn without it. Ratio: guided over thrown away. Time: of the processor,
for the guided rows, over that for as many without conditions. Violated: rows that do not fulfil the condition.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.core.conditions import fulfils, parse
from silosynth.data import datasets, frames
from silosynth.simulation.federation import in_order

SETS, ROWS, POOL, MOST, SILOS = ("adult", "bank_marketing"), 20_000, 80_000, 2000, 4
LEAST, RARE = 300, 0.001
TINY = 1e-12


def discrete(column: pd.Series) -> bool:
    """Whether a column is compared level by level."""
    return not pd.api.types.is_float_dtype(column) and (
        not pd.api.types.is_integer_dtype(column) or column.nunique() <= 20
    )


def pair_errors(real: pd.DataFrame, made: pd.DataFrame) -> float:
    """Pair-trend error in percent, over all pairs of columns."""
    codes, numbers = {}, [name for name in real if not discrete(real[name])]
    for name in real:
        if name in numbers:
            edges = np.linspace(real[name].min(), real[name].max(), 11)[1:-1]
            codes[name] = [np.searchsorted(edges, table[name].fillna(real[name].min())) for table in (real, made)]
        else:
            both = pd.concat([real[name], made[name]]).astype("object").fillna("(missing)").astype("category")
            both = both.cat.codes.to_numpy()
            codes[name] = [both[: len(real)], both[len(real) :]]
    errors = []
    for a, b in itertools.combinations(real.columns, 2):
        if a in numbers and b in numbers:
            rho = [0.0 if np.isnan(r := table[a].corr(table[b])) else r for table in (real, made)]
            errors.append(abs(rho[0] - rho[1]) / 2)
        else:
            cells = [x.astype(np.int64) * 100_000 + y for x, y in zip(codes[a], codes[b], strict=True)]
            shares = pd.concat([pd.Series(c).value_counts(normalize=True) for c in cells], axis=1).fillna(0).to_numpy()
            errors.append(np.abs(shares[:, 0] - shares[:, 1]).sum() / 2)
    return float(100 * np.mean(errors))


def conditions(real: pd.DataFrame, count: int, rng: np.random.Generator) -> Iterator[tuple[dict[str, Any], int]]:
    """Random conditions, with how many real rows fulfil them: `count`, and a tenth of that of rare ones."""
    found = 0
    while found < count + max(1, count // 10):
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


def run(
    name: str, model: ss.Model, real: pd.DataFrame, count: int, seed: int, drawn: int = POOL, most: int = MOST
) -> Iterator[dict[str, Any]]:
    """One row for each condition."""
    pool = model.sample(drawn, seed=seed)
    table, facts = frames.to_table(pool, model.schema), model.makes()
    for given, support in conditions(real, count, np.random.default_rng(seed)):
        held = fulfils(table, parse(given, facts)).numpy()
        asked = min(most, max(100, int(held.sum())))
        start = time.process_time()
        made = model.sample(asked, seed=seed, given=given)
        guiding = time.process_time() - start
        model.sample(asked, seed=seed + 1)
        plain = time.process_time() - start - guiding
        target = real[fulfils(frames.to_table(real, model.schema), parse(given, facts)).numpy()]
        rest = [column for column in real if column not in given]
        errors = {
            key: pair_errors(target[rest], rows[rest])
            for key, rows in (("guided", made), ("thrown", pool[held][:asked]))
        }
        yield {
            "set": name, "condition": ", ".join(f"{key}={value}" for key, value in given.items()), "real": support,
            "rate %": 100 * float(held.mean()), "rows": asked, "violated": violated(model, made, given),
            "trend": errors["guided"], "thrown": errors["thrown"],
            "ratio": errors["guided"] / max(TINY, errors["thrown"]),
            "same rows %": 100 * float(made.duplicated().mean()), "time": guiding / plain,
        }  # fmt: skip


def main() -> None:
    """Fit, or load what was fitted, and compare."""
    options = common.parser(__doc__)
    options.add_argument("--sets", nargs="+", default=SETS)
    options.add_argument("--conditions", type=int, default=30)
    options.add_argument("--preset", default="fast")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--pool", type=int, default=POOL, help="rows that are drawn without conditions")
    options.add_argument("--most", type=int, default=MOST, help="rows of a condition, at most")
    options.add_argument("--models", help="a folder of models that were fitted before")
    chosen, rows = options.parse_args(), []
    for name in chosen.sets:
        real = datasets.load(name)
        real = real.sample(min(len(real), ROWS), random_state=0).reset_index(drop=True)
        if chosen.models:
            model = ss.load(f"{chosen.models}/{name}.silosynth")
        else:
            federation = ss.simulate(real, in_order(list(real.columns), SILOS))
            model = ss.fit("silofuse", federation, chosen.preset, seed=chosen.seed, progress=False)
        for row in run(name, model, real, chosen.conditions, chosen.seed, chosen.pool, chosen.most):
            print(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
            rows.append(row)
    common.keep("conditions", rows, "Conditions, guided and by throwing rows away (`benchmarks/conditions.py`).")


if __name__ == "__main__":
    main()
