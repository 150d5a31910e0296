"""`hftune completion`: what a shell proposes behind `hftune` and behind the scripts."""
