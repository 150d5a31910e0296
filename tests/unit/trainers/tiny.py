"""Trainers of tiny models, in runs that say nothing and save nothing unless they are asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.models.adapters.preparation import add_adapter
from hftune.trainers.pt import PTTrainer
from hftune.trainers.sft import SFTTrainer
from hftune.trainers.stage_trainer import StageTrainer
from tests.unit.models.adapting import load

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


def trainer_on(data: Any, stage: str, model: Path, folder: Path, *flags: str) -> Any:
    """PT's or SFT's trainer of a model in a folder, on records that are held out as well."""
    kind = {"pt": PTTrainer, "sft": SFTTrainer}[stage]
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    return kind(loaded, arguments(stage, folder, *flags), tokenizer, Splits(data, data))


class PlainTrainer(StageTrainer, Trainer):
    """The Trainer with what hftune changes, and no stage."""


ROWS = [{"input_ids": list(range(at, at + 12)), "labels": list(range(at, at + 12))} for at in range(3, 35)]
FOUR = ("--learning_rate", "1e-2", "--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2")


def plain_trainer(model: Path, folder: Path, *flags: str, **given: Any) -> Any:
    """Of four steps, with a checkpoint after each second one; with the adapter that flags ask for."""
    argv = [*QUIET, *FOUR, "--per_device_train_batch_size", "4", "--output_dir", str(folder), *flags]
    _, _, adapter_args, args = parse_arguments("pt", argv)
    args.packing = False
    return PlainTrainer(model=add_adapter(load(model), adapter_args, args), args=args, train_dataset=ROWS, **given)
