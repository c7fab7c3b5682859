"""TOML files that people write, and their grammar: one file says which tables, silos and algorithm, and what to write.

There is one grammar for ``silosynth run``, which does everything on this machine, and ``silosynth submit``, which
starts a job in a federation of organisations. A key means the same for both, and a file made for one can be given to
the other, which says what it does not use (`Experiment.unused`).

`read` checks the whole file before anything is computed: pydantic does that, and what it finds is put into our words.
An error names the file, the key and, for a key that does not exist, the nearest one that does. Paths of inputs and of
the output folder are relative to the file itself. Federations and silos' settings are sections of the same make.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from typing_extensions import Self

from silosynth import catalog
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.files import REPORTS, existing
from silosynth.core.rules import Rule, read_rules

if TYPE_CHECKING:
    from silosynth.data.given import Texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Text = Annotated[str, Field(min_length=1)]
M = TypeVar("M", bound=BaseModel)


class FileSection(BaseModel):
    """A table of a TOML file: frozen, no unknown keys, no conversions between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_toml(path: Path, model: type[M]) -> M:
    """Read and check a TOML file.

    Raises:
        StorageError: no such file.
        ConfigError: it is not TOML (names the line) or not UTF-8; it has an unknown key (names the nearest known one),
            lacks a key, or a value does not fit (names key, value and remedy).
    """
    source = existing(path)
    try:
        return model.model_validate(tomllib.loads(source.read_text(encoding="utf-8-sig")))
    except ValidationError as error:
        raise _explained(source.name, error, model) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source.name} must be valid TOML: {error}", remedy="See https://toml.io/en.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source.name} must be a text file in UTF-8", remedy="Save it as UTF-8.") from None


def missing_key(file: str, key: str) -> ConfigError:
    """The error that a file lacks a key."""
    return ConfigError(f"{file}: {key} is missing", remedy=_EXAMPLES.get(key, f"Add {key!r}."))


def _explained(name: str, error: ValidationError, root: type[BaseModel]) -> ConfigError:
    """The first problem as the error itself, the others as lines of its remedy."""
    first, *others = _either(_problem(dict(details), root) for details in error.errors(include_url=False))
    rule, value, remedy = first
    more = "".join(f"\n{_config_error(*other)}" for other in others)
    return _config_error(f"{name}: {rule}", value, remedy + more)


def _either(problems: Iterable[tuple[str, tuple[Any, ...], str]]) -> list[tuple[str, tuple[Any, ...], str]]:
    """Problems, those of a value that fits none of several types as one."""
    found: dict[str, tuple[str, tuple[Any, ...], str]] = {}
    for rule, value, remedy in problems:
        key, _, wanted = rule.partition(" must be ")
        if wanted and key in found and found[key][1] == value:
            before, _, other = found[key]
            found[key] = f"{before}, or {wanted}", value, f"{other} {remedy}".strip()
        else:
            found[key if wanted else rule] = rule, value, remedy
    return list(found.values())


def _config_error(rule: str, value: tuple[Any, ...], remedy: str) -> ConfigError:
    return ConfigError(rule, value[0], remedy) if value else ConfigError(rule, remedy=remedy)


def _problem(details: Mapping[str, Any], root: type[BaseModel]) -> tuple[str, tuple[Any, ...], str]:
    """Rule, value (if there is one) and remedy of one of pydantic's findings."""
    where, kind, limits = details["loc"], details["type"], details.get("ctx", {})
    key, value = ".".join(str(step) for step in where if not _TYPE.fullmatch(str(step))), details["input"]
    if kind == "extra_forbidden":
        known = _by_name(_section(root, where[:-1]))
        return f"{key} is not a known key", (where[-1],), _MOVED.get(key) or nearest(str(where[-1]), known)
    if kind == "missing" or (key == "silos" and value == {}):
        return f"{key} is missing", (), _EXAMPLES.get(key, f"Add {where[-1]!r}.")
    if kind == "literal_error":
        words = re.findall("'([^']+)'", limits["expected"])
        return f"{key} must be one of {', '.join(words)}", (value,), nearest(str(value), words)
    if kind == "value_error":
        shown = () if isinstance(value, dict) else (value,)
        return (f"{key}: " if key else "") + str(limits["error"]), shown, _EXAMPLES.get(key.partition(".")[0], "")
    return f"{key} must be {_wanted(kind, limits)}", (value,), _REMEDIES.get(kind, "")


