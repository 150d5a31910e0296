"""Score heads, adapters and tokenizers on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.arguments import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.adapters import add_adapter, lora_config
from hftune.models.loading import init_score_head, load_causal_lm, load_reward_model, weight_dtype
from hftune.models.tokenizer import load_tokenizer, read_chat_template


def test_score_head_depends_on_the_seed_alone(tiny_model: Path) -> None:
    heads = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
        init_score_head(model, seed=7)
        heads.append(model.score.weight.detach().clone())
    assert torch.equal(*heads)
    assert heads[0].std().item() == pytest.approx(1 / 65**0.5, rel=0.25)  # hidden size 64


def test_a_trained_head_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    model_args, _, adapter, training = parse_arguments(
        "rm", ["--model_name_or_path", str(tiny_model), "--output_dir", "o"]
    )
    tokenizer = load_tokenizer(model_args, training)
    first = load_reward_model(model_args, adapter, training, tokenizer)
    with torch.no_grad():
        first.score.weight.fill_(0.5)
    first.save_pretrained(tmp_path)
    model_args.model_name_or_path = str(tmp_path)
    again = load_reward_model(model_args, adapter, training, tokenizer)
    assert torch.equal(again.score.weight, first.score.weight)


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


def test_an_unknown_target_is_an_error(tiny_model: Path) -> None:
    _, _, adapter, _ = parse_arguments("sft", ["--output_dir", "o", "--use_peft", "--target_modules", "q_proj,c_attn"])
    with pytest.raises(ArgumentError, match="no module c_attn"):
        lora_config(AutoModelForCausalLM.from_pretrained(tiny_model), adapter)


def test_weights_that_are_updated_stay_in_float32(tiny_model: Path) -> None:
    model_args, _, _, training = parse_arguments("sft", ["--output_dir", "o", "--bf16"])
    assert weight_dtype(model_args, training, trains_all=True) is torch.float32
    assert weight_dtype(model_args, training, trains_all=False) is torch.bfloat16


def test_templates_by_name_and_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    assert read_chat_template(str(tmp_path / "mine.jinja")) == "{{ messages[0].content }}"
    assert "im_start" in read_chat_template("qwen3")
    with pytest.raises(ArgumentError, match="qwen3"):
        read_chat_template("no-such-template")
