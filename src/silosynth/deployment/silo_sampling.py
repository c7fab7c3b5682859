"""A silo's side of drawing rows under conditions and rules: what it does with the rows that its party makes.

The coordinator's side, and who sees what: `sampling`. A rule about columns of one silo is kept by how that silo
describes its rows before training (`silosynth.encoders.ruled`); here that is undone, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from silosynth import catalog
from silosynth.core.conditions import Condition, fulfils
from silosynth.core.conversation import Party, SyntheticColumns
from silosynth.core.errors import ProtocolError, nearest
from silosynth.core.messages import Done
from silosynth.core.rules import (
    FixedCombination,
    Inequality,
    NullTogether,
    Rule,
    UniqueKey,
    at_level,
    combined,
    key_of,
)
from silosynth.core.schema import Kind, Schema, Table, below
from silosynth.core.streams import Streams
from silosynth.data.rules import bind, check_breaks, own_level, own_parts, tightened
from silosynth.deployment.protocol import (
    AcceptKeys,
    AcceptRows,
    AskCodes,
    Job,
    LevelRows,
    RowCodes,
    RowsAccepted,
    TakeRows,
    silo_groups,
)
from silosynth.deployment.sampling import check_flags, encoder_fields, read_given, read_kinds, read_shares
from silosynth.privacy.simultaneous import LEAST, MOST, Words, level_codes, order_codes, ordered
from silosynth.simulation.model import makes_of
from silosynth.simulation.ruling import COMPARED, Keeping, Ruling, described, led

ASKS = AcceptRows, AcceptKeys, AskCodes, TakeRows


def own_rules(job: Job, schema: Schema) -> list[Rule]:
    """The job's rules that are about columns of this schema alone."""
    return [rule for rule in job.rules if set(rule.named) <= set(schema.names)]


def under_own_rules(
    silo: str, job: Job, schema: Schema, table: Table, private: bool, horizontal: bool
) -> tuple[Ruling, Table, list[str]]:
    """A silo's own rules, how it describes its rows under them; its rows described so; and what its log is to say.

    Rows that break a rule end no job: that would tell others of them. Silos in groups, which divide columns in ways of
    their own, describe nothing anew.

    Raises:
        ConfigError, SchemaError: rules do not fit the columns, or contradict each other.
    """
    rules = own_rules(job, schema)
    if not rules:
        return Ruling(horizontal=horizontal), table, []
    if horizontal or catalog.public(job.config):  # others are told how rows are described
        schema = Schema(tuple(replace(column, reason="", missing=(), forms=()) for column in schema.columns))
    bound = bind([replace(rule, on_break="ignore") for rule in rules], schema, table)  # type: ignore[call-arg]
    said = check_breaks({rule: int(rule.broken(table).sum()) for rule in bound}, len(table), silo, private)
    if silo_groups(job):
        return Ruling(horizontal=horizontal), table, said
    least = catalog.fewest_rows(job.config)
    form, made = described(bound, tightened(schema, bound), table, private, horizontal, least)
    return Ruling(bound, {silo: form}, horizontal), made, said


def read_own(job: Job, part: Mapping[str, Any], ruling: Ruling, schema: Schema) -> tuple[Condition, ...]:
    """The job's conditions on a silo's own columns, by what its part of the model makes of them.

    Raises:
        ConfigError: a column is not modelled, a condition cannot be read, or no row could fulfil it.
    """
    own = [one for one in job.given if one.column in schema.names]
    for one in own:
        _check_modelled(one.column, schema)
    return read_given(own, makes_of(encoder_fields(part), ruling, schema)) if own else ()


def read_groups(job: Job, part: Mapping[str, Any], ruling: Ruling, schema: Schema) -> tuple[LevelRows, ...]:
    """The groups of rows by levels of a silo's own column, if the job has other shares of these; none otherwise.

    Raises:
        ConfigError: as `read_own`; or the shares cannot be had.
    """
    if job.shares is None or job.shares.column not in schema.names:
        return ()
    _check_modelled(job.shares.column, schema)
    return read_shares(job.shares, job.rows or 0, makes_of(encoder_fields(part), ruling, schema))


