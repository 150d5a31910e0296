"""hftune: pre-training, fine-tuning, reward modelling and RL for causal language models, on DeepSpeed."""

from logging import ERROR, getLogger

# bitsandbytes warns at import of optional kernels that nobody asked for; some library imports it before anyone else.
getLogger("bitsandbytes").setLevel(ERROR)

__version__ = "0.1.0"
