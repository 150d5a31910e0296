"""`--train_in_float32`: what is trained is in float32 beside a base of 16 bits, and computes with it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from hftune.arguments.entry import parse_arguments
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from tests.unit.models.adapting import IDS


def built(model: Path, stage: str, *flags: str) -> torch.nn.Module:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--gradient_checkpointing", "False", *flags]
    model_args, _, adapter_args, training_args = parse_arguments(stage, [*argv, "--dtype", "bfloat16"])
    tokenizer = load_tokenizer(model_args, training_args)
    load = load_reward_model if stage == "rm" else load_causal_lm
    return add_adapter(load(model_args, adapter_args, training_args, tokenizer), adapter_args, training_args)


def dtypes(model: torch.nn.Module, trained: bool) -> set[torch.dtype]:
    return {p.dtype for p in model.parameters() if p.requires_grad == trained}


@pytest.mark.parametrize(
    "stage, flags",
    [
        ("rm", ["--use_peft"]),
        ("sft", ["--use_peft", "--train_in_float32", "--lora_modules_to_save", "embed_tokens"]),
        ("sft", ["--train_in_float32"]),
        ("sft", ["--train_in_float32", "--freeze_parameters_ratio", "0.5"]),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_what_is_trained_is_in_float32_and_computes(
    tiny_model: Path, stage: str, flags: list[str], autocast: bool
) -> None:
    model = built(tiny_model, stage, *flags)
    assert dtypes(model, trained=True) == {torch.float32}
    assert dtypes(model, trained=False) <= {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        model(IDS).logits.float().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_A" not in name:  # behind a B of zeros
            assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name


def test_under_deepspeed_nothing_casts(tiny_model: Path) -> None:
    """Its engine makes all weights of one dtype: inputs in float32 would not fit a head in bf16."""
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--use_peft", "--dtype", "bfloat16"]
    model_args, _, adapter_args, training_args = parse_arguments("rm", argv)
    training_args.deepspeed = "zero2"
    tokenizer = load_tokenizer(model_args, training_args)
    model = load_reward_model(model_args, adapter_args, training_args, tokenizer)
    model = add_adapter(model, adapter_args, training_args).bfloat16()
    assert model(IDS).logits.dtype == torch.bfloat16


def test_a_reward_models_head_is_in_float32_by_default(tiny_model: Path) -> None:
    kept = built(tiny_model, "rm", "--use_peft")
    low = built(tiny_model, "rm", "--use_peft", "--train_in_float32", "False")
    heads = [next(p for n, p in one.named_parameters() if "score" in n and p.requires_grad) for one in (kept, low)]
    assert [head.dtype for head in heads] == [torch.float32, torch.bfloat16]
    assert torch.equal(heads[0].to(torch.bfloat16), heads[1])
    # A step that 16 bits would lose.
    before = heads[0].detach().clone()
    with torch.no_grad():
        heads[0] += 1e-6
    assert not torch.equal(before, heads[0])


def test_without_it_all_stays_as_it_was_loaded(tiny_model: Path) -> None:
    assert dtypes(built(tiny_model, "sft"), trained=True) == {torch.bfloat16}
