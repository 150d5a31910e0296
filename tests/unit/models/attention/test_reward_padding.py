"""Conversations of a reward model lie side by side where that changes no score, and are padded elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.attention import reward_padding
from hftune.models.attention.reward_padding import decide_reward_padding, why_padded


def asked(model: Path, *flags: str) -> tuple:
    given = ["--model_name_or_path", str(model), "--output_dir", "o", "--use_cpu", "True", *flags]
    model_args, _, _, training_args = parse_arguments("rm", given)
    return transformers.AutoConfig.from_pretrained(model), model_args, training_args


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], None),
        (["--reward_kind", "process"], None),
        (["--torch_compile"], "the model is compiled"),
        (["--torch_compile", "--padding_free"], None),
        (["--attn_implementation", "sdpa"], "a mask of tokens by tokens"),
        (["--attn_implementation", "sdpa", "--padding_free"], None),
        (["--attn_implementation", "flash_attention_2"], "needs a GPU"),
    ],
)
def test_why_rows_are_padded(tiny_model: Path, flags: list[str], words: str | None) -> None:
    reason = why_padded(*asked(tiny_model, *flags))
    assert reason is None if words is None else words in str(reason)


def test_an_architecture_that_reads_its_score_otherwise(tmp_path: Path) -> None:
    transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32).save_pretrained(tmp_path)
    assert "in a way of its own" in str(why_padded(*asked(tmp_path)))
    with pytest.raises(ArgumentError, match="cannot lie side by side"):
        decide_reward_padding(*asked(tmp_path, "--padding_free"))


@pytest.mark.parametrize(
    ("flags", "free"), [([], True), (["--torch_compile"], False), (["--padding_free", "0"], False)]
)
def test_it_is_decided_and_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], free: bool
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(reward_padding, "notice", heard.append)
    config, model_args, training_args = asked(tiny_model, *flags)
    decide_reward_padding(config, model_args, training_args)
    assert training_args.padding_free is free
    said = [line for line in heard if "conversations" in line]
    assert len(said) == (0 if "--padding_free" in flags else 1)
