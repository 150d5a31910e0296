"""What a record says: its messages, its answers, the format that it is in."""
