"""The estimate of a run's memory, for the checks before it, `--activation_checkpointing auto` and `hftune plan`."""
