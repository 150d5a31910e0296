"""Processes, DeepSpeed configs and gathered parameters. Knows nothing of arguments, data or models."""