def read_rows(job: Job, part: Mapping[str, Any], ruling: Ruling, schema: Schema) -> tuple[tuple[Condition, ...], ...]:
    """What each kind of row of the job's frame says of a silo's own columns; none without a frame.

    Raises:
        ConfigError: as `read_own`.
    """
    if job.frame is None:
        return ()
    for column in job.frame.columns:
        if column in schema.names:
            _check_modelled(column, schema)
    return read_kinds(job, makes_of(encoder_fields(part), ruling, schema))


def _check_modelled(column: str, schema: Schema) -> None:
    if column not in schema.modelled:
        raise ProtocolError("A condition names a column that is modelled", column, nearest(column, schema.modelled))


class SiloSampling:
    """The rows of one sampling at a silo.

    Args:
        silo: its name.
        job: that draws.
        schema: of the silo's columns.
        ruling: its own rules.
        conditions: on its own columns.
        streams: of the whole sampling, as the silo has them.
    """

    def __init__(
        self, silo: str, job: Job, schema: Schema, ruling: Ruling, conditions: Sequence[Condition], streams: Streams
    ) -> None:
        self._silo, self._ruling, self._streams, self.conditions = silo, ruling, streams, tuple(conditions)
        self._keeping, self._keys = Keeping(ruling), [rule for rule in own_rules(job, schema) if _unique(rule)]
        self._rules, self._schema = job.rules, schema
        self._coded: list[Rule] = []  # rules across silos that codes of the last batch were sent for
        self._batches = 0  # that were drawn
        self._drawn: Table | None = None  # the last one, where it stays here
        self._taken: list[Table] = []

    def restrict(self, party: Party) -> None:
        """Have the party make no rows but those that fulfil the conditions, of columns that rules leave as they are."""
        party.restrict(led(self.conditions, self._ruling.forms.get(self._silo), self._rules))

    def shown(self, reply: SyntheticColumns) -> SyntheticColumns:
        """Columns on their way to the coordinator, as rules have them."""
        return SyntheticColumns(self._restored(reply.table))

    def accept(self, ask: AcceptRows, party: Party) -> RowsAccepted:
        """Which rows of the batch that was just drawn fulfil the conditions, and keep all rules but keys."""
        self._check_number(ask.number, self._batches)
        self._drawn = table = self._restored(party.take_kept())
        self._coded = []
        return RowsAccepted(self._keeping.keeps(table, fulfils(table, self.conditions)))

    def accept_keys(self, ask: AcceptKeys) -> RowsAccepted:
        """Which of the rows that all accept so far have a new key."""
        table = self._batch(ask.number)
        check_flags("Rows that are accepted", ask.accepted_N, len(table))
        own = self._rules[ask.rule] if 0 <= ask.rule < len(self._rules) else None
        if own not in self._keys:
            raise ProtocolError("A silo is asked about keys in its own columns", ask.rule, "Compare versions.")
        return RowsAccepted(self._keeping.new(self._keys.index(own), table, ask.accepted_N))

    def codes(self, ask: AskCodes, key: bytes) -> RowCodes:
        """Codes of the rows that all accept so far, for a rule about own columns and another silo's; once for each."""
        table = self._batch(ask.number)
        check_flags("Rows that are accepted", ask.accepted_N, len(table))
        rule = self._rules[ask.rule] if 0 <= ask.rule < len(self._rules) else None
        own = table.select([name for name in table.names if rule is not None and name in rule.named])
        if not isinstance(rule, COMPARED) or not own.columns or set(rule.named) <= {*own.names} or rule in self._coded:
            raise ProtocolError("A silo sends codes once for each rule across silos", ask.rule, "Compare versions.")
        self._coded.append(rule)
        codes = row_codes(rule, self._schema, own.take(ask.accepted_N.nonzero().flatten()), key)
        return RowCodes(torch.from_numpy(codes.view(np.int64)))

    def take(self, ask: TakeRows) -> Done:
        """Keep the rows that all silos accept."""
        table = self._batch(ask.number)
        check_flags("Rows that are accepted", ask.accepted_N, len(table))
        self._keeping.add(table, ask.accepted_N)
        self._taken.append(table.take(ask.accepted_N.nonzero().flatten()[: ask.rows]))
        self._drawn = None
        return Done()

    def take_kept(self) -> Table:
        """All rows that were taken.

        Raises:
            ProtocolError: there are none.
        """
        taken, self._taken = self._taken, []
        if not taken:
            raise ProtocolError("Synthetic columns are kept before they are taken", "none", "Synthesise rows first.")
        return below(taken)

    def _restored(self, table: Table) -> Table:
        streams, self._batches = self._streams.child(self._batches), self._batches + 1
        return self._ruling.restored({self._silo: table}, streams)[self._silo] if self._ruling.rules else table

    def _batch(self, number: int) -> Table:
        self._check_number(number, self._batches - 1)
        if self._drawn is None:
            raise ProtocolError("A silo says first which rows it accepts", "not asked", "Compare versions.")
        return self._drawn

    def _check_number(self, number: int, expected: int) -> None:
        if number != expected:
            raise ProtocolError("A silo accepts rows of the batch that it has just drawn", number, "Compare versions.")


