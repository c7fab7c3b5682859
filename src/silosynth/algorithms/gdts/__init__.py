"""GDTS: one generator for silos that hold different rows of the same columns."""
