"""What a teacher says of each trained token, computed once: how records are found in it, and how it is read."""
