"""A tiny model, adapted and trained for a few steps: what the tests of adapters share."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments

IDS = torch.arange(3, 35).reshape(2, 16)


def arguments(model: Path | str, *flags: str) -> tuple:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--gradient_checkpointing", "0", "--lora_r", "4"]
    model_args, _, adapter_args, training_args = parse_arguments("sft", [*argv, "--use_peft", *flags])
    return model_args, adapter_args, training_args


def load(model: Path | str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def train(model: torch.nn.Module, steps: int = 3) -> None:
    """A few steps of AdamW with weight decay on what requires a gradient."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    model.train()
    for _ in range(steps):
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits
