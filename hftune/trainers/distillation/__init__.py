"""Distillation: teachers, their targets, and the answers of the student."""
