"""Two tokenizers on the same text: what their tokens write, and where they agree on borders."""
