"""Checkpoints of several parts: the language model is loaded alone, the others are kept as they are stored."""
