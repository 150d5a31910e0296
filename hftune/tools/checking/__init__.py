"""`hftune data check`: what is in data, and what should not be trained."""
