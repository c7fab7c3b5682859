"""What `represent` returns: embeds rows, predicts their label, saves and loads itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.embedding import embed, restored
from silosynth.algorithms.tabvfl.label import Label, check_labels
from silosynth.algorithms.tabvfl.messages import TabVFLConfig
from silosynth.algorithms.tabvfl.silo import Silo
from silosynth.core.errors import ConfigError, DataError, SchemaError, StorageError
from silosynth.core.files import read, write_atomic
from silosynth.core.roster import Roster
from silosynth.core.schema import Column, Kind, Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.data.frames import to_pandas
from silosynth.evaluation.intervals import macro_auc
from silosynth.evaluation.utility import confusion, f1_macro, r_squared
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.wire import pack, unpack
from silosynth.simulation.federation import Federation, check_federation, read_table, simulate
from silosynth.simulation.inprocess import InProcess
from silosynth.simulation.model import as_dict, resolve_device

FORM = "silosynth representation"


@dataclass(repr=False)
class Representation:
    """What `represent` returns. Of a simulated federation it holds every silo's part; each part knows only its own.

    Attributes:
        name, preset, seed: how it was trained.
        config: all options.
        roster: the silos in order.
        schemas: each silo's column kinds, without the label.
        label: what it predicts; None for nothing.
        coordinator: the coordinator's part, and the latent vectors of the training rows.
        parts: each silo's part.
        rows: number of training rows.
        ledger: who sent what to train and (since) to embed rows.
    """

    name: str
    preset: str
    seed: int
    config: TabVFLConfig
    roster: Roster
    schemas: Mapping[str, Schema]
    label: Label | None
    coordinator: dict[str, Any]
    parts: Mapping[str, dict[str, Any]]
    rows: int
    ledger: list[dict[str, Any]] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __repr__(self) -> str:
        """What it is; no weights, and nothing of encoders."""
        learnt = "no label" if self.label is None else f"label {self.label.name!r}"
        return f"Representation of {self.name!r} ({self.preset}): {len(self.roster)} silos, {learnt}, {self.rows} rows"

    def federation(self, frame: Any) -> Federation:
        """A federation of other rows, with the silos and kinds of training; with the label where the frame has it."""
        silos = {silo: list(self.schemas[silo].modelled) for silo in self.roster}
        kinds = {name: schema[name].kind for schema in self.schemas.values() for name in schema.modelled}
        if self.label is not None and self.label.silo and self.label.name in to_pandas(frame).columns:
            silos[self.label.silo].append(self.label.name)
            kinds[self.label.name] = self.label.kind
        return simulate(frame, silos, kinds)

    def transform(self, federation: Federation | None = None) -> pd.DataFrame:
        """Latent vectors, one per row: of the training rows, or of a federation's.

        Raises:
            SchemaError: a silo or a column is not there, or is of another kind than in training.
        """
        latents_ND = self.coordinator["latents"] if federation is None else self._look(federation)[0]
        names = [f"latent_{i}" for i in range(latents_ND.shape[1])]
        return pd.DataFrame(latents_ND.numpy().copy(), columns=pd.Index(names))

    def predict(self, federation: Federation) -> pd.Series[Any]:
        """The likeliest class, or the number, for each row.

        Raises:
            ConfigError: no label was learnt.
            SchemaError: see `transform`.
        """
        label, out_NK = self._predicted(federation)
        if label.classes:
            classes = [label.classes[i] for i in out_NK.argmax(dim=1).tolist()]
            return pd.Series(classes, name=label.name)
        return pd.Series(label.mean + label.deviation * out_NK[:, 0].double().numpy(), name=label.name)

    def predict_proba(self, federation: Federation) -> pd.DataFrame:
        """A probability for each row and class.

        Raises:
            ConfigError: the label is a number, or none was learnt.
            SchemaError: see `transform`.
        """
        label, out_NK = self._predicted(federation)
        if not label.classes:
            raise ConfigError("Probabilities are for classes", label.name, "Use predict: the label is a number.")
        return pd.DataFrame(out_NK.double().softmax(dim=1).numpy(), columns=pd.Index(label.classes))

    def score(self, federation: Federation, labels: Any = None) -> dict[str, float]:
        """How good predictions are: accuracy, macro F1, ROC AUC (macro, one against the rest); or R² and mean error.

        Classes are those that occur in ``labels`` (None: the label's column in the federation). A class that training
        didn't know is never right; the area is of rows of known classes, NaN if that is only one.

        Raises:
            ConfigError, DataError, SchemaError: see `predict`; there are no labels, or not one for each row.
        """
        label, out_NK = self._predicted(federation)
        truth = label.numbers(_labels_of(federation, label, labels)).numpy()
        if len(truth) != len(out_NK):
            raise DataError("There is one label for each row", f"{len(truth)} for {len(out_NK)} rows")
        if not label.classes:
            made = out_NK[:, 0].double().numpy()
            error = label.deviation * float(np.abs(made - truth).mean())
            return {"r2": r_squared(truth.astype(np.float64), made), "mean_absolute_error": error}
        size, predicted, classes = len(label.classes), out_NK.argmax(dim=1).numpy(), np.unique(truth)
        f1 = f1_macro(confusion(truth, predicted, classes, size + 1), classes)
        return {"accuracy": float((truth == predicted).mean()), "macro_f1": f1, "roc_auc": _area(truth, out_NK)}

    def save(self, path: str | Path) -> None:
        """Write everything to one file (safetensors and JSON; no code).

        Raises:
            StorageError: the file cannot be written; what was there before is untouched.
        """
        about = {name: getattr(self, name) for name in ("name", "preset", "seed", "rows")}
        content = {
            "form": FORM,
            "about": {**about, "silos": list(self.roster), "ledger": json.dumps(self.ledger)},
            "config": to_state(self.config),
            "schemas": {silo: to_state(schema) for silo, schema in self.schemas.items()},
            "label": None if self.label is None else to_state(self.label),
            "coordinator": self.coordinator,
            "parts": dict(self.parts),
        }
        write_atomic(Path(path), pack(content))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Representation:
        """What `save` wrote. Loading executes no code and works on any device.

        Raises:
            StorageError: the file is missing, damaged, of a newer version, or not a representation.
        """
        content = unpack(read(Path(path)))
        if content.get("form") != FORM:
            raise StorageError("This file is not a silosynth representation", str(path), "Pass a file of save().")
        about, label = content["about"], content["label"]
        return cls(
            about["name"], about["preset"], about["seed"], from_state(TabVFLConfig, content["config"]),
            Roster(tuple(about["silos"])), {s: from_state(Schema, state) for s, state in content["schemas"].items()},
            None if label is None else from_state(Label, label), content["coordinator"], content["parts"],
            about["rows"], json.loads(about["ledger"]), resolve_device(device),
        )  # fmt: skip

    def _predicted(self, federation: Federation) -> tuple[Label, Tensor]:
        if self.label is None or not self.config.finetune:
            raise ConfigError("Predicting needs a label that was learnt", None, "Train with one, and finetune = true.")
        return self.label, self._look(federation)[1]

    def _look(self, federation: Federation) -> tuple[Tensor, Tensor]:
        """Latents (N, D), and what is predicted from them (N, K)."""
        check_federation(federation, "representation.federation(frame)")
        streams, ledger, parties = Streams(self.seed).child("look"), Ledger(), {}
        for silo, seat in seats(self.roster, Streams(self.seed).child("seats")).items():
            table = _fitting(federation, silo, self.schemas[silo])
            parties[silo] = Silo(table, self.schemas[silo], seat, streams.child(silo), self.device)
            parties[silo].restore(self.parts[silo])
        host = restored(self.config, self.coordinator, self.device)
        with InProcess(parties) as link:
            found = drive(lambda _: embed(self.roster, host, federation.rows), link, ledger)
        self.ledger += [as_dict(record) for record in ledger.records]
        return found


def read_labels(labels: Any) -> tuple[Column, str]:
    """Labels that came by themselves, and their kind."""
    series = labels if isinstance(labels, pd.Series) else pd.Series(labels)
    frame = series.rename("label" if series.name is None else str(series.name)).reset_index(drop=True).to_frame()
    schema, table = read_table(frame, None)
    return table.columns[0], schema.columns[0].kind


def _labels_of(federation: Federation, label: Label, labels: Any) -> Column:
    """Labels to compare with; they may be of fewer classes, so that their kind says nothing."""
    if labels is None:
        tables = [table for table in federation.tables.values() if label.name in table.names]
        if not tables:
            raise ConfigError("Scores need labels", None, f"Pass them, or have a column {label.name!r} in a silo.")
        column = tables[0][label.name]
    else:
        column = read_labels(labels)[0]
    check_labels(column)
    return column


def _area(truth: np.ndarray, out_NK: Tensor) -> float:
    scores = out_NK.double().softmax(dim=1).numpy()
    known = truth < scores.shape[1]
    classes = np.unique(truth[known])
    if len(classes) < 2:
        return float("nan")
    if len(classes) == 2:
        between = scores[known][:, classes[1]] - scores[known][:, classes[0]]
        return macro_auc(truth[known], between[:, None], classes[1:])[0]
    return macro_auc(truth[known], scores[known][:, classes], classes)[0]


def _fitting(federation: Federation, silo: str, schema: Schema) -> Table:
    """A silo's columns as they were in training, if all are there."""
    if silo not in federation.tables:
        raise SchemaError("All silos of training embed rows", sorted(federation.tables), f"{silo!r} is not there.")
    for column in schema.select(schema.modelled).columns:
        if column.name not in federation.tables[silo].names:
            raise SchemaError(f"Silo {silo!r} lacks a column of training", column.name)
        kinds = [Kind(found.kind) for found in (column, federation.schemas[silo][column.name])]
        if kinds[0].numeric is not kinds[1].numeric:
            raise SchemaError(
                f"Column {column.name!r} is {kinds[0].value}, as in training",
                kinds[1].value,
                "Make the federation with representation.federation(frame).",
            )
    return federation.tables[silo].select(schema.modelled)
