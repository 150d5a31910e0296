"""Records before a run: what would be trained on, and token ids made ahead."""
