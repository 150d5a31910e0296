"""What a teacher says of a data set, computed once and stored for `run_distill.py`."""
