"""Score heads, adapters and tokenizers on a tiny model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.adapters.lora_config import lora_config
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.dtype import weight_dtype
from hftune.models.loading.reward_model import init_score_head, load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer, read_chat_template


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
    assert "im_start" in read_chat_template("chatml")
    with pytest.raises(ArgumentError, match=r"give one of chatml, qwen3, .*the path of a \.jinja file"):
        read_chat_template("no-such-template")
    with pytest.raises(ArgumentError, match=r"did you mean qwen2_5\?"):
        read_chat_template("qwen")
    with pytest.raises(ArgumentError, match=r"did you mean chatml\?"):
        read_chat_template("chatlm")


def test_a_folder_without_a_tokenizer(tiny_model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "out" / "checkpoint-1"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("tokenizer*", "chat_template.jinja"))
    with pytest.raises(ArgumentError, match="holds no tokenizer") as caught:
        load_tokenizer(*given(bare))
    assert "one of:" not in str(caught.value) and "add --tokenizer_name_or_path with the folder" in str(caught.value)
    shutil.copy(tiny_model / "tokenizer.json", bare.parent)
    with pytest.raises(ArgumentError, match=f"add --tokenizer_name_or_path with {bare.parent}"):
        load_tokenizer(*given(bare))


def test_a_tokenizer_that_is_not_there(tiny_model: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no folder owner/nam here") as caught:
        load_tokenizer(*given(tiny_model, "--tokenizer_name_or_path", "owner/nam"))
    assert caught.value.place == "--tokenizer_name_or_path"


@pytest.mark.parametrize(("name", "unknown"), [("phi3", "<|assistant|>, <|end|>"), ("qwen2_5", "")])
def test_tokens_of_another_model_are_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str, unknown: str
) -> None:
    heard: list[str] = []
    monkeypatch.setattr("hftune.models.loading.tokenizer.notice", heard.append)
    load_tokenizer(*given(tiny_model, "--chat_template", name))
    assert bool(unknown) == bool(heard)
    assert not unknown or (unknown in heard[0] and "which are no tokens of this tokenizer" in heard[0])


def given(model: Path, *flags: str) -> tuple[Any, Any]:
    """The arguments of the model and of training."""
    parsed = parse_arguments("sft", ["--output_dir", "o", "--model_name_or_path", str(model), *flags])
    return parsed[0], parsed[3]
