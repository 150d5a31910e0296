"""A tiny model without a folder, and arguments of a run that says nothing and saves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.arguments.entry import parse_arguments

QUIET = ("--model_name_or_path", "none", "--use_cpu", "True", "--report_to", "none", "--save_strategy", "no")
QUIET += ("--disable_tqdm", "True", "--gradient_checkpointing", "False", "--logging_steps", "1")


def arguments(stage: str, folder: Path, *flags: str) -> Any:
    """Training arguments of a stage; `flags` win."""
    return parse_arguments(stage, [*QUIET, "--output_dir", str(folder), *flags])[-1]


def tiny_llama() -> LlamaForCausalLM:
    """One layer, 512 tokens; always the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config)
