"""Tables under differential privacy: MST and AIM across silos beside central ones, DPLT, SiloFuse and private GANs.

    python benchmarks/marginals.py                                # Adult: 36 trainings, and four without noise
    python benchmarks/marginals.py --tables adult heloc --silos 2 --epsilons 1 --seeds 0
    python benchmarks/marginals.py --inference mbi                # central models by private-pgm: pip install mbi
    python benchmarks/marginals.py --folder kept                  # trainings that are in the folder are not repeated
    python benchmarks/marginals.py --folder kept --collect --add --seeds 0 1 2 3 4 --tables adult heloc
    python benchmarks/marginals.py --algorithms aim "silofuse upload" "silofuse release" vtgan vflgan vertigan wgan-gp

Bounds of numbers are public: round numbers about those of each table. Synthetic rows are as many as were trained on.
Shape, trend: errors of columns and of pairs; across: of pairs of two silos, all in percent. Pairs: the mean distance in
total variation of all two-way tables of attributes, in percent. AUC: of XGBoost trained on synthetic rows, for the
target of rows held out. MB: of all messages of the training, the relay's second copy of sealed ones included. Processor
s: of the training, all parties in one process. Peak GB: of this process so far, evaluation included. Rows of all
trainings are kept; the page has means over the seeds, and as "± AUC" half of the range over them.

"central mst" and "central aim" have all columns in one place (`central_marginals.py`): they get the attributes that
"mst" has learnt in the same run, for nothing, and spend all of epsilon on tables, as their papers charge it; or as
the law of Gaussian noise allows, where the name ends so ("central aim, exactly"). Rows are drawn from their models as
from those of silos. "wgan-gp" has all columns in one place, too. SiloFuse and the GANs have their presets for ``dp``:
"balanced" of SiloFuse and VT-GAN, "private" of the others; or "fast", where the name ends so ("vflgan, fast").
Bounds are declared, or noised ("aim, noised bounds").
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import common
import numpy as np
import pandas as pd
from central_marginals import Pooled, aim, budget, most_budget, mst

import silosynth as ss
from silosynth import catalog as algorithms
from silosynth.core.files import make_folder
from silosynth.core.schema import Kind
from silosynth.core.streams import Streams
from silosynth.data import datasets
from silosynth.evaluation import fidelity, utility
from silosynth.evaluation.coding import code_tables, schema_of
from silosynth.evaluation.scores import Score
from silosynth.papers import results, tables
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, in_order

DELTA = 1e-5
SETTING = ("table", "algorithm", "silos", "epsilon")
MECHANISMS, EXACTLY, NOISED = {"mst": mst, "aim": aim}, ", exactly", ", noised bounds"
RIVALS: dict[str, tuple[str, str, dict[str, Any]]] = {  # algorithm, preset, options
    "silofuse upload": ("silofuse", "balanced", {"dp_mode": "upload"}),
    "silofuse release": ("silofuse", "balanced", {"dp_mode": "release"}),
    **{name: (name, "private", {}) for name in ("vflgan", "vertigan", "wgan-gp")},
    "vtgan": ("vtgan", "balanced", {}),
}
RIVALS |= {f"{name}, fast": (algorithm, "fast", own) for name, (algorithm, _, own) in RIVALS.items()}
BOUNDS = {
    "adult": {"age": (17, 90), "fnlwgt": (0, 1_500_000), "education_num": (1, 16), "capital_gain": (0, 99_999),
              "capital_loss": (0, 5_000), "hours_per_week": (1, 99)},
    "bank_marketing": {"age": (18, 100), "balance": (-10_000, 110_000), "day": (1, 31), "duration": (0, 5_000),
                       "campaign": (1, 70), "pdays": (-1, 900), "previous": (0, 300)},
    "airline_satisfaction": {"age": (5, 100), "flight_distance": (0, 5_000), "departure_delay_in_minutes": (0, 1_600),
                             "arrival_delay_in_minutes": (0, 1_600)},
    "heloc": {"m_since_oldest_trade_open": (-9, 850), "m_since_most_recent_trade_open": (-9, 400),
              "average_m_in_file": (-9, 400), "max_delq_2_public_rec_last_12m": (-9, 9), "max_delq_ever": (-9, 9),
              "net_fraction_revolving_burden": (-9, 500), "net_fraction_install_burden": (-9, 500)},
    "intrusion_nsl_kdd_20pct": {"duration": (0, 60_000), "src_bytes": (0, 1_000_000_000),
                                "dst_bytes": (0, 1_000_000_000), "wrong_fragment": (0, 3), "urgent": (0, 14),
                                "hot": (0, 101), "num_failed_logins": (0, 5), "num_compromised": (0, 9_000),
                                "su_attempted": (0, 2), "num_root": (0, 9_000), "num_file_creations": (0, 100),
                                "num_shells": (0, 5), "num_access_files": (0, 9), "count": (0, 511),
                                "srv_count": (0, 511), "dst_host_count": (0, 255), "dst_host_srv_count": (0, 255)},
    "covertype_50k": {"elevation": (1_500, 4_500), "aspect": (0, 360), "slope": (0, 90), "hillshade_9am": (0, 255),
                      "hillshade_noon": (0, 255), "hillshade_3pm": (0, 255), "cover_type": (1, 7),
                      "horizontal_distance_to_hydrology": (0, 1_500), "vertical_distance_to_hydrology": (-500, 1_000),
                      "horizontal_distance_to_roadways": (0, 8_000), "horizontal_distance_to_fire_points": (0, 8_000)},
    "churn": {"credit_score": (300, 850), "age": (18, 100), "tenure": (0, 10), "balance": (0, 300_000),
              "num_of_products": (1, 4), "estimated_salary": (0, 200_000)},
    "loan": {"age": (18, 80), "experience": (-5, 50), "income": (0, 250), "zip_code": (0, 99_999), "family": (1, 4),
             "cc_avg": (0, 10), "education": (1, 3), "mortgage": (0, 700)},
}  # fmt: skip
LIKE = {"airline_satisfaction": (0, 5), "heloc": (-9, 110), "intrusion_nsl_kdd_20pct": (0, 1), "covertype_50k": (0, 1),
        "churn": (0, 1), "loan": (0, 1)}  # fmt: skip
"""Of all other numbers of a table."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Sizes of all messages: a ledger that is kept leaves out those that tell how many rows there are."""
    sizes, add = list[int](), Ledger.add

    def adding(self: Ledger, *args: Any) -> None:
        sizes.append(args[-1])
        add(self, *args)

    Ledger.add = adding  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        Ledger.add = add  # type: ignore[method-assign]


