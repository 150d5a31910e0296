"""Architectures x methods x ties x heads x shards: the merged model says what base + adapter say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.weight_files import weight_shapes
from tests.unit.merging.models import ATTENTION, adapted_logits, make_adapter, merge, merged_logits, settings

EXPERTS = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
BOTH = ["embed_tokens", "lm_head"]


@dataclass
class Case:
    """One cell of the table."""

    architecture: str = "llama"
    config: dict[str, Any] = field(default_factory=lambda: {"target_modules": "all-linear"})
    changes: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    tied: bool | None = None
    """What the merged config must say; None: what the base's says."""
    by: str = "hftune"
    """Who merges."""


TIED = {"tie_word_embeddings": True}
CASES = {
    **{
        name: Case(name)
        for name in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "phi", "phi3", "glm", "glm4", "ernie4_5")
    },
    "deepseek": Case("deepseek_v3"),
    "mixtral": Case("mixtral"),
    "mixtral experts": Case("mixtral", EXPERTS),
    "deepseek experts": Case("deepseek_v2", {**EXPERTS, "target_modules": ["o_proj"]}),
    "gpt2, weights as (in, out)": Case("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "gpt2 DoRA": Case(
        "gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}, by="peft"
    ),
    "rsLoRA": Case(config={"target_modules": "all-linear", "use_rslora": True}),
    "DoRA": Case(config={"target_modules": "all-linear", "use_dora": True}),
    "patterns": Case(
        config={
            "target_modules": ATTENTION,
            "rank_pattern": {"q_proj": 8},
            "alpha_pattern": {"layers.1.self_attn.v_proj": 32, "q_proj": 2},
        }
    ),
    "bias lora_only": Case("qwen2", {"target_modules": ATTENTION, "bias": "lora_only"}),
    "LoRA with a bias": Case("qwen2", {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}, by="peft"),
    "norms trained": Case(config={"target_modules": ATTENTION, "modules_to_save": ["input_layernorm"]}),
    "embeddings and head trained": Case(config={"target_modules": ATTENTION, "modules_to_save": BOTH}),
    "head trained while tied": Case(
        config={"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}, changes=TIED, tied=False, by="peft"
    ),
    "both trained and kept tied": Case(
        config={"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        changes=TIED,
        by="peft",
    ),
    "LoRA on embeddings": Case(config={"target_modules": [*ATTENTION, "embed_tokens"]}),
    "DoRA on embeddings": Case(config={"target_modules": [*ATTENTION, "embed_tokens"], "use_dora": True}, by="peft"),
    "LoRA on both, tied": Case(config={"target_modules": [*ATTENTION, *BOTH]}, changes=TIED, tied=False, by="peft"),
    "tokens": Case(config={"target_modules": ATTENTION, "trainable_token_indices": [5, 40, 41]}, by="peft"),
    "grown and tied": Case(
        config={"target_modules": ATTENTION, "modules_to_save": BOTH}, changes=TIED, rows=352, tied=False, by="peft"
    ),
    "grown, LoRA on embeddings": Case(config={"target_modules": [*ATTENTION, *BOTH]}, rows=352, by="peft"),
    "head": Case(config={"target_modules": ATTENTION, "task_type": "SEQ_CLS", "modules_to_save": ["score"]}),
    "head for steps": Case(
        config={"target_modules": ATTENTION, "task_type": "TOKEN_CLS", "modules_to_save": ["score"]}
    ),
    "head of mixtral": Case("mixtral", {**EXPERTS, "task_type": "SEQ_CLS", "modules_to_save": ["score"]}),
    "shards as in the base": Case(changes={"shard": "60KB"}),
    "shards of another size": Case(arguments={"max_shard_size": "40KB"}),
}


# What differs is transformers' alone: its names.
SLOW = {"qwen2", "qwen3", "mistral", "gemma2", "phi3", "glm", "glm4", "ernie4_5"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_says_what_base_and_adapter_say(name: str, make_base: Callable, tmp_path: Path) -> None:
    case = CASES[name]
    base = make_base(case.architecture, **case.changes)
    adapter = make_adapter(base, tmp_path / "adapter", rows=case.rows, **case.config)
    manifest = merge(adapter, tmp_path / "merged", **case.arguments)
    assert manifest["merged_by"] == case.by
    wanted = adapted_logits(base, adapter, rows=case.rows)
    plain = merged_logits(tmp_path / "merged", case.config.get("task_type", "CAUSAL_LM"))
    torch.testing.assert_close(plain, wanted, atol=1e-5, rtol=1e-5)
    config = settings(tmp_path / "merged")
    names, before = (weight_shapes(folder).keys() for folder in (tmp_path / "merged", base))
    heads = {"SEQ_CLS": {"score.weight"}, "TOKEN_CLS": {"score.weight", "score.bias"}}
    added = (
        heads[case.config["task_type"]]
        if "score" in str(case.config)
        else {"lm_head.weight"}
        if case.tied is False
        else set()
    )
    dropped = {"lm_head.weight"} if "score" in str(case.config) else set()
    assert names == (before - dropped) | added
    if case.tied is not None:
        assert config["tie_word_embeddings"] is case.tied and manifest["vocabulary"]["tied"] is case.tied
    assert config["vocab_size"] == (case.rows or settings(base)["vocab_size"]) == manifest["vocabulary"]["rows"]
