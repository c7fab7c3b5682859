"""Experiment files: one TOML file says which tables, which silos, which algorithm, and what to write where.

There is one grammar for ``silosynth run``, which does everything on this machine, and ``silosynth submit``, which
starts a job in a federation of organisations. A key means the same for both, and a file made for one can be given to
the other, which says what it does not use (`Experiment.unused`).

`read` checks the whole file before anything is computed. An error names the file, the key and, for a key that does not
exist, the nearest one that does. Paths of inputs and of the output folder are relative to the file itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator
from typing_extensions import Self

from silosynth.core.errors import ConfigError, nearest
from silosynth.core.files import existing
from silosynth.experiment.files import FileSection, Text, missing_key, read_toml

KindName = Literal["continuous", "integer", "categorical", "boolean", "datetime", "mixed", "identifier"]
Command = Literal["run", "submit"]

_UNUSED: Mapping[Command, Mapping[str, str]] = {
    "run": {
        "align": "the silos' tables hold the same rows in the same order",
        "run.name": "results go to the output folder",
        "run.transport": "all silos are on this machine",
        "run.patience": "all silos are on this machine",
    },
    "submit": {
        "data": "each silo reads its own table, which its silo.toml names",
        "silos": "it only says who takes part: each silo reads its own table, which its silo.toml names",
        "schema": "each silo declares its own columns in its silo.toml",
        "algorithm.runtime": "silos run where they are",
        "split": "silos hold their own rows",
        "sample.seed": "the table is the first that the model draws",
        "sample.path": "silosynth fetch writes the table",
        "evaluate": "silosynth fetch --report writes a report at a silo",
        "output": "silosynth fetch writes the table",
    },
}
"""Per command, the tables and keys that it does not use, and why."""


def _ending(*suffixes: str) -> AfterValidator:
    def check(name: str) -> str:
        if not name.lower().endswith(suffixes):
            raise ValueError(f"the name must end in {' or '.join(suffixes)}")
        return name

    return AfterValidator(check)


def _number_or_date(bound: Any) -> Any:
    if isinstance(bound, bool) or not isinstance(bound, (int, float, str, date, type(None))):
        raise ValueError("it must be a number, or a date such as 2024-01-31")
    return bound


Bound = Annotated[Any, AfterValidator(_number_or_date)]


class DataSection(FileSection):
    """``[data]``: the table that the silos' columns or rows are taken from."""

    path: Text | None = None
    """One table with the columns or rows of all silos (CSV or Parquet)."""
    dataset: Text | None = None
    """Instead of a path: the name of a table that ``silosynth datasets list`` shows."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            raise ValueError("exactly one of 'path' and 'dataset' must be given")
        return self


class SiloSection(FileSection):
    """``[silos.NAME]``: the columns or the rows that one organisation holds."""

    path: Text | None = None
    """The silo's own table; without it columns or rows come from ``[data]``."""
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    """Its columns; with a path of its own: all of that table when left out."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Its share of the training rows, of all columns; drawn at random, and no other silo's."""

    @model_validator(mode="after")
    def _has_columns_or_rows(self) -> Self:
        if self.path is None and self.columns is None and self.share is None:
            raise ValueError("'columns', 'path' or 'share' must be given")
        if self.share is not None and (self.path is not None or self.columns is not None):
            raise ValueError("'share' deals out rows of the [data] table; neither 'path' nor 'columns' goes with it")
        return self


class ColumnRules(FileSection):
    """``[schema.COLUMN]``: what is declared about a column instead of inferred."""

    kind: KindName | None = None
    decimals: int | None = None
    low: Bound = None
    high: Bound = None


