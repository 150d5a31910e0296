"""What hftune adds to a trainer, one thing a file; `stage_trainer.py` calls them in their order."""
