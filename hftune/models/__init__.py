"""From a name or folder to a model, a tokenizer and an adapter."""
