"""Numbers as GAN papers encode them: normalised within Gaussian modes (CTGAN), or standardised (VFLGAN).

*Mode-specific normalisation*: CTGAN (Xu et al. 2019, section 4.2) for the modes, CTAB-GAN (Zhao et al. 2021, section
3.1) for mixed columns, whose special values are levels of their own beside the modes. Step ↔ function:

1. fit a variational mixture, which finds the number of modes by itself   `fit_mixture`
2. the probability that a value comes from each of the modes              `posterior`
3. draw one mode, and normalise the value within it                       `ModeEncoder.encode`

Where we differ: a value further than 4 standard deviations from its mode is clipped (the papers leave it out of the
generator's reach); a mode held by fewer than ``min_count`` rows is dropped, so that none shows a single row; before the
mixture is fitted, the outermost ``min_count - 1`` values are clamped, for they can form no mode but would stretch the
scale.

*Standardised numbers* (VFLGAN, equation (22)): (value - mean) / standard deviation, of all rows and un-noised. Missing
is a level of its own, which the paper does without. As many numbers as in the fitted rows may be on a declared bound,
which is no level: of what a generator makes beyond it, the furthest are taken for these. A column without spread, or
that is not numeric, is encoded as in `silosynth.encoders.column`.

Shapes: n rows, K modes.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np
import torch
from sklearn.mixture import BayesianGaussianMixture

from silosynth.core.messages import Fraction, Positive
from silosynth.core.schema import Column, ColumnSchema, Kind
from silosynth.encoders import column as base

SCORE_LIMIT = 0.99  # within reach of a tanh
_CONCENTRATION = 1e-3  # of the Dirichlet process; small values remove superfluous modes
_STEPS = 100  # maximum of variational inference
_TOLERANCE = 1e-4  # nats per row: stop when a step gains less
_LEAST_SPREAD = 1e-3  # least standard deviation of a mode, relative to the column's
_FAR = 1e150  # standard deviations; its square is still finite

Mixture = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # weights, means, standard deviations: each (K,) float64


class ModeConfig(base.EncoderConfig):
    """Options of encoders with Gaussian modes."""

    min_count: Positive[int] = 5
    modes: Positive[int] = 10  # most Gaussian modes of a column
    least_weight: Fraction[float] = 0.005  # modes with no more weight are dropped
    spread: Positive[float] = 4.0  # standard deviations from the mean of a mode to a score of 1
    fit_rows: Positive[int] = 20_000  # most rows that the mixture is fitted on
    sample_mode: bool = True  # draw a value's mode from its posterior (paper), or take the most probable
    atoms: Literal["mixed", "all", "none"] = "mixed"  # numeric columns that have special values beside their modes


class ModeEncoder(base.AtomEncoder):
    """Numbers and instants: the mode as a level, the position within it as a score in [-0.99, 0.99].

    Levels: the modes, then ``atoms``, then missing (if any). The score is 0 where the level is not a mode. Means are
    counted from the origin, which is 0 unless the column's integers exceed what float64 holds exactly.
    """

    weights: torch.Tensor  # (K,) float64, sum 1; K is 0 without a continuous part
    means: torch.Tensor  # (K,) float64, increasing
    stds: torch.Tensor  # (K,) float64, above 0
    spread: float  # standard deviations to a score of 1
    sample_mode: bool
    declared: tuple[str, ...]  # ends of the range, "low" and "high", that a user declared

    @property
    def lines(self) -> int:
        """K, the number of modes."""
        return len(self.weights)

    def encode(self, column: Column, rng: np.random.Generator) -> base.Codes:
        """Codes of a column; ``rng`` draws the modes."""
        levels, on_line = self._special(column)
        scores = torch.zeros(len(column), dtype=torch.float64)
        if self.continuous:
            values = (column.values[on_line] - self.origin).double()
            shares = posterior(values, self.weights, self.means, self.stds)
            mode = draw(shares, rng) if self.sample_mode else shares.argmax(dim=1)
            levels[on_line] = mode
            within = (values - self.means[mode]) / self.stds[mode] / self.spread
            scores[on_line] = within.clamp(-SCORE_LIMIT, SCORE_LIMIT)
        return base.Codes(levels if self.width > 1 else None, scores.float() if self.continuous else None)

    def line_values(self, levels: torch.Tensor, scores: torch.Tensor) -> np.ndarray:
        """Grid points (k,) of scores (k,) within modes (k,), clipped to the range first, so that they fit.

        Those beyond a declared end stay just beyond it, for `within` to draw them again.
        """
        least, most = self.low - self.origin, self.high - self.origin
        low, high = float(least), float(most)  # integers beyond 2^53 may round outwards: step back inside
        low = math.nextafter(low, math.inf) if low < least else low
        high = math.nextafter(high, -math.inf) if high > most else high
        low, high = low - 2 * self.slack * ("low" in self.declared), high + 2 * self.slack * ("high" in self.declared)
        offsets = self.means[levels] + scores.double() * self.spread * self.stds[levels]
        return self.on_grid(np.clip(offsets.numpy(), low, high))

    def _special(self, column: Column) -> tuple[torch.Tensor, torch.Tensor]:
        """Levels (n,) of atoms and missing, and which rows (n,) bool are on a mode.

        Without modes, a value unseen in training becomes the next atom above, or missing if there are no atoms.
        """
        levels = torch.zeros(len(column), dtype=torch.int64)
        on_line = ~column.missing
        if len(self.atoms):
            place = torch.searchsorted(self.atoms, column.values).clamp(max=len(self.atoms) - 1)
            levels = place + self.lines
            on_line = on_line & (self.atoms[place] != column.values)
        return torch.where(column.missing, self.width - 1, levels), on_line


def fit_mode_encoder(
    column: Column, schema: ColumnSchema, config: ModeConfig, rng: np.random.Generator
) -> base.Encoder:
    """Fit the encoder for a column's kind: modes for numbers and instants, levels for others.

    Raises:
        DataError: numbers as categories, none of which is common enough to be kept.
    """
    if not Kind(schema.kind).numeric or column.levels is not None:
        return base.fit_encoder(column, schema, config, rng)
    whole = not column.values.is_floating_point()
    values = column.values[~column.missing].numpy()
    step, atoms = base.find_grid(values, schema), _special_values(values, schema, config)
    special = np.isin(values, atoms)
    values = base.without_dominance(values, config.min_count, special)
    origin = _origin(values, step) if whole else 0
    line = (values[~special] - origin).astype(np.float64)
    missing = bool(column.missing.any())
    if len(line) < (config.min_count if missing or len(atoms) else 1):
        line = line[:0]  # so few could identify somebody: they join an atom, or missing
    weights, means, stds = fit_mixture(line, step, config, rng)
    low, high = base.value_range(atoms, _ends(line, config.min_count), origin, step, schema, whole)
    low, high = (max(low, -(2**63)), min(high, 2**63 - 1)) if whole else (low, high)  # means may round beyond int64
    return ModeEncoder(
        column.name, column.dtype, whole, origin, step, schema.decimals, low, high, torch.from_numpy(atoms), missing,
        weights, means, stds, config.spread, config.sample_mode, _declared(schema),
    )  # fmt: skip


def _declared(schema: ColumnSchema) -> tuple[str, ...]:
    """The ends of the range that a user declared; none so far out that nothing beyond fits into 64 bits."""
    ends = {"low": schema.low, "high": schema.high}
    return tuple(end for end, bound in ends.items() if bound is not None and abs(bound) < 9e18)


def fit_mixture(values: np.ndarray, step: float, config: ModeConfig, rng: np.random.Generator) -> Mixture:
    """Weights, means (increasing) and standard deviations, each (K,) float64, of a column's modes.

    Each mode is the most probable one for at least ``min_count`` of the values; fewer values get a single mode at their
    mean. K is 0 without values.

    Args:
        values: (n,) float64, finite.
        step: grid of the values, 0 for none: no mode is narrower than one cell of it.
        config: options.
        rng: draws the rows to fit to, and the initial values.
    """
    if len(values) == 0:
        return (torch.zeros(0, dtype=torch.float64),) * 3
    rows = rng.choice(values, config.fit_rows, replace=False) if len(values) > config.fit_rows else values
    unit = float(np.abs(rows).max()) or 1.0  # sums of numbers near the largest float would overflow
    inner = _clamped(rows / unit, config.min_count)
    middle, scale = (float(inner.mean()), float(inner.std())) if np.ptp(inner) else (float(inner[0]), 0.0)
    weights, means, stds = _variational((inner - middle) / (scale or 1.0), config, rng)
    floor = max(step / math.sqrt(12), _LEAST_SPREAD * scale * unit, 1e-12 * unit) or 1.0
    means, stds = (middle + scale * means) * unit, np.maximum(stds * scale * unit, floor)
    mixture = (torch.from_numpy(weights), torch.from_numpy(means), torch.from_numpy(stds))
    return _common_modes(torch.from_numpy(rows), mixture, config)


def posterior(values: torch.Tensor, weights: torch.Tensor, means: torch.Tensor, stds: torch.Tensor) -> torch.Tensor:
    """Probabilities (n, K) that values (n,) come from each mode of a Gaussian mixture; weights etc. are (K,).

    Rows sum to 1, however far a value is from all modes.
    """
    z_nK = ((values[:, None] - means) / stds).clamp(-_FAR, _FAR)
    return torch.softmax(weights.log() - stds.log() - z_nK.square() / 2, dim=1)


def draw(shares: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """One mode (n,) int64 for each row of probabilities (n, K)."""
    at = torch.from_numpy(rng.random((len(shares), 1)))
    return (shares.cumsum(dim=1) <= at).sum(dim=1).clamp(max=shares.shape[1] - 1)  # sums may end just below 1


def _special_values(values: np.ndarray, schema: ColumnSchema, config: ModeConfig) -> np.ndarray:
    has_atoms = config.atoms == "all" or (config.atoms == "mixed" and schema.kind == Kind.MIXED.value)
    return base.find_atoms(values, base.find_grid(values, schema, 0.95), config) if has_atoms else values[:0]


def _origin(values: np.ndarray, step: float) -> int:
    """0 if float64 holds all values exactly, so that parties' means are comparable; else a point near their mean."""
    large = len(values) > 0 and max(abs(float(values.min())), abs(float(values.max()))) > 2.0**53
    return base.find_origin(values, step) if large else 0


