"""Folding an adapter into its base."""
