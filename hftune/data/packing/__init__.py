"""Several documents in a row: which share one, and the rows on disk."""