def run(
    table: str, algorithm: str, silos: int, epsilon: float, seed: int, options: Mapping[str, Any], mbi: bool
) -> dict[str, Any]:
    """Train, sample as many rows as in training, compare. An epsilon of 0: no noise."""
    frame, about = datasets.load(table, return_info=True)
    train, holdout = tables.thirds(frame[tables.modelled(table).columns])
    noised = algorithm.endswith(NOISED)
    schema = bounds(table, train, declared=not noised)
    federation = ss.simulate(train, in_order(list(train.columns), silos), schema=schema)
    how = {"epsilon": epsilon, "delta": DELTA} | ({"bounds": "noised"} if noised else {})
    dp = {"dp": how} if epsilon else {}
    name = algorithm.removeprefix("central ").removesuffix(EXACTLY).removesuffix(NOISED)
    central = algorithm.startswith("central ")
    begun = time.process_time()
    with counted() as sizes:
        trained, preset, own = RIVALS.get(name, ("mst" if central else name, "balanced", {}))
        held = federation.central() if algorithms.algorithm(trained).central else federation
        model = ss.fit(trained, held, preset, options=dp | own | dict(options), seed=seed, progress=False)
    level_NA = levels(model, federation) if name in MECHANISMS else None
    if central and level_NA is not None:
        pooled = Pooled(level_NA, sizes_of(model), np.random.default_rng(seed), mbi)
        begun = time.process_time()
        rho = (most_budget if algorithm.endswith(EXACTLY) else budget)(epsilon, DELTA)
        found = MECHANISMS[name](pooled, rho)
        model.coordinator, sizes = {**model.coordinator, "model": found.state()}, []
    taken, synthetic = time.process_time() - begun, model.sample(len(train))
    row = {"table": table, "algorithm": algorithm, "silos": silos, "epsilon": epsilon, "seed": seed}
    row |= figures(train, holdout, synthetic, federation.silos, about.target)
    made = ss.simulate(synthetic, federation.silos, schema=schema)
    row["pairs %"] = math.nan if level_NA is None else pair_error(level_NA, levels(model, made), sizes_of(model))
    row |= {"MB": sum(sizes) / 1e6, "processor s": taken, "peak GB": common.peak_gigabytes()}
    return row | results.stamp()


def bounds(table: str, frame: pd.DataFrame, declared: bool = True) -> dict[str, dict[str, Any]]:
    """Declared kinds of all numbers, which flags are not, and their bounds."""
    own = BOUNDS[table]
    kinds = {column.name: column.kind for column in schema_of(frame).columns if Kind(column.kind).numeric}
    ends = {name: own[name] if name in own else LIKE[table] for name in kinds}
    found = {name: {"kind": kinds[name], "low": low, "high": high} for name, (low, high) in ends.items()}
    return found if declared else {name: {"kind": kind} for name, kind in kinds.items()}


