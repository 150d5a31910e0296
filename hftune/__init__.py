"""hftune: pre-training, fine-tuning, reward modelling and RL for causal language models, on DeepSpeed."""

__version__ = "0.1.0"
