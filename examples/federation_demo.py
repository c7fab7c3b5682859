"""A federation of four processes on this machine: a coordinator and three silos, over NVIDIA FLARE with mutual TLS.

    make federation-demo            # or: python examples/federation_demo.py --out federation-demo

Three organisations know different things about the same people, each in its own order and not about everybody. Their
rows are linked by private set intersection, SiloFuse is trained across them, and the synthetic table is published. Then
the same job is carried out again in this one process, with the same keys and the same seed: the tables must be equal to
the last byte. The report may look at all real rows, because the silos are made from one table here.

The table is that of `silosynth demo`: real people, of the RAND Health Insurance Experiment.
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
from silosynth.data import sources
from silosynth.deployment.coordinator import ORDER, run_order, unpack_order
from silosynth.deployment.entry import open_endpoint
from silosynth.deployment.kits import read_kit
from silosynth.deployment.settings import read_policy
from silosynth.simulation.inprocess import InProcess

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
seed = 7                # so that the table can be made again; real federations leave the seed out

[align]
method = "psi"

[run]
name = "demo"
"""


def main() -> None:
    """Everything, step by step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("federation-demo"), help="an empty or new folder")
    parser.add_argument("--port", type=int, default=8002, help="for the coordinator, on loopback")
    options = parser.parse_args()
    out, begun = options.out.absolute(), time.monotonic()
    if out.exists() and any(out.iterdir()):
        if not (out / "federation.toml").exists():
            sys.exit(f"{out} is not empty. Name another folder with --out.")
        shutil.rmtree(out)  # an earlier demonstration's
    people, holdout, target = prepare(out, options.port)
    with daemons(out / "kits"):
        silosynth("submit", out / "experiment.toml", "--kit", out / "kits" / "coordinator")
    silosynth("ledger", JOB, "--kit", out / "kits" / "clinic")
    silosynth("fetch", JOB, "--kit", out / "kits" / "coordinator", "--out", out / "synthetic.csv")
    made, again = digest(out / "kits" / "coordinator" / "work" / "jobs" / JOB), digest(rehearse(out))
    print(f"synthetic table, three organisations: sha256 {made}\nthe same, in this one process:        sha256 {again}")
    if made != again:
        sys.exit("The two differ: that is a fault in silosynth. Please report it.")
    report(out, people, holdout, target)
    print(f"\nAll in {time.monotonic() - begun:.0f} s. Open {out / 'report.html'}")


def prepare(out: Path, port: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Deal out the table, provision, and put each silo's rows and settings into its kit."""
    table, rng = ss.datasets.demo(), np.random.default_rng(0)
    people = table.frame[:2200].copy()
    people.insert(0, "person", [f"P-{number:05d}" for number in rng.permutation(99_999)[: len(people)]])
    out.mkdir(parents=True, exist_ok=True)
    (out / "federation.toml").write_text(FEDERATION.format(port=port), encoding="utf-8")
    (out / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
    silosynth("provision", out / "federation.toml", "--out", out / "kits")
    columns = [name for name in people.columns if name != "person"]
    for number, silo in enumerate(SILOS):
        kit, own = out / "kits" / silo, columns[number :: len(SILOS)]
        some = people.iloc[rng.permutation(len(people))[: int(0.97 * len(people))]]  # not everybody is known to all
        sources.write(some[["person", *own]], kit / "people.csv")
        (kit / "silo.toml").write_text(SILO, encoding="utf-8")
        policy = (kit / "policy.toml").read_text(encoding="utf-8")
        (kit / "policy.toml").write_text(policy.replace("public_seed = false", "public_seed = true"), encoding="utf-8")
    return people, table.frame[2200:], table.target


@contextmanager
def daemons(kits: Path) -> Iterator[None]:
    """The coordinator and the silos, each in a process of its own, until the block ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("coordinator", *SILOS):
            command = ["coordinator" if name == "coordinator" else "party", "start", "--kit", str(kits / name)]
            with open(kits / name / "daemon.log", "wb") as log:
                started.append(subprocess.Popen([sys.executable, "-m", "silosynth", *command], stdout=log, stderr=log))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def rehearse(out: Path) -> Path:
    """The same order, carried out by the same code, all in this process."""
    place = out / "rehearsal"
    order = unpack_order((out / "kits" / "coordinator" / "work" / "jobs" / JOB / ORDER).read_bytes())
    silos = {}
    for silo in order.job.silos:
        shutil.copytree(out / "kits" / silo, place / silo, ignore=shutil.ignore_patterns("work"))
        kit = read_kit(place / silo)
        silos[silo] = open_endpoint(kit, read_policy(kit.folder), JOB, None).party
    with InProcess(silos, place / "checkpoints") as link:
        run_order(order, link, place / "coordinator")
    return place / "coordinator"


def report(out: Path, people: pd.DataFrame, holdout: pd.DataFrame, target: str) -> None:
    """Judge the table by all real rows: nobody could across organisations."""
    held = json.loads((out / "kits" / "coordinator" / "work" / "jobs" / JOB / "result.json").read_text())["silos"]
    made = sources.read(out / "synthetic.csv")
    real = people[list(made.columns)]
    found = ss.evaluate(real, holdout[list(made.columns)], made, target=target, silos=held)
    print(f"\n{found}")
    found.save(out / "report.html")


def digest(folder: Path) -> str:
    """SHA-256 of the values of a job's synthetic table."""
    text = pd.read_parquet(folder / "synthetic.parquet").to_csv(index=False)
    return hashlib.sha256(text.encode()).hexdigest()


def silosynth(*arguments: object) -> None:
    """Run a command as a user would."""
    subprocess.run([sys.executable, "-m", "silosynth", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
