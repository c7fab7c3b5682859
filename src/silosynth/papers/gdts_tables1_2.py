"""GDTS's tables I and II, figures 5 and 6: a full copy in every silo, and a silo that repeats a single row.

*Copies*: every silo has the whole table, which is as good as it gets. Noise on counts is the only thing that tells "fl"
and "fl, no noise" apart. Figures are compared with one copy. The paper reads them off when the central GAN ends.

*Odd*: one silo has as many rows as all others together, and they are all the same one. The others have shares of the
table, dealt out at random; of these silos the paper has four of 10 000 rows, beside the odd one's 40 000. Figures are
compared with the table that was dealt out. The paper reads them off when "md" ends.

"md" trains three tenths of the epochs, so that it takes about as long as the others (the paper: 150 of 500). "fl"
averages after every epoch. "central" is CTGAN with the same options and the whole table. "diffusion" is ours, with its
preset "best"; at fewer than 100 epochs its steps shrink alike. A batch is a tenth of the smallest silo, at most 500.

With ``gan`` GANs are trained so: "paper", or as the preset "balanced" does (five critic steps, each row judged by
itself, rate 5e-4), which needs far fewer epochs; on random rows that fit one machine (`TRAINED`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from silosynth.core.errors import DataError
from silosynth.data import datasets
from silosynth.papers import curves, settings, tables
from silosynth.papers.experiment import Ask, Repeats, Seed, check_known
from silosynth.papers.settings import BATCH, Columns, Epochs, RowCount, Rows, Setting, SettingJob, TableNames

PAC = 10  # rows that CTGAN's critic judges together
COUNT = 5  # silos
MD_SHARE = 0.3  # 150 epochs of 500
CODER, FLOW, ROUNDS = (40, 1500), (80, 8000), (6, 60)  # ours: per epoch, and at most
PAPER = {  # section III-A: 40 000 rows and 10 000 held out; the tables' own notes say how they differ from the paper's
    "tables": ("adult", "covertype_50k", "creditcard_sample", "intrusion_nsl_kdd_20pct"),
    "rows": 50_000, "epochs": 500, "repeats": 3, "f1_along": True,
}  # fmt: skip
PUBLISHED_COPIES: curves.Published = {  # table I: JSD, WD and F1 lost when the central GAN ends
    "adult": {"md": (0.072, 0.014, 0.101), "fl": (0.061, 0.014, 0.050), "fl, no noise": (0.059, 0.012, 0.026),
              "central": (0.117, 0.015, 0.056)},
    "covertype_50k": {"md": (0.035, 0.022, 0.493), "fl": (0.021, 0.022, 0.390), "fl, no noise": (0.018, 0.021, 0.376),
                      "central": (0.075, 0.086, 0.460)},
    "creditcard_sample": {"md": (0.083, 0.006, 0.064), "fl": (0.004, 0.006, 0.070),
                          "fl, no noise": (0.0, 0.006, 0.050), "central": (0.012, 0.041, 0.075)},
    "intrusion_nsl_kdd_20pct": {"md": (0.095, 0.027, 0.085), "fl": (0.032, 0.024, 0.076),
                                "fl, no noise": (0.031, 0.020, 0.074), "central": (0.032, 0.026, 0.075)},
}  # fmt: skip
PUBLISHED_ODD: curves.Published = {  # table II: when "md" ends
    "adult": {"md": (0.454, 0.132, 0.230), "fl": (0.152, 0.034, 0.084), "fl, weights by rows": (0.265, 0.040, 0.117)},
    "covertype_50k": {"md": (0.097, 0.151, 0.636), "fl": (0.056, 0.054, 0.476),
                      "fl, weights by rows": (0.067, 0.062, 0.496)},
    "creditcard_sample": {"md": (0.076, 0.041, 0.165), "fl": (0.030, 0.012, 0.149),
                          "fl, weights by rows": (0.068, 0.017, 0.165)},
    "intrusion_nsl_kdd_20pct": {"md": (0.210, 0.131, 0.557), "fl": (0.071, 0.039, 0.108),
                                "fl, weights by rows": (0.075, 0.047, 0.148)},
}  # fmt: skip
GANS: Mapping[str, dict[str, Any]] = {"balanced": {"critic_steps": 5, "pac": 1, "rake": True}, "paper": {}}
RATES = {"balanced": 5e-4, "paper": 2e-4}
ON_REQUEST = {"fl, epsilon 0.1": 0.1, "fl, epsilon 10": 10.0}  # settings that are trained only if they are named
NARROW = {"diffusion.latent.width": 256, "diffusion.latent.batch": 512}  # half as wide as "best"
TRAINED = {  # rows to train on, and held out
    "adult": (40_000, 8_000), "intrusion_nsl_kdd_20pct": (20_000, 5_000), "covertype_50k": (40_000, 10_000),
    "creditcard_sample": (26_000, 6_000),
}  # fmt: skip
AS_PUBLISHED: Mapping[str, Any] = {"rows": 4_000, "gan": "paper", "repeats": 3, "f1_along": True}
ADULT: Mapping[str, Any] = {"tables": ("adult",), "rows": 40_000, "gan": "balanced"}
INTRUSION: Mapping[str, Any] = {"tables": ("intrusion_nsl_kdd_20pct",), "rows": 20_000, "gan": "balanced"}
COPIES_KEPT = (
    {**AS_PUBLISHED, "tables": tuple(TRAINED), "epochs": 40, "setting": ("fl", "fl, no noise", "md", "central")},
    {**AS_PUBLISHED, "tables": ("adult",), "epochs": 40, "setting": tuple(ON_REQUEST)},
    {**ADULT, "epochs": 24, "setting": ("fl", "central")},
    {**ADULT, "epochs": 16, "setting": ("diffusion",)},
    {**INTRUSION, "epochs": 8, "setting": ("fl",)},
    {**INTRUSION, "epochs": 12, "setting": ("diffusion",)},
    {**PAPER, "tables": ("adult",), "setting": ("md",), "repeats": 1},
)  # fmt: skip
ODD_KEPT = (
    {**ADULT, "rows": 10_000, "epochs": 24, "repeats": 3,
     "setting": ("fl", "fl, weights by rows", "fl, sharp weights")},
    {**AS_PUBLISHED, "tables": tuple(TRAINED), "epochs": 30, "setting": ("fl", "fl, weights by rows", "md")},
    {**PAPER, "tables": ("adult",), "setting": ("fl",), "repeats": 1},
)  # fmt: skip
SMALL = {"tables": ("adult",), "rows": 600, "epochs": 4, "f1_along": True}
LEGEND = (
    "F1: what four classifiers (decision tree, random forest, logistic regression, MLP) lose in macro F1 by learning "
    "from synthetic rows, on average. JSD: mean Jensen-Shannon distance of categorical columns. WD: mean Wasserstein "
    "distance of the others, scaled to 0 to 1. 0 is best. ± is the standard deviation over seeds. s: all work of the "
    "training added up, silos one after the other on this machine. s side by side: the coordinator's work and, of each "
    "exchange, the slowest silo's, as if every silo had a machine; messages take no time. MB: of all messages."
)

Divide = Callable[[tables.TableSplit, int], Rows]
Gan = Literal["published", "paper", "balanced"]


def batch(rows: int) -> int:
    """A multiple of `PAC`."""
    return max(PAC, min(BATCH, rows // 10) // PAC * PAC)


def fl_sized(epochs: int, rows: int) -> dict[str, Any]:
    """Averages after every epoch."""
    return {"rounds": epochs, "ctgan.epochs": epochs, "ctgan.batch": batch(rows)}


def md_sized(epochs: int, rows: int) -> dict[str, Any]:
    """Fewer epochs, which take longer."""
    return {"ctgan.epochs": max(1, round(MD_SHARE * epochs)), "ctgan.batch": batch(rows)}


def central_sized(epochs: int, rows: int) -> dict[str, Any]:
    """CTGAN as the paper's silos train it."""
    return {"epochs": epochs, "batch": batch(rows), "critic_steps": 1, "pac": PAC}


