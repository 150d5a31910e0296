"""How pairs lie in a batch where it was left open."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BloomConfig, Llama4TextConfig, MambaConfig, PreTrainedConfig

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.attention import pair_layout
from hftune.models.attention.machine import Machine
from hftune.models.attention.pair_layout import (
    decide_answer_layout,
    decide_conversation_layout,
    decide_pair_layout,
)
from tests.architectures import make_config


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
        (BloomConfig(n_layer=1), "", False, False, "pairs are padded: it has an attention of its own"),
    ],
)
def test_on_where_it_is_exact(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: PreTrainedConfig,
    flags: str,
    padding_free: bool,
    shared: bool,
    said: str | None,
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", *flags.split()]
    model_args, _, _, training_args = parse_arguments("dpo", given)
    decide_pair_layout(config, model_args, training_args)
    assert (training_args.padding_free, training_args.shared_prompts) == (padding_free, shared)
    assert training_args.flat_batches == padding_free
    heard = [line for line in logging.notices() if "pair" in line]
    assert not heard if said is None else said in heard[0]


RL = [
    (make_config("llama"), "", True, None),
    (make_config("llama"), "--shared_prompts False", False, None),
    (make_config("llama"), "--attn_implementation sdpa", False, "sdpa knows no shared prompts"),
    (make_config("llama"), "--torch_compile", False, "the model is compiled"),
    (make_config("mixtral"), "", False, "routers of a mixture"),
    (MambaConfig(num_hidden_layers=1), "", False, "whose past"),
    (BloomConfig(n_layer=1), "", False, "an attention of its own"),
]


@pytest.mark.parametrize(("config", "flags", "shared", "said"), RL)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_answers_of_rl_share_a_row_where_it_is_exact(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    algorithm: str,
    config: PreTrainedConfig,
    flags: str,
    shared: bool,
    said: str | None,
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", *flags.split()]
    given += ["--rl_algorithm", algorithm]
    model_args, _, _, training_args = parse_arguments("rl", given)
    decide_answer_layout(config, model_args, training_args)
    assert (training_args.shared_prompts, training_args.flat_batches) == (shared, shared)
    heard = [line for line in logging.notices() if "padded rows" in line]
    assert not heard if said is None else said in heard[0]
    if said is not None:
        training_args.shared_prompts = True
        with pytest.raises(ArgumentError, match="--shared_prompts True"):
            decide_answer_layout(config, model_args, training_args)


PACKED = "--packing"
CONVERSATIONS = [
    ("llama", f"{PACKED}", True, None),
    ("llama", f"{PACKED} --shared_prompts False", False, None),
    ("llama", f"{PACKED} --shared_prompts True", True, None),
    ("llama", f"{PACKED} --attn_implementation hftune_segments", True, None),
    ("llama", f"{PACKED} --attn_implementation hftune_varlen", True, None),
    ("mixtral", f"{PACKED}", True, None),
    ("llama", "", False, "only rows packed with"),
    ("llama", "--eval_packing True", False, "only rows packed with"),
    ("llama", f"{PACKED} --packing_strategy bfd_split", False, "only rows packed with"),
    ("llama", f"{PACKED} --attn_implementation sdpa", False, "sdpa knows no shared prompts"),
    ("llama", f"{PACKED} --torch_compile", False, "the model is compiled"),
]


@pytest.mark.parametrize(("model", "flags", "shared", "refused"), CONVERSATIONS)
def test_packed_conversations_share_beginnings_where_it_is_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, flags: str, shared: bool, refused: str | None
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", *flags.split()]
    model_args, _, _, training_args = parse_arguments("sft", given)
    decide_conversation_layout(make_config(model), model_args, training_args)
    assert training_args.shared_prompts is shared
    assert training_args.padding_free == (not training_args.packing and "eval" not in flags)
    assert not any("alike" in line or "beginning" in line for line in logging.notices()), "nobody asked"
    if refused:
        training_args.shared_prompts = True
        with pytest.raises(ArgumentError, match=f"cannot share their beginnings: {refused}"):
            decide_conversation_layout(make_config(model), model_args, training_args)


def test_sharing_takes_no_quicker_attention_away_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick = Machine(major=9, half=True, flash=frozenset({3}), varlen=True, flex=True)
    monkeypatch.setattr(pair_layout, "this_machine", lambda *args, **options: quick)
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", "--packing"]
    model_args, _, _, training_args = parse_arguments("sft", given)
    decide_conversation_layout(make_config("llama"), model_args, training_args)
    assert training_args.shared_prompts is False
    training_args.shared_prompts = True
    decide_conversation_layout(make_config("llama"), model_args, training_args)
    assert training_args.shared_prompts
    training_args.shared_prompts, model_args.flash_attn = None, True
    decide_conversation_layout(make_config("llama"), model_args, training_args)
    assert training_args.shared_prompts is False


def test_rows_that_processes_divide_share_nothing(tmp_path: Path) -> None:
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", "--packing"]
    model_args, _, _, training_args = parse_arguments("sft", given)
    training_args.sequence_parallel_size, training_args.shared_prompts = 2, True
    with pytest.raises(ArgumentError, match="beginnings: rows are divided among processes"):
        decide_conversation_layout(make_config("llama"), model_args, training_args)


def test_a_teacher_reads_rows_without_shared_beginnings(tmp_path: Path) -> None:
    given = ["--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "True", "--packing"]
    model_args, _, _, training_args = parse_arguments("distill", [*given, "--teacher_model_name_or_path", "t"])
    decide_conversation_layout(make_config("llama"), model_args, training_args)
    assert training_args.shared_prompts is False
