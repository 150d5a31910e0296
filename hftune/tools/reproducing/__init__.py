"""`hftune reproduce`: a finished run once more, step by step next to what it logged."""