def ours_sized(epochs: int, rows: int) -> dict[str, Any]:
    """The preset "best" from 100 epochs on."""
    coder, flow, rounds = (min(most, each * epochs) for each, most in (CODER, FLOW, ROUNDS))
    return {"rounds": max(8, rounds), "diffusion.steps": coder, "diffusion.latent.steps": flow}


def gdts(
    name: str, count: int, divide: Divide, options: Mapping[str, Any] | None = None,
    sized: Callable[[int, int], Mapping[str, Any]] = fl_sized, preset: str = "paper",
) -> Setting:  # fmt: skip
    """GDTS: averaged GANs as in the paper, but for ``options``."""
    labels: dict[str, str | int] = {"setting": name, "silos": count}
    return Setting(labels, divide, options or {}, "gdts", preset, "rows", sized, watched=True)


def md(count: int, divide: Divide) -> Setting:
    """One generator and a critic in each silo."""
    return gdts("md", count, divide, {"mode": "md"}, md_sized)


def ours(count: int, divide: Divide) -> Setting:
    """Averaged diffusion."""
    return gdts("diffusion", count, divide, {}, ours_sized, "best")


def central(count: int) -> Setting:
    """CTGAN on the whole table, once."""
    labels: dict[str, str | int] = {"setting": "central", "silos": count}
    return Setting(labels, _whole, {}, "ctgan", sized=central_sized, watched=True)


def _whole(data: tables.TableSplit, seed: int) -> Columns:
    return {"central": data.columns}


# Who holds what


def copied(count: int, data: tables.TableSplit, seed: int) -> Rows:
    """All rows in each of ``count`` silos."""
    return {f"silo{k + 1}": list(range(len(data.train))) for k in range(count)}


def one_row(count: int, data: tables.TableSplit, seed: int) -> Rows:
    """Shares of the rows to all silos but the last, which has a random one of them, as often as there are rows.

    Raises:
        DataError: fewer than two rows for each silo.
    """
    rng, n = np.random.default_rng([seed, count]), len(data.train)
    if n < 2 * (count - 1):
        raise DataError("Every silo needs two rows", f"{n} rows, {count} silos", "Ask for more rows.")
    shares = np.array_split(rng.permutation(n), count - 1)
    dealt = {f"silo{k + 1}": share.tolist() for k, share in enumerate(shares)}
    return {**dealt, "odd": [int(rng.integers(n))] * n}


