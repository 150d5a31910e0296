"""What a run will need, reckoned before it starts: memory by part, time, and the cheapest setting that fits."""
