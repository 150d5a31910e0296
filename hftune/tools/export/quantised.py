"""Writes a bitsandbytes checkpoint: quantised once, and loaded as it is by transformers and vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from hftune.models.loading.from_pretrained import pretrained
from hftune.tools.export.arguments import QuantisedArguments


def write_quantised(folder: Path, output: Path, args: QuantisedArguments) -> dict[str, Any]:
    """Quantise the linears of the model in `folder` (the head stays whole) and save it to `output`.

    Returns:
        `bits`, `type` and `bytes` of the weights.
    """
    dtype = getattr(torch, args.dtype)
    config = (
        BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=args.bnb_4bit_quant_type,
            bnb_4bit_use_double_quant=args.use_bnb_nested_quant,
            bnb_4bit_compute_dtype=dtype,
        )
        if args.bits == 4
        else BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head"])
    )
    device = {"": 0} if torch.cuda.is_available() else {"": "cpu"}
    model = pretrained(
        AutoModelForCausalLM,
        folder,
        dtype=dtype,
        quantization_config=config,
        device_map=device,
        trust_remote_code=args.trust_remote_code,
    )
    model.save_pretrained(output)
    pretrained(AutoTokenizer, folder, trust_remote_code=args.trust_remote_code).save_pretrained(output)
    kind = args.bnb_4bit_quant_type if args.bits == 4 else "int8"
    size = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    return {"bits": args.bits, "type": kind, "bytes": size}
