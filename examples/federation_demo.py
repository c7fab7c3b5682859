"""A federation of four processes on this machine: a coordinator and three silos, over NVIDIA FLARE with mutual TLS.

    make federation-demo            # or: python examples/federation_demo.py --out federation-demo
    make private-demo               # or: python examples/federation_demo.py --private

Three organisations hold different columns of mostly the same people, each in its own order. Their rows are linked by
private set intersection, one person in five is held out, and SiloFuse is trained across them. The clinic lets its
columns leave only once its officer has looked at them and said yes; then the synthetic table is published. Silos count
joint tables of their columns, which open with noise, and a report across silos is made of these: report.html, as a real
federation has it, without anybody holding the real table. The table has a label, signed by all silos, to which the
clinic adds what its officer's report has found; it is checked.

All sites are ended. The employer renews its certificate, the old one is revoked, and a fourth silo gets a kit. The
sites are started again, and draw more rows from the model without training. The officer says no to one draw, which
publishes nothing, and yes to another. Whoever comes with the revoked certificate is turned away.

Then the same training runs again in this one process, with the same keys and the same seed: both tables must have the
same bytes. A second report, pooled.html, uses all real rows, which is possible because the silos are made from one
table here.

With --private no silo lets anything about a row leave that is not noised: each has `largest_epsilon = 1` in its policy,
and `exact_rows`, without which rows could not be linked ("Placed" in the ledger). One training of `aim` has an epsilon
of 1 for one person's rows in all silos together; a silo counts what it has released itself, which `silosynth ledger
releases` shows beside the policy's limit. The model is public: rows are drawn from its file once all sites are ended.
Seeds of the noise are secret, so that this run cannot be repeated; no budget is kept for counting, so that there is no
report but the pooled one.

The table is that of `silosynth demo`: real people, from the RAND Health Insurance Experiment.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

import silosynth as ss
from silosynth.alignment import canonical
from silosynth.data import sources
from silosynth.deployment.coordinator import ORDER, run_order, unpack_order
from silosynth.deployment.entry import open_endpoint
from silosynth.deployment.holdout import HoldoutKey, held_out as hold_out
from silosynth.deployment.kits import read_kit
from silosynth.deployment.policy import read_policy
from silosynth.simulation.silos import InProcess

SILOS = ("insurer", "clinic", "employer")
JOB = "demo"
FEDERATION = """\
name = "demo"

[coordinator]
host = "127.0.0.1"
port = {port}

[silos.insurer]
[silos.clinic]
[silos.employer]
"""
SILO = """\
[data]
path = "people.csv"
identifiers = ["person"]
"""
EXPERIMENT = """\
[algorithm]
name = "silofuse"
preset = "fast"
seed = 7                # to produce the same table again; real federations leave the seed out

[align]
method = "psi"

[split]
holdout = 0.2           # of the people that all silos have; every silo finds the same ones, and the coordinator none

[judge]
opening = "noised"      # the tables that silos count open with noise
epsilon = 4.0
target = "{target}"

[run]
name = "demo"
"""

PRIVATE = """\
[algorithm]
name = "aim"
options.dp = {{ epsilon = 1.0, delta = 1e-5 }}
options.synthesis = "public"    # silos hand over what noised counts have made: nobody needs them to draw

[align]
method = "psi"

[split]
holdout = 0.2

