"""A finished model in the form that another tool wants: GGUF, Ollama, 4/8 bit, a served folder, a LoRA, the Hub."""
