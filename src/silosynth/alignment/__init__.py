"""Alignment of vertical silos: which rows of theirs are the same, in an order that only the silos know."""

from silosynth.alignment.conversation import align
from silosynth.alignment.identifiers import canonical
from silosynth.alignment.messages import AlignConfig, Matched
from silosynth.alignment.silo import Aligner

__all__ = ["AlignConfig", "Aligner", "Matched", "align", "canonical"]
