"""What a synthetic table is worth and what it gives away: every figure beside its floor and its interval."""

from silosynth.evaluation.evaluate import evaluate
from silosynth.evaluation.report import Report
from silosynth.evaluation.scores import ColumnScore, Pairs, Rows, Score, Skipped

__all__ = ["ColumnScore", "Pairs", "Report", "Rows", "Score", "Skipped", "evaluate"]
