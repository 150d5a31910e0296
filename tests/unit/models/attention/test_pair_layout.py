"""How pairs lie in a batch where it was left open."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BloomConfig, Llama4TextConfig, MambaConfig, PreTrainedConfig

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.attention.pair_layout import (
    decide_answer_layout,
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
