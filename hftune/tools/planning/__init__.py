"""Plans a run before it starts: memory by part, time, and the cheapest setting that fits."""
