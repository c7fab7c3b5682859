"""Alignment of silos with different columns: which of their rows are the same, in an order known to silos only."""

from silosynth.alignment.protocol import AlignConfig, Matched, align
from silosynth.alignment.silo import Aligner, canonical

__all__ = ["AlignConfig", "Aligner", "Matched", "align", "canonical"]
