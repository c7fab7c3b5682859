"""Tables in the algorithms' pages hold the figures of kept rows, rounded, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from silosynth.papers import (
    curves,
    gdts_tables1_2,
    registry,
    settings,
    silofuse_tables3_4 as nine,
    tabvfl_figure5 as latents,
    tabvfl_figure6 as failures,
)
from silosynth.papers.results import deviation
from silosynth.papers.vflgan_table1 import ALGORITHMS, EPSILON, PAPER, PAPER_NUMBER, means

ROOT = Path(__file__).parents[2]
WINES = {
    "red wine": "wine_quality_red", "white wine": "wine_quality_white", "South German credit": "south_german_credit",
    "HCV": "hcv_egypt", "Adult": "adult",
}  # fmt: skip


def lines(page: str, head: str) -> Iterator[list[str]]:
    """The cells of the table below a line of heads, without code marks and bold type."""
    text = (ROOT / page).read_text("utf-8").partition(head)[2]
    assert text, f"{page} has no table with the heads {head}"
    for line in text.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip(" `*") for cell in line.strip("|").split("|")]


def found(rows: Sequence[dict[str, Any]], /, **wanted: Any) -> dict[str, Any]:
    (row,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return row


def point(value: float) -> str:
    """Two digits, without the leading 0."""
    return f"{value:.2f}".removeprefix("0")


def test_central_baselines() -> None:
    rows = registry.kept_rows("central_baselines")
    shown = [f"{key}" for key in ("shape %", "trend %", "fit s")]
    for name, *cells in lines("docs/algorithms/central.md", "| | Loan: shape | trend | fit, s | Adult: shape |"):
        chosen = "ctgan" if name == "floor" else name
        pair = [found(rows, table=table, algorithm=chosen) for table in ("loan", "adult")]
        keys = ("shape % floor", "trend % floor") if name == "floor" else shown
        texts = [[f"{row[key]:.{0 if key == 'fit s' else 1}f}" for key in keys] for row in pair]
        assert [cell for cell in cells if cell] == [text for own in texts for text in own], name


def test_gdts_as_published() -> None:
    kept = registry.kept_rows("gdts_copies")
    for table, head in (("adult", "as published"), ("intrusion_nsl_kdd_20pct", "NSL-KDD as published")):
        rows = [row for row in kept if row.get("gan") == "paper" and row["table"] == table]
        averaged, read = settings.means(rows), curves.at_equal_time(rows, "central")
        for name, *cells in lines("docs/algorithms/gdts.md", f"| {head}, a full copy in every silo |"):
            setting = name.partition("`")[0]
            row = found(averaged, setting=setting)
            assert cells[:3] == [f"{row[key]:.3f}{deviation(row, key)}" for key in ("F1", "JSD", "WD")], name
            (end,) = ((jsd, f1) for _, which, _, _, _, jsd, _, f1 in read if which == setting)
            assert tuple(cell.partition(" (")[0] for cell in cells[3:]) == end, name
            published = gdts_tables1_2.PUBLISHED_COPIES[table][setting]
            told = [cell.partition("(")[2].removeprefix("the paper: ").strip(")") for cell in cells[3:]]
            assert told == [f"{published[place]:.3f}" for place in (0, 2)], name
    for name, *cells in lines("docs/algorithms/gdts.md", "| as published, to its end |"):
        row = found(kept, setting=name.partition("`")[0], epochs=500)
        published = gdts_tables1_2.PUBLISHED_COPIES["adult"][row["setting"]]
        assert cells[:3] == [f"{row[key]:.3f}" for key in ("F1", "JSD", "WD")]
        assert cells[3] == ", ".join(f"{published[place]:.3f}" for place in (2, 0, 1))
    for name, *cells in lines("docs/algorithms/gdts.md", "| one silo repeats a row, as published, to its end |"):
        row = found(registry.kept_rows("gdts_odd"), setting=name.partition("`")[0], epochs=500)
        published = gdts_tables1_2.PUBLISHED_ODD["adult"][row["setting"]]
        assert cells[:3] == [f"{row[key]:.3f}" for key in ("F1", "JSD", "WD")]
        assert cells[3] == ", ".join(f"{published[place]:.3f}" for place in (2, 0, 1))
        assert round(row["took"] / 60) == 49


def test_gdts_as_published_on_other_tables_and_with_other_noise() -> None:
    page, keys = "docs/algorithms/gdts.md", ("F1", "JSD", "WD")
    copies, odd = (
        settings.means([row for row in registry.kept_rows(f"gdts_{kind}") if row.get("gan") == "paper"])
        for kind in ("copies", "odd")
    )
    for name, *cells in lines(page, "| as published, a full copy in every silo | Covertype: F1 lost |"):
        rows = [found(copies, table=table, setting=name) for table in ("covertype_50k", "creditcard_sample")]
        assert cells == [f"{row[key]:.3f}{deviation(row, key)}" for row in rows for key in keys], name
    of = {"0.1": "fl, epsilon 0.1", "1 (the paper's)": "fl", "10": "fl, epsilon 10", "no noise": "fl, no noise"}
    for name, *cells in lines(page, "| epsilon of the counts | F1 lost | JSD | WD |"):
        row = found(copies, table="adult", setting=of[name])
        assert row["repeats"] == 3 and cells == [f"{row[key]:.3f}{deviation(row, key)}" for key in keys], name
    for name, *cells in lines(page, "| one silo repeats a row, as published: JSD | Adult |"):
        rows = [found(odd, table=table, setting=name) for table in gdts_tables1_2.PUBLISHED_ODD]
        published = [gdts_tables1_2.PUBLISHED_ODD[row["table"]][name][0] for row in rows]
        told = [
            f"{row['JSD']:.3f}{deviation(row, 'JSD')} ({theirs:.3f})"
            for row, theirs in zip(rows, published, strict=True)
        ]
        assert cells == told, name


def test_gdts_with_our_training() -> None:
    kept = {kind: [row for row in registry.kept_rows(f"gdts_{kind}") if row.get("gan") != "paper"]
            for kind in ("copies", "odd")}  # fmt: skip
    averaged = {kind: settings.means(rows) for kind, rows in kept.items()}
    of = {
        "a full copy": ("copies", "fl", "fl"), "CTGAN on one": ("copies", "central", None),
        "**ours, averaged": ("copies", "diffusion", None), "one silo repeats": ("odd", "fl", "fl"),
        "weights by rows": ("odd", "fl, weights by rows", "fl, weights by rows"),
        "`sharp` weights": ("odd", "fl, sharp weights", None),
    }  # fmt: skip
    for name, epochs, *cells, told in lines(
        "docs/algorithms/gdts.md", "| | epochs | F1 lost | JSD | WD | the paper's |"
    ):
        ((kind, setting, published),) = (row for start, row in of.items() if start.strip("*`") in name)
        row = found(averaged[kind], table="adult", setting=setting, epochs=int(epochs))
        assert (row["repeats"], row["rows"]) == ((1, 40_000) if kind == "copies" else (3, 10_000))
        for cell, key in zip(cells, ("F1", "JSD", "WD"), strict=True):
            shown = cell.partition(" ")[0]
            assert cell == f"{row[key]:.{len(shown) - 2}f}{deviation(row, key)}", (name, key)
        of_paper = {"copies": gdts_tables1_2.PUBLISHED_COPIES, "odd": gdts_tables1_2.PUBLISHED_ODD}[kind]["adult"]
        assert told == (", ".join(f"{of_paper[published][place]:.3f}" for place in (2, 0, 1)) if published else ""), (
            name
        )
    page = " ".join((ROOT / "docs/algorithms/gdts.md").read_text("utf-8").split())
    nsl = [row for row in averaged["copies"] if row["table"] == "intrusion_nsl_kdd_20pct"]
    fl, diffusion = found(nsl, setting="fl", epochs=8), found(nsl, setting="diffusion", epochs=12)
    assert (
        f"`fl` loses {fl['F1']:.3f} in F1 at 8 epochs (JSD {fl['JSD']:.3f}, WD {fl['WD']:.3f}), averaged diffusion "
        f"{diffusion['F1']:.3f} at 12 ({diffusion['JSD']:.3f}, {diffusion['WD']:.3f})"
    ) in page
    times = [
        found(averaged["copies"], table="adult", setting=one, epochs=end)["seconds"]
        for one, end in (("diffusion", 16), ("fl", 24))
    ]
    times += [diffusion["seconds"], fl["seconds"]]
    assert (
        "on Adult {} s for diffusion and {} s for `fl`, on NSL-KDD {} s and {} s".format(
            *(f"{time:,.0f}".replace(",", " ") for time in times)
        )
        in page
    )


def test_what_attacks_find_in_vtgan() -> None:
    rows = {(row["table"], row["setting"]): row["findings"] for row in registry.kept_rows("vtgan_figures4_5")}
    attacks = {
        "cells right": "numbers, cells", "same number": "numbers, rows", "two columns": "columns together",
        "rows linked": "levels, rows", "**levels read": "features, cells", "**rows followed": "features, rows",
        "pushed rows": "lists, batch", "who holds": "lists, rare level", "other silos' levels": "gradients, levels",
    }  # fmt: skip
    settings = ("paper, shuffling off", "paper", "full, step", "decoys 4", "none")
    for name, *cells in lines("docs/algorithms/vtgan.md", "| | paper, no shuffling | paper | full, ours |"):
        (attack,) = (attack for start, attack in attacks.items() if name.partition(": ")[2].startswith(start))
        for setting, cell in zip(settings, cells, strict=True):
            one = found(rows["adult", setting], attack=attack)
            shown, _, chance = cell.replace("the same", cells[0]).partition(" (")
            if one["value"] is None or shown == "none":
                assert shown.startswith("nothing received") if one["value"] is None else one["value"] == 0
                continue
            shown, value = shown.split()[0].strip(";"), one["value"] * (100 if "%" in shown else 1)
            assert shown == f"{value:.{len(shown.partition('.')[2])}f}", (name, setting)
            known = chance.partition(")")[0]
            if "–" in known:
                assert known == f"{one['chance_low']:.3f}–{one['chance_high']:.3f}"
            elif known:
                assert known == f"{one['chance']:.{len(known.partition('.')[2])}f}"


def test_dplt() -> None:
    rows = means(registry.kept_rows("vflgan_table1"))
    for name, total, published, distance in lines("docs/algorithms/dplt.md", "| | total difference | the paper's |"):
        row = found(rows, table=WINES[name], algorithm="dplt", seeds=3)
        shown = [f"{point(row[key])} ± {point(row['spread'][key])}" for key in ("total difference", "FD")]
        assert [total, distance] == shown, name
        assert published == point(PAPER[WINES[name]][4][1] or 0), name
    page = (ROOT / "docs/algorithms/dplt.md").read_text("utf-8").replace("\n", " ")
    for text, table in (("on Adult one seed has {2}, the others {0} and {1}", "adult"),
                        ("on red wine one {2}, the others {0} and {1}", "wine_quality_red")):  # fmt: skip
        kept = [
            row for row in registry.kept_rows("vflgan_table1") if row["algorithm"] == "dplt" and row["table"] == table
        ]
        assert text.format(*map(point, sorted(row["total difference"] for row in kept))) in page


@pytest.mark.parametrize(
    ("head", "preset", "epsilon", "compared"),
    [
        ("| | `vflgan` | FD | `vflgan-base` | FD | published", "balanced", 0.0,
         ("vflgan", "vflgan-base", None, "vertigan", "wgan-gp")),
        ("| | `vflgan` | FD | `vflgan-base` | FD | `vertigan`", "private", 10.0,
         ("vflgan", "vflgan-base", "vertigan", "wgan-gp", "dplt")),
    ],
)  # fmt: skip
def test_vflgan(head: str, preset: str, epsilon: float, compared: Sequence[str | None]) -> None:
    rows = means(registry.kept_rows("vflgan_table1"))
    for name, *cells in lines("docs/algorithms/vflgan.md", head):
        rest = list(cells)
        for algorithm in compared:
            if algorithm is None:
                best = min(PAPER[WINES[name]][i][0] or 9.0 for i in (2, 3))
                assert rest.pop(0) == point(best), name
                continue
            total, distance = rest.pop(0), rest.pop(0)
            if not total:
                assert preset == "private" and name == "Adult"
                continue
            own = "balanced" if algorithm == "dplt" else preset
            row = found(rows, table=WINES[name], algorithm=algorithm, preset=own, epsilon=epsilon)
            singles = fmean(chain.from_iterable(row["totals"]))
            one = singles if None in compared else row["total difference"]  # singles where published ones stand beside
            assert total == point(one) and distance == point(row["FD"]), (name, algorithm)
        assert not rest


def test_the_luck_of_a_table_and_of_a_seed() -> None:
    page = " ".join((ROOT / "docs/algorithms/vflgan.md").read_text("utf-8").split())
    kept = registry.kept_rows("vflgan_table1")
    rows = [row for row in means(kept) if (row["preset"], row["epsilon"]) == ("balanced", 0.0)]
    total = {row["table"]: point(row["total difference"]) for row in rows if row["algorithm"] == "vflgan"}
    red, credit, adult = (total[name] for name in ("wine_quality_red", "south_german_credit", "adult"))
    assert f"which is lower: {red} (red) and {credit} (credit) by `vflgan`" in page
    assert f"Without `dp` red wine has {red} and Adult {adult}." in page
    differ = {(row["table"], row["algorithm"]): stdev(map(fmean, row["totals"])) for row in rows if row["seeds"] > 1}
    text = "mean totals have standard deviations over three seeds of up to {}, `vertigan`'s of up to {}".format(
        *(point(max(d for (_, name), d in differ.items() if (name == "vertigan") is own)) for own in (False, True))
    )
    assert text in page


def test_vtgan_beside_the_central_gan() -> None:
    rows = registry.kept_rows("vtgan_section4_2")
    keys = {
        "column_shape_error": "{:.1f} %", "pair_trend_error": "{:.1f} %", "gan_f1_difference": "{:.3f}",
        "gan_jsd": "{:.3f}", "gan_wasserstein": "{:.3f}", "gan_correlation_avg_client": "{:.2f}",
        "gan_correlation_across_client": "{:.3f}",
    }  # fmt: skip
    table, settings = "", {"central": "central", "no bottom critic updated (default)": "none"}
    for name, *cells in lines("docs/algorithms/vtgan.md", "| | shape error | trend error | F1 lost | JSD | WD |"):
        table = name.split(",")[0].lower() if name not in settings else table
        row = found(rows, table=table, setting=settings.get(name, "all"), average=0.999)
        assert cells == [form.format(row[key]) for key, form in keys.items()], (table, name)


def test_red_wine_as_published_with_and_without_the_paper_s_noise() -> None:
    kept = [row for row in registry.kept_rows("vflgan_table1") if row["preset"] == "paper"]
    compared = ("vflgan", "vflgan-base", "vertigan", "wgan-gp")
    for (name, *cells), epsilon in zip(
        lines("docs/algorithms/vflgan.md", "| red wine as published |"), (0.0, EPSILON), strict=True
    ):
        for algorithm, cell in zip(compared, cells, strict=True):
            totals = [r["total difference"] for r in kept if (r["algorithm"], r["epsilon"]) == (algorithm, epsilon)]
            published = PAPER["wine_quality_red"][ALGORITHMS.index(algorithm)][epsilon > 0]
            six = (algorithm, epsilon) == ("wgan-gp", EPSILON)
            assert len(totals) == (6 if six else 3) and published is not None
            text = f"{point(fmean(totals))} ± {point(stdev(totals))} ({point(published)})"
            assert cell == text + ", six seeds" * six, (name, algorithm)
            if algorithm.startswith("vflgan"):
                assert abs(fmean(totals) - published) < 4.303 * stdev(totals) / 3**0.5  # 95 %, three seeds


def test_wide_tables_are_further_off() -> None:
    rows = nine.means([row for row in registry.kept_rows("silofuse_tables3_4") if row["preset"] == "balanced"])
    page = " ".join((ROOT / "docs/performance.md").read_text("utf-8").split())
    wide, less = (found(rows, table=name) for name in ("covertype_50k", "intrusion_nsl_kdd_20pct"))
    keys = ("shape %", "trend %", "shape floor", "trend floor", "XGB two-sample")
    assert (
        "shapes by {:.2f} % and pairs by {:.2f} %, where two real samples have {:.2f} and {:.2f} %, with an XGBoost "
        "two-sample AUC of {:.2f}".format(*(wide[key] for key in keys))
        in page
    )
    assert "with {:.2f} and {:.2f} %, with an AUC of {:.2f}".format(*(less[k] for k in (*keys[:2], keys[4]))) in page
    assert wide["shape %"] > wide["shape floor"] and wide["seeds"] == 3
    assert all(less[f"{what} %"] < less[f"{what} floor"] for what in ("shape", "trend"))


def test_both_vflgans_are_where_they_are_published_with_red_wine_s_own_settings() -> None:
    page = (ROOT / "docs/algorithms/vflgan.md").read_text("utf-8").replace("\n", " ")
    kept = [row for row in registry.kept_rows("vflgan_table5") if row["table"] == "wine_quality_red"]
    rows = [row for row in kept if row["algorithm"] == "vflgan-base"]
    for own, text in ((True, "totals of {}, {} and {} with"), (False, "`vflgan-base` had {}, {} and {}:")):
        totals = [row["total difference"] for row in rows if (row["options"] != "{}") == own]
        assert text.format(*map(point, totals)) in page
        assert not own or max(totals) < PAPER_NUMBER["wine_quality_red"][2] + 0.005
    mean = {row["algorithm"]: row["total difference"] for row in means(kept) if row["options"] != "{}"}
    assert mean["vflgan"] < PAPER_NUMBER["wine_quality_red"][3]
    others = [mean[name] for name in ("vflgan", "vertigan", "wgan-gp")]
    written = "`vflgan` {} (published .44), `vertigan` {} (1.14) and `wgan-gp` {} (.42)"
    assert written.format(*map(point, others)) in page
    text = registry.find("vflgan/table-5").deviates
    assert "({1:.2f}, published 1.14) and WGAN-GP further off ({2:.2f}, 0.42)".format(*others) in text


def test_white_wine_with_its_own_settings() -> None:
    page = (ROOT / "docs/algorithms/vflgan.md").read_text("utf-8").replace("\n", " ")
    rows = means([row for row in registry.kept_rows("vflgan_table5") if row["table"] == "wine_quality_white"])
    total = {row["algorithm"]: row["total difference"] for row in rows}
    assert {row["seeds"] for row in rows} == {3} and total["vflgan-base"] < total["vflgan"] < 0.18
    assert (
        "`vflgan` {} (published .18), `vflgan-base` {} (.24), `vertigan` {} (.86), `wgan-gp` {} (.22)".format(
            *(point(total[name]) for name in ("vflgan", "vflgan-base", "vertigan", "wgan-gp"))
        )
        in page
    )


def test_joint_latents() -> None:
    rows = [row for row in registry.kept_rows("silofuse_joint_latents") if row["latents"] == 1]
    tables = {
        "airline": "airline_satisfaction",
        "adult": "adult",
        "bank": "bank_marketing",
        "covertype": "covertype_50k",
    }
    for name, *cells, seeds in lines(
        "docs/algorithms/silofuse.md", "| | `silofuse` | `silofuse-joint` | `latentdiff` |"
    ):
        known = {}
        for method, cell in zip(("silofuse", "silofuse-joint", "latentdiff"), cells, strict=True):
            errors = [row["trend across"] for row in rows if (row["table"], row["method"]) == (tables[name], method)]
            known[method] = len(errors)
            spread = f" ± {stdev(errors):.2f}".replace("0.", ".") if len(errors) > 1 else ""
            assert cell == f"{fmean(errors):.2f}{spread}", (name, method)
        most = max(known.values())
        less = "".join(f" (`{method}` {n})" for method, n in known.items() if n < most)
        assert seeds.strip("`") == f"{most}{less}".strip("`"), name


def test_what_latents_give_away_to_who_knows_some_rows() -> None:
    rows = registry.kept_rows("silofuse_inversion")
    categories = [row for row in rows if row["blind"] > 0]
    page = " ".join((ROOT / "docs/algorithms/silofuse.md").read_text("utf-8").split())
    least, most = (round(100 * of(row["200 rows known"] for row in categories)) for of in (min, max))
    income, occupation, age = (found(rows, column=column) for column in ("income", "occupation", "age"))
    assert f"predicts {least} to {most} % of the categorical values of the other rows correctly" in page
    known = [f"{100 * row['200 rows known']:.0f}" for row in (income, occupation)]
    blind = [f"{100 * row['blind']:.0f}" for row in (income, occupation)]
    assert "(income {} %, occupation {} %, where guessing reaches {} and {} %)".format(*known, *blind) in page
    assert f"explains {100 * age['200 rows known']:.0f} % of the variance of age" in page
    least = round(100 * min(row["2000 rows known"] for row in categories))
    assert f"With 2 000 known rows it is {least} to 100 % and up to {100 * age['2000 rows known']:.1f} %" in page


def test_tabvfl_s_losses() -> None:
    rows = failures.means(registry.kept_rows("tabvfl_figure6"))
    tables = {"airline": "airline_satisfaction", "bank": "bank_marketing", "covertype": "covertype_50k",
              "NSL-KDD": "intrusion_nsl_kdd_20pct"}  # fmt: skip
    for name, none, *cells, published in lines("docs/algorithms/tabvfl.md", "| | no failures | p = 0.2 | 0.35 | 0.5 |"):
        first, _, small = name.partition(", ")
        options = '"finetuning_epochs": 40' if small or first == "airline" else '"patience": 20'
        own = [row for row in rows if row["table"] == tables[first] and options in row["options"]]
        assert none == f"{found(own, p=0.0)['paper F1']:.3f}".removeprefix("0"), name
        for p, cell in zip((0.2, 0.35, 0.5), cells, strict=True):
            lost = [found(own, p=p, **{"in place": kind})["paper loss"] for kind in failures.IN_PLACE]
            assert cell == ", ".join(f"{value:.2f}" if value > 0 else "none" for value in lost), (name, p)
        assert published == ("" if small else ", ".join(f"{v:.2f}" for v in failures.PUBLISHED[tables[first]])), name


def test_tabvfl_s_latents() -> None:
    rows = [row for row in latents.means(registry.kept_rows("tabvfl_figure5")) if '"patience": 20' in row["options"]]
    heads = {
        "| F1 | CT | TabVFL | LT | LT, fixed | TabVFL-LE |": ("ct", "tabvfl", "lt", "lt-fixed", "tabvfl-le"),
        "| F1, ablations |": ("without-pretraining", "", "without-finetuning", ""),
    }
    tables = dict(zip(("airline", "bank", "covertype", "NSL-KDD"), latents.TABLES, strict=True))
    for head, methods in heads.items():
        for name, *cells in lines("docs/algorithms/tabvfl.md", head):
            for method, cell in zip(methods, cells, strict=False):
                if method:
                    row = found(rows, table=tables[name], method=method, guests=5)
                    assert cell == "{} ({})".format(*(f"{row[f'{how} F1']:.3f}"[1:] for how in latents.EVALUATIONS)), (
                        name
                    )


def test_tabvfl_as_published_on_nsl_kdd() -> None:
    rows = [row for row in registry.kept_rows("tabvfl_figure5") if row["rows"] == 50_000 and row["options"] == "{}"]
    page = " ".join((ROOT / "docs/algorithms/tabvfl.md").read_text("utf-8").split())
    five, two = (found(rows, guests=guests) for guests in (5, 2))
    figures = [f"{row[f'{how} F1']:.3f}"[1:] for row in (five, two) for how in latents.EVALUATIONS]
    assert "{} ({}) in five guests, where .993 is published, and {} ({}) in two".format(*figures) in page
    assert max(five["seconds"], two["seconds"]) < 300


def test_tabvfl_with_two_guests() -> None:
    rows = [row for row in latents.means(registry.kept_rows("tabvfl_figure5")) if '"patience": 20' in row["options"]]
    page = " ".join((ROOT / "docs/algorithms/tabvfl.md").read_text("utf-8").split())
    own = []
    for table, method in product(latents.TABLES, ("tabvfl", "lt")):
        row = found(rows, table=table, method=method, guests=2)
        own.append("{} ({})".format(*(f"{row[f'{how} F1']:.3f}"[1:] for how in latents.EVALUATIONS)))
    assert (
        "Two guests: TabVFL {} and LT {} on airline, {} and {} on bank, {} and {} on covertype, {} and {} on NSL-KDD."
    ).format(*own) in page


def test_what_a_perfect_generator_scores_and_what_vflgan_costs() -> None:
    rows = registry.kept_rows("vflgan_total_difference_floor")
    page = " ".join((ROOT / "docs/algorithms/vflgan.md").read_text("utf-8").split())
    perfect = found(rows, kind="perfect")["totals"]
    assert (
        f"white wines score {point(fmean(perfect))} in a single table (eight pairs of tables of one generator: "
        f"{point(min(perfect))} to {point(max(perfect))}, mean {f'{fmean(perfect):.3f}'[1:]})"
    ) in page
    assert len(perfect) == 8
    halves = {row["table"]: row["totals"] for row in rows if row["kind"] == "halves"}
    own = [point(of(halves[WINES[name]])) for name in list(WINES)[:4] for of in (min, max)]
    assert "score {} to {} (red wine), {} to {} (white), {} to {} (credit) and {} to {} (HCV)".format(*own) in page
    red = [
        row
        for row in registry.kept_rows("vflgan_table1")
        if row["table"] == "wine_quality_red" and row["preset"] == "balanced" and row["seed"] == 0
    ]
    vflgan, base = (found(red, algorithm=name) for name in ("vflgan", "vflgan-base"))
    assert (
        f"{vflgan['seconds']:.0f} s (silos, coordinator and wire together) and {vflgan['bytes'] / 1e9:.1f} GB, "
        f"`vflgan-base` {base['seconds']:.0f} s and as much"
    ) in page
    assert base["bytes"] == pytest.approx(vflgan["bytes"], rel=1e-3)
