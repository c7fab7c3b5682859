"""Whether a million synthetic rows keep all declared rules, how many had to be drawn again, and what rules cost.

    python benchmarks/rules.py stays                   # minutes
    SILOSYNTH_DATA=… python benchmarks/rules.py adult  # minutes

*stays*: 6 000 made-up stays in a hospital, in two silos: fixed combinations, inequalities within a silo and across
silos (discharge after admission), a sum, values missing at a level, a key, a range and a pattern. SiloFuse at ``fast``.
Violations are counted in the frame that comes out, by pandas.

*adult*: 6 000 rows of Adult; ``education`` and ``education_num``, in one silo, are declared a fixed combination, or
not. Errors are those of the report, in percent; ``dp`` is at epsilon 10, delta 1e-6, seed secret; ``mst`` at epsilon 3.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import common
import numpy as np
import pandas as pd

import silosynth as ss
from silosynth import rules

ROWS = 6000
SILOS = {
    "hospital": ["school", "years", "admission", "smokes", "packs", "drugs", "beds", "cost"],
    "insurer": ["discharge", "low", "high", "ward", "payer"],
}
RULES = [
    rules.FixedCombination(["school", "years"], [[f"s{i}", 2 * i + 6] for i in range(5)]),
    rules.Inequality("admission", "discharge"),
    rules.Inequality("low", "high", strict=True),
    rules.Sum(["drugs", "beds"], "cost"),
    rules.NullTogether(["packs"], when="smokes", level="no"),
    rules.UniqueKey(["admission", "drugs", "low"]),
    rules.ValueRange("beds", low=0),
    rules.Pattern("ward", "W[0-9]{2}"),
]


def stays() -> pd.DataFrame:
    """Stays whose columns hang on each other, also across silos."""
    rng = np.random.default_rng(0)
    school, smokes = rng.integers(0, 5, ROWS), rng.choice(["yes", "no"], ROWS)
    admission = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), unit="D")
    nights = rng.poisson(2 + 3 * (school == 0), ROWS)
    drugs = (rng.gamma(2, 60, ROWS) * (1 + nights / 5)).round(2)
    beds = (nights * rng.normal(400, 20, ROWS)).round(2).clip(0)
    low = rng.normal(nights / 4, 1, ROWS).round(3)
    return pd.DataFrame(
        {
            "school": [f"s{i}" for i in school],
            "years": 2 * school + 6,
            "admission": admission,
            "smokes": smokes,
            "packs": np.where(smokes == "no", np.nan, rng.integers(1, 30, ROWS)),
            "drugs": drugs,
            "beds": beds,
            "cost": (drugs + beds).round(2),
            "discharge": admission + pd.to_timedelta(nights, unit="D"),
            "low": low,
            "high": (low + rng.gamma(2, 0.5, ROWS) + 0.001).round(3),
            "ward": [f"W{i}" for i in 10 + (nights % 20)],
            "payer": rng.choice(["state", "self"], ROWS),
        }
    )


def broken(made: pd.DataFrame) -> dict[str, int]:
    """Rows that break each rule, but for the key."""
    return {
        "combination": int((made["years"] != 2 * made["school"].str[1:].astype(int) + 6).sum()),
        "across": int((made["admission"] > made["discharge"]).sum()),
        "inequality": int((made["low"] >= made["high"]).sum()),
        "sum": int(((made["drugs"] + made["beds"] - made["cost"]).abs() > 0.0050001).sum()),
        "null": int((made["packs"].isna() != (made["smokes"] == "no")).sum()),
        "range": int((made["beds"] < 0).sum()),
        "pattern": int((~made["ward"].str.fullmatch("W[0-9]{2}")).sum()),
    }


def errors(train: pd.DataFrame, made: pd.DataFrame, schema: Any) -> dict[str, float]:
    """Column shapes and pair trends, in percent."""
    report = ss.evaluate(train, None, made, figures="gan", schema=schema)
    return {"shape": report.score("column_shape_error").value, "trend": report.score("pair_trend_error").value}


def many(rows: int) -> Iterator[dict[str, Any]]:
    """Fit with and without rules, and count."""
    frame = stays()
    federation = ss.simulate(frame, SILOS)
    for given in (RULES, []):
        started = time.process_time()
        model = ss.fit("silofuse", federation, "fast", seed=1, rules=given, progress=False)
        trained = time.process_time() - started
        counts, keys, first = dict.fromkeys(broken(frame), 0), [], None
        started = time.process_time()
        for made in model.sample_batches(rows if given else ROWS * 10):
            first = made if first is None else first
            counts = {name: counts[name] + count for name, count in broken(made).items()}
            keys.append(made[["admission", "drugs", "low"]])
        drawn = sum(map(len, keys))
        seconds = time.process_time() - started
        assert first is not None
        yield {
            "rules": len(given), "rows": drawn, **counts, "key": int(pd.concat(keys).dropna().duplicated().sum()),
            "accepted_percent": None if model.acceptance is None else 100 * model.acceptance,
            **errors(frame, first[:ROWS], federation.schema),
            "train_cpu": trained, "cpu_per_1000_rows": 1000 * seconds / drawn,
        }  # fmt: skip


def declared(algorithm: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Adult with and without the declared combination."""
    frame = ss.datasets.load("adult").sample(ROWS, random_state=1).reset_index(drop=True)
    pairs = sorted(set(frame[["education", "education_num"]].itertuples(index=False, name=None)))
    schema = {
        name: {"low": float(frame[name].min()), "high": float(frame[name].max())}
        for name in frame.columns
        if frame[name].dtype.kind in "if"
    }
    names = list(frame.columns)
    if algorithm == "gdts":
        federation = ss.simulate(frame, rows={"a": slice(0, 3000), "b": slice(3000, ROWS)}, schema=schema)
    else:
        federation = ss.simulate(frame, {"a": names[:7], "b": names[7:]}, schema=schema)
    options = {
        "gdts": {},
        "mst": {"dp.epsilon": 3.0, "dp.delta": 1e-6},
        "silofuse": {"dp.epsilon": 10.0, "dp.delta": 1e-6},
    }
    for given in ([], [rules.FixedCombination(["education", "education_num"], pairs)]):
        found = []
        for _ in range(seeds):
            model = ss.fit(algorithm, federation, "fast", options=options[algorithm], rules=given, progress=False)
            made = model.sample(ROWS)
            wrong = [
                pair not in pairs for pair in made[["education", "education_num"]].itertuples(index=False, name=None)
            ]
            found.append({"broken_percent": 100 * float(np.mean(wrong)), **errors(frame, made, federation.schema)})
        yield {
            "algorithm": algorithm, "declared": bool(given), "runs": seeds,
            **{key: float(np.mean([one[key] for one in found])) for key in found[0]},
        }  # fmt: skip


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("what", choices=("stays", "adult"))
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if given.what == "stays":
        common.keep("rules", list(_shown(many(given.rows))))
    else:
        algorithms = {"mst": given.seeds, "gdts": 1, "silofuse": 1}
        common.keep("rules_adult", [row for name, runs in algorithms.items() for row in _shown(declared(name, runs))])


def _shown(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        print(row, flush=True)
        yield row


if __name__ == "__main__":
    main()
