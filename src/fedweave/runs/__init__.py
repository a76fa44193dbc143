"""Experiments: made ready, run, resumed and compared."""
