"""Whole weights from a DeepSpeed checkpoint (`hftune consolidate`)."""