class AlgorithmSection(FileSection):
    """``[algorithm]``: what is fitted, and how."""

    name: Text = "silofuse"
    preset: Text = "balanced"
    seed: Annotated[int, Field(ge=0)] | None = None
    """Of all randomness. In a federation silos refuse it unless their policy allows it: leave it out."""
    device: Text = "auto"
    """Where models are trained; in a federation, where the coordinator computes: silos choose theirs."""
    runtime: Literal["inprocess", "processes"] = "inprocess"
    limit: Annotated[float, Field(gt=0)] | None = None
    """The same as ``run.limit``; only with runtime "processes"."""
    missing: Text | None = None
    """The same as ``run.missing``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Single settings that differ from the preset's."""

    @model_validator(mode="after")
    def _limit_is_for_processes(self) -> Self:
        if self.limit is not None and self.runtime != "processes":
            raise ValueError("'limit' is for silos in processes of their own: it goes with runtime = 'processes'")
        return self


class SplitSection(FileSection):
    """``[split]``: rows that the generator never sees, for judging it."""

    holdout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the rows to hold out; 0.2 when neither this nor a path is given, 0 for none."""
    seed: Annotated[int, Field(ge=0)] = 0
    path: Text | None = None
    """Instead of a share: a table of its own with the columns of all silos."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.path is not None and self.holdout is not None:
            raise ValueError("at most one of 'holdout' and 'path' may be given")
        return self

    @property
    def share(self) -> float:
        """The share of rows to hold out of the training table."""
        return 0.0 if self.path is not None else 0.2 if self.holdout is None else self.holdout


class SampleSection(FileSection):
    """``[sample]``: the synthetic table."""

    rows: Annotated[int, Field(ge=1)] | None = None
    """As many as there are training rows when left out."""
    seed: Annotated[int, Field(ge=0)] | None = None
    path: Annotated[str, _ending(".csv", ".parquet")] = "synthetic.csv"
    """A name in the output folder, ending in .csv or .parquet."""


class EvaluateSection(FileSection):
    """``[evaluate]``: the report."""

    target: Text | None = None
    """The column that classifiers or regressions are trained to predict."""
    report: Annotated[str, _ending(".html", ".json")] = "report.html"
    """A name in the output folder."""


class OutputSection(FileSection):
    """``[output]``: where results go."""

    folder: Text | None = None
    """The file's own name without ``.toml`` when left out."""


class AlignSection(FileSection):
    """``[align]``: how rows of silos with different columns are linked, in a federation."""

    method: Literal["psi", "keyed-hash", "none"] = "psi"
    """"none": silos hold the same rows in the same order."""
    least: Annotated[int, Field(ge=1)] = 1
    """Fewest rows in common."""


class RunSection(FileSection):
    """``[run]``: who takes part, and how."""

    name: Text | None = None
    """Of the job; the file's, and the time, when left out."""
    silos: Annotated[list[Text], Field(min_length=1)] | None = None
    """Who takes part; when left out, all that have a section [silos.NAME], or all of the federation."""
    transport: Literal["relay", "stream"] = "relay"
    """How data go: through the engine, or over the coordinator's second port, which is many times faster."""
    limit: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a silo has for an answer; as long as it is there when left out."""
    missing: Text | None = None
    """What becomes of silos that get lost: see `silosynth.fit`."""
    patience: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds that a lost silo has to come back before the job fails."""


