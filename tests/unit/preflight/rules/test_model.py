"""Rules about the model: refused before it is loaded, with the flag and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.manifest import write_manifest
from hftune.errors import UserError
from hftune.logging import notices
from hftune.models.adapters.lora_config import lora_config
from hftune.models.loading.build import skeleton
from hftune.models.loading.config import model_config
from hftune.preflight import run_memory
from hftune.preflight.facts import Facts, resolve
from hftune.preflight.memory import GIB, Free, model_size, packed_bytes, packed_linears, run_setup
from hftune.preflight.rules.adapters import check_adapters, check_rope
from hftune.preflight.rules.model import check_model, say_context
from tests.architectures import ARCHITECTURES, MIXTURES_OF_EXPERTS, make_config
from tests.table.tiny import tiny_checkpoint
from tests.unit.preflight.said import problems as said_by

pytestmark = pytest.mark.long

STAGE = {"rm": "rm", "dpo": "dpo", "rl": "rl", "sft": "sft", "pt": "pt"}
ZERO3 = '{"zero_optimization": {"stage": 3}}'


@pytest.fixture(scope="module")
def config_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with the config of an architecture and no weights: nothing here may load any."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        make_config(name).save_pretrained(folder)
        return folder

    return make


def parsed(stage: str, folder: Path, *flags: str) -> Any:
    return parse_arguments(stage, ["--model_name_or_path", str(folder), "--output_dir", "o", *flags])


def arguments(stage: str, folder: Path, *flags: str) -> Any:
    model_args, _, adapter_args, training_args = parsed(stage, folder, *flags)
    return model_args, adapter_args, training_args


def problems(stage: str, folder: Path, *flags: str) -> str:
    return said_by(folder, *flags, stage=stage, rules=(lambda facts: facts.problems, check_model, of_config))


def of_config(facts: Facts) -> Iterator[UserError]:
    """Rules of adapters and of RL that compare configs."""
    if facts.config is not None:
        yield from check_rope(facts.config, facts.adapter_args)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_to_say_of_any_architecture(config_of: Any, name: str) -> None:
    assert problems("sft", config_of(name)) == ""


@pytest.mark.parametrize(
    ("stage", "name", "flags", "said"),
    [
        ("sft", "llama", ("--experts_implementation", "grouped_mm"), "llama is no mixture of experts"),
        ("pt", "llama", ("--router_aux_loss_coef", "0.01"), "llama is no mixture of experts"),
        ("sft", "llama", ("--moe_z_loss_coef", "0.01"), "llama is no mixture of experts"),
        ("sft", "gemma2", ("--attn_implementation", "sdpa"), "gemma2 has no sdpa"),
        ("sft", "llama", ("--rope_scaling", "cubic"), "no rope scaling 'cubic'"),
        (
            "sft",
            "mixtral",
            ("--router_aux_loss_coef", "0.01", "--use_peft", "--deepspeed", ZERO3),
            "reentrant checkpointing",
        ),
    ],
)
def test_a_rule_each(config_of: Any, stage: str, name: str, flags: tuple[str, ...], said: str) -> None:
    message = problems(stage, config_of(name), *flags)
    assert said in message and "to do:" in message


@pytest.mark.parametrize("model_type", ["mamba2", "rwkv"])
def test_scores_of_another_head_or_of_none_are_no_reward_model_s(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(model_type, tmp_path)
    said = problems("rm", folder)
    facts = resolve("rm", parsed("rm", folder, "--use_peft"))
    assert not list(check_adapters(facts)), "names are not looked up where there is no model to train"
    assert f"transformers has no {model_type} model with a score head" in said and said.count("to do:") == 1


@pytest.mark.parametrize("stage", ["sft", "rm"])
@pytest.mark.parametrize("model_type", ["bert", "bart", "xlnet"])
def test_encoders_and_their_like_are_refused_in_one_line(model_type: str, stage: str, tmp_path: Path) -> None:
    said = problems(stage, tiny_checkpoint(model_type, tmp_path))
    assert f"{model_type} is an encoder, a part of an encoder-decoder or" in said and said.count("to do:") == 1


@pytest.mark.parametrize(
    ("stage", "name", "flags"),
    [
        ("sft", "mixtral", ("--experts_implementation", "batched_mm", "--router_aux_loss_coef", "0.01")),
        ("pt", "deepseek_v3", ("--router_aux_loss_coef", "0.01", "--moe_z_loss_coef", "0.001")),
        ("dpo", "llama", ("--hidden_dropout_prob", "0.1", "--disable_dropout", "False")),
        ("sft", "llama", ("--hidden_dropout_prob", "0.1", "--dropout_warmup_steps", "10")),
        ("pt", "llama", ("--from_config",)),
        ("sft", "phi", ("--hidden_dropout_prob", "0.1", "--attention_probs_dropout_prob", "0")),
        ("sft", "ernie4_5", ("--attention_probs_dropout_prob", "0.1", "--hidden_dropout_prob", "0")),
    ],
)
def test_what_goes_together(config_of: Any, stage: str, name: str, flags: tuple[str, ...]) -> None:
    assert problems(stage, config_of(name), *flags) == ""


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3_text", "deepseek_v3"])
def test_a_model_without_weights_has_the_parameters_of_one_with(config_of: Any, name: str, scores: bool) -> None:
    model_args, _, training_args = arguments("rm" if scores else "sft", config_of(name), "--deepspeed", ZERO3)
    bare = skeleton(model_config(model_args, training_args), training_args, scores=scores)
    assert all(parameter.is_meta for parameter in bare.parameters())
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    del training_args  # and with it ZeRO-3, which would partition what is built now
    real = auto.from_config(make_config(name, num_labels=1))
    shapes = {key: value.shape for key, value in real.named_parameters()}
    assert {key: value.shape for key, value in bare.named_parameters()} == shapes


def test_trained_parameters_are_those_that_peft_makes(config_of: Any) -> None:
    model_args, adapter_args, training_args = arguments("rm", config_of("llama"), "--use_peft", "--lora_rank", "4")
    bare = skeleton(model_config(model_args, training_args), training_args, scores=True)
    before = {name: parameter.shape for name, parameter in bare.named_parameters()}
    size = model_size(bare, adapter_args, training_args)
    assert {name: parameter.shape for name, parameter in bare.named_parameters()} == before
    real = AutoModelForSequenceClassification.from_config(make_config("llama", num_labels=2))
    real.score = torch.nn.Linear(32, 1, bias=False)
    adapted = get_peft_model(real, lora_config(real, adapter_args))
    assert size.trained == adapted.get_nb_trainable_parameters()[0]
    assert size.reference == 0


def test_a_reference_counts_in_full_dpo_alone(config_of: Any) -> None:
    live = ("--precompute_ref_log_probs", "False")
    cases = [("dpo", live, 1), ("dpo", (), 0), ("dpo", ("--sync_ref_model",), 1), ("dpo", (*live, "--use_peft"), 0)]
    cases += [("dpo", (*live, "--loss_type", "simpo"), 0), ("sft", (), 0), ("rl", (), 0)]
    for stage, flags, copies in cases:
        model_args, adapter_args, training_args = arguments(stage, config_of("llama"), *flags)
        bare = skeleton(model_config(model_args, training_args), training_args)
        size = model_size(bare, adapter_args, training_args)
        assert size.reference == copies * size.weights, (stage, flags)


def test_what_bitsandbytes_packs(config_of: Any) -> None:
    """Counted against a real quantised model: linears but the head, and no experts."""
    from hftune.models.loading.causal_lm import quantisation_options

    for name in ("llama", "mixtral"):
        model_args, adapter_args, training_args = arguments("sft", config_of(name), "--qlora")
        bare = skeleton(model_config(model_args, training_args), training_args)
        real = AutoModelForCausalLM.from_config(make_config(name))
        folder = config_of(name) / "real"
        real.save_pretrained(folder)
        quantised = AutoModelForCausalLM.from_pretrained(
            folder, **quantisation_options(adapter_args, training_args, torch.float32) | {"device_map": {"": "cpu"}}
        )
        packed = [p for p in quantised.parameters() if type(p).__name__ == "Params4bit"]
        counted = sum(linear.weight.numel() for linear in packed_linears(bare))
        assert sum(p.quant_state.shape.numel() for p in packed) == counted
        state = sum(p.numel() + p.quant_state.absmax.numel() + 4 * p.quant_state.state2.absmax.numel() for p in packed)
        # Blocks that are not full make it a little more.
        assert state == pytest.approx(packed_bytes(adapter_args) * counted, rel=0.02)


def test_a_model_too_large_is_refused_with_a_way_out(config_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(0.0004 * GIB, 0.0004 * GIB))
    # 36,576 weights: 4 + 4 + 8 bytes are 585 kB; 0.0004 GiB are 429 kB. Frozen, they take 146 kB and the adapter.
    message = problems("sft", config_of("llama"))
    assert "the model does not fit" in message and "`hftune plan` shows" in message
    assert problems("sft", config_of("llama"), "--use_peft", "--lora_rank", "2") == ""
    assert problems("sft", config_of("llama"), "--ignore_memory_check") == ""


def test_a_70b_model_is_counted_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    make_config("llama", **big, num_key_value_heads=8, vocab_size=128256).save_pretrained(tmp_path)
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(70.0 * GIB, 500.0 * GIB))
    message = problems("sft", tmp_path)
    # 70.55B: 263 GiB of weights and as much of gradients, 526 of Adam.
    assert "1051.4 GiB" in message or "1051.3 GiB" in message, message


def test_setup_reads_deepspeed_and_the_optimizer(config_of: Any) -> None:
    config = '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    made = run_setup(*arguments("sft", config_of("llama"), "--deepspeed", config, "--optim", "adamw_8bit"))
    assert (made.zero_stage, made.offload_optimizer, made.offload_weights) == (3, True, False)
    assert made.state_bytes == 2 and made.weight_bytes == 4 and made.on_cpu


def test_own_coefficients_need_no_flag(config_of: Any) -> None:
    for name in MIXTURES_OF_EXPERTS:
        assert problems("sft", config_of(name), "--use_peft", "--deepspeed", ZERO3) == ""


def test_an_adapter_keeps_its_positions(config_of: Any, tmp_path: Path) -> None:
    config = make_config("llama")
    made = {"rope_type": "linear", "factor": 2.0, "rope_theta": config.rope_parameters["rope_theta"]}
    write_manifest(tmp_path, {"rope": {"rope_parameters": made, "max_position_embeddings": 1024}})
    said = problems("sft", config_of("llama"), "--peft_path", str(tmp_path))
    assert "trained with other rotary positions" in said
    again = said.split("--rope_scaling '")[1].split("'")[0]
    assert problems("sft", config_of("llama"), "--peft_path", str(tmp_path), "--rope_scaling", again) == ""


def test_dropout_by_the_fields_of_an_old_architecture(tmp_path: Path) -> None:
    """GPT-2's layers are laid out in another way: its config does it, but not with a warm-up."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2}')
    flags = ("--hidden_dropout_prob", "0.3", "--attention_probs_dropout_prob", "0.2")
    assert problems("sft", tmp_path, *flags) == ""
    model_args, _, training_args = arguments("sft", tmp_path, *flags)
    bare = skeleton(model_config(model_args, training_args), training_args)
    assert bare.transformer.h[0].attn.resid_dropout.p == bare.transformer.h[0].mlp.dropout.p == 0.3
    assert bare.transformer.h[0].attn.attn_dropout.p == 0.2
    assert "no place for a dropout on hidden states" in problems("sft", tmp_path, *flags, "--dropout_warmup_steps", "9")


