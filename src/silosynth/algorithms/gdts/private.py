"""What a silo summarises of its columns before training, with noise (GDTS, section II-B, step 1).

Categories: the noised count of each level. A level's name is a release of its own, since it occurs only where a row
holds it: with ``delta`` above zero, a name is released from a noised count upwards that a single row reaches with that
probability at most. The remaining rows, by the noised row count, follow from that at no further cost: they hold *rare*
levels. That booleans are false and true is no secret, nor that a column can have missing values: these need no
threshold. Where rare or missing rows are not clearly more than noise in all silos together, merging drops them.
With ``delta`` 0 all names are released (the paper). Noise on the counts then protects nobody whose category is named
for them alone: no event is claimed, and the ledger shows the message as un-noised.

Numbers: an encoder fitted to the silo's own rows, without noise (the paper), with the shares of its levels in
thousandths; or a noised histogram between declared bounds, from which an encoder is made.

Shapes: L levels of a column.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.algorithms.gdts.protocol import ExactSummaries, NoisedSummaries
from silosynth.core.errors import DataError
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.encoders.federated import Summary, is_number, of_bins, of_counts, summarise
from silosynth.encoders.table import can_be_missing
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import noised_counts, noised_histogram, noised_levels

Summaries = NoisedSummaries | ExactSummaries


def categories(table: Table, schema: Schema, config: GDTSConfig, rng: np.random.Generator) -> Summaries:
    """Summaries of the columns that are not numbers, and the row count."""
    columns = [column for column in table.columns if not is_number(column, schema[column.name])]
    if math.isinf(config.epsilon):
        exact = (summarise(column, schema[column.name], config.model.encoders, rng) for column in columns)
        return ExactSummaries(tuple(exact), len(table))
    count, event = noised_counts(torch.tensor([len(table)]), config.epsilon, "the number of rows", rng)
    rows = max(1, int(count[0]))
    noised = [_noised_category(column, rows, config, rng) for column in columns]
    events = tuple(e for e in (event, *(event for _, event in noised)) if e is not None)
    return NoisedSummaries(tuple(summary for summary, _ in noised), rows, events if config.delta else ())


def numbers(table: Table, schema: Schema, config: GDTSConfig, rng: np.random.Generator) -> Summaries:
    """Summaries of the columns that are numbers."""
    columns = [column for column in table.columns if is_number(column, schema[column.name])]
    if config.numbers == "exact":
        exact = (summarise(column, schema[column.name], config.model.encoders, rng) for column in columns)
        return ExactSummaries(tuple(exact), 0)
    noised = [_noised_number(column, schema[column.name], config, rng) for column in columns]
    return NoisedSummaries(tuple(s for s, _ in noised), 0, tuple(event for _, events in noised for event in events))


def _noised_category(
    column: Column, rows: int, config: GDTSConfig, rng: np.random.Generator
) -> tuple[Summary, Event | None]:
    """Counts of levels, missing among them, in one release."""
    levels, absent = column.levels or (), len(column.levels or ())
    boolean = bool(levels) and all(isinstance(level, bool) for level in levels)
    codes = torch.where(column.missing, absent, column.values)
    counts, what = torch.bincount(codes, minlength=absent + 1), f"counts of the levels of column {column.name!r}"
    missing, _ = noised_counts(counts[absent:], config.epsilon, what, rng)
    # The levels' event covers the missing count too: a row is on one level, or missing.
    places: tuple[int, ...] = tuple(range(absent))
    if config.delta and not boolean:
        places, counts, event = noised_levels(places, counts[:absent], config.epsilon, config.delta, what, rng)
    else:
        counts, event = noised_counts(counts[:absent], config.epsilon, what, rng)
    count_of = {levels[place]: count for place, count in zip(places, counts.tolist(), strict=True)}
    if boolean:  # the more frequent value, and the other one where a row seems to hold it
        most = max(count_of, key=lambda level: count_of[level])
        count_of = {level: count for level, count in count_of.items() if count > 0 or level == most}
    optional = can_be_missing(column) if config.delta else bool(column.missing.any())
    n_missing = int(missing[0]) if optional else None
    n_rare = rows - sum(count_of.values()) - (n_missing or 0) if config.delta and not boolean else None
    return of_counts(column, count_of, n_rare, n_missing), event


def _noised_number(
    column: Column, schema: ColumnSchema, config: GDTSConfig, rng: np.random.Generator
) -> tuple[Summary, list[Event]]:
    """A histogram between declared bounds, and the count of missing values."""
    if schema.low is None or schema.high is None or not schema.low < schema.high:
        raise DataError(
            f"A noised histogram of column {column.name!r} needs declared bounds, as those of its rows would leak",
            (schema.low, schema.high),
            f'Declare them in every silo, schema={{"{column.name}": {{"low": …, "high": …}}}}, or set numbers="exact".',
        )
    values, what = column.values[~column.missing].double(), f"a histogram of column {column.name!r}"
    counts, event = noised_histogram(values, schema.low, schema.high, config.bins, config.epsilon, what, rng)
    if not can_be_missing(column):
        return of_bins(column, schema, counts, None), [event] if event else []
    what = f"missing values of column {column.name!r}"
    count, second = noised_counts(column.missing.sum()[None], config.epsilon, what, rng)
    clear = 4 * math.sqrt(2) / config.epsilon  # about 4 standard deviations of the noise
    missing = int(count[0]) if int(count[0]) > clear else None
    return of_bins(column, schema, counts, missing), [e for e in (event, second) if e is not None]
