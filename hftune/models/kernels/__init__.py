"""Parts of a model computed in another way: less memory, fewer passes, other precision."""
