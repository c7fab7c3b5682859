"""What a silo tells of its columns before training, with noise (GDTS, section II-B, step 1).

Categories: the noised count of each level. A level's name is a release of its own, since it is told only where a row
holds it: with ``delta`` above zero, names are told from a noised count upwards, that a single row reaches with that
probability at most. How many rows are left, by the noised number of all, follows from that and costs nothing more: they
hold *rare* levels. That there are false and true is no secret, nor that a column can have missing values: these take no
threshold. Where rare or missing rows are not clearly more than noise in all silos together, merging drops them.
With ``delta`` 0 all names are told (the paper). Then noise on the counts protects nobody whose category is named for
them alone: no event is claimed, and the ledger shows the message as un-noised.

Numbers: an encoder fitted to the silo's own rows, without noise (the paper), with the shares of its levels in
thousandths; or a noised histogram between declared bounds, from which encoders are fitted all the same.

Shapes: L levels of a column.
"""

from __future__ import annotations

import math
import re

import numpy as np
import torch

from silosynth.algorithms.gdts.messages import ExactSummaries, GDTSConfig, NoisedSummaries
from silosynth.core.errors import DataError
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.encoders.federated import Summary, is_number, of_bins, of_counts, summarise
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import noised_counts, noised_histogram, noised_levels

Summaries = NoisedSummaries | ExactSummaries


def categories(table: Table, schema: Schema, config: GDTSConfig, rng: np.random.Generator) -> Summaries:
    """Summaries of the columns that are not numbers, and the number of rows."""
    columns = [column for column in table.columns if not is_number(column, schema[column.name])]
    if math.isinf(config.epsilon):
        exact = (summarise(column, schema[column.name], config.model.encoders, rng) for column in columns)
        return ExactSummaries(tuple(exact), len(table))
    counted, event = noised_counts(torch.tensor([len(table)]), config.epsilon, "the number of rows", rng)
    rows = max(1, int(counted[0]))
    told = [_noised_category(column, rows, config, rng) for column in columns]
    events = [event, *(event for _, event in told)]
    claimed = tuple(e for e in events if e is not None) if config.delta else ()
    return NoisedSummaries(tuple(summary for summary, _ in told), rows, claimed)


def numbers(table: Table, schema: Schema, config: GDTSConfig, rng: np.random.Generator) -> Summaries:
    """Summaries of the columns that are numbers."""
    columns = [column for column in table.columns if is_number(column, schema[column.name])]
    if config.numbers == "exact":
        encoders = config.model.encoders
        return ExactSummaries(tuple(summarise(column, schema[column.name], encoders, rng) for column in columns), 0)
    told = [_noised_number(column, schema[column.name], config, rng) for column in columns]
    return NoisedSummaries(tuple(s for s, _ in told), 0, tuple(event for _, events in told for event in events))


def _noised_category(
    column: Column, rows: int, config: GDTSConfig, rng: np.random.Generator
) -> tuple[Summary, Event | None]:
    """Counts of levels, of which missing is one, in one release."""
    levels, absent = column.levels or (), len(column.levels or ())
    truth = bool(levels) and all(isinstance(level, bool) for level in levels)
    codes = torch.where(column.missing, absent, column.values)
    counts, what = torch.bincount(codes, minlength=absent + 1), f"counts of the levels of column {column.name!r}"
    missing, _ = noised_counts(counts[absent:], config.epsilon, what, rng)  # the levels' event covers it: a row is on
    places: tuple[int, ...] = tuple(range(absent))  # one of them, or missing
    if config.delta and not truth:  # that there are false and true is no secret
        places, counts, event = noised_levels(places, counts[:absent], config.epsilon, config.delta, what, rng)
    else:
        counts, event = noised_counts(counts[:absent], config.epsilon, what, rng)
    of = dict(zip(places, counts.tolist(), strict=True))
    if truth:  # at least the one that most rows hold; the other where there seems to be a row
        most = max(of, key=lambda place: of[place])
        of = {place: count for place, count in of.items() if count > 0 or place == most}
    named = {levels[place]: count for place, count in of.items()}
    optional = _optional(column) if config.delta else bool(column.missing.any())
    away = int(missing[0]) if optional else None
    rest = rows - sum(of.values()) - (away or 0) if config.delta and not truth else None
    return of_counts(column, named, rest, away), event


def _noised_number(
    column: Column, schema: ColumnSchema, config: GDTSConfig, rng: np.random.Generator
) -> tuple[Summary, list[Event]]:
    """A histogram between declared bounds, and the count of missing values."""
    if schema.low is None or schema.high is None or not schema.low < schema.high:
        raise DataError(
            f"A noised histogram of column {column.name!r} lies between declared bounds, not those of its rows",
            (schema.low, schema.high),
            f'Declare them in every silo, schema={{"{column.name}": {{"low": …, "high": …}}}}, or set numbers="exact".',
        )
    values, what = column.values[~column.missing].double(), f"a histogram of column {column.name!r}"
    counts, event = noised_histogram(values, schema.low, schema.high, config.bins, config.epsilon, what, rng)
    if not _optional(column):
        return of_bins(column, schema, counts, None), [event] if event else []
    what = f"missing values of column {column.name!r}"
    absent, second = noised_counts(column.missing.sum()[None], config.epsilon, what, rng)
    missing = int(absent[0]) if int(absent[0]) > _clearly(1, config) else None
    return of_bins(column, schema, counts, missing), [e for e in (event, second) if e is not None]


def _optional(column: Column) -> bool:
    """Whether the column's dtype holds missing values; where it holds none, that is known to everybody."""
    return re.fullmatch(r"bool|u?int\d+", column.dtype) is None


def _clearly(counts: int, config: GDTSConfig) -> float:
    """What a sum of so many noised counts exceeds where it is clearly more than noise: 4 standard deviations, about."""
    return 4 * math.sqrt(2 * counts) / config.epsilon
