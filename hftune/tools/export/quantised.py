"""Writes a bitsandbytes checkpoint: quantised once, and loaded as it is by transformers and vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.build import skeleton
from hftune.models.loading.from_pretrained import pretrained
from hftune.tools.export.arguments import QuantisedArguments

BLOCK = 64
"""Weights that share a scale in 4 bits. bitsandbytes' kernels for CPUs (0.50) read no row that ends within a block."""


def write_quantised(folder: Path, output: Path, args: QuantisedArguments) -> dict[str, Any]:
    """Quantise the linears of the model in `folder` (the head stays whole) and save it to `output`.

    Returns:
        `bits`, `type` and `bytes` of the weights.

    Raises:
        ArgumentError: 4 bits are asked for, and no row of the model is made of whole blocks.
    """
    dtype = getattr(torch, args.dtype)
    kept = _kept_whole(folder, args) if args.bits == 4 else ["lm_head"]
    config = (
        BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=args.bnb_4bit_quant_type,
            bnb_4bit_use_double_quant=args.use_bnb_nested_quant,
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=kept,  # of both widths, whatever its name says
        )
        if args.bits == 4
        else BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=kept)
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


def _kept_whole(folder: Path, args: QuantisedArguments) -> list[str] | None:
    """Names of the linears that stay whole in 4 bits; None leaves it to transformers, which keeps the head."""
    config = pretrained(AutoConfig, folder, trust_remote_code=args.trust_remote_code)
    model = skeleton(config, args)
    head = model.get_output_embeddings()
    linears = {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and one is not head}
    narrow = [name for name, one in linears.items() if one.in_features % BLOCK]
    if not narrow:
        return None
    if len(narrow) == len(linears):
        raise ArgumentError(
            f"none of the model's {len(linears)} matrices can be stored in 4 bits: their rows are no multiples of "
            f"{BLOCK} weights, which share a scale",
            place="--bits 4",
            fix="use --bits 8",
        )
    notice(f"{len(narrow)} of {len(linears)} matrices stay whole: their rows are no multiples of {BLOCK} weights")
    return [*narrow, *(name for name, one in model.named_modules() if one is head)]
