"""Attention functions that keep documents of one row apart, and the choice among them."""
