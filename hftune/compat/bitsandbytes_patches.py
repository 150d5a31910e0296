"""Parts of bitsandbytes that are switched off."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from hftune.compat.installing import require


def keep_differentiable(model: nn.Module) -> None:
    """Let 4-bit weights be trained through, and read as they are stored, on a CPU with AVX512-BF16.

    There, the first forward pass in eval mode packs the weights of a `Linear4bit` anew for a kernel without a backward
    pass, and rounds their scales to bf16 (bitsandbytes 0.50, `Linear4bit.forward`). Training that follows would get no
    gradient through any of them, without a word.

    Raises:
        UserError: bitsandbytes has no such switch any more, and there is no GPU.
    """
    # A model has such layers only where somebody has imported bitsandbytes, which brings torch's compilers along.
    library = sys.modules.get("bitsandbytes.nn")
    layers: list[Any] = [one for one in model.modules() if library is not None and isinstance(one, library.Linear4bit)]
    if layers and not torch.accelerator.is_available():
        require("bitsandbytes.nn.modules.Linear4bit.support_avx512bf16_for_cpu")
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