_EXAMPLES = {
    "data": 'Write for instance path = "table.csv".',
    "silos": 'Add one section per silo, such as [silos.bank] with columns = ["age", "income"], or share = 0.2.',
    "split": "Keep the one that you mean.",
}

_MOVED = dict.fromkeys(("algorithm.limit", "algorithm.missing"), "Write it under [run].")  # of earlier releases

_TYPE = re.compile(r"constrained-\w+|(dict|list|literal)\[.*\]")  # pydantic's names of the types of a value of several

_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a section",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a section",
    "string_type": "text",
    "finite_number": "a finite number",
    "string_too_short": "a text that is not empty",
}

_REMEDIES = {
    "bool_type": "Write true or false, without quotes.",
    "dict_type": "Write it as a section: its name in brackets, then one key = value per line.",
    "float_type": "Write a number such as 0.2, without quotes.",
    "int_from_float": "Write a number without a decimal point.",
    "int_type": "Write a whole number, without quotes or decimal point.",
    "list_type": 'Write a list such as ["age", "income"].',
    "model_type": "Write it as a section: its name in brackets, then one key = value per line.",
    "string_type": 'Put it in quotes: "…".',
}

_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "min_length": "at least of length"}


def _wanted(kind: str, limits: Mapping[str, Any]) -> str:
    bounds = [f"{words} {limits[name]}" for name, words in _LIMITS.items() if name in limits]
    return _KINDS.get(kind) or " and ".join(bounds) or kind.replace("_", " ")


def _section(root: type[BaseModel], where: Sequence[str | int]) -> type[BaseModel]:
    """The section class at a key path; names of silos and columns are passed over."""
    section = root
    for step in where:
        section = next(iter(_sections(_by_name(section).get(str(step)))), section)
    return section


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for arg in get_args(annotation) for kind in _sections(arg)]


def _by_name(section: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in section.model_fields.items()}


KindName = Literal["continuous", "integer", "categorical", "boolean", "datetime", "mixed", "identifier", "pseudonym"]
Command = Literal["run", "submit"]

