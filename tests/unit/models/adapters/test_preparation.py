"""What of a model is trained, and which module each way comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.adapters import preparation
from hftune.models.adapters.lora_config import lora_config
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from tests.table.tiny import tiny_config


def test_all_means_every_linear_but_the_head(tiny_model: Path) -> None:
    model_args, _, adapter, training = parse_arguments(
        "sft",
        ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--use_peft", "--gradient_checkpointing", "0"],
    )
    model = load_causal_lm(model_args, adapter, training, load_tokenizer(model_args, training))
    adapted = add_adapter(model, adapter, training)
    names = {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("flags", [(), ("--use_peft", "--modules_to_save", "embed_tokens")])
def test_a_padding_token_that_also_ends_turns_is_trained(flags: tuple[str, ...]) -> None:
    """As in SmolLM2-Instruct. Where it only pads, its gradient is 0 as ever."""
    _, _, adapter, training = parse_arguments("sft", ["--output_dir", "o", "--gradient_checkpointing", "0", *flags])
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


def test_an_unknown_target_is_an_error(tiny_model: Path) -> None:
    _, _, adapter, _ = parse_arguments("sft", ["--output_dir", "o", "--use_peft", "--target_modules", "q_proj,c_attn"])
    with pytest.raises(ArgumentError, match="no module c_attn"):
        lora_config(AutoModelForCausalLM.from_pretrained(tiny_model), adapter)


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ((), []),
        (("--freeze_parameters_ratio", "0.5"), ["freezing:freeze"]),
        (("--use_peft", "--fused_lora", "False"), ["lora:add_lora"]),
        (("--use_peft",), ["lora:add_lora", "fused_lora:fuse_lora"]),
        (("--train_in_float32",), ["float32:train_in_float32"]),
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
    given = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--gradient_checkpointing", "0", *flags]
    _, _, adapter, training = parse_arguments("sft", given)
    add_adapter(AutoModelForCausalLM.from_pretrained(tiny_model), adapter, training)
    assert imported == places
