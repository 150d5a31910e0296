"""Adapters and freezing: what cannot work is refused before a model loads, and what can is not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.manifest import write_manifest
from hftune.models.adapters.preparation import add_adapter
from hftune.preflight.rules import adapters
from hftune.preflight.rules.quantisation import check_quantisation
from hftune.preflight.rules.without_effect import check_without_effect
from hftune.weight_files import fingerprint
from tests.unit.models.adapting import load
from tests.unit.preflight import said

pytestmark = pytest.mark.long

ZERO3 = ["--deepspeed", '{"zero_optimization": {"stage": 3}}']


LORA = "--use_peft"

RULES = (check_without_effect, check_quantisation, adapters.check_adapters, adapters.check_vocabulary)
problems = partial(said.problems, rules=RULES)


@pytest.mark.parametrize(
    "flags, parts",
    [
        ([LORA, "--rank_pattern", "q_proj=8"], ["not valid JSON", "--rank_pattern", 'write {"NAME": 16}']),
        # names, looked up in the skeleton
        ([LORA, "--target_modules", "c_attn"], ["no module c_attn", "q_proj"]),
        ([LORA, "--target_regex", "q_proj"], ["matches as a whole", "model.layers.0.self_attn.q_proj"]),
        ([LORA, "--target_modules", "embed_tokens"], ["are one matrix", "--lora_modules_to_save embed_tokens"]),
        ([LORA, "--lora_target_parameters", "experts.up"], ["no parameter experts.up"]),
        ([LORA, "--lora_bias", "all"], ["no biases"]),
        ([LORA, "--trainable_parameters", "model.norms"], ["no parameter's name begins with it"]),
        (["--qlora", "--trainable_parameters", "model.layers.1.mlp"], ["gate_proj is quantised"]),
        ([LORA, "--exclude_modules", "self_attn,mlp"], []),
        (["--freeze_parameters", "layers"], ["begins with it", "names look like model.embed_tokens.weight"]),
        (["--freeze_parameters_ratio", "1"], ["every parameter is frozen"]),
        ([LORA, "--rank_pattern", "0", "--target_modules", "c_attn", "--freeze_parameters", "x"], ["2 problems"]),
    ],
)
def test_a_rule_each(tiny_model: Path, flags: list[str], parts: list[str]) -> None:
    message = problems(tiny_model, *flags)
    assert bool(message) == bool(parts), message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [LORA, "--use_dora", "--use_rslora", "--lora_dropout", "0.1"],
        [LORA, "--use_dora", *ZERO3],
        [LORA, "--lora_modules_to_save", "embed_tokens", "lm_head", *ZERO3],
        [LORA, "--trainable_token_indices", "5", "6"],
        [LORA, "--trainable_parameters", "model.layers.1."],
        ["--qlora", "--lora_modules_to_save", "lm_head"],
        ["--qlora", "--trainable_parameters_regex", "norm"],
        ["--freeze_parameters", "model.embed_tokens", *ZERO3],
    ],
)
def test_what_works_is_let_through(tiny_model: Path, flags: list[str]) -> None:
    assert problems(tiny_model, *flags) == ""


def test_nothing_is_loaded(tmp_path: Path) -> None:
    """A config is enough, of a model far too large for this machine."""
    config = LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=20, num_key_value_heads=8)
    config.save_pretrained(tmp_path)
    assert "no module c_attn" in problems(tmp_path, LORA, "--target_modules", "c_attn")


@pytest.mark.parametrize(
    "flags, part",
    [
        ([], ""),
        (["--use_dora"], "leave the experts out: --exclude_modules experts"),
        (["--use_dora", "--lora_dropout", "0.1", "--exclude_modules", "experts"], ""),
        (["--lora_dropout", "0.1"], "neither DoRA nor dropout"),
        (ZERO3, ""),
        (["--target_modules", "q_proj", "--use_dora"], ""),
        (["--target_modules", "q_proj", *ZERO3], ""),
        (["--target_modules", "q_proj", "--lora_target_parameters", "experts.down_proj"], ""),
        (["--lora_target_parameters", "experts.down_proj", "--lora_dropout", "0.1"], "neither DoRA nor dropout"),
        (["--lora_target_parameters", "experts.down_proj", "--init_lora_weights", "mica"], "not parameters"),
        (["--lora_target_parameters", "experts.down_proj", *ZERO3], ""),
        (["--target_modules", "gate_proj"], "no module gate_proj"),
        (["--lora_target_parameters", "experts.w1"], "mlp.experts.down_proj, mlp.experts.gate_up_proj"),
    ],
)
def test_mixtures_of_experts(tmp_path: Path, flags: list[str], part: str) -> None:
    """`all` adapts experts as well; not every variant can do that."""
    Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_experts=4, head_dim=16
    ).save_pretrained(tmp_path)
    message = problems(tmp_path, LORA, *flags)
    assert part in message and bool(message) == bool(part), message


def saved(model: Path, folder: Path, *flags: str, stage: str = "sft") -> str:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--gradient_checkpointing", "0", LORA, *flags]
    _, _, adapter_args, training_args = parse_arguments(stage, argv)
    add_adapter(load(model), adapter_args, training_args).save_pretrained(folder)
    return str(folder)


def recorded(folder: str, model: Path, *below: str) -> str:
    base = {"name": str(model), "fingerprint": fingerprint(model)} | ({"adapters": [*below]} if below else {})
    parents = [{"folder": path, "fingerprint": fingerprint(path)} for path in below]
    write_manifest(folder, {"status": "complete", "base": base, "parents": parents})
    return folder


def test_chains(tiny_model: Path, tmp_path: Path) -> None:
    a = recorded(saved(tiny_model, tmp_path / "a"), tiny_model)
    b = recorded(saved(tiny_model, tmp_path / "b", "--target_modules", "q_proj"), tiny_model, a)
    for path in (a, b, f"{a},{b}"):
        assert problems(tiny_model, "--peft_path", path) == ""
    assert "here it would lie upon the base + " in problems(tiny_model, "--peft_path", f"{b},{a}")
    assert "holds no adapter" in problems(tiny_model, "--peft_path", f"{a},{tmp_path}")
    assert problems(tiny_model, "--peft_path", a, "--qlora") == ""
    for flags in (["--peft_path", b, "--qlora"], ["--peft_path", a, "--create_new_adapter", "--qlora"]):
        assert f"merge {a} first with merge_peft_adapter.py" in problems(tiny_model, *flags)


def test_what_goes_on_has_what_the_stage_trains(tiny_model: Path, tmp_path: Path) -> None:
    a = saved(tiny_model, tmp_path / "a", "--lora_modules_to_save", "norm")
    assert problems(tiny_model, "--peft_path", a, stage="dpo") == ""
    assert "has no score head" in problems(tiny_model, "--peft_path", a, stage="rm")
    assert problems(tiny_model, "--peft_path", a, "--create_new_adapter", stage="rm") == ""
    assert "and no others" in problems(tiny_model, "--peft_path", a, "--lora_modules_to_save", "lm_head")
    assert "and no others" in problems(tiny_model, "--peft_path", a, "--trainable_parameters", "lm_head")
    file = Path(a) / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"task_type": "SEQ_CLS"}))
    assert "has a score head" in problems(tiny_model, "--peft_path", a)
    assert "trains a model without one" in problems(tiny_model, "--peft_path", a, "--create_new_adapter")


def test_a_newer_peft(tiny_model: Path, tmp_path: Path) -> None:
    LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"new_field": 2, "new_flag": False}))
    assert "does not know: new_field = 2" in problems(tiny_model, "--peft_path", str(tmp_path))


def test_biases_of_a_reference(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        attention_bias=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    flags = [LORA, "--lora_bias", "all"]
    assert problems(tmp_path, *flags) == ""
    assert "or --precompute_ref_log_probs" in problems(tmp_path, *flags, stage="dpo")
    assert problems(tmp_path, *flags, "--precompute_ref_log_probs", stage="dpo") == ""
