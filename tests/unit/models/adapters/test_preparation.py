"""What of a model is trained, and which module each way comes from."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.models.adapters import preparation
from hftune.models.adapters.preparation import add_adapter
from tests.table.tiny import tiny_config
from tests.unit.models.adapting import IDS, loaded, of_run, parsed


@pytest.mark.parametrize("flags", [(), ("--use_peft", "--modules_to_save", "embed_tokens")])
def test_a_padding_token_that_also_ends_turns_is_trained(flags: tuple[str, ...]) -> None:
    """As in SmolLM2-Instruct. Where it only pads, its gradient is 0 as ever."""
    _, _, adapter, training = parsed("sft", "m", *flags)
    config = tiny_config("llama")
    config.pad_token_id, config.tie_word_embeddings = 2, False
    adapted = add_adapter(AutoModelForCausalLM.from_config(config), adapter, training)

    def gradient(ids: list[int], mask: list[int], labels: list[int]) -> float:
        adapted.zero_grad()
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        adapted(**{name: torch.tensor([row]) for name, row in batch.items()}).loss.backward()
        (table,) = [one for name, one in adapted.named_parameters() if "embed_tokens" in name and one.requires_grad]
        assert table.grad is not None
        return float(table.grad[2].abs().sum())

    assert gradient([5, 2, 6, 7], [1, 1, 1, 1], [5, 2, 6, 7]) > 0
    assert gradient([5, 6, 2, 2], [1, 1, 0, 0], [5, 6, -100, -100]) == 0


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ((), []),
        (("--freeze_parameters_ratio", "0.5"), ["freezing:freeze"]),
        (("--use_peft", "--fused_lora", "False"), ["lora:add_lora"]),
        (("--use_peft",), ["lora:add_lora", "fused_lora:fuse_lora"]),
        (("--gradient_checkpointing", "True"), ["activation_checkpointing:recompute_as_asked"]),
    ],
)
def test_only_what_was_asked_for_is_imported(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], places: list[str]
) -> None:
    imported: list[str] = []

    def noted(place: str) -> Any:
        imported.append(place.rpartition(".")[2])
        return lambda model, *_: model

    monkeypatch.setattr(preparation, "on_demand", noted)
    _, _, adapter, training = parsed("sft", tiny_model, *flags)
    add_adapter(AutoModelForCausalLM.from_pretrained(tiny_model), adapter, training)
    assert imported == places


def built(model: Path, stage: str, *flags: str) -> torch.nn.Module:
    return loaded(stage, model, *flags, "--dtype", "bfloat16")[0]


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
    given = parsed("rm", tiny_model, "--use_peft", "--dtype", "bfloat16")
    given.training.deepspeed = "zero2"
    model = add_adapter(of_run("rm", given)[0], given[2], given.training).bfloat16()
    assert model(IDS).logits.dtype == torch.bfloat16


def test_a_reward_models_head_is_in_float32_by_default(tiny_model: Path) -> None:
    kept = built(tiny_model, "rm", "--use_peft")
    low = built(tiny_model, "rm", "--use_peft", "--train_in_float32", "False")
    heads = [next(p for n, p in one.named_parameters() if "score" in n and p.requires_grad) for one in (kept, low)]
    assert [head.dtype for head in heads] == [torch.float32, torch.bfloat16]
    assert torch.equal(heads[0].to(torch.bfloat16), heads[1])