[run]
name = "demo"
"""
BOUNDS = {  # public: differential privacy takes them as known
    "visits": (0, 80), "coinsurance_percent": (0, 100), "incentive_dollars": (0, 1500),
    "log_maximum_expenditure": (0, 9), "physical_limitation": (0, 1), "chronic_disease_index": (0, 60),
}  # fmt: skip
POLICY = """\
algorithms = ["aim"]
largest_epsilon = 1.0
exact_rows = true       # linking tells silos how many people they have in common
share_decoders = true   # whoever has the model draws rows without this silo
"""
APPROVAL = 'approval = "none"', 'approval = "person"'


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("federation-demo"), help="an empty or new folder")
    parser.add_argument("--port", type=int, default=8002, help="the coordinator's port, on loopback")
    parser.add_argument("--private", action="store_true", help="train under largest_epsilon = 1")
    options = parser.parse_args()
    out, started = options.out.absolute(), time.monotonic()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with what commands print
    if out.exists() and any(out.iterdir()):
        if not (out / "federation.toml").exists():
            sys.exit(f"{out} is not empty. Name another folder with --out.")
        shutil.rmtree(out)  # left by an earlier demonstration
    people, target = prepare(out, options.port, options.private)
    head("A training across three organisations")
    submit = ("submit", out / "experiment.toml", "--kit", out / "kits" / "coordinator")
    with daemons(out / "kits"):
        if options.private:
            silosynth(*submit)
            silosynth("ledger", JOB, "--kit", out / "kits" / "clinic")
        else:
            decided(out, JOB, ("approve", "report looked at, no close copies"), *submit, report=True)
    head("The synthetic table")
    report = ("--report", out / "report.html")
    files = ("--out", out / "synthetic.csv", *(("--model", out / "people.silosynth") if options.private else report))
    silosynth("fetch", JOB, "--kit", out / "kits" / "coordinator", *files)
    if options.private:
        silosynth("ledger", "releases", "--kit", out / "kits" / "clinic")
        silosynth("sample", out / "people.silosynth", "--rows", 500, "--given", "visits=10..", "--out", out / "ill.csv")
    else:
        check_label(out)
        draw_more(out)
        head("The same training in this one process, and a report by all real rows")
        compare(out)
    pooled_report(out, people, target)
    name = "pooled.html" if options.private else "report.html"
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open {out / name}")


def draw_more(out: Path) -> None:
    """Draw more rows of the model, without training, once with a no and once with a yes; and shut somebody out."""
    head("Certificates: the employer renews its own, whose old one is revoked; and a fourth silo gets a kit")
    change_certificates(out)
    draw = ("draw", JOB, "--rows", 500, "--seed", 3, "--kit", out / "kits" / "coordinator", "--name")
    with daemons(out / "kits"):
        head("More rows of the same model, without training; the officer says no")
        decided(out, "demo-refused", ("refuse", "one table is enough"), *draw, "demo-refused", status=3)
        if any(out.glob("kits/*/work/jobs/demo-refused/synthetic.parquet")):
            sys.exit("A table was published that an officer has refused. This is a bug in silosynth: please report it.")
        print("No site has a table of demo-refused.")
        head("The same rows again; the officer says yes")
        decided(out, "demo-more", ("approve", "asked for by the board"), *draw, "demo-more")
        head("Somebody comes with the employer's old certificate")
        turned_away(out)
    more = digest(out / "kits" / "insurer" / "work" / "jobs" / "demo-more")
    print(f"500 more rows, after a restart of all sites: sha256 {more}")


def decided(
    out: Path, job: str, decision: tuple[str, str], *command: object, status: int = 0, report: bool = False
) -> None:
    """Run a command whose job waits for the clinic's officer, and show what she did meanwhile.

    She looks at the columns that would leave, with ``report`` at what attacks find in them, and at what has left so
    far; then she decides, by a command and with a reason.
    """
    kit, seen, ended = out / "kits" / "clinic", out / "officer", threading.Event()
    verdict, reason = decision

    def look_and_decide() -> str:
        while not (kit / "work" / "jobs" / job / "held.json").exists():
            if ended.wait(0.5):
                return "Nothing was held."
        seen.mkdir(exist_ok=True)
        files = ["--out", seen / f"{job}.csv", *(["--report", seen / f"{job}.html"] if report else [])]
        looked = said("fetch", job, "--held", "--kit", kit, *files), said("ledger", "show", job, "--kit", kit)
        return "\n".join([*looked, said(verdict, job, "--kit", kit, "--reason", reason)])

    with ThreadPoolExecutor(1) as other:
        officer = other.submit(look_and_decide)
        try:
            silosynth(*command, status=status)
        finally:
            ended.set()
    print(f'\nMeanwhile at the clinic, whose policy has approval = "person":\n\n{officer.result()}')


def change_certificates(out: Path) -> None:
    """Renew the employer's certificate, revoke the old one, and add a silo; nobody else's files change."""
    kit, authority = out / "kits" / "employer", out / "kits" / "authority"
    old = out / "old-employer"
    shutil.copytree(kit, old, ignore=shutil.ignore_patterns("work"))
    (number,) = (one["number"] for one in certificates(authority) if one["name"] == "employer")
    silosynth("certificate", "request", "--kit", kit, "--out", out / "employer.request")
    silosynth("certificate", "sign", out / "employer.request", "--authority", authority, "--out", out / "employer.crt")
    silosynth("certificate", "install", out / "employer.crt", "--kit", kit)
    silosynth("certificate", "revoke", number, "--authority", authority, "--out", out / "revoked.crl")
    silosynth("certificate", "install", out / "revoked.crl", "--kit", out / "kits" / "coordinator")
    others = [path for name in SILOS for path in (out / "kits" / name / "engine").rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in others]
    with (out / "federation.toml").open("a", encoding="utf-8") as plan:
        plan.write("[silos.laboratory]\n")
    silosynth("provision", out / "federation.toml", "--out", out / "kits")
    if before != [path.read_bytes() for path in others]:
        sys.exit("A silo was added, and others' certificates changed. This is a bug in silosynth: please report it.")
    print(f"{out / 'kits' / 'laboratory'} is new; no certificate or key of another silo has changed.")


def certificates(authority: Path) -> list[dict[str, str]]:
    """What an authority has issued."""
    found: dict[str, list[dict[str, str]]] = json.loads(said("certificate", "list", "--authority", authority, "--json"))
    return found["certificates"]


def turned_away(out: Path) -> None:
    """Try to connect with the employer's old kit, whose certificate is revoked."""
    old = out / "old-employer"
    with running(("party", old)):
        here = waited_for(
            out / "kits" / "coordinator" / "daemon.log", "refused a connection: The certificate of employer"
        )
        there = waited_for(old / "daemon.log", "not connected yet")
    print(f"the coordinator says:  {here}\nwhoever has come says: {there}")


