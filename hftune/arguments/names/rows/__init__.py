"""The table, one file a topic."""
