"""Plans a run before it starts: memory by part, and the least change that fits."""
