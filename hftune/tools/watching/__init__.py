"""Follows runs by the files that they write: what they logged, how far they are, what they said last."""
