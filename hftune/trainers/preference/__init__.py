"""Preference optimisation: batches of pairs, the reference model, the loss of a batch and its metrics."""
