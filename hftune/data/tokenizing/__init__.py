"""Records to token ids and labels, in parallel, as Arrow files; and what became of each record."""
