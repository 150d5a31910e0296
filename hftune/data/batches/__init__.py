"""Rows to batches: padded, one after the other, or the slice of one process."""
