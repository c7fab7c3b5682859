"""Evaluation of synthetic tables: fidelity, utility and disclosure, every figure beside its floor and interval."""

from silosynth.evaluation.evaluate import evaluate
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import ColumnScore, Pairs, Premise, Rows, Score, Skipped

__all__ = ["ColumnScore", "Pairs", "Premise", "Report", "Rows", "Score", "Skipped", "evaluate"]