def waited_for(log: Path, words: str) -> str:
    """The first line of a log with these words, once there is one."""
    for _ in range(60):
        if lines := [line for line in log.read_text(encoding="utf-8").splitlines() if words in line]:
            return lines[0]
        time.sleep(1.0)
    sys.exit(f"{log} has no line with {words!r}. This is a bug in silosynth: please report it.")


def compare(out: Path) -> None:
    """Train again in this process, and compare the bytes."""
    federated, local = digest(out / "kits" / "coordinator" / "work" / "jobs" / JOB), digest(rehearse(out))
    print(f"synthetic table, three organisations: sha256 {federated}")
    print(f"the same, in this one process:        sha256 {local}")
    if federated != local:
        sys.exit("The two tables differ. This is a bug in silosynth: please report it.")


def check_label(out: Path) -> None:
    """Check the table by its label, with a silo's keys and its officer's findings; then change either, which shows."""
    table, own, label = out / "synthetic.csv", out / "clinic.label.json", out / "published.label.json"
    silosynth("label", JOB, "--kit", out / "kits" / "clinic", "--audits", "--out", own)
    silosynth("label", JOB, "--kit", out / "kits" / "coordinator", "--add", own, "--out", label)
    silosynth("verify", table, label, "--kit", out / "kits" / "clinic")
    changed, painted = out / "changed.csv", out / "changed.label.json"
    text = table.read_text(encoding="utf-8")
    changed.write_text(text[:-2] + ("7" if text[-2] != "7" else "8") + text[-1], encoding="utf-8")
    content = json.loads(label.read_text(encoding="utf-8"))
    content["audits"]["clinic"]["statement"]["audits"][0]["figures"][0]["value"] = -1.0
    painted.write_text(json.dumps(content), encoding="utf-8")
    for what, given in (("a cell", (changed, label)), ("what the officer found", (table, painted))):
        command = [sys.executable, "-m", "silosynth", "verify", *map(str, given)]
        if subprocess.run(command, check=False, capture_output=True).returncode != 2:
            sys.exit(
                f"Changed: {what}, and it passes for what silos signed. This is a bug in silosynth: please report it."
            )
        print(f"Changed: {what}, and `silosynth verify` says so")


