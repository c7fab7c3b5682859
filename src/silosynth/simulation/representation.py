"""A trained representation: embeds rows, and predicts their label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from silosynth.algorithms.tabvfl import networks, options, protocol
from silosynth.core.errors import ConfigError, DataError, SchemaError
from silosynth.core.messages import from_state, to_state
from silosynth.core.schema import Column, Kind, Schema, Table
from silosynth.core.streams import Streams
from silosynth.data.frames import to_pandas
from silosynth.evaluation.scores import macro_auc
from silosynth.evaluation.utility import confusion, f1_macro, r_squared
from silosynth.simulation.federation import Federation, check_federation, read_table, simulate
from silosynth.simulation.model import TrainedModel


@dataclass(repr=False, kw_only=True)
class Representation(TrainedModel):
    """What `represent` returns. Of a simulated federation it holds every silo's part; each part knows only its own.

    Attributes: those of `TrainedModel`, where schemas are without the label, and the coordinator's part has the latent
        vectors of the training rows; and
        label: what it predicts; None for nothing.
        name: the algorithm, as well.
    """

    KIND, FORM, NAME = "representation", "silosynth representation", "name"

    config: options.TabVFLConfig
    label: networks.Label | None

    @property
    def name(self) -> str:
        """The algorithm that trained it."""
        return self.algorithm

    def __repr__(self) -> str:
        """What it is; no weights, and nothing of encoders."""
        label = "no label" if self.label is None else f"label {self.label.name!r}"
        return (
            f"Representation of {self.algorithm!r} ({self.preset}): {len(self.roster)} silos, {label}, {self.rows} rows"
        )

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
        latents_ND = self.coordinator["latents"] if federation is None else self._embedded(federation)[0]
        names = [f"latent_{i}" for i in range(latents_ND.shape[1])]
        return pd.DataFrame(latents_ND.numpy().copy(), columns=pd.Index(names))

    def predict(self, federation: Federation) -> pd.Series[Any]:
        """The most likely class, or the predicted number, of each row.

        Raises:
            ConfigError: it was trained without a label.
            SchemaError: see `transform`.
        """
        label, out_NK = self._predicted(federation)
        if label.classes:
            return pd.Series([label.classes[i] for i in out_NK.argmax(dim=1).tolist()], name=label.name)
        return pd.Series(label.mean + label.deviation * out_NK[:, 0].double().numpy(), name=label.name)

    def predict_proba(self, federation: Federation) -> pd.DataFrame:
        """A probability for each row and class.

        Raises:
            ConfigError: the label is a number, or it was trained without one.
            SchemaError: see `transform`.
        """
        label, out_NK = self._predicted(federation)
        if not label.classes:
            raise ConfigError("Probabilities are for classes", label.name, "Use predict: the label is a number.")
        return pd.DataFrame(out_NK.double().softmax(dim=1).numpy(), columns=pd.Index(label.classes))

    def score(self, federation: Federation, labels: Any = None) -> dict[str, float]:
        """How good predictions are: accuracy, macro F1, ROC AUC (macro, one-vs-rest); or R² and mean absolute error.

        Classes are those that occur in ``labels`` (None: the label's column in the federation). A class that was not in
        training is never right; the area is over rows of known classes, and NaN if there is only one such class.

        Raises:
            ConfigError, DataError, SchemaError: see `predict`; there are no labels, or not one for each row.
        """
        label, out_NK = self._predicted(federation)
        truth = label.targets(_labels_of(federation, label, labels)).numpy()
        if len(truth) != len(out_NK):
            raise DataError("There is one label for each row", f"{len(truth)} for {len(out_NK)} rows")
        if not label.classes:
            numbers = out_NK[:, 0].double().numpy()
            error = label.deviation * float(np.abs(numbers - truth).mean())
            return {"r2": r_squared(truth.astype(np.float64), numbers), "mean_absolute_error": error}
        size, predicted, classes = len(label.classes), out_NK.argmax(dim=1).numpy(), np.unique(truth)
        f1 = f1_macro(confusion(truth, predicted, classes, size + 1), classes)
        return {"accuracy": float((truth == predicted).mean()), "macro_f1": f1, "roc_auc": _area(truth, out_NK)}

    def _content(self) -> dict[str, Any]:
        return {"label": None if self.label is None else to_state(self.label)}

    @classmethod
    def _restored(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return {"label": None if content["label"] is None else from_state(networks.Label, content["label"])}

    def _predicted(self, federation: Federation) -> tuple[networks.Label, Tensor]:
        if self.label is None or not self.config.finetune:
            raise ConfigError("Predicting needs a trained label", None, "Train with one, and finetune = true.")
        return self.label, self._embedded(federation)[1]

    def _embedded(self, federation: Federation) -> tuple[Tensor, Tensor]:
        """Latents (N, D), and what is predicted from them (N, K)."""
        check_federation(federation, "representation.federation(frame)")
        tables = {silo: _as_in_training(federation, silo, self.schemas[silo]) for silo in self.roster}
        host = networks.Host.restored(self.config, self.coordinator, self.device)
        parties = self._parties(Streams(self.seed).child("look"), tables)
        return self._converse(parties, protocol.embed(self.roster, host, federation.rows))


def read_labels(labels: Any) -> tuple[Column, str]:
    """Labels that are no column of a silo, and their kind."""
    series = labels if isinstance(labels, pd.Series) else pd.Series(labels)
    frame = series.rename("label" if series.name is None else str(series.name)).reset_index(drop=True).to_frame()
    schema, table = read_table(frame, None)
    return table.columns[0], schema.columns[0].kind


def _labels_of(federation: Federation, label: networks.Label, labels: Any) -> Column:
    """The labels to compare with. They may be of fewer classes than in training, so their kind is not inferred."""
    if labels is None:
        tables = [table for table in federation.tables.values() if label.name in table.names]
        if not tables:
            raise ConfigError("Scores need labels", None, f"Pass them, or have a column {label.name!r} in a silo.")
        column = tables[0][label.name]
    else:
        column = read_labels(labels)[0]
    networks.check_labels(column)
    return column


def _area(truth: np.ndarray, out_NK: Tensor) -> float:
    scores = out_NK.double().softmax(dim=1).numpy()
    known = truth < scores.shape[1]  # rows of classes that training had
    classes = np.unique(truth[known])
    if len(classes) < 2:
        return float("nan")
    if len(classes) == 2:
        between = scores[known][:, classes[1]] - scores[known][:, classes[0]]
        return macro_auc(truth[known], between[:, None], classes[1:])[0]
    return macro_auc(truth[known], scores[known][:, classes], classes)[0]


def _as_in_training(federation: Federation, silo: str, schema: Schema) -> Table:
    """A silo's columns as they were in training, if all are there."""
    if silo not in federation.tables:
        raise SchemaError("All silos of training embed rows", sorted(federation.tables), f"{silo!r} is not there.")
    for column in schema.select(schema.modelled).columns:
        if column.name not in federation.tables[silo].names:
            raise SchemaError(f"Silo {silo!r} lacks a column of training", column.name)
        kinds = [Kind(declared.kind) for declared in (column, federation.schemas[silo][column.name])]
        if kinds[0].numeric is not kinds[1].numeric:
            raise SchemaError(
                f"Column {column.name!r} is {kinds[0].value}, as in training",
                kinds[1].value,
                "Make the federation with representation.federation(frame).",
            )
    return federation.tables[silo].select(schema.modelled)
