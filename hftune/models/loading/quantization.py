"""4-bit and 8-bit bases for QLoRA (arXiv:2305.14314), through bitsandbytes, on CPU and GPU."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BitsAndBytesConfig

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.logging import notice


def quantization_config(
    adapter_args: AdapterArguments, compute_dtype: torch.dtype, *, partitioned: bool = False
) -> BitsAndBytesConfig | None:
    """The bitsandbytes config that was asked for, or None.

    Args:
        adapter_args: `load_in_4bit`, `load_in_8bit` and their details.
        compute_dtype: Dtype that matmuls run in.
        partitioned: Whether ZeRO-3 will partition the weights: packed 4-bit weights are then kept as `compute_dtype`,
            the dtype of all others, since ZeRO-3 gathers weights of one dtype only. Otherwise they are kept as uint8.
    """
    if adapter_args.load_in_4bit:
        storage = adapter_args.bnb_4bit_quant_storage
        packed = getattr(torch, storage) if storage else compute_dtype if partitioned else torch.uint8
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=adapter_args.bnb_4bit_quant_type,
            bnb_4bit_use_double_quant=adapter_args.use_bnb_nested_quant,
            bnb_4bit_compute_dtype=compute_dtype,
            bnb_4bit_quant_storage=packed,
        )
    if adapter_args.load_in_8bit:
        # The head stays whole: it is tied to the embeddings, or a fresh score head that must be trained.
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "score"])
    return None


def quantisation_options(
    adapter_args: AdapterArguments, training_args: StageArguments, dtype: torch.dtype
) -> dict[str, Any]:
    """What `from_pretrained` needs to quantise the base, for a run that asked for it.

    Args:
        dtype: Of the weights that stay whole; products are computed in it.
    """
    compute = dtype if isinstance(dtype, torch.dtype) else torch.float32
    partitioned = training_args.zero_stage == 3
    config = quantization_config(adapter_args, compute, partitioned=partitioned)
    if partitioned:
        # transformers takes no `device_map` under ZeRO-3; each rank quantises on its own device.
        notice("every process reads the whole quantised model before ZeRO-3 partitions it")
        return {"quantization_config": config}
    # bitsandbytes quantises while loading and wants to know where to.
    where = "cpu" if training_args.use_cpu else ranks.local_rank()
    return {"quantization_config": config, "device_map": {"": where}}
