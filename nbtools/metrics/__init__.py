"""Metric rows: their writer, a run's history as columns, and readers of other programs' logs."""

from nbtools.metrics.history import History
from nbtools.metrics.writer import MetricWriter

__all__ = ["History", "MetricWriter"]