def _ends(line: np.ndarray, least: int) -> tuple[float, float] | None:
    """Means of the ``least`` smallest and largest values; of all values, where the two would overlap."""
    if len(line) == 0:
        return None
    unit = float(np.abs(line).max()) or 1.0
    count = least if len(line) >= 2 * least else len(line)
    ordered = np.sort(line / unit)
    return float(ordered[:count].mean() * unit), float(ordered[-count:].mean() * unit)


def _clamped(rows: np.ndarray, least: int) -> np.ndarray:
    """Values (n,) with the outermost ``least - 1`` on either side clamped; all at their mean if there are few."""
    if len(rows) < 2 * least:
        return rows if len(rows) >= least else np.full(len(rows), rows.mean())
    ordered = np.sort(rows)
    return np.asarray(np.clip(rows, ordered[least - 1], ordered[-least]))


def _variational(z: np.ndarray, config: ModeConfig, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Weights, means and standard deviations (K,) of a Dirichlet process mixture of standardised values (n,)."""
    z = np.round(z, 4)  # values that differ by rounding errors must not start clusters of their own
    most = min(config.modes, len(np.unique(z)), len(z) // config.min_count)
    if most < 2:
        return np.ones(1), np.array([z.mean()]), np.array([z.std()])
    model = _Mixture(
        n_components=most, weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=_CONCENTRATION, random_state=int(rng.integers(2**31)), warm_start=True,
        max_iter=2, tol=sys.float_info.max,
    )  # fmt: skip
    model.fit(z[:, None])  # two steps
    model.set_params(max_iter=_STEPS, tol=_TOLERANCE * len(z)).fit(z[:, None])
    return model.weights_, model.means_[:, 0], np.sqrt(model.covariances_[:, 0, 0])


class _Mixture(BayesianGaussianMixture):  # type: ignore[misc]
    """A mixture that stops after `_STEPS` steps without a warning: the next one pretends to gain nothing.

    Superfluous modes may take hundreds of steps to fade, which calls for no warning; and a warning could only be
    silenced for all threads at once.
    """

    steps = 0

    def _compute_lower_bound(self, *args: Any) -> float:
        self.steps += 1
        if self.steps <= _STEPS:
            self.bound = float(super()._compute_lower_bound(*args))
        return self.bound


def _common_modes(rows: torch.Tensor, mixture: Mixture, config: ModeConfig) -> Mixture:
    """The modes with weight and enough rows, by mean; rows of a dropped mode go to the others."""
    weights, means, stds = mixture
    order = means.argsort()
    order = order[(weights[order] > config.least_weight) | (order == weights.argmax())]
    while len(order) > 1:
        nearest = posterior(rows, weights[order], means[order], stds[order]).argmax(dim=1)
        counts = torch.bincount(nearest, minlength=len(order))
        if int(counts.min()) >= config.min_count:
            break
        order = order[torch.arange(len(order)) != counts.argmin()]
    return weights[order] / weights[order].sum(), means[order], stds[order]


class StandardEncoder(base.NumberEncoder):
    """Standardised numbers and instants; missing is a second level (if any)."""

    missing: bool
    mean: float  # counted from the origin
    deviation: float
    reach: float  # of rows that dominate no end of the range, beyond it, as a multiple of the range
    declared: tuple[str, ...]  # ends of the range, "low" and "high", that a user declared
    on_low: float  # share of the present rows on the low end, if it is declared
    on_high: float

    @property
    def width(self) -> int:
        """Number of levels."""
        return 1 + self.missing

    @property
    def lines(self) -> int:
        """All values that are not missing are one level."""
        return 1

    def encode(self, column: Column, rng: np.random.Generator) -> base.Codes:
        """Codes of a column; values out of reach count as the furthest within it."""
        reach = self.reach * (self.high - self.low)
        values = (column.values - self.origin).double()
        values = values.clamp(self.low - self.origin - reach, self.high - self.origin + reach)
        scores = (values - self.mean) / self.deviation
        scores = torch.where(column.missing, 0.0, scores).float()
        return base.Codes(column.missing.long() if self.missing else None, scores)

    def decode(self, codes: base.Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows, on the grid and within the range."""
        missing = torch.zeros(n, dtype=torch.bool) if codes.levels is None else codes.levels == 1
        assert codes.scores is not None
        line = self.mean + self.deviation * codes.scores.double().numpy()
        values, present = self.on_grid(line), ~missing.numpy()
        values = values if "low" in self.declared else np.maximum(values, self.low)
        values = values if "high" in self.declared else np.minimum(values, self.high)
        values[present], values[~present] = self._ranged(values[present], rng), 0
        return Column(self.name, self.dtype, torch.from_numpy(values), missing)

    def _ranged(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Values (n,) within the range: a declared end has its share of those beyond, the furthest; see `within`."""
        on_end = np.zeros(len(values), dtype=bool)
        for end, share, sign in ((self.low, self.on_low, -1.0), (self.high, self.on_high, 1.0)):
            beyond = sign * (values.astype(np.float64) - end)
            lacking = round(share * len(values)) - int((np.abs(beyond) <= self.slack).sum())
            furthest = np.argsort(-beyond, kind="stable")[: max(0, lacking)]
            furthest = furthest[beyond[furthest] > self.slack]
            values[furthest], on_end[furthest] = end, True
        values[~on_end] = self.within(values[~on_end], rng)
        return values


def fit_standard_encoder(
    column: Column, schema: ColumnSchema, config: base.EncoderConfig, rng: np.random.Generator
) -> base.Encoder:
    """Standardise a numeric column with any spread; for other columns, `fit_encoder`."""
    present = column.values[~column.missing].numpy()
    numeric = Kind(schema.kind).numeric and column.levels is None
    values = base.without_dominance(present, config.min_count) if numeric else present
    if not numeric or len(np.unique(values)) < 2:
        return base.fit_encoder(column, schema, config, rng)
    whole = not column.values.is_floating_point()
    step = base.find_grid(present, schema)
    origin = base.find_origin(values, step) if whole else 0
    line = np.sort((values - origin).astype(np.float64))
    ends = float(line[: config.min_count].mean()), float(line[-config.min_count :].mean())  # never of a single row
    low, high = base.value_range(line[:0], ends, origin, step, schema, whole)
    declared = _declared(schema)
    on_low = _share(present, low, config) if "low" in declared else 0.0
    on_high = _share(present, high, config) if "high" in declared else 0.0
    return StandardEncoder(
        column.name, column.dtype, whole, origin, step, schema.decimals, low, high, bool(column.missing.any()),
        float(line.mean()), float(line.std()), config.min_count / 2 - 1 if config.min_count > 1 else math.inf,
        declared, on_low, on_high,
    )  # fmt: skip


def _share(present: np.ndarray, end: float, config: base.EncoderConfig) -> float:
    """The share of values (n,) on an end of the range; 0 for so few that it could identify somebody."""
    count = int((present == end).sum())
    return count / len(present) if count >= config.min_count else 0.0


def fit(
    column: Column, schema: ColumnSchema, config: base.EncoderConfig, rng: np.random.Generator,
    numbers: str = "quantile",
) -> base.Encoder:  # fmt: skip
    """The encoder that the options call for: "standard" ``numbers``, modes (`ModeConfig`), or normal scores."""
    if numbers == "standard":
        return fit_standard_encoder(column, schema, config, rng)
    if isinstance(config, ModeConfig):
        return fit_mode_encoder(column, schema, config, rng)
    return base.fit_encoder(column, schema, config, rng)
