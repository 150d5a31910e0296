"""Embeddings and head that grow with the tokenizer."""
