"""Losses of preference optimisation as pure functions of log-probabilities."""
