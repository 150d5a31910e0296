"""Scores of files of conversations."""
