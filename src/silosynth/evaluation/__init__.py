"""Evaluation of synthetic tables: fidelity, utility and disclosure, every figure beside its floor and interval."""

from silosynth.evaluation.evaluate import evaluate
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import ColumnScore, Pairs, Rows, Score, Skipped

__all__ = ["ColumnScore", "Pairs", "Report", "Rows", "Score", "Skipped", "evaluate"]
