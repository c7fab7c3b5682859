"""A federation of four processes on this machine: a coordinator and three silos, over NVIDIA FLARE with mutual TLS.

    make federation-demo            # or: python examples/federation_demo.py --out federation-demo
    make private-demo               # or: python examples/federation_demo.py --private

Three organisations hold different columns of mostly the same people, each in its own order. Their rows are linked by
private set intersection, one person in five is held out, SiloFuse is trained across them, and the synthetic table is
published. Then silos count joint tables of their columns, which open with noise, and a report across silos is made of
these: report.html, as a real federation has it, without anybody holding the real table. The table has a label, signed
by all silos, which is checked. All sites are ended and started again, and draw more rows from the model.

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
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
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


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("federation-demo"), help="an empty or new folder")
    parser.add_argument("--port", type=int, default=8002, help="the coordinator's port, on loopback")
    parser.add_argument("--private", action="store_true", help="train under largest_epsilon = 1")
    options = parser.parse_args()
    out, started = options.out.absolute(), time.monotonic()
    if out.exists() and any(out.iterdir()):
        if not (out / "federation.toml").exists():
            sys.exit(f"{out} is not empty. Name another folder with --out.")
        shutil.rmtree(out)  # left by an earlier demonstration
    people, target = prepare(out, options.port, options.private)
    with daemons(out / "kits"):
        silosynth("submit", out / "experiment.toml", "--kit", out / "kits" / "coordinator")
    silosynth("ledger", JOB, "--kit", out / "kits" / "clinic")
    report = ("--report", out / "report.html")
    files = ("--out", out / "synthetic.csv", *(("--model", out / "people.silosynth") if options.private else report))
    silosynth("fetch", JOB, "--kit", out / "kits" / "coordinator", *files)
    if options.private:
        silosynth("ledger", "releases", "--kit", out / "kits" / "clinic")
        silosynth("sample", out / "people.silosynth", "--rows", 500, "--given", "visits=10..", "--out", out / "ill.csv")
    else:
        check_label(out)
        draw_more(out)
        compare(out)
    pooled_report(out, people, target)
    name = "pooled.html" if options.private else "report.html"
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open {out / name}")


def draw_more(out: Path) -> None:
    """Draw more rows of the model, without training."""
    with daemons(out / "kits"):
        draw = ("draw", JOB, "--rows", 500, "--seed", 3, "--kit", out / "kits" / "coordinator", "--name")
        silosynth(*draw, "demo-more")
    more = digest(out / "kits" / "insurer" / "work" / "jobs" / "demo-more")
    print(f"500 more rows, after a restart of all sites: sha256 {more}")


def compare(out: Path) -> None:
    """Train again in this process, and compare the bytes."""
    federated, local = digest(out / "kits" / "coordinator" / "work" / "jobs" / JOB), digest(rehearse(out))
    print(f"synthetic table, three organisations: sha256 {federated}")
    print(f"the same, in this one process:        sha256 {local}")
    if federated != local:
        sys.exit("The two tables differ. This is a bug in silosynth: please report it.")


def check_label(out: Path) -> None:
    """Check the table by its label, with a silo's keys; then change a cell, which is found."""
    label = out / "synthetic.label.json"
    silosynth("verify", out / "synthetic.csv", label, "--kit", out / "kits" / "clinic")
    changed = out / "changed.csv"
    text = (out / "synthetic.csv").read_text(encoding="utf-8")
    changed.write_text(text[:-2] + ("7" if text[-2] != "7" else "8") + text[-1], encoding="utf-8")
    command = [sys.executable, "-m", "silosynth", "verify", str(changed), str(label)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 2:
        sys.exit("A changed table passes for the one that silos signed. This is a bug in silosynth: please report it.")
    print(f"{changed}: one character is another, and `silosynth verify` says so")


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
        (kit / "policy.toml").write_text(POLICY if private else policy, encoding="utf-8")
    return people, table.target


@contextmanager
def daemons(kits: Path) -> Iterator[None]:
    """Run the coordinator and the silos, each in its own process, until the block ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("coordinator", *SILOS):
            role = "coordinator" if name == "coordinator" else "party"
            command = [sys.executable, "-m", "silosynth", role, "start", "--kit", str(kits / name)]
            with open(kits / name / "daemon.log", "wb") as log:
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


def silosynth(*arguments: object) -> None:
    """Run a command as a user would."""
    subprocess.run([sys.executable, "-m", "silosynth", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
