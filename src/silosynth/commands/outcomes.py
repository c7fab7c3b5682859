"""What a job has made: its table is approved, fetched, labelled, verified and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands import run
from silosynth.commands.jobs import kept_folder, submit_here, wait_for_counted
from silosynth.commands.session import Force, ReportOptions, Session, check_free
from silosynth.commands.startkit import COORDINATOR, JobName, KitFolder, job_folder, open_kit
from silosynth.core.errors import ConfigError, DataError
from silosynth.core.files import REPORTS, check_suffix, read

if TYPE_CHECKING:
    from silosynth.deployment import kits
    from silosynth.evaluation.report import Report

JUDGE = """\
Example: silosynth judge synthetic.csv --kit kits/coordinator --epsilon 2 --target income

The table that JOB drew, with the rows that it held out: silosynth judge synthetic.csv --kit kits/coordinator --job JOB

The report at a silo, of what the job --name has opened: silosynth judge synthetic.csv --kit kits/bank --name NAME"""


def fetch(
    ui: Session,
    to: ReportOptions,
    job: JobName,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, .csv or .parquet.")] = Path(
        "synthetic.csv"
    ),
    target: Annotated[
        str | None, typer.Option("--target", help="The column that models are trained to predict.")
    ] = None,
    raw_text: run.RawText = False,
    own: Annotated[
        bool, typer.Option("--own", help="Report on this silo's own rows, even if the table was judged across silos.")
    ] = False,
    held: Annotated[
        bool, typer.Option("--held", help="What this silo holds until a person approves, in place of the table.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Also the model, .silosynth: from it `silosynth sample` draws without silos."),
    ] = None,
) -> None:
    """Write a job's synthetic table to a file, and a report: across silos if it was judged, else of the silo's rows."""
    from silosynth.data import sources
    from silosynth.deployment import approval
    from silosynth.deployment.coordinator import SYNTHETIC
    from silosynth.deployment.label import LABEL, read_label

    to.check()
    site = open_kit(kit)
    place = kept_folder(site, job) / SYNTHETIC
    labelled = _labels(out) if (place.parent / LABEL).exists() and not held else ()
    if not (held and "terms" in approval.held(place.parent)):  # of a start nothing is written
        check_free([out, *labelled, *([] if model is None else [model])], to.force)
    if model is not None:
        _write_model(ui, place.parent, model)
    if held:
        if terms := approval.looked_at(place.parent).get("terms"):
            _show_terms(ui, job, terms)
            return
        place = place.parent / approval.HELD
    if not place.exists():
        raise ConfigError(
            f"Job {job} has left a synthetic table at {site.name}", "none",
            "Is it done (silosynth status)? Partitioned columns stay in their silo.",
        )  # fmt: skip
    table = sources.read(place)
    sources.write(table, out, raw_text)
    ui.show(f"{len(table):,} rows, {len(table.columns)} columns: {out}")
    ui.facts |= {"rows": len(table), "columns": list(table.columns), "synthetic": out}
    if labelled:
        _write_label(ui, read_label(place.parent / LABEL), *labelled)
    if to.report is not None:
        from silosynth.deployment import judging

        judged = site.jobs / (job + judging.JUDGED)
        if judging.has_counted(judged) and not (own or held):
            _show_report(ui, _across(ui, site, judged.name, table, target, job), to.report)
        else:
            _report(ui, site, job, table, to.report, target, held)


def _write_model(ui: Session, folder: Path, out: Path) -> None:
    """Write the model of a job whose coordinator has all of it."""
    from silosynth.core.files import write_atomic
    from silosynth.deployment.coordinator import MODEL

    check_suffix(out, (".silosynth",))
    if not (folder / MODEL).exists():
        raise ConfigError(
            f"Job {folder.name} has left a whole model here", "none",
            'The coordinator has it of jobs with synthesis = "public", or whose silos hold different rows; of others '
            "each silo keeps a part: draw from these with silosynth draw.",
        )  # fmt: skip
    write_atomic(out, read(folder / MODEL))
    ui.show(f"model {out}: silosynth sample {out} --rows 1000")
    ui.facts |= {"model": out}


def approve(
    ui: Session,
    job: JobName,
    kit: KitFolder = Path(),
    reason: Annotated[str, typer.Option("--reason", help="For the ledger.")] = "",
    further: Annotated[
        bool, typer.Option("--further", help="Also what the job draws after this, as many rows as it has said; unseen.")
    ] = False,
) -> None:
    """Let the synthetic columns leave that this silo holds, and that somebody has looked at: `fetch JOB --held`."""
    _decide(ui, kit, job, True, reason, further)


def refuse(
    ui: Session,
    job: JobName,
    reason: Annotated[str, typer.Option("--reason", help="For the ledger; nobody else is told.")],
    kit: KitFolder = Path(),
) -> None:
    """Let the synthetic columns not leave that this silo holds: the job ends at this silo."""
    _decide(ui, kit, job, False, reason, False)


def _decide(ui: Session, kit: Path, job: str, approved: bool, reason: str, further: bool) -> None:
    from silosynth.deployment import approval

    site = open_kit(kit)
    if site.name not in site.roster:
        raise ConfigError("Silos hold synthetic columns, and persons there decide", site.name, "Use a silo's kit.")
    decided = approval.decide(kept_folder(site, job), approved, reason, further)
    what = f"The start of {job} is" if decided["what"] == "start" else f"{decided['rows']:,} rows of {job} are"
    ui.show(f"{what} {decided['verdict']}, by {decided['by']}, {decided['at']}.")
    ui.facts |= decided


def _show_terms(ui: Session, job: str, terms: list[str]) -> None:
    """What a job would be whose start is held."""
    ui.show(f"Job {job} waits for its start to be approved. Its terms:")
    for line in terms:
        ui.show(f"  {line}")
    ui.facts |= {"job": job, "terms": terms}


def _labels(table: Path) -> tuple[Path, Path]:
    """The files of a table's label: signed, and to be read."""
    stem = table.name.removesuffix(".gz")
    return tuple(table.with_name(Path(stem).stem + ending) for ending in (".label.json", ".label.html"))  # type: ignore[return-value]