def row_codes(rule: Rule, schema: Schema, table: Table, key: bytes) -> Words:
    """A silo's codes (rows, places) of rows of its columns, by which it is found which keep a rule across two silos.

    Args:
        rule: the job's.
        schema: of the silo's columns.
        table: rows of those that the rule is about.
        key: see `silosynth.privacy.simultaneous`.

    Raises:
        ConfigError: the rule names values that no such column holds.
    """
    match rule:
        case Inequality():
            return order_codes(_numbers(rule, schema, table), rule.high in table.names, key)
        case FixedCombination():
            keys, place_N = combined(table.columns)
            parts = [key_of(values) for values in own_parts(rule, schema, table)]
            agrees = np.array([[key == part for part in parts] for key in keys], dtype=bool)
            return level_codes(agrees.reshape(len(keys), len(parts))[place_N.numpy()], key)
        case NullTogether():
            absent = [table[name].missing for name in rule.columns if name in table.names]
            if rule.when in table.names:
                absent.append(at_level(table[rule.when], own_level(rule, schema, table)))
            flags = torch.stack(absent)
            return level_codes(torch.stack([flags.all(0), ~flags.any(0)], 1).numpy(), key)
    raise ProtocolError("Columns that stay in two silos are compared by some kinds of rules", rule.in_words)


def _numbers(rule: Inequality, schema: Schema, table: Table) -> Words:
    """The values of a silo's column, so that a row keeps the rule if the one of ``low`` is below that of ``high``.

    Instants are compared as nanoseconds, numbers in double precision: whole ones beyond 2^53 are rounded apart.
    """
    (column,) = table.columns
    upper, values_N = column.name == rule.high, column.values.numpy()
    if schema[column.name].kind != Kind.DATETIME.value:
        double_N = values_N.astype(np.float64)
        wrong_N = double_N > values_N if upper else double_N < values_N
        values_N = np.where(wrong_N, np.nextafter(double_N, -np.inf if upper else np.inf), double_N)
    numbers_N = ordered(values_N)
    numbers_N = np.where(column.missing.numpy(), np.uint64(MOST if upper else LEAST), numbers_N)
    return numbers_N + np.uint64(upper and not rule.strict)


def _unique(rule: Rule) -> bool:
    return isinstance(rule, UniqueKey)
