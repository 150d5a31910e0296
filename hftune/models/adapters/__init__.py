"""What of a model is trained: all, some parameters, or a LoRA adapter."""
