"""Results that are made in parts, by several processes, and resumed after a kill."""
