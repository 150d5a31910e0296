"""Proximal policy optimisation (arXiv:1707.06347) of language models, with a critic (arXiv:1909.08593, 2009.01325)."""
