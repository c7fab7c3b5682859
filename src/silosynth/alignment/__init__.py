"""Alignment of vertical silos: which rows of theirs are the same, in an order that only the silos know."""

from silosynth.alignment.identifiers import canonical
from silosynth.alignment.protocol import AlignConfig, Matched, align
from silosynth.alignment.silo import Aligner

__all__ = ["AlignConfig", "Aligner", "Matched", "align", "canonical"]
