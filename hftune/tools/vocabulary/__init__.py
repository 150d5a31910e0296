"""Tokenizers that grow: learnt from a corpus, merged with another, written together with a model of their size."""
