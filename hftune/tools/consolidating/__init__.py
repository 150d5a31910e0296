"""Whole weights from a DeepSpeed checkpoint."""
