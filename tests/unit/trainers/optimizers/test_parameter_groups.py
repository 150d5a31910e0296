"""Which parameters share a rate, a decay and a rule, and the table of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
)

from hftune.arguments.entry import parse_arguments
from hftune.trainers.optimizers.parameter_groups import (
    Layers,
    muon_scale,
    parameter_groups,
)

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
RATE, DECAY = 1e-3, 0.1


def llama(**given: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SMALL, **given))


def lora(**given: Any) -> Any:
    return get_peft_model(llama(), LoraConfig(r=2, **given))


def rates(model: Any, *flags: str) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay of each trained parameter, by name; none is in two groups."""
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--learning_rate", "1e-3", "--weight_decay", "0.1"]
    args = parse_arguments("sft", [*argv, *flags])[3]
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    found = [(name, group) for group in parameter_groups(model, args, decayed) for name, _ in group.members]
    assert sorted(name for name, _ in found) == sorted(n for n, p in model.named_parameters() if p.requires_grad)
    return {name: (group.lr, group.weight_decay) for name, group in found}


def test_norms_and_biases_do_not_decay() -> None:
    for name, (lr, decay) in rates(llama(attention_bias=True)).items():
        assert lr == RATE
        assert decay == (0.0 if "norm" in name or "bias" in name else DECAY), name


def test_layerwise_decay() -> None:
    shares = {"embed_tokens": 0.5, "layers.0": 0.5, "layers.1": 0.6, "layers.2": 0.7, "model.norm": 1.0, "lm_head": 1.0}
    found = rates(llama(), "--layerwise_lr_decay_bound", "0.5")
    assert next(iter(found.values()))[0] == RATE, "the log shows the first group's"
    for name, (lr, _) in found.items():
        (share,) = [value for part, value in shares.items() if part in name]
        assert lr == pytest.approx(RATE * share), name


def test_layerwise_decay_of_a_score_head_and_an_adapter() -> None:
    model = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1))
    assert rates(model, "--layerwise_lr_decay_bound", "0.5")["score.weight"][0] == pytest.approx(RATE)
    adapted = rates(lora(target_modules=["q_proj"]), "--layerwise_lr_decay_bound", "0.5")
    assert sorted({round(lr, 9) for lr, _ in adapted.values()}) == pytest.approx([0.5e-3, 0.6e-3, 0.7e-3])


def test_loraplus() -> None:
    model = lora(target_modules=["q_proj", "embed_tokens"], use_dora=False, bias="lora_only")
    for name, (lr, decay) in rates(model, "--use_peft", "--loraplus_lr_ratio", "16").items():
        expected = 1e-6 if "lora_embedding" in name else 16 * RATE if "lora_B" in name else RATE
        assert (lr, decay) == (pytest.approx(expected), DECAY), name


def test_loraplus_with_an_embedding_rate_dora_and_layers() -> None:
    model = lora(target_modules=["q_proj"], use_dora=True)
    flags = ["--use_peft", "--loraplus_lr_ratio", "4", "--layerwise_lr_decay_bound", "0.5"]
    share = {0: 0.5, 1: 0.6, 2: 0.7}
    for name, (lr, _) in rates(model, *flags).items():
        layer = int(name.split("layers.")[1][0])
        # DoRA's magnitude is a vector, which the authors of LoRA+ count with B.
        ratio = 1 if "lora_A" in name else 4
        assert lr == pytest.approx(RATE * ratio * share[layer]), name
    adapted = lora(target_modules=["embed_tokens"])
    found = rates(adapted, "--use_peft", "--loraplus_lr_ratio", "4", "--loraplus_lr_embedding", "3e-5")
    assert {lr for lr, _ in found.values()} == {3e-5}


@pytest.mark.parametrize("mode", ["spectral", "shape_scaling", "unit_rms_norm"])
def test_muon_scales(mode: str) -> None:
    """Rate times DeepSpeed's own factor is what the mode asks for; rate times decay is that of AdamW."""
    model = llama()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    flags = ["--optim", "muon", "--muon_scale_mode", mode, "--muon_extra_scale_factor", "0.3"]
    for name, (lr, decay) in rates(model, *flags).items():
        if "proj" not in name:
            assert lr == RATE
            continue
        rows, columns = shapes[name]
        wanted = {
            "spectral": math.sqrt(max(rows, columns)),
            "shape_scaling": math.sqrt(max(1, rows / columns)),
            "unit_rms_norm": math.sqrt(rows / columns),
        }[mode]
        assert lr * math.sqrt(max(1, rows / columns)) == pytest.approx(RATE * 0.3 * wanted), name
        assert lr * decay == pytest.approx(RATE * DECAY), name


def test_what_muon_leaves_to_adam_is_told_so() -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--optim", "muon", "--adam_beta1", "0.8"]
    args = parse_arguments("sft", [*argv, "--adam_epsilon", "1e-7", "--muon_momentum", "0.7"])[3]
    options = {group.rule: group.options for group in parameter_groups(llama(), args, set())}
    assert options == {
        "adam": {"use_muon": False, "betas": (0.8, 0.999), "eps": 1e-7}, "muon": {"use_muon": True, "momentum": 0.7}
    }  # fmt: skip


def test_stacked_experts_are_matrices() -> None:
    model = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=3))
    experts = {name: p for name, p in model.named_parameters() if p.ndim == 3}
    assert experts
    assert Layers(model).prefix == "model.layers."
    found = rates(model, "--optim", "muon", "--muon_extra_scale_factor", "1")
    for name, parameter in experts.items():
        assert found[name][0] == pytest.approx(RATE * muon_scale(parameter.shape, "spectral"))
        assert muon_scale(parameter.shape, "spectral") == pytest.approx(math.sqrt(parameter.shape[-1]))


def test_shapes_are_those_before_zero_cut_them() -> None:
    """ZeRO-3 leaves empty vectors with the shape beside them; one-dimensional means the whole parameter."""
    whole, model = lora(target_modules=["q_proj"]), lora(target_modules=["q_proj"])
    for parameter in model.parameters():
        parameter.ds_shape, parameter.ds_numel = parameter.shape, parameter.numel()
        parameter.data = torch.empty(0)
    flags = ["--use_peft", "--loraplus_lr_ratio", "16"]
    assert rates(model, *flags) == rates(whole, *flags)
    assert rates(model, "--optim", "muon") == rates(whole, "--optim", "muon")