_UNUSED: Mapping[Command, Mapping[str, str]] = {
    "run": {
        "align": "the silos' tables hold the same rows in the same order",
        "run.name": "results go to the output folder",
        "run.transport": "all silos are on this machine",
        "run.patience": "all silos are on this machine",
        "judge": "the report compares all rows, which are on this machine; see silosynth.judge",
    },
    "submit": {
        "data": "each silo reads its own table, which its silo.toml names",
        "silos": "it says who takes part, and in which group: each silo reads its own table, which its silo.toml names",
        "groups": "each silo reads its own table, which its silo.toml names",
        "schema": "each silo declares its own columns in its silo.toml",
        "algorithm.runtime": "silos run where they are",
        "split.seed": "silos hold out rows by a secret of their own",
        "split.path": "silos hold their own rows",
        "sample.seed": "the rows are the first that the model draws",
        "sample.given": "silosynth draw JOB --experiment FILE draws such rows, once the job has trained",
        "sample.balance": "silosynth draw JOB --experiment FILE draws such rows, once the job has trained",
        "sample.shift": "silosynth draw JOB --experiment FILE draws such rows, once the job has trained",
        "sample.path": "silosynth fetch writes the table",
        "sample.raw_text": "silosynth fetch has --raw-text",
        "evaluate": "silosynth fetch --report writes a report; [judge] has it compare columns across silos",
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


class CsvKeys(FileSection):
    """How a CSV file is written, where it does not show it: see `silosynth.data.csvfiles.CsvFormat`."""

    separator: Text | None = None
    decimal: Literal[".", ","] | None = None
    encoding: Text | None = None
    missing: list[str] | None = None
    """Texts that stand for missing values, in place of the usual ones."""

    @property
    def csv(self) -> dict[str, Any]:
        """The keys that are given, as `silosynth.data.sources.read` takes them."""
        return self.model_dump(include=set(CsvKeys.model_fields), exclude_none=True)


class DataSection(CsvKeys):
    """``[data]``: the table that the silos' columns or rows are taken from."""

    path: Text | None = None
    """One table with the columns or rows of all silos: a CSV, Parquet, Arrow or Excel file."""
    dataset: Text | None = None
    """Instead of a path: the name of a table that ``silosynth datasets list`` shows."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            raise ValueError("exactly one of 'path' and 'dataset' must be given")
        return self


class SiloSection(CsvKeys):
    """``[silos.NAME]``: the columns or the rows that one organisation holds."""

    path: Text | None = None
    """The silo's own table; without it columns or rows come from ``[data]``."""
    columns: Annotated[list[Text], Field(min_length=1)] | None = None
    """Its columns; with a path of its own: all of that table when left out."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Its share of the training rows, of all columns; drawn at random, and no other silo's."""
    group: Text | None = None
    """The group of silos that hold the same rows, and divide all columns; other groups hold other rows."""

    @model_validator(mode="after")
    def _has_columns_or_rows(self) -> Self:
        if self.path is None and self.columns is None and self.share is None and self.group is None:
            raise ValueError("'columns', 'path' or 'share' must be given")
        if self.share is not None and (self.path is not None or self.columns is not None):
            raise ValueError("'share' deals out rows of the [data] table; neither 'path' nor 'columns' goes with it")
        if self.share is not None and self.group is not None:
            raise ValueError(f"a group's rows are dealt out by a 'share' in [groups.{self.group}]")
        if self.csv and self.path is None:
            raise ValueError(f"{', '.join(self.csv)} belongs to a 'path' of the silo's own, or into [data]")
        return self


class GroupSection(FileSection):
    """``[groups.NAME]``: the rows that a group of silos holds, of one table."""

    share: Annotated[float, Field(gt=0, le=1)]
    """Its share of the training rows; drawn at random, and no other group's."""


class ColumnRules(FileSection):
    """``[schema.COLUMN]``: what is declared about a column instead of inferred."""

    kind: KindName | None = None
    decimals: int | None = None
    low: Bound = None
    high: Bound = None
    format: Text | None = None
    """How numbers, dates or pseudonyms are written as text: "%d.%m.%Y", "#,##0.00 €", "Aaaa-0000"."""
    decimal: Literal[".", ","] | None = None
    """The decimal mark of numbers that are written as text."""
    missing: list[str | int | float] | None = None
    """What stands for missing values in this column."""
    levels: list[str | int | float] | None = None
    """Of categories: all that there may be. They count as public."""


class AlgorithmSection(FileSection):
    """``[algorithm]``: what is fitted, and how."""

    name: Text = "silofuse"
    preset: Text = "balanced"
    seed: Annotated[int, Field(ge=0)] | None = None
    """Of all randomness. In a federation silos refuse it unless their policy allows it: leave it out."""
    device: Text = "auto"
    """Where the coordinator computes. Silos on this machine use the same; those of a federation choose theirs."""
    threads: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    """On which the coordinator computes. With "auto" batches of SiloFuse's generator share as many as are fastest, and
    results are those of 1; those of another number may differ in the last bits."""
    runtime: Literal["inprocess", "processes"] = "inprocess"
    options: dict[str, Any] = Field(default_factory=dict)
    """Single settings that differ from the preset's."""


class SplitSection(FileSection):
    """``[split]``: rows that the generator never sees, for judging it; and a sample, where rows are very many."""

    holdout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the rows to hold out; 0.2 when neither this nor a path is given, 0 for none. In a federation in whole
    twentieths, of the rows that silos have in common, and none when left out."""
    seed: Annotated[int, Field(ge=0)] = 0
    path: Text | None = None
    """Instead of a share: a table of its own with the columns of all silos."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all rows to take up, drawn at random; rows are held out of these. In a federation a half, a fifth, a
    tenth and so on, the same rows in all silos."""

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
    """Of the rows; when left out they are the first that the model draws: what `Model.sample` gives without a seed."""
    path: Annotated[str, _ending(".csv", ".parquet")] = "synthetic.csv"
    """A name in the output folder, ending in .csv or .parquet."""
    given: dict[str, Any] | list[dict[str, Any]] | Text = {}
    """Conditions that all rows fulfil, as in { health = "poor", age = { low = 60, high = 80 } }; see `Model.sample`. Or
    of each row, in tables [[sample.given]], or in a file, relative to this one (`silosynth.data.given.rows_in`)."""
    balance: Text | None = None
    """A column of whose levels there are equally many rows."""
    shift: dict[str, Any] = {}
    """Other shares of a column's levels, the rest as learnt, as in { smoker = { yes = 0.4 } }."""
    raw_text: bool = False
    """Whether a CSV file has texts that a spreadsheet would run as formulas as they are, with no apostrophe before."""


class EvaluateSection(FileSection):
    """``[evaluate]``: the report."""

    target: Text | None = None
    """The column that classifiers or regressions are trained to predict."""
    report: Annotated[str, _ending(*REPORTS)] = "report.html"
    """A name in the output folder."""


class JudgeSection(FileSection):
    """``[judge]``: in a federation, a report across silos after training, from tables that silos count together."""

    opening: Literal["noised", "exact", "figures"] = "noised"
    """How these tables open, or whether only distances do. Silos' policies say which they allow."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """What all noised tables together cost, for each row."""
    delta: Annotated[float, Field(gt=0, lt=0.5)] = 1e-6
    target: Text | None = None
    """The column to predict."""
    levels: Annotated[int, Field(ge=2)] | None = None
    """Most levels of a column; 20 when left out, and 8 with noise."""
    dealer: str = ""
    """A silo that takes part without rows, and deals in place of the coordinator."""
    rows: Annotated[int, Field(ge=1)] | None = None
    """No silo holds more rows; twice the rows of the synthetic table when left out."""


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
    groups: dict[str, GroupSection] = Field(default_factory=dict)
    columns: dict[str, ColumnRules] = Field(default_factory=dict, alias="schema")
    rules: list[dict[str, Any]] = Field(default_factory=list)
    algorithm: AlgorithmSection = AlgorithmSection()
    align: AlignSection = AlignSection()
    run: RunSection = RunSection()
    split: SplitSection = SplitSection()
    sample: SampleSection = SampleSection()
    evaluate: EvaluateSection = EvaluateSection()
    judge: JudgeSection | None = None
    output: OutputSection = OutputSection()
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _columns_have_a_table(self) -> Self:
        bare = [name for name, silo in self.silos.items() if silo.path is None]
        said = [name for name in bare if self.silos[name].columns is not None or self.silos[name].share is not None]
        if said and self.data is None:
            raise ValueError(f"silo {said[0]!r} has no 'path', so a [data] table must be given")
        if self.data is not None and self.silos and not bare:
            raise ValueError("[data] is given although every silo has a 'path' of its own")
        return self

    @model_validator(mode="after")
    def _rules_can_be_read(self) -> Self:
        for place, rule in enumerate(self.rules, 1):
            try:
                read_rules([rule])
            except ConfigError as error:
                raise ValueError(f"[[rules]], number {place}: {error}") from None
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
    def _groups_are_whole(self) -> Self:
        named = {name: silo.group for name, silo in self.silos.items()}
        if bare := [name for name, group in named.items() if group is None and any(named.values())]:
            raise ValueError(f"either every silo has a 'group' or none: silo {bare[0]!r} has none")
        if unknown := [group for group in self.groups if group not in named.values()]:
            known = nearest(unknown[0], [group for group in named.values() if group])
            raise ValueError(f"groups.{unknown[0]}: no silo is in this group. {known}")
        dealt = self.data is not None and any(named.values())
        if lacking := [group for group in named.values() if group and dealt is not (group in self.groups)]:
            where = f"[groups.{lacking[0]}] has a 'share' of the rows of [data]"
            raise ValueError(f"{where}, if silos have no 'path' of their own, and else there is no such section")
        if math.fsum(group.share for group in self.groups.values()) > 1 + 1e-9:
            raise ValueError("the groups' shares must add up to at most 1")
        return self

    @model_validator(mode="after")
    def _who_takes_part_has_a_section(self) -> Self:
        for name in self.run.silos or ():
            if self.silos and name not in self.silos:
                raise ValueError(f"run.silos: there is no section [silos.{name}]. {nearest(name, self.silos)}")
        return self

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
    def grouped(self) -> dict[str, list[str]]:
        """The participants of each group of silos; empty where silos are in no groups."""
        found: dict[str, list[str]] = {}
        for name, silo in self.participants.items() if self.silos else ():
            if silo.group is not None:
                found.setdefault(silo.group, []).append(name)
        return found

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

    def unused(self, command: Command) -> dict[str, str]:
        """What the file says and the command does not use: "table" or "table.key", and why."""
        unused = {key: why for key, why in _UNUSED[command].items() if self._says(key)}
        if command == "run" and self.run.limit is not None and self.algorithm.runtime != "processes":
            unused["run.limit"] = "silos have a time limit in processes of their own: runtime = 'processes'"
        entry = catalog.ALGORITHMS.get(self.algorithm.name)
        rows = entry is not None and entry.divided(self.algorithm.options.get("horizontal") is True).horizontal
        if command == "submit" and self._says("align") and rows:
            unused["align"] = f"silos of {self.algorithm.name} hold different rows: there are none to link"
        return unused

    def _says(self, key: str) -> bool:
        """Whether the file itself gives this table or key."""
        table, _, name = {"schema": "columns"}.get(key, key).partition(".")
        return table in self.model_fields_set and (not name or name in getattr(self, table).model_fields_set)

    def overrides(self) -> dict[str, dict[str, Any]]:
        """What is declared about columns, as schema inference takes it."""
        return {name: rules.model_dump(exclude_none=True) for name, rules in self.columns.items()}

    def ruled(self) -> tuple[Rule, ...]:
        """The rules; files of combinations lie relative to the file itself."""
        files = [rule | ({"file": str(self.resolve(rule["file"]))} if "file" in rule else {}) for rule in self.rules]
        return read_rules(files)

    def given_rows(self) -> list[Texts]:
        """The conditions of each row that is drawn, as ``--given`` takes them; none where all rows have the same.

        Raises:
            SilosynthError: a file of them cannot be read, see `silosynth.data.given.rows_in`.
        """
        from silosynth.data.given import in_json, rows_in

        given = self.sample.given
        if isinstance(given, str):
            return rows_in(self.resolve(given))
        return [in_json(row) for row in given] if isinstance(given, list) else []

    def to_dict(self) -> dict[str, Any]:
        """The whole file with all defaults filled in, as plain values."""
        return self.model_dump(by_alias=True, exclude_none=True)


def restored(content: Mapping[str, Any], source: Path) -> Experiment:
    """The experiment whose `Experiment.to_dict` is ``content``, as if read from the file ``source``."""
    plan = Experiment.model_validate(content)
    plan._source = source
    return plan


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
