"""One module a topic: pure functions from the facts of a run to its problems."""