def copies(count: int = COUNT) -> tuple[Setting, ...]:
    """Settings of table I, and `ON_REQUEST` GDTS_FL with other epsilons of its counts than the paper's 1."""
    divide = partial(copied, count)
    return (
        gdts("fl", count, divide),
        gdts("fl, no noise", count, divide, {"epsilon": math.inf}),  # "without Laplacian noise"
        md(count, divide),
        central(count),
        ours(count, divide),
        *(gdts(name, count, divide, {"epsilon": epsilon}) for name, epsilon in ON_REQUEST.items()),
    )


def odd(count: int = COUNT) -> tuple[Setting, ...]:
    """Settings of table II; the odd silo is among the count."""
    divide = partial(one_row, count)
    return (
        gdts("fl", count, divide),
        gdts("fl, weights by rows", count, divide, {"weights": "rows"}),
        gdts("fl, sharp weights", count, divide, {"weights": "sharp"}),
        md(count, divide),
        ours(count, divide),
    )


# How they are trained


def trained_as(gan: str, rate: float, setting: Setting) -> Setting:
    """The setting with its GAN trained so; ours, which has none, with a network small enough for one machine."""
    options = {**GANS[gan], "rate": rate}
    if setting.preset == "best":
        return replace(setting, labels={**setting.labels, "gan": "", "rate": ""}, options={**setting.options, **NARROW})
    central = setting.algorithm == "ctgan"
    options |= {"rake": False} if central and "rake" in options else {}  # a baseline is as it was published
    own = {("" if central else "ctgan.") + name: value for name, value in options.items()}
    labels = {**setting.labels, "gan": gan, "rate": f"{rate:g}"}
    return replace(setting, labels=labels, options={**setting.options, **own})


def random_rows(table: str, rows: int | None, seed: int) -> tables.TableSplit:
    """Random rows of a table: ``rows`` to train on, and as large a share held out as `TRAINED` says."""
    train, held = TRAINED[table]
    train, held = (train, held) if rows is None else (rows, max(2, rows * held // train))
    frame, info = tables.modelled(table), datasets.info(table)
    order = np.random.default_rng(seed).permutation(len(frame))[: train + held]
    parts = (frame.iloc[order[:train]].reset_index(drop=True), frame.iloc[order[train:]].reset_index(drop=True))
    kinds = {column: kind for column, kind in info.kinds.items() if column in frame.columns}
    return tables.TableSplit(*parts, info.target, kinds)


def jobs(
    compared: Callable[[int], Sequence[Setting]],
    tables: TableNames = ("loan",),
    rows: RowCount = 1500,
    epochs: Epochs = 10,
    silos: Annotated[int, Ask("How many silos; the paper has five.", least=2)] = COUNT,
    setting: Annotated[
        Sequence[str] | None, Ask("One of those compared; those of the paper, and diffusion, if none is named.")
    ] = None,
    gan: Annotated[Gan, Ask("How GANs are trained: published; paper or balanced, on random rows.")] = "published",
    rate: Annotated[float | None, Ask("Of GANs' learning, with --gan.")] = None,
    f1_along: Annotated[
        bool, Ask("Take F1 along trainings too, to read it off at equal time: all classifiers learn at each look.")
    ] = False,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[SettingJob]:  # fmt: skip
    """All rows, table by table and repeat by repeat.

    Raises:
        ConfigError: a size is not positive, there is no table, or no such setting.
    """
    common: dict[str, Any] = {"figures": "gdts", "f1_along": f1_along}
    chosen = list(compared(silos))
    check_known("setting", setting or ["fl"], [str(one.labels["setting"]) for one in chosen])
    wanted = setting or {one.labels["setting"] for one in chosen} - set(ON_REQUEST)
    chosen = [one for one in chosen if one.labels["setting"] in wanted]
    if gan == "published":
        return [replace(job, **common) for job in settings.each(chosen, tables, rows, epochs, repeats, seed)]
    check_known("table", tables, tuple(TRAINED))
    chosen = [trained_as(gan, rate or RATES[gan], one) for one in chosen]
    return [
        replace(job, **common, load=random_rows, rows=min(rows or TRAINED[job.table][0], TRAINED[job.table][0]))
        for job in settings.each(chosen, tables, rows, epochs, repeats, seed)
    ]


COPIES = settings.comparison(
    "copies", "A full copy in every silo (GDTS, table I and figure 5)", partial(jobs, copies), LEGEND,
    COPIES_KEPT, PAPER, partial(curves.paragraphs, until="central", published=PUBLISHED_COPIES), small=SMALL,
)  # fmt: skip
ODD = settings.comparison(
    "odd", "One silo repeats a row (GDTS, table II and figure 6)", partial(jobs, odd), LEGEND,
    ODD_KEPT, PAPER, partial(curves.paragraphs, until="md", published=PUBLISHED_ODD), small=SMALL,
)  # fmt: skip
