"""Tokenizers that grow: learnt from a corpus, merged with another, written beside a model of their size."""