def test_what_is_frozen_needs_no_states(config_of: Any) -> None:
    model_args, adapter_args, training_args = arguments(
        "sft", config_of("llama"), "--freeze_parameters", "model.embed_tokens", "model.layers.0"
    )
    bare = skeleton(model_config(model_args, training_args), training_args)
    size = model_size(bare, adapter_args, training_args)
    frozen = [p for name, p in bare.named_parameters() if name.startswith(("model.embed_tokens", "model.layers.0."))]
    assert size.trained == size.weights - sum(parameter.numel() for parameter in frozen) < size.weights
    assert size.adapter == 0


@pytest.mark.parametrize(
    ("limits", "context", "said"),
    [
        (
            {"max_length": 1_000_000},
            512,
            "rows of up to 1000000 tokens are let through, and the model was made for 512",
        ),
        ({"block_size": 513}, 512, "rows of up to 513 tokens"),
        ({"max_prompt_length": 500, "max_completion_length": 13}, 512, "rows of up to 513 tokens"),
        ({"block_size": 512}, 512, ""),
        ({"max_length": None}, 512, ""),
        ({"max_length": 9}, None, ""),  # as of recurrent models
        ({"max_length": 9}, -1, ""),
    ],
)
def test_longer_rows_than_the_model_was_made_for(limits: dict[str, Any], context: Any, said: str) -> None:
    text = SimpleNamespace(max_position_embeddings=context)
    config: Any = SimpleNamespace(get_text_config=lambda: text)
    limited: Any = SimpleNamespace(**limits)
    say_context(config, limited)
    assert len(notices()) == bool(said) and said in "".join(notices())
