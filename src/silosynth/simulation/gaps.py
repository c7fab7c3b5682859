"""Missing cells filled in by a synthetic table that somebody has already, without a model and without silos."""

from __future__ import annotations

import secrets
from typing import Any

from silosynth.core.streams import Streams
from silosynth.data import frames, infer
from silosynth.runtime.progress import RichProgress
from silosynth.simulation.imputing import Imputation, completed, filled, to_impute
from silosynth.simulation.model import seed_number, whole_number


def impute(
    partial: Any, synthetic: Any, draws: int = 5, seed: int | None = None, *, progress: bool = False
) -> Imputation:
    """Fill in missing cells by a synthetic table, such as a job of a federation has published, as `Model.impute` does.

    Nobody is asked for anything, and neither table goes anywhere.

    Args:
        partial: rows of some or all columns of the synthetic table. Identifiers and pseudonyms stay as they are.
        synthetic: the rows that it is learnt from; 10 000 are enough.
        draws: how many complete tables there are to be.
        seed: the same seed fills in the same values again.
        progress: show progress.

    Raises:
        ConfigError: a column that the synthetic table does not have, or none that can be filled in; draws that are no
            positive integer.
        DataError, SchemaError: a frame or a column cannot be used.
    """
    draws, schema = whole_number("The number of draws", draws, positive=True), infer.infer(synthetic)
    streams = Streams(secrets.randbits(62) if seed is None else seed_number(seed))
    names = to_impute(frames.to_pandas(partial), schema)
    made, frame = frames.to_table(synthetic, schema).select(names), infer.without_marks(partial)
    known = frames.to_table(frame, schema.select(names))
    with RichProgress(quiet=not progress) as watch:
        found = filled(known, made, draws, (), streams.child("imputed").numpy(), watch)
    return completed(found, partial, frame, known)
