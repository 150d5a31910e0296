"""From a name or folder to a config, a tokenizer and a model with weights."""
