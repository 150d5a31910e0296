"""Which attention is chosen, and what is refused before a model loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

from hftune.arguments.entry import parse_arguments
from hftune.logging import notices
from hftune.models.attention.choice import attention_for, choose_attention, decide_padding_free
from hftune.models.attention.machine import Machine
from hftune.models.attention.segments import SEGMENTS
from hftune.models.attention.varlen import VARLEN
from hftune.models.classes import causal_class
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.config import model_config
from hftune.models.loading.tokenizer import load_tokenizer

ALL = frozenset({2, 3, 4})
HOPPER = Machine(major=9, half=True, flash=ALL, varlen=True, flex=True)


def without(machine: Machine, **changes: Any) -> Machine:
    return Machine(**{**vars(machine), **changes})


@pytest.mark.parametrize(
    ("model", "machine", "expected"),
    [
        ("Llama", Machine(), SEGMENTS),
        ("Llama", Machine(half=True), SEGMENTS),
        ("Llama", Machine(compiled=True), "sdpa"),
        ("Gemma2", Machine(compiled=True), "eager"),
        ("Llama", HOPPER, "flash_attention_3"),
        ("Llama", without(HOPPER, major=8), "flash_attention_2"),
        ("Llama", without(HOPPER, major=10), "flash_attention_4"),
        ("Llama", without(HOPPER, flash=frozenset({4})), "flash_attention_4"),
        ("Llama", without(HOPPER, major=7, varlen=False), "flex_attention"),
        ("Llama", without(HOPPER, flash=frozenset()), VARLEN),
        ("Mistral", without(HOPPER, flash=frozenset()), VARLEN),
        ("Llama", without(HOPPER, half=False), "flex_attention"),
        ("Llama", without(HOPPER, half=False, flex=False), SEGMENTS),
        ("Llama", without(HOPPER, compiled=True, flash=frozenset()), "flex_attention"),
        ("Gemma2", HOPPER, "flex_attention"),  # soft caps
        ("Gemma2", without(HOPPER, flex=False), SEGMENTS),
        ("GptOss", without(HOPPER, compiled=True), SEGMENTS),
        ("GptOss", HOPPER, SEGMENTS),  # sinks, and a mask that does not know the positions
    ],
)
def test_the_fastest_exact_attention(model: str, machine: Machine, expected: str) -> None:
    config = getattr(transformers, f"{model}Config")()
    assert choose_attention(config, causal_class(config), machine)[0] == expected


def test_what_kernels_cannot_do_is_left_to_us() -> None:
    for changes in ({"attention_dropout": 0.1}, {"head_dim": 512}):
        config = transformers.LlamaConfig(**changes)
        expected = SEGMENTS if "attention_dropout" in changes else "flex_attention"
        assert choose_attention(config, causal_class(config), without(HOPPER, flash=frozenset()))[0] == expected
    assert choose_attention(config, causal_class(config), HOPPER)[0] == expected


@pytest.mark.parametrize(("size", "compiled", "expected"), [
    (16, False, "flex_attention"), (14, False, SEGMENTS), (16, True, "flex_attention"), (14, True, "eager"),
])  # fmt: skip
def test_heads_that_flex_attention_does_not_take(size: int, compiled: bool, expected: str) -> None:
    """On a GPU it compiles for 16 and more alone, seen on an H200."""
    config = transformers.Gemma2Config(head_dim=size)
    machine = without(HOPPER, compiled=compiled)
    assert choose_attention(config, causal_class(config), machine)[0] == expected


def test_both_parts_are_known_to_transformers() -> None:
    for name in (SEGMENTS, VARLEN):
        assert name in AttentionInterface() and name in AttentionMaskInterface()


@pytest.mark.parametrize(
    ("stage", "flags", "expected"),
    [
        ("sft", [], None),
        ("sft", ["--packing"], SEGMENTS),
        ("sft", ["--padding_free"], SEGMENTS),
        ("sft", ["--packing", "--attn_implementation", "eager"], "eager"),
        ("sft", ["--attn_implementation", "eager"], "eager"),
        ("pt", [], SEGMENTS),
        ("pt", ["--packing", "False"], None),
        ("pt", ["--cross_document_attention", "True"], None),
        ("pt", ["--cross_document_attention", "True", "--padding_free", "True"], SEGMENTS),
        ("rm", [], None),
    ],
)
def test_a_run_on_a_cpu(tiny_model: Path, stage: str, flags: list[str], expected: str | None) -> None:
    given = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--use_cpu", "True", *flags]
    model_args, _, _, training = parse_arguments(stage, given)
    assert attention_for(model_config(model_args, training), model_args, training) == expected
    if expected == SEGMENTS:
        assert any(SEGMENTS in line for line in notices())


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
    given = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--use_cpu", "True", *flags]
    model_args, _, _, training = parse_arguments(stage, given)
    decide_padding_free(model_config(model_args, training), model_args, training)
    assert training.padding_free is expected
    if expected:
        assert any("side by side" in line for line in notices())


@pytest.mark.parametrize(
    ("model", "stage", "free", "attention", "words"),
    [
        ("Bloom", "sft", False, None, ""),
        ("Bloom", "pt", False, None, "as padded rows: it has an attention of its own"),
        ("Mamba", "sft", True, None, "a state end it with each: it has layers whose past is more"),
        ("Jamba", "pt", False, SEGMENTS, "a state end it with each: it has layers whose past is more"),
    ],
)
def test_models_that_are_more_than_attention(
    tmp_path: Path, model: str, stage: str, free: bool, attention: str | None, words: str
) -> None:
    """Rows without pads where they save some; what is packed by default stays packed."""
    getattr(transformers, f"{model}Config")().save_pretrained(tmp_path)
    given = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--use_cpu", "True"]
    model_args, _, _, training = parse_arguments(stage, given)
    config = model_config(model_args, training)
    decide_padding_free(config, model_args, training)
    assert training.padding_free is free and attention_for(config, model_args, training) == attention
    assert not words or words in [line for line in notices() if "documents of a row" in line][-1]


def test_the_model_is_loaded_with_it_and_saved_without(tiny_model: Path, tmp_path: Path) -> None:
    model_args, _, adapter, training = parse_arguments(
        "sft", ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--packing"]
    )
    model = load_causal_lm(model_args, adapter, training, load_tokenizer(model_args, training))
    assert model.config._attn_implementation == SEGMENTS
    model.save_pretrained(tmp_path)
    assert "hftune" not in (tmp_path / "config.json").read_text()


def test_flash_attn_is_no_error_without_it(tiny_model: Path) -> None:
    model_args, _, _, training = parse_arguments(
        "sft", ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--flash_attn", "--use_cpu", "True"]
    )
    assert attention_for(model_config(model_args, training), model_args, training) is None
    assert any("--flash_attn" in line for line in notices())