def prepare(out: Path, port: int, private: bool) -> tuple[pd.DataFrame, str]:
    """Distribute the table, provision, and put each silo's rows and settings into its kit."""
    table, rng = ss.datasets.demo(), np.random.default_rng(0)
    people = table.frame.copy()
    people.insert(0, "person", [f"P-{number:05d}" for number in rng.permutation(99_999)[: len(people)]])
    out.mkdir(parents=True, exist_ok=True)
    (out / "federation.toml").write_text(FEDERATION.format(port=port), encoding="utf-8")
    (out / "experiment.toml").write_text(
        (PRIVATE if private else EXPERIMENT).format(target=table.target), encoding="utf-8"
    )
    silosynth("provision", out / "federation.toml", "--out", out / "kits")
    columns = [name for name in people.columns if name != "person"]
    for number, silo in enumerate(SILOS):
        kit, own_columns = out / "kits" / silo, columns[number :: len(SILOS)]
        own_rows = people.iloc[rng.permutation(len(people))[: int(0.97 * len(people))]]  # each silo lacks some people
        sources.write(own_rows[["person", *own_columns]], kit / "people.csv")
        bounds = [
            f"[schema.{one}]\nlow = {BOUNDS[one][0]}\nhigh = {BOUNDS[one][1]}\n" for one in own_columns if one in BOUNDS
        ]
        (kit / "silo.toml").write_text(SILO + "".join(bounds if private else ()), encoding="utf-8")
        policy = (kit / "policy.toml").read_text(encoding="utf-8")
        policy = policy.replace("public_seed = false", "public_seed = true")
        policy = policy.replace('"gdts"]', '"gdts", "judge"]', 1)
        if silo == "clinic":
            policy = policy.replace(*APPROVAL)
        (kit / "policy.toml").write_text(POLICY if private else policy, encoding="utf-8")
    return people, table.target


@contextmanager
def daemons(kits: Path) -> Iterator[None]:
    """Run the coordinator and the silos, each in its own process, until the block ends."""
    with running(("coordinator", kits / "coordinator"), *(("party", kits / silo) for silo in SILOS)):
        yield


@contextmanager
def running(*sites: tuple[str, Path]) -> Iterator[None]:
    """Run sites, each in its own process, until the block ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for role, kit in sites:
            command = [sys.executable, "-m", "silosynth", role, "start", "--kit", str(kit)]
            with open(kit / "daemon.log", "wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def rehearse(out: Path) -> Path:
    """Run the same order with the same code in this process; returns the coordinator's folder."""
    folder = out / "rehearsal"
    order = unpack_order((out / "kits" / "coordinator" / "work" / "jobs" / JOB / ORDER).read_bytes())
    silos = {}
    for silo in order.job.silos:
        shutil.copytree(out / "kits" / silo, folder / silo, ignore=shutil.ignore_patterns("work"))
        (folder / silo / "work").mkdir()
        shutil.copy(out / "kits" / silo / "work" / HoldoutKey.FILE, folder / silo / "work")  # to hold out the same
        policy = folder / silo / "policy.toml"
        policy.write_text(policy.read_text(encoding="utf-8").replace(APPROVAL[1], APPROVAL[0]))  # nobody would come
        kit = read_kit(folder / silo)
        silos[silo] = open_endpoint(kit, read_policy(kit.folder), JOB, None).party
    with InProcess(silos, folder / "checkpoints") as link:
        run_order(order, link, folder / "coordinator")
    return folder / "coordinator"


def pooled_report(out: Path, people: pd.DataFrame, target: str) -> None:
    """Evaluate the table against all real rows, which nobody holds in a real federation."""
    job = out / "kits" / "coordinator" / "work" / "jobs" / JOB
    silos = json.loads((job / "result.json").read_text())["silos"]
    ledger = [json.loads(line) for line in (job / "ledger.jsonl").read_text().splitlines()]
    synthetic = sources.read(out / "synthetic.csv")
    columns, held = list(synthetic.columns), held_out(out, people["person"])
    train, holdout = people.loc[~held, columns], people.loc[held, columns]
    evaluation = ss.evaluate(
        train, holdout, synthetic, target=target, silos=silos, ledger=ledger, data="demonstration, pooled"
    )
    evaluation.save(out / "pooled.html")


def held_out(out: Path, people: pd.Series[str]) -> np.ndarray:
    """Who was held out, which a silo knows by its key."""
    kit = out / "kits" / SILOS[0]
    names = canonical(ss.simulate(people.to_frame(), schema={"person": "identifier"}).tables["silo1"].columns)
    return hold_out(HoldoutKey(kit / "work").read(), 0.2, names).numpy()


def digest(folder: Path) -> str:
    """The SHA-256 digest of the values of a job's synthetic table."""
    text = pd.read_parquet(folder / "synthetic.parquet").to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()


def head(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}\n")


def silosynth(*arguments: object, status: int = 0) -> None:
    """Run a command as a user would, which must end with this exit code."""
    done = subprocess.run([sys.executable, "-m", "silosynth", *map(str, arguments)], check=False)
    if done.returncode != status:
        sys.exit(f"silosynth {arguments[0]} ended with {done.returncode}, not {status}.")


def said(*arguments: object) -> str:
    """Run a command, and return its results."""
    command = [sys.executable, "-m", "silosynth", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"silosynth {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
