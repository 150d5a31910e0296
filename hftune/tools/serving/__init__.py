"""`hftune serve`: another program's server for what was trained, with the prompts of its training."""
