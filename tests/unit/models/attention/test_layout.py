"""Which attention is chosen, how the records of a batch lie in rows, and what is refused before a model loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BloomConfig,
    Llama4TextConfig,
    MambaConfig,
    NemotronConfig,
    PreTrainedConfig,
)

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.attention.layout import attention_for, choose_attention, decide_rows
from hftune.models.attention.machine import Machine
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.attention.ulysses import ULYSSES
from hftune.models.classes import causal_class
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.config import model_config
from hftune.models.loading.tokenizer import load_tokenizer
from tests.architectures import make_config

HOPPER = Machine(major=9, half=True, flash=frozenset({2, 3, 4}), varlen=True, flex=True)


@pytest.mark.parametrize(
    ("model", "machine", "expected"),
    [
        ("Llama", Machine(), SEGMENTS),
        ("Llama", Machine(half=True), SEGMENTS),
        ("Llama", Machine(compiled=True), "sdpa"),
        ("Gemma2", Machine(compiled=True), "eager"),
        ("Llama", HOPPER, "flash_attention_3"),
        ("Llama", replace(HOPPER, major=8), "flash_attention_2"),
        ("Llama", replace(HOPPER, major=10), "flash_attention_4"),
        ("Llama", replace(HOPPER, flash=frozenset({4})), "flash_attention_4"),
        ("Llama", replace(HOPPER, major=7, varlen=False), "flex_attention"),
        ("Llama", replace(HOPPER, flash=frozenset()), VARLEN),
        ("Mistral", replace(HOPPER, flash=frozenset()), VARLEN),
        ("Llama", replace(HOPPER, half=False), "flex_attention"),
        ("Llama", replace(HOPPER, half=False, flex=False), SEGMENTS),
        ("Llama", replace(HOPPER, compiled=True, flash=frozenset()), "flex_attention"),
        ("Gemma2", HOPPER, "flex_attention"),  # soft caps
        ("Gemma2", replace(HOPPER, flex=False), SEGMENTS),
        ("GptOss", replace(HOPPER, compiled=True), SEGMENTS),
        ("GptOss", HOPPER, SEGMENTS),  # sinks, and a mask that does not know the positions
    ],
)
def test_the_fastest_exact_attention(model: str, machine: Machine, expected: str) -> None:
    config = getattr(transformers, f"{model}Config")()
    assert choose_attention(config, causal_class(config), machine)[0] == expected


def test_what_kernels_cannot_do_is_left_to_us() -> None:
    for changes, expected in (({"attention_dropout": 0.1}, SEGMENTS), ({"head_dim": 512}, "flex_attention")):
        config = transformers.LlamaConfig(**changes)
        assert choose_attention(config, causal_class(config), replace(HOPPER, flash=frozenset()))[0] == expected
    assert choose_attention(config, causal_class(config), HOPPER)[0] == expected


@pytest.mark.parametrize(("size", "compiled", "expected"), [
    (16, False, "flex_attention"), (14, False, SEGMENTS), (16, True, "flex_attention"), (14, True, "eager"),
])  # fmt: skip
def test_heads_that_flex_attention_does_not_take(size: int, compiled: bool, expected: str) -> None:
    """On a GPU it compiles for 16 and more alone, seen on an H200."""
    config = transformers.Gemma2Config(head_dim=size)
    machine = replace(HOPPER, compiled=compiled)
    assert choose_attention(config, causal_class(config), machine)[0] == expected


def test_both_parts_are_known_to_transformers() -> None:
    for name in (SEGMENTS, VARLEN, ULYSSES):
        assert name in AttentionInterface() and name in AttentionMaskInterface()


def parsed(stage: str, model: Path | str, *flags: str) -> tuple[Any, Any]:
    """The arguments of the model and of training."""
    given = ["--model_name_or_path", str(model), "--output_dir", "o", "--use_cpu", "True", *flags]
    groups = parse_arguments(stage, given)
    return groups.model, groups.training


@pytest.mark.parametrize(
    ("stage", "flags", "expected"),
    [
        ("sft", [], None),
        ("sft", ["--packing"], SEGMENTS),
        ("sft", ["--padding_free"], SEGMENTS),
        ("sft", ["--packing", "--attn_implementation", "eager"], "eager"),
        ("sft", ["--attn_implementation", "eager"], "eager"),
        ("sft", ["--flash_attn"], None),
        ("pt", [], SEGMENTS),
        ("pt", ["--packing", "False"], None),
        ("pt", ["--cross_document_attention", "True"], None),
        ("pt", ["--cross_document_attention", "True", "--padding_free", "True"], SEGMENTS),
        ("rm", [], None),
    ],
)
def test_a_run_on_a_cpu(tiny_model: Path, stage: str, flags: list[str], expected: str | None) -> None:
    model_args, training = parsed(stage, tiny_model, *flags)
    assert attention_for(model_config(model_args, training), model_args, training) == expected
    said = {SEGMENTS: SEGMENTS}.get(expected or "", "--flash_attn" if "--flash_attn" in flags else "")
    assert any(said in line for line in ["", *notices()])


@pytest.mark.parametrize(
    ("stage", "flags", "expected"),
    [
        ("sft", [], True),
        ("sft", ["--padding_free", "False"], False),
        ("sft", ["--packing"], False),  # nothing is padded then
        ("sft", ["--attn_implementation", "sdpa"], False),
        ("sft", ["--torch_compile"], False),
        ("pt", [], False),
        ("pt", ["--cross_document_attention", "True"], False),
        ("pt", ["--packing", "False"], True),
    ],
)
def test_rows_are_padded_only_where_they_must_be(
    tiny_model: Path, stage: str, flags: list[str], expected: bool
) -> None:
    model_args, training = parsed(stage, tiny_model, *flags)
    decide_rows(stage, model_config(model_args, training), model_args, training)
    assert training.padding_free is expected
    assert not expected or any("side by side" in line for line in notices())


@pytest.mark.parametrize(
    ("model", "stage", "free", "attention", "words"),
    [
        ("Bloom", "sft", False, None, ""),
        ("Bloom", "pt", False, None, "documents are not packed: it has an attention of its own"),
        ("Mamba", "sft", True, None, "a state end it with each: it has layers whose past is more"),
        ("Jamba", "pt", False, SEGMENTS, "a state end it with each: it has layers whose past is more"),
    ],
)
def test_models_that_are_more_than_attention(
    tmp_path: Path, model: str, stage: str, free: bool, attention: str | None, words: str
) -> None:
    """Rows without pads where they save some; what is packed by default stays packed."""
    getattr(transformers, f"{model}Config")().save_pretrained(tmp_path)
    model_args, training = parsed(stage, tmp_path)
    config = model_config(model_args, training)
    decide_rows(stage, config, model_args, training)
    assert training.padding_free is free and attention_for(config, model_args, training) == attention
    assert not words or words in [line for line in notices() if line.startswith("documents ")][-1]


def test_packing_that_was_asked_for_is_refused_where_documents_cannot_be_kept_apart() -> None:
    model_args, training = parsed("pt", "m", "--packing", "True")
    decide_rows("pt", BloomConfig(n_layer=1), model_args, training)
    with pytest.raises(ArgumentError, match="an attention of its own") as caught:
        attention_for(BloomConfig(n_layer=1), model_args, training)
    assert training.packing and "--packing False" in str(caught.value)


def test_the_model_is_loaded_with_it_and_saved_without(tiny_model: Path, tmp_path: Path) -> None:
    model_args, training = parsed("sft", tiny_model, "--packing")
    model = load_causal_lm(model_args, AdapterArguments(), training, load_tokenizer(model_args, training))
    assert model.config._attn_implementation == SEGMENTS
    model.save_pretrained(tmp_path)
    assert "hftune" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    ("config", "flags", "padding_free", "shared", "said"),
    [
        (make_config("llama"), "", True, True, None),
        (make_config("llama"), "--padding_free False", False, False, None),
        (make_config("llama"), "--shared_prompts False", True, False, None),
        (make_config("llama"), "--attn_implementation eager", True, False, "eager knows no shared prompts"),
        (make_config("llama"), "--torch_compile", True, False, "the model is compiled"),
        (make_config("llama"), "--attn_implementation flash_attention_2", False, False, "needs a GPU"),
        (Llama4TextConfig(num_hidden_layers=4), "", True, False, "layers of chunked_attention"),
        (MambaConfig(num_hidden_layers=1), "", True, False, "computed twice: it has layers whose past"),
        (NemotronConfig(), "", True, False, "computed twice: its layers tell their attention nothing"),
        (BloomConfig(n_layer=1), "", False, False, "pairs are padded: it has an attention of its own"),
    ],
)
def test_pairs_share_a_row_where_it_is_exact(
    config: PreTrainedConfig, flags: str, padding_free: bool, shared: bool, said: str | None
) -> None:
    model_args, training = parsed("dpo", "m", *flags.split())
    decide_rows("dpo", config, model_args, training)
    assert (training.padding_free, training.shared_prompts) == (padding_free, shared)
    assert training.flat_batches == padding_free
    heard = [line for line in notices() if "pair" in line]
    assert not heard if said is None else said in heard[0]


@pytest.mark.parametrize(
    ("config", "flags", "shared", "said"),
    [
        (make_config("llama"), "", True, None),
        (make_config("llama"), "--shared_prompts False", False, None),
        (make_config("llama"), "--attn_implementation sdpa", False, "sdpa knows no shared prompts"),
        (make_config("llama"), "--torch_compile", False, "the model is compiled"),
        (make_config("mixtral"), "", False, "routers of a mixture"),
        (MambaConfig(num_hidden_layers=1), "", False, "whose past"),
        (BloomConfig(n_layer=1), "", False, "an attention of its own"),
    ],
)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_answers_of_rl_share_a_row_where_it_is_exact(
    algorithm: str, config: PreTrainedConfig, flags: str, shared: bool, said: str | None
) -> None:
    model_args, training = parsed("rl", "m", *flags.split(), "--rl_algorithm", algorithm)
    decide_rows("rl", config, model_args, training)
    assert (training.shared_prompts, training.flat_batches) == (shared, shared)
    heard = [line for line in notices() if "padded rows" in line]
    assert not heard if said is None else said in heard[0]
    if said is not None:
        training.shared_prompts = True
        with pytest.raises(ArgumentError, match="--shared_prompts True"):
            decide_rows("rl", config, model_args, training)


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
def test_why_conversations_of_a_reward_model_are_padded(flags: list[str], words: str | None) -> None:
    model_args, training = parsed("rm", "m", *flags)
    decide_rows("rm", make_config("llama"), model_args, training)
    assert training.padding_free is (words is None)
    said = [line for line in notices() if "conversations" in line]
    assert len(said) == (0 if "--padding_free" in flags else 1)
    assert words is None or words in said[0]


def test_padding_of_a_reward_model_that_was_asked_for() -> None:
    """Not of an architecture that reads its score otherwise."""
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32)
    words = "cannot lie side by side in a row: gpt2 reads its score in a way of its own"
    with pytest.raises(ArgumentError, match=words):
        decide_rows("rm", config, *parsed("rm", "m", "--padding_free"))
    model_args, training = parsed("rm", "m", "--padding_free", "0")
    decide_rows("rm", config, model_args, training)
    assert training.padding_free is False
