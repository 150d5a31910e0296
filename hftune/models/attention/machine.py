"""What of a machine decides which attention runs on it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available
from transformers.utils.import_utils import is_torch_flex_attn_available

from hftune.arguments.training import StageArguments
from hftune.distributed import ranks


@dataclass(frozen=True)
class Machine:
    """What the choice of an attention depends on, apart from the model.

    Args:
        major: Of the GPU's compute capability; 0 on a CPU.
        half: Whether bf16 or fp16 is computed in.
        flash: Versions of FlashAttention that are installed.
        varlen: Whether torch's own varlen attention runs here.
        flex: Whether flex attention does.
        compiled: Whether the model goes through torch.compile.
    """

    major: int = 0
    half: bool = False
    flash: frozenset[int] = frozenset()
    varlen: bool = False
    flex: bool = False
    compiled: bool = False


def this_machine(training_args: StageArguments, dtype: str = "auto") -> Machine:
    """What is installed and asked for here; `dtype` is that of the weights."""
    half = bool(training_args.bf16 or training_args.fp16) or dtype in ("bfloat16", "float16")
    if training_args.use_cpu:  # whatever GPU there is
        return Machine(half=half, compiled=training_args.torch_compile)
    # Asked without their fallback to kernels on the Hub: choosing must not reach for the network.
    found = {
        2: is_flash_attn_2_available(),
        3: is_flash_attn_3_available(),
        4: is_flash_attn_4_available(),
    }
    return Machine(
        major=gpu_major(),
        half=half,
        flash=frozenset(version for version, there in found.items() if there),
        varlen=has_varlen(),
        flex=is_torch_flex_attn_available(),
        compiled=training_args.torch_compile,
    )


def gpu_major() -> int:
    """The compute capability, major, of the GPUs that are trained on, or planned for; 0 without any."""
    planned = ranks.planned_world()
    if planned is not None:
        # Packages are taken to be the same there as here.
        return 0 if planned.on_cpu else planned.major
    return _major_here()


@cache
def _major_here() -> int:
    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0


def has_varlen() -> bool:
    """Whether this torch has `varlen_attn` with windows (2.11 or later), and the GPUs run it."""
    # FlashAttention 2, which torch has built in, needs Ampere.
    return gpu_major() >= 8 and "window_size" in varlen_parameters()


@cache
def varlen_parameters() -> frozenset[str]:
    """What `varlen_attn` takes: its arguments differ between versions of torch."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)
