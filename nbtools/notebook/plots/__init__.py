"""Drawing: figures, charts and the decimation of curves."""
