"""`hftune parity`: whether training on this machine gives the right numbers."""
