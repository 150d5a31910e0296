"""A tiny model, adapted and trained for a few steps: what the tests of adapters share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer

IDS = torch.arange(3, 35).reshape(2, 16)


def arguments(model: Path | str, *flags: str) -> tuple:
    model_args, _, adapter_args, training_args = parsed("sft", model, "--lora_r", "4", "--use_peft", *flags)
    return model_args, adapter_args, training_args


def parsed(stage: str, model: Path | str, *flags: str) -> Any:
    """The arguments of a run with a model."""
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--gradient_checkpointing", "False", *flags]
    return parse_arguments(stage, argv)


def of_run(stage: str, given: Any) -> tuple[Any, Any]:
    """Model and tokenizer as a run with these arguments loads them, without an adapter."""
    model_args, _, adapter_args, training_args = given
    tokenizer = load_tokenizer(model_args, training_args)
    of_stage: Any = load_reward_model if stage == "rm" else load_causal_lm
    return of_stage(model_args, adapter_args, training_args, tokenizer), tokenizer


def loaded(stage: str, model: Path | str, *flags: str) -> tuple[Any, Any]:
    """The same with what is trained set, and with the adapter that the flags ask for."""
    given = parsed(stage, model, *flags)
    plain, tokenizer = of_run(stage, given)
    return add_adapter(plain, given[2], given[3]), tokenizer


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