def _write_label(ui: Session, label: dict[str, Any], out: Path, shown: Path) -> None:
    from silosynth.core.files import write_atomic
    from silosynth.deployment.label_page import label_page

    write_atomic(out, json.dumps(label, indent=2).encode())
    write_atomic(shown, label_page(label).encode())
    ui.show(f"label {out}, to be read {shown}")
    ui.facts |= {"label": out, "page": shown}


def label(
    ui: Session,
    job: JobName,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="The signed label, .json; a page lies beside it.")] = Path(
        "synthetic.label.json"
    ),
    audits: Annotated[
        bool, typer.Option("--audits", help="At a silo: also what its reports (`fetch --report`) have found.")
    ] = False,
    add: Annotated[
        list[Path] | None, typer.Option("--add", help="Another label of the table, with audits of silos; repeatable.")
    ] = None,
    force: Force = False,
) -> None:
    """Write the label of a job's published table: what made it, what that gave away, signed by all silos."""
    from silosynth.deployment import label as labels, silo_ledger

    check_suffix(out, (".json",))
    shown = out.with_suffix(".html")
    check_free([out, shown], force)
    site = open_kit(kit)
    folder = job_folder(site, job)
    if not (folder / labels.LABEL).exists():
        raise ConfigError(
            f"Job {job} has published a table, which silos have signed", "no label",
            "Is it done (silosynth status)? Columns that stay in their silos, and jobs of earlier versions, have none.",
        )  # fmt: skip
    made = labels.read_label(folder / labels.LABEL)
    for path in add or ():
        made = labels.joined(made, labels.read_label(path), path.name)
    _write_label(ui, _with_audits(ui, site, folder, made) if audits else made, out, shown)
    if site.name in site.roster:
        own = silo_ledger.public_key(site.seat()).hex()
        ui.show(f"The key of this silo's signatures, for whoever asks: {site.name}={own}")
        ui.facts["key"] = own


def _with_audits(ui: Session, site: kits.StartKit, folder: Path, label: dict[str, Any]) -> dict[str, Any]:
    """A label with what this silo's audits have found, as far as its policy lets that leave."""
    from silosynth.deployment import audits
    from silosynth.deployment.policy import read_policy

    if site.name not in site.roster:
        raise ConfigError(
            "Silos sign what their audits have found", site.name,
            "Have a silo write a label with --audits, and name its file with --add.",
        )  # fmt: skip
    made = audits.read_audits(folder)
    if not made:
        raise ConfigError(
            f"This silo has made a report of job {folder.name}", "none",
            f"First: silosynth fetch {folder.name} --report report.html",
        )  # fmt: skip
    signed = audits.opened(site.seat(), folder, read_policy(site.folder), label)
    told = len(signed["statement"]["audits"])
    if told < len(made):
        ui.note("audits of this silo's rows are left out: its policy limits an epsilon, and they have no noise")
    ui.show(f"What {told} of {len(made)} audits found is in this file: figures of real rows, without noise")
    return {**label, "audits": {**label.get("audits", {}), site.name: signed}}


def verify(
    ui: Session,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The table: .csv, .parquet or .arrow.")],
    path: Annotated[Path, typer.Argument(metavar="LABEL", help="Its label, .json.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A silo's key, from the silo itself: NAME=KEY; repeatable.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option("--kit", "-k", help="A silo's kit, which knows its own and the others' keys.")
    ] = None,
) -> None:
    """Check a table and its label, without a network: that no row and no field has changed since silos signed."""
    from silosynth.deployment import audits, label as labels
    from silosynth.deployment.label_page import audits_in_words

    known = dict(_named_key(text) for text in key or ())
    if kit is not None:
        site = open_kit(kit)
        if site.name not in site.roster:
            raise ConfigError("Keys of silos are known at silos", site.name, "Use a silo's kit, or --key NAME=KEY.")
        known = labels.known_keys(site.jobs, site.seat()) | known
    read_label = labels.read_label(path)
    found = [*labels.faults(read_label, known), *labels.table_faults(read_label, table)]
    for fault in found:
        ui.show(f"  {fault}")
    ui.facts |= {"faults": found, "keys": {silo: one["key"] for silo, one in read_label["silos"].items()}}
    ui.facts["audits"] = {} if found else audits.told(read_label)
    if found:
        raise DataError("Table and label are as silos signed them", found[0], "Ask those who published them.")
    facts = read_label["facts"]
    ui.show(
        f"{table} is what {', '.join(read_label['silos'])} have signed: {facts['rows']:,} rows, job {facts['job']}."
    )
    ui.show(f"Guarantee: {facts['guarantee']}")
    for line in audits_in_words(read_label):
        ui.show(f"Audits: {line}")
    for silo, one in read_label["silos"].items():
        by = "known to be its own" if silo in known else "by the label's own word: ask the silo, and give --key"
        ui.show(f"{silo}: key {one['key']}, {by}")


def _named_key(text: str) -> tuple[str, str]:
    silo, _, key = text.partition("=")
    if not silo or len(key) != 64 or not all(char in "0123456789abcdef" for char in key):
        raise ConfigError("A silo's key is given as NAME=KEY, 64 hexadecimal digits", text)
    return silo, key


def _report(
    ui: Session, kit: kits.StartKit, job: str, table: Any, out: Path, target: str | None, held: bool
) -> None:  # fmt: skip
    """Evaluate the silo's own columns of a synthetic table against its own rows, and keep what that finds."""
    from silosynth.data.infer import infer
    from silosynth.deployment import audits
    from silosynth.deployment.coordinator import LEDGER
    from silosynth.deployment.kept import kept_model, trained_folder
    from silosynth.deployment.rows import read_silo

    if kit.name == COORDINATOR:
        raise ConfigError(
            "A report needs real rows, which silos have, or tables that they counted together", kit.name,
            f"Have the table judged: silosynth judge TABLE --job {job}. Or use a silo's kit.",
        )  # fmt: skip
    rows, place = read_silo(kit.folder), kit.jobs / job
    parts, which = _rows_of_job(ui, trained_folder(place), rows.read())
    real = parts["train"].drop(columns=rows.identifiers)
    own = [name for name in real.columns if name in table.columns]
    declared = {name: rule for name, rule in rows.declared.items() if name in own}
    apart = parts["holdout"]
    frames = {"train": real[own], "synthetic": table[own], "holdout": None if apart is None else apart[own]}
    known = kept_model(place, kit.name, infer(real[own], declared), run.read_ledger(place / LEDGER))
    about: dict[str, Any] = {"schema": declared, "model": known, "data": f"rows of silo {kit.name!r}, job {job}"}
    report = run.measure(ui, frames, target, None, **about)
    _keep_audit(place, audits.HELD if held else audits.OWN, which, table[own], report)
    _show_report(ui, report, out)


def _keep_audit(folder: Path, of: str, beside: str, table: Any, report: Report) -> None:
    """Keep what a report has found, for the label of the job's table."""
    from silosynth.deployment import audits, label

    columns = [str(name) for name in table.columns]
    audits.keep_audit(
        folder, of, beside, columns, label.digest(table, raw_text=True), report.to_dict(), report.withheld or ""
    )


def _rows_of_job(ui: Session, folder: Path, whole: Any) -> tuple[dict[str, Any], str]:
    """The rows of a silo's table that a job has trained on, and held out, or all of them; and in words which."""
    from silosynth.deployment.rows_used import read_rows_used, table_hash

    used = read_rows_used(folder)
    if used is not None and used.table == table_hash(whole):
        frames = dict(used.frames(whole))
        return frames, "rows trained on" + (", and rows held out" if frames["holdout"] is not None else "")
    why = "it is not kept which" if used is None else "the table has changed since the job trained"
    ui.note(f"warning: {why}: the report compares all {len(whole):,} rows of today, not those that were trained on")
    return {"train": whole, "holdout": None}, "all rows of that day, not only those trained on"


def _show_report(ui: Session, result: Report, out: Path) -> None:
    result.save(out)
    ui.show(f"{result}\n\nreport {out}")
    ui.facts |= {"report": out, "scores": result.to_dict()["scores"]}


def _across(ui: Session, kit: kits.StartKit, name: str, table: Any, target: str | None, trained: str = "") -> Report:
    """The report of a job that judged this table; ``trained`` is the job that drew it, if that is known."""
    from silosynth.deployment import audits, judging
    from silosynth.deployment.coordinator import LEDGER

    ledger, data = run.read_ledger(kit.jobs / name / LEDGER), f"silos' rows, job {trained or name}"
    drawn_by = None
    if trained:
        drawn_by = judging.made_by(kit.jobs / trained, None if kit.name == COORDINATOR else kit.name)
    with ui.progress("Judging") as progress:
        report = judging.judged_report(
            kit.jobs / name, table, target=target, ledger=ledger, progress=progress, model=drawn_by, data=data
        )
    if trained and kit.name != COORDINATOR:
        _keep_audit(kit.jobs / trained, audits.ACROSS, "all silos' rows", table, report)
    return report


def judge(
    ui: Session,
    synthetic: Annotated[Path, typer.Argument(metavar="SYNTHETIC", help="The table to judge, whatever made it.")],
    kit: KitFolder = Path(),
    job: Annotated[
        str | None, typer.Option("--job", help="The job that trained: its silos, links, kinds, and hold-out are used.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="The column to predict.")] = None,
    opening: Annotated[
        str, typer.Option("--opening", help="What opens: noised or exact tables, or figures; as silos' policies allow.")
    ] = "noised",
    epsilon: Annotated[float, typer.Option("--epsilon", help="What all noised tables together cost.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Well below one over the number of rows.")] = 1e-6,
    levels: Annotated[int | None, typer.Option("--levels", help="Most levels of a column.")] = None,
    rows: Annotated[int | None, typer.Option("--rows", help="A public bound: no silo holds more rows.")] = None,
    holdout: Annotated[float | None, typer.Option("--holdout", help="The share of rows that was held out.")] = None,
    silo: Annotated[list[str] | None, typer.Option("--silo", help="Who takes part; repeatable.")] = None,
    dealer: Annotated[
        str, typer.Option("--dealer", help="A silo that deals in place of the coordinator, without rows.")
    ] = "",
    align: Annotated[str, typer.Option("--align", help="How rows are linked: psi, keyed-hash or none.")] = "psi",
    name: Annotated[str | None, typer.Option("--name", help="Of the job; one that is done is shown again.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The report: .html, or .json.")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Judge a synthetic table across silos: they count joint tables that nobody holds, and a report is made of these.

    Which tables are counted, and by which levels, follows from the synthetic table. What opens, and how, is decided by
    this command and by each silo's policy.
    """
    from silosynth.data import sources
    from silosynth.deployment import judging

    check_suffix(out, REPORTS)
    check_free([out], force)
    site, table = open_kit(kit), sources.read(synthetic)
    if name is not None and (site.jobs / name).exists():
        wait_for_counted(ui, site, name)
        _show_report(ui, _across(ui, site, name, table, target), out)
        return
    if site.name != COORDINATOR:
        raise ConfigError(
            "Jobs that judge start at the coordinator's machine; elsewhere reports of those are made that have ended",
            site.name, "Name one that `silosynth status` shows with --name, or use the coordinator's kit.",
        )  # fmt: skip
    named = name or (f"{job}{judging.JUDGED}" if job is not None else judging.judging_name(synthetic))
    terms = (
        judging.terms_of(kept_folder(site, job))
        if job is not None
        else judging.terms(site.roster.parties, site.stream_port)
    )
    terms = judging.changed(terms, silo or (), align if job is None else None, holdout, dealer)
    options = judging.options(opening, epsilon, delta, target, levels, rows)
    ui.on_interrupt = f"The job goes on. Later: silosynth judge {synthetic} --kit {kit} --name {named}"
    ui.facts |= {"job": named}
    submit_here(ui, site, judging.judging_order(table, options, terms, site.roster, site.name, named), wait=True)
    _show_report(ui, _across(ui, site, named, table, target, job or ""), out)
