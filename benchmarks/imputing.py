"""Missing cells filled in by a model of silos that do not pool their rows, beside imputers that see all real rows.

    python benchmarks/imputing.py
    python benchmarks/imputing.py --sets adult --algorithms aim
    python benchmarks/imputing.py --sets cardio heloc --rows 1500      # sooner done: kept as imputing_1500
    python benchmarks/imputing.py --folder kept                        # goes on where a run with it was stopped

Of each table 4000 rows are learnt from, with columns dealt to two silos, and one cell in five of 500 others is hidden:
at random, or by a column (the more, the higher a row is in the first column of numbers, which stays complete). Each
imputer draws them ten times. *MICE* is scikit-learn's IterativeImputer with Bayesian ridge regression, which draws from
its posterior, levels being columns of zeros and ones; *forests* fill in one value, as missForest does: random forests
of scikit-learn, learnt from the 4000 rows, in five rounds. Both see all rows in one place.

Error: of numbers, root of the mean squared error of the median, over the column's standard deviation; of levels, share
of cells with another than the most frequent. Coverage: share of numbers within an interval of 90 %; that of MICE is of
a normal value of which its draws are ten. Width: of that, in standard deviations. Certain: mean share of draws that
agree with the most frequent level, which is to be the share that is right. Time: of the processor, for filling in, over
that of MICE. With ``--folder`` each row has the commit that made it.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import common
import numpy as np
import pandas as pd
from scipy import stats
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

import silosynth as ss
from silosynth.core.files import make_folder, write_atomic
from silosynth.data import datasets
from silosynth.papers import results
from silosynth.simulation.federation import in_order

SETS, ALGORITHMS = ("adult", "bank_marketing", "heloc", "cardio"), ("silofuse", "mst")
WAYS = ("at random", "by a column")
ROWS, HIDDEN, SHARE, DRAWS, SILOS = 4000, 500, 0.2, 10, 2
Draws = list[pd.DataFrame]


def number(column: pd.Series) -> bool:
    """Whether it is scored as a number."""
    return pd.api.types.is_numeric_dtype(column) and column.nunique() > 10


def hide(rows: pd.DataFrame, how: str, rng: np.random.Generator) -> pd.DataFrame:
    """One cell in five gone: "at random", or "by a column"."""
    by = next(name for name in rows if number(rows[name]))
    chance = np.full(len(rows), SHARE) if how == "at random" else 2 * SHARE * rows[by].rank(pct=True).to_numpy()
    gone = rng.random(rows.shape) < chance[:, None]
    if how == "by a column":
        gone[:, rows.columns.get_loc(by)] = False
    return rows.mask(gone)


def mice(train: pd.DataFrame, partial: pd.DataFrame, seed: int) -> Draws:
    """Draws by chained Bayesian regressions."""
    both = pd.concat([train, partial], ignore_index=True)
    parts, levels = [], {}
    for name in both:
        if number(train[name]):
            parts.append(((both[name] - train[name].mean()) / train[name].std()).to_frame(name))
            continue
        levels[name] = list(train[name].value_counts().index[:20])
        coded = pd.DataFrame({f"{name}={one}": (both[name] == one).astype(float) for one in levels[name]})
        parts.append(coded.mask(both[name].isna()))
    coded, found = pd.concat(parts, axis=1), []
    for draw in range(DRAWS):
        imputer = IterativeImputer(sample_posterior=True, max_iter=5, random_state=seed + draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that five rounds may be too few
            whole = pd.DataFrame(imputer.fit_transform(coded), columns=coded.columns)[-len(partial) :]
        table = partial.reset_index(drop=True).copy()
        for name in table:
            if name in levels:
                best = whole[[f"{name}={one}" for one in levels[name]]].to_numpy().argmax(1)
                made = pd.Series([levels[name][code] for code in best])
            else:
                made = (whole[name] * train[name].std() + train[name].mean()).reset_index(drop=True)
            table[name] = table[name].where(table[name].notna(), made)
        found.append(table)
    return found


def forests(train: pd.DataFrame, partial: pd.DataFrame, seed: int) -> Draws:
    """One table, by random forests in rounds."""
    codes = {name: list(train[name].value_counts().index) for name in train if not number(train[name])}

    def x(rows: pd.DataFrame, without: str) -> np.ndarray:
        parts = [rows[[n for n in rows if n not in codes and n != without]].fillna(train.median(numeric_only=True))]
        parts += [pd.DataFrame({(n, c): rows[n] == c for c in codes[n][:20]}) for n in codes if n != without]
        return np.concatenate([part.to_numpy(np.float32) for part in parts], axis=1)

    models = {}
    table = partial.reset_index(drop=True).copy()
    gone = table.isna()
    for name in table:
        known = train[train[name].notna()]
        kind = RandomForestClassifier if name in codes else RandomForestRegressor
        target = known[name].astype(str) if name in codes else known[name]
        models[name] = kind(100, random_state=seed, n_jobs=1, min_samples_leaf=2).fit(x(known, name), target)
        table[name] = table[name].fillna(train[name].mode().iloc[0] if name in codes else train[name].mean())
    for _ in range(5):
        for name in table:
            own = gone[name].to_numpy()
            if own.any():
                found = models[name].predict(x(table[own], name))
                texts = {str(code): code for code in codes.get(name, [])}
                table.loc[own, name] = [texts[one] for one in found] if name in codes else found
    return [table]


def score(real: pd.DataFrame, train: pd.DataFrame, partial: pd.DataFrame, draws: Draws, said: Any) -> dict[str, Any]:
    """Errors over all hidden cells, averaged over columns."""
    errors, wrong, inside, width, certain = [], [], [], [], []
    for name in real:
        gone = (partial[name].isna() & real[name].notna()).to_numpy()
        if not gone.any():
            continue
        truth = real[name][gone]
        if number(train[name]):
            values, deviation = np.stack([one[name][gone].to_numpy(float) for one in draws]), train[name].std()
            errors.append(np.sqrt(np.mean((np.median(values, axis=0) - truth) ** 2)) / deviation)
            reach = (
                stats.t.ppf(0.95, len(values) - 1) * np.sqrt(1 + 1 / len(values)) * values.std(0, ddof=len(values) > 1)
            )
            low, high = values.mean(0) - reach, values.mean(0) + reach
            if said is not None:
                own = said[said["column"] == name].set_index("row").loc[np.flatnonzero(gone)]
                low, high = own["low"].to_numpy(float), own["high"].to_numpy(float)
            inside.append(np.mean((low <= truth) & (truth <= high)))
            width.append(np.mean(high - low) / deviation)
        else:
            texts = pd.concat([one[name][gone].astype(str).reset_index(drop=True) for one in draws], axis=1)
            best = texts.mode(axis=1)[0]
            wrong.append(np.mean(best.to_numpy() != truth.astype(str).to_numpy()))
            certain.append(np.mean(texts.eq(best, axis=0).to_numpy()))
    drawn = len(draws) > 1
    return {
        "error of numbers": float(np.mean(errors)), "wrong levels %": 100 * float(np.mean(wrong)),
        "certain %": 100 * float(np.mean(certain)) if drawn else "",
        "coverage %": 100 * float(np.mean(inside)) if drawn else "", "width": float(np.mean(width)) if drawn else "",
    }  # fmt: skip


def run(name: str, algorithms: list[str], learnt: int, seed: int, done: int = 0) -> Iterator[dict[str, Any]]:
    """One row for each imputer and way of hiding after the first ``done``, with this many rows to learn from."""
    real = datasets.load(name).sample(learnt + HIDDEN, random_state=seed).reset_index(drop=True)
    for column in real:  # levels as text, so that gaps do not change how they are written
        as_text = real[column].astype(str).astype(object).where(real[column].notna(), None)
        real[column] = real[column].astype(float) if number(real[column]) else as_text
    train, rows = real[:learnt], real[learnt:].reset_index(drop=True)
    federation = ss.simulate(train, in_order(list(real.columns), SILOS))
    imputers: dict[str, Callable[[pd.DataFrame], Any]] = {
        "MICE": lambda partial: (mice(train, partial, seed), None),
        "forests": lambda partial: (forests(train, partial, seed), None),
    }
    fitted = functools.cache(lambda algorithm: ss.fit(algorithm, federation, "fast", seed=seed, progress=False))

    def ours(algorithm: str, partial: pd.DataFrame) -> Any:
        found = fitted(algorithm).impute(partial, DRAWS, seed=seed)
        return found.draws, found.intervals

    imputers |= {algorithm: functools.partial(ours, algorithm) for algorithm in algorithms}
    for how, imputer in itertools.islice(itertools.product(WAYS, imputers), done, None):
        partial = hide(rows, how, np.random.default_rng(seed))
        if imputer in algorithms:
            fitted(imputer)  # its time does not count
        start = time.process_time()
        draws, said = imputers[imputer](partial)
        taken = time.process_time() - start
        yield {"set": name, "hidden": how, "imputer": imputer, **score(rows, train, partial, draws, said),
               "seconds": taken, "commit": results.stamp()["commit"]}  # fmt: skip


def beside(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with times over those of MICE in place of seconds."""
    first = {(row["set"], row["hidden"]): row["seconds"] for row in rows if row["imputer"] == "MICE"}
    times = [{**row, "time": row["seconds"] / first[row["set"], row["hidden"]]} for row in rows]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in times]


def main() -> None:
    """Fill in, or load what was filled in, and compare."""
    options = common.parser(__doc__)
    options.add_argument("--sets", nargs="+", default=SETS)
    options.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    options.add_argument("--rows", type=int, default=ROWS, help="rows that are learnt from")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=make_folder, help="where results are kept for another run")
    chosen, rows = options.parse_args(), list[dict[str, Any]]()
    for name in chosen.sets:
        kept = None if chosen.folder is None else chosen.folder / f"{name}.{chosen.rows}.imputed.json"
        own = [] if kept is None or not kept.exists() else json.loads(kept.read_text(encoding="utf-8"))
        for row in run(name, chosen.algorithms, chosen.rows, chosen.seed, len(own)):
            print(row, flush=True)
            own.append(row)
            if kept is not None:
                write_atomic(kept, json.dumps(own).encode())
        rows += own
        file = "imputing" if chosen.rows == ROWS else f"imputing_{chosen.rows}"
        about = f"learnt from {chosen.rows:,} rows, one seed"
        common.keep(file, beside(rows), f"One cell in five hidden and filled in (`benchmarks/imputing.py`; {about}).")


if __name__ == "__main__":
    main()
