"""Data sets larger than a list of records: tokenised folders, mixtures, streams, and where a run stands in them."""
