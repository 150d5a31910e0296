"""Trainers whose policy answers prompts itself, on TRL's loops of answering and training."""
