"""Experiment files: one TOML file says which tables, which silos, which algorithm, and what to write where.

`read` checks the whole file before anything is computed. An error names the file, the key and, for a key that does not
exist, the nearest one that does. Paths of inputs and of the output folder are relative to the file itself.
"""

from __future__ import annotations

import math
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from typing_extensions import Self

from silosynth.core.errors import ConfigError
from silosynth.core.files import existing
from silosynth.experiment.explain import explained

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KindName = Literal["continuous", "integer", "categorical", "boolean", "datetime", "mixed", "identifier"]
Text = Annotated[str, Field(min_length=1)]


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


class Section(BaseModel):
    """A table of the file: frozen, no unknown keys, no conversions between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Section):
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


class Silo(Section):
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


class ColumnRules(Section):
    """``[schema.COLUMN]``: what is declared about a column instead of inferred."""

    kind: KindName | None = None
    decimals: int | None = None
    low: Bound = None
    high: Bound = None


class Algorithm(Section):
    """``[algorithm]``: what is fitted, how, and where it runs."""

    name: Text = "silofuse"
    preset: Text = "balanced"
    seed: Annotated[int, Field(ge=0)] | None = None
    device: Text = "auto"
    runtime: Literal["inprocess", "processes"] = "inprocess"
    limit: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a silo has for an answer, with runtime "processes"; as long as it lives when left out."""
    missing: Text | None = None
    """What becomes of silos that get lost: see `silosynth.fit`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Single settings that differ from the preset's."""

    @model_validator(mode="after")
    def _limit_is_for_processes(self) -> Self:
        if self.limit is not None and self.runtime != "processes":
            raise ValueError("'limit' is for silos in processes of their own: it goes with runtime = 'processes'")
        return self


class Split(Section):
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


class Sample(Section):
    """``[sample]``: the synthetic table."""

    rows: Annotated[int, Field(ge=1)] | None = None
    """As many as there are training rows when left out."""
    seed: Annotated[int, Field(ge=0)] | None = None
    path: Annotated[str, _ending(".csv", ".parquet")] = "synthetic.csv"
    """A name in the output folder, ending in .csv or .parquet."""


class Evaluate(Section):
    """``[evaluate]``: the report."""

    target: Text | None = None
    """The column that classifiers or regressions are trained to predict."""
    report: Annotated[str, _ending(".html", ".json")] = "report.html"
    """A name in the output folder."""


class Output(Section):
    """``[output]``: where results go."""

    folder: Text | None = None
    """The file's own name without ``.toml`` when left out."""


class Experiment(Section):
    """A checked experiment file."""

    data: Data | None = None
    silos: Annotated[dict[str, Silo], Field(min_length=1)]
    columns: dict[str, ColumnRules] = Field(default_factory=dict, alias="schema")
    algorithm: Algorithm = Algorithm()
    split: Split = Split()
    sample: Sample = Sample()
    evaluate: Evaluate = Evaluate()
    output: Output = Output()
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _columns_have_a_table(self) -> Self:
        bare = [name for name, silo in self.silos.items() if silo.path is None]
        if bare and self.data is None:
            raise ValueError(f"silo {bare[0]!r} has no 'path', so a [data] table must be given")
        if self.data is not None and not bare:
            raise ValueError("[data] is given although every silo has a 'path' of its own")
        return self

    @model_validator(mode="after")
    def _shares_deal_out_the_rows(self) -> Self:
        bare = [name for name, silo in self.silos.items() if silo.share is None]
        if self.shares and bare:
            raise ValueError(f"either every silo has a 'share' or none: silo {bare[0]!r} has none")
        if math.fsum(self.shares.values()) > 1 + 1e-9:
            raise ValueError(f"the silos' shares must add up to at most 1, not {math.fsum(self.shares.values()):g}")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """Each silo's share of the training rows; empty where silos are not given by share."""
        return {name: silo.share for name, silo in self.silos.items() if silo.share is not None}

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.resolve(self.output.folder or self._source.stem)

    def resolve(self, path: str) -> Path:
        """A path of the file, relative to where the file lies."""
        return self._source.parent / Path(path).expanduser()

    @property
    def sample_seed(self) -> int:
        """The seed of the synthetic table: the algorithm's when it has none of its own."""
        return self.algorithm.seed or 0 if self.sample.seed is None else self.sample.seed

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
    try:
        plan = Experiment.model_validate(parse_toml(source))
        plan._source = source
        return plan
    except ValidationError as error:
        raise explained(source.name, error, Experiment) from None


def parse_toml(source: Path) -> dict[str, Any]:
    """The contents of a TOML file.

    Raises:
        StorageError: no such file.
        ConfigError: it is not TOML (names the line), or not UTF-8.
    """
    source = existing(source)
    try:
        return tomllib.loads(source.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source.name} must be valid TOML: {error}", remedy="See https://toml.io/en.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source.name} must be a text file in UTF-8", remedy="Save it as UTF-8.") from None
