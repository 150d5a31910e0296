"""Tokenised records on disk: the cache, its folders, and how they are opened without trusting them."""
