"""What happens before and after a run: imported by `cli.py` when it is asked for, and by no training run."""
