"""What RL is rewarded by: reward models and functions, and what is measured of them."""
