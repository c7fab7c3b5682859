"""Small jobs to be killed, and the kits of all who take part."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pandas as pd
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.deployment.common import SMALL, Rows, customers, job, seated, shuffled

from silosynth.alignment import AlignConfig
from silosynth.core.conversation import COORDINATOR
from silosynth.core.rules import read_rules
from silosynth.counting import CountedColumn
from silosynth.deployment.coordinator import Order
from silosynth.deployment.holdout import HoldoutKey
from silosynth.deployment.kits import KEY, KIT
from silosynth.deployment.policy import POLICY
from silosynth.deployment.protocol import Drawing
from silosynth.deployment.rows import SILO
from silosynth.runtime.tls import Authority, Certificates

SILOFUSE = SMALL | {"latent.steps": 12, "latent.checks": 4, "latent.sample_steps": 3}
VTGAN = {
    "width": 16, "generator_width": 16, "noise": 8, "batch": 30, "epochs": 1, "least_rounds": 4, "encoders.modes": 3,
}  # fmt: skip
GDTS = {
    "generator": "ctgan", "ctgan.generator": (16, 16), "ctgan.critic": (16, 16), "ctgan.noise": 8, "ctgan.batch": 30,
    "ctgan.epochs": 2, "ctgan.least_rounds": 6, "ctgan.encoders.modes": 3, "rounds": 3, "epsilon": 50.0,
}  # fmt: skip


JUDGE = {
    "columns": (
        CountedColumn("", "age", edges=(30, 50)), CountedColumn("", "visits", edges=(5,)),
        CountedColumn("", "paid", ("card", "cash"), others=True),
    ),
    "sets": ((0, 1), (1, 2), (2, 0), (0,)), "dp": {"epsilon": 4.0, "delta": 1e-6}, "most_rows": 200, "holdout": True,
}  # fmt: skip


def _vertical(whole: pd.DataFrame, *parts: list[str]) -> dict[str, Rows]:
    names = ("bank", "shop", "clinic")
    return {
        name: Rows(shuffled(whole, columns, number, 3 + number), ["customer"])
        for number, (name, columns) in enumerate(zip(names, parts, strict=False))
    }


def _horizontal() -> dict[str, Rows]:
    whole = customers(120).drop(columns="customer")
    return {"north": Rows(whole[:70].reset_index(drop=True)), "south": Rows(whole[70:].reset_index(drop=True))}


def _grouped() -> dict[str, Rows]:
    """Groups of two silos, one, and two, of other customers."""
    whole, silos = customers(150), {}
    for start, group in zip((0, 50, 100), GROUPED, strict=True):
        own = whole[start : start + 50]
        for number, (silo, columns) in enumerate(group.items()):
            silos[silo] = Rows(shuffled(own, columns, start + number, 3 + number), ["customer"])
    return silos


GROUPED: tuple[dict[str, list[str]], ...] = (
    {"bank": ["age", "income"], "shop": ["visits"]}, {"club": ["visits", "income", "age"]},
    {"mill": ["income"], "fund": ["visits", "age"]},
)  # fmt: skip
TABLES = {
    "silofuse": _vertical(customers(90), ["age", "income"], ["visits"], ["paid"]),
    "vtgan": _vertical(customers(90), ["age", "income"], ["visits", "paid"]),
    "gdts": _horizontal(),
    "judge": _vertical(customers(90), ["age", "income"], ["visits"], ["paid"]),
    "groups": _grouped(),
}
GROUPED_SILOS = tuple(tuple(group) for group in GROUPED)
GROUPED_MST = {"bins": 4, "silo_groups": GROUPED_SILOS}
GROUPED_JUDGE = {
    "columns": (CountedColumn("", "age", edges=(50,)), CountedColumn("", "visits", edges=(5,))), "sets": ((0, 1),),
    "opening": "exact", "holdout": True, "horizontal": True, "silo_groups": GROUPED_SILOS,
}  # fmt: skip
RULES = read_rules([{"kind": "inequality", "low": "visits", "high": "age"}])
TABLES |= {"draw": TABLES["silofuse"], "approve": TABLES["silofuse"], "grouped judge": TABLES["groups"]}
"""The silos of each job, and what they hold."""
SHARED = AlignConfig("keyed-hash")
HELD_OUT: dict[str, Any] = {"align": SHARED, "holdout": 0.4}
POLICY_TEXT = """\
algorithms = ["silofuse", "vtgan", "gdts", "judge", "mst"]
open_tables = "exact"
least_rows = 10
public_seed = true
keyed_hash = true
jobs_per_day = 10000
"""
ORDERS = {
    "silofuse": Order(job(TABLES["silofuse"], align=SHARED, rows=40, options=SILOFUSE)),
    "vtgan": Order(job(TABLES["vtgan"], algorithm="vtgan", align=SHARED, rows=40, options=VTGAN)),
    "gdts": Order(job(TABLES["gdts"], algorithm="gdts", align=None, rows=40, options=GDTS)),
    "judge": Order(
        job(TABLES["judge"], algorithm="judge", preset="balanced", align=SHARED, rows=None, options=JUDGE, holdout=0.2)
    ),
    "groups": Order(job(TABLES["groups"], algorithm="mst", rows=40, rules=RULES, options=GROUPED_MST, **HELD_OUT)),
    "grouped judge": Order(
        job(TABLES["groups"], algorithm="judge", preset="balanced", rows=None, options=GROUPED_JUDGE, **HELD_OUT)
    ),
}
BEFORE = dict.fromkeys(("draw", "approve"), ORDERS["silofuse"])
"""What was done before some jobs, by the same sites."""
ORDERS |= dict.fromkeys(
    ("draw", "approve"),
    Order(
        job(TABLES["draw"], name="late", align=None, rows=40, options=SILOFUSE, seed=11, drawing=Drawing("trial", 7))
    ),
)
PERSON = 'approval = "person"\n'
ABORTED = ("gdts", "groups")
"""Jobs that would go on without a silo, and then lead to something else: all their processes are killed."""


def prepare(name: str, folder: Path) -> None:
    """Write the kits of a job's coordinator and silos, with the silos' tables and policies."""
    authority, seats = Authority(), seated(TABLES[name])
    keys = {
        silo: base64.b64encode(X25519PrivateKey.from_private_bytes(seat.private).public_key().public_bytes_raw())
        for silo, seat in seats.items()
    }
    about = {"federation": "trial", "host": "127.0.0.1", "port": 8002, "stream_port": 8003}
    about["silos"] = {silo: key.decode() for silo, key in keys.items()}
    _startup(folder / COORDINATOR, "server", authority.coordinator(), about)
    for silo, rows in TABLES[name].items():
        place = folder / silo
        _startup(place, "client", authority.party(silo), about)
        (place / KEY).write_bytes(base64.b64encode(seats[silo].private))
        rows.frame.to_csv(place / "rows.csv", index=False)
        (place / SILO).write_text(f'[data]\npath = "rows.csv"\nidentifiers = {json.dumps(rows.identifiers)}\n')
        (place / POLICY).write_text(POLICY_TEXT + PERSON * (name == "approve"))
        HoldoutKey(place / "work").keep(b"k" * 32)  # of an earlier job, so that all runs hold out the same


def _startup(place: Path, side: str, certificates: Certificates, about: dict[str, object]) -> None:
    startup = place / "engine" / "startup"
    startup.mkdir(parents=True)
    (place / KIT).write_text(json.dumps({"name": place.name, **about}))
    (startup / "rootCA.pem").write_bytes(certificates.authority)
    (startup / f"{side}.crt").write_bytes(certificates.certificate)
    (startup / f"{side}.key").write_bytes(certificates.key)