class Experiment(FileSection):
    """A checked experiment file."""

    data: DataSection | None = None
    silos: dict[str, SiloSection] = Field(default_factory=dict)
    columns: dict[str, ColumnRules] = Field(default_factory=dict, alias="schema")
    algorithm: AlgorithmSection = AlgorithmSection()
    align: AlignSection = AlignSection()
    run: RunSection = RunSection()
    split: SplitSection = SplitSection()
    sample: SampleSection = SampleSection()
    evaluate: EvaluateSection = EvaluateSection()
    output: OutputSection = OutputSection()
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _columns_have_a_table(self) -> Self:
        bare = [name for name, silo in self.silos.items() if silo.path is None]
        if bare and self.data is None:
            raise ValueError(f"silo {bare[0]!r} has no 'path', so a [data] table must be given")
        if self.data is not None and self.silos and not bare:
            raise ValueError("[data] is given although every silo has a 'path' of its own")
        return self

    @model_validator(mode="after")
    def _shares_deal_out_the_rows(self) -> Self:
        shares = [silo.share for silo in self.silos.values() if silo.share is not None]
        bare = [name for name, silo in self.silos.items() if silo.share is None]
        if shares and bare:
            raise ValueError(f"either every silo has a 'share' or none: silo {bare[0]!r} has none")
        if math.fsum(shares) > 1 + 1e-9:
            raise ValueError(f"the silos' shares must add up to at most 1, not {math.fsum(shares):g}")
        return self

    @model_validator(mode="after")
    def _each_setting_is_given_once(self) -> Self:
        for key in ("limit", "missing"):
            if getattr(self.algorithm, key) is not None and getattr(self.run, key) is not None:
                raise ValueError(f"algorithm.{key} and run.{key} mean the same; keep run.{key}")
        return self

    @model_validator(mode="after")
    def _who_takes_part_has_a_section(self) -> Self:
        for name in self.run.silos or ():
            if self.silos and name not in self.silos:
                raise ValueError(f"run.silos: there is no section [silos.{name}]. {nearest(name, self.silos)}")
        return self

    @property
    def limit(self) -> float | None:
        """Seconds that a silo has for an answer; None for as long as it is there."""
        return self.algorithm.limit if self.run.limit is None else self.run.limit

    @property
    def missing(self) -> str | None:
        """What becomes of silos that get lost; None for the algorithm's default."""
        return self.algorithm.missing if self.run.missing is None else self.run.missing

    @property
    def taking_part(self) -> tuple[str, ...]:
        """The names of the silos that take part, as far as the file says."""
        return tuple(self.silos if self.run.silos is None else self.run.silos)

    @property
    def participants(self) -> dict[str, SiloSection]:
        """The sections of the silos that take part.

        Raises:
            ConfigError: there are none.
        """
        if not self.silos:
            raise missing_key(self._source.name, "silos")
        return {name: self.silos[name] for name in self.taking_part}

    @property
    def shares(self) -> dict[str, float]:
        """Each participant's share of the training rows; empty where silos are not given by share."""
        return {name: silo.share for name, silo in self.participants.items() if silo.share is not None}

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.resolve(self.output.folder or self._source.stem)

    @property
    def source(self) -> Path:
        """The file itself."""
        return self._source

    def resolve(self, path: str) -> Path:
        """A path of the file, relative to where the file lies."""
        return self._source.parent / Path(path).expanduser()

    @property
    def sample_seed(self) -> int:
        """The seed of the synthetic table: the algorithm's when it has none of its own."""
        return self.algorithm.seed or 0 if self.sample.seed is None else self.sample.seed

    def unused(self, command: Command) -> dict[str, str]:
        """What the file says and the command does not use: "table" or "table.key", and why."""
        unused = {key: why for key, why in _UNUSED[command].items() if self._says(key)}
        if command == "run" and self.run.limit is not None and self.algorithm.runtime != "processes":
            unused["run.limit"] = "silos have a time limit in processes of their own: runtime = 'processes'"
        return unused

    def _says(self, key: str) -> bool:
        """Whether the file itself gives this table or key."""
        table, _, name = {"schema": "columns"}.get(key, key).partition(".")
        return table in self.model_fields_set and (not name or name in getattr(self, table).model_fields_set)

    def overrides(self) -> dict[str, dict[str, Any]]:
        """What is declared about columns, as schema inference takes it."""
        return {name: rules.model_dump(exclude_none=True) for name, rules in self.columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """The whole file with all defaults filled in, as plain values."""
        return self.model_dump(by_alias=True, exclude_none=True)


def read(path: str | Path) -> Experiment:
    """Read and check an experiment file.

    Raises:
        StorageError: no such file.
        ConfigError: not TOML (names the line), an unknown key (names the nearest known one), a missing key, or a value
            that does not fit (names key, value and remedy).
    """
    source = existing(path)
    if source.suffix.lower() != ".toml":
        raise ConfigError("The name of an experiment file must end in .toml", source.name, "Rename it.")
    plan = read_toml(source, Experiment)
    plan._source = source
    return plan
