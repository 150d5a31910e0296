"""Several answers to each prompt, scored, and those that are kept: rejection sampling, and preferences of one's own."""