def levels(model: ss.Model, federation: Federation) -> Any:
    """The level (N, A) of each row's attributes, by the encoders that the model has learnt."""
    parties = model._parties(Streams(0), federation.tables)
    columns = [
        attribute.level_F[cell_N].numpy()
        for party in parties.values()
        for attribute, cell_N in zip(party.attributes, party._cells().T, strict=True)
    ]
    return np.stack(columns, axis=1)


def sizes_of(model: ss.Model) -> tuple[int, ...]:
    """The number of levels of each attribute."""
    return tuple(model.coordinator["model"]["sizes"])


def pair_error(real_NA: Any, made_RA: Any, sizes: Sequence[int]) -> float:
    """The mean distance of all two-way tables, in percent."""
    ours, theirs = (Pooled(one, sizes, np.random.default_rng(0)) for one in (real_NA, made_RA))
    distances = [
        np.abs(ours.tables[pair] / ours.rows - theirs.tables[pair] / theirs.rows).sum() / 2 for pair in ours.pairs
    ]
    return float(100 * np.mean(distances))


def figures(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, silos: Mapping[str, Sequence[str]], target: str
) -> dict[str, float]:
    """Shape, trend and AUC, as in `silosynth.evaluate` of all rows."""
    frames, rng = {"training": train, "hold-out": holdout, "synthetic": synthetic}, np.random.default_rng(0)
    coded = code_tables(frames, schema_of(train))
    real, held_out, made = coded["training"], coded["hold-out"], coded["synthetic"]
    owner = {name: silo for silo, names in silos.items() for name in names}
    compared = fidelity.compare(real, made, rng, replicates=False)
    scores = fidelity.column_shape(compared, None)
    scores += fidelity.pair_trend(compared, None, [owner[field.name] for field in real.fields])
    position = [field.name for field in real.fields].index(target)
    scores += utility.downstream(real, held_out, made, position, rng)
    found = {one.name: one.value for one in scores if isinstance(one, Score)}
    return {
        "shape %": found["column_shape_error"], "trend %": found["pair_trend_error"],
        "across %": found["pair_trend_error_across"], "AUC": found["downstream_auc"],
    }  # fmt: skip


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in SETTING), []).append(row)
    found = []
    for setting, own in groups.items():
        figures = [key for key, value in own[0].items() if isinstance(value, float) and key not in SETTING]
        means = {key: float(np.mean([row[key] for row in own])) for key in figures}
        spread = {"± AUC": float(np.ptp([row["AUC"] for row in own])) / 2}
        found.append(dict(zip(SETTING, setting, strict=True)) | {"seeds": len(own)} | means | spread)
    return found


def main() -> None:
    """Run all, one after the other, and keep the table."""
    parser = common.parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=["adult"], choices=list(BOUNDS))
    parser.add_argument("--algorithms", nargs="+", default=["mst", "aim", "central mst", "central aim", "dplt"])
    parser.add_argument("--silos", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--options", type=json.loads, default={}, help="of all trainings, as JSON")
    parser.add_argument("--inference", choices=["own", "mbi"], default="own", help="of central models")
    parser.add_argument("--name", default="marginals", help="of the results")
    parser.add_argument("--folder", type=make_folder, help="where figures of each training are kept for another run")
    parser.add_argument("--collect", action="store_true", help="train nothing: show what the folder has")
    parser.add_argument("--exact", action="store_true", help="once more without noise")
    parser.add_argument("--add", action="store_true", help="to results of that name; what they have is not repeated")
    options = parser.parse_args()
    if options.collect and options.folder is None:
        parser.error("--collect takes --folder")
    rows, mbi = common.kept(options.name) if options.add else [], options.inference == "mbi"
    known = {tuple(row[key] for key in (*SETTING, "seed")) for row in rows}
    epsilons = [*options.epsilons, *[0.0] * options.exact]
    for table, algorithm, silos, epsilon in itertools.product(
        options.tables, options.algorithms, options.silos, epsilons
    ):
        if algorithm.startswith("central") and (silos != options.silos[0] or not epsilon):
            continue  # there are no silos to differ by
        for seed in options.seeds if epsilon else options.seeds[:1]:
            setting, how = (table, algorithm, silos, epsilon, seed), (options.options, mbi)
            there = not options.collect or common.kept_at(options.folder, *setting, *how).exists()
            if setting not in known and there:
                rows.append(common.once(options.folder, run, *setting, *how))
                print(rows[-1], flush=True)
    common.keep(options.name, rows, shown=summaries(rows))


if __name__ == "__main__":
    main()
