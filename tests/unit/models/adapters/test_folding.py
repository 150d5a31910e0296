"""Chains of adapters: folded in order, the last one goes on or a fresh one lies on top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel
from peft.tuners.lora import torchao
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.folding import fold_adapters, load_adapter, read_adapter_config, read_lora_config
from hftune.models.adapters.preparation import add_adapter
from tests.unit.models.adapting import arguments, load, logits, train


@pytest.fixture(scope="module")
def chain(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Adapter A, with a norm trained beside it, and B trained upon base + A."""
    folders = tmp_path_factory.mktemp("chain")
    first, second = str(folders / "a"), str(folders / "b")
    _, adapter_args, training_args = arguments(tiny_model, "--lora_modules_to_save", "norm", "--use_rslora")
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    train(adapted)
    adapted.save_pretrained(first)
    flags = ["--peft_path", first, "--create_new_adapter", "--target_modules", "q_proj"]
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    train(adapted)
    adapted.save_pretrained(second)
    return first, second


def by_hand(model: Path, *folders: str) -> torch.Tensor:
    """Logits of plain peft: each adapter merged before the next one is loaded."""
    plain = load(model)
    for folder in folders:
        plain = PeftModel.from_pretrained(plain, folder).merge_and_unload()
    return logits(plain.eval())


def test_a_chain_in_order(tiny_model: Path, chain: tuple[str, str]) -> None:
    first, second = chain
    folded = fold_adapters(load(tiny_model), chain).eval()
    torch.testing.assert_close(logits(folded), by_hand(tiny_model, first, second), atol=1e-4, rtol=1e-4)
    assert not isinstance(folded, PeftModel) and not any("lora" in name for name, _ in folded.named_modules())


def test_the_last_one_goes_on(tiny_model: Path, chain: tuple[str, str]) -> None:
    first, second = chain
    _, adapter_args, training_args = arguments(tiny_model, "--peft_path", f"{first},{second}")
    assert (adapter_args.folded_adapters, adapter_args.continued_adapter) == ([first], second)
    adapted = add_adapter(load(tiny_model), adapter_args, training_args).eval()
    torch.testing.assert_close(logits(adapted), by_hand(tiny_model, first, second), atol=1e-4, rtol=1e-4)
    assert adapted.peft_config["default"].base_model_name_or_path == str(tiny_model)
    before = {name: parameter.detach().clone() for name, parameter in adapted.named_parameters()}
    train(adapted)
    changed = {name for name, parameter in adapted.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed and all("lora_" in name and "q_proj" in name for name in changed)


def test_a_fresh_one_on_top(tiny_model: Path, chain: tuple[str, str]) -> None:
    flags = ["--peft_path", ",".join(chain), "--create_new_adapter", "--target_modules", "v_proj"]
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    assert adapter_args.starts_as_base
    adapted = add_adapter(load(tiny_model), adapter_args, training_args).eval()
    torch.testing.assert_close(logits(adapted), by_hand(tiny_model, *chain), atol=1e-4, rtol=1e-4)
    assert {name.split(".")[-4] for name, p in adapted.named_parameters() if p.requires_grad} == {"v_proj"}


def test_another_base_is_refused(tmp_path: Path, chain: tuple[str, str]) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="does not fit"):
        fold_adapters(load(tmp_path), chain[:1])


def saved(folder: Path, **more: Any) -> Path:
    LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    return folder


def test_fields_of_a_newer_peft_that_say_nothing(tmp_path: Path) -> None:
    nothing = {"new_flag": False, "new_config": None, "new_list": [], "new_map": {}}
    nothing["runtime_config"] = {"ephemeral_gpu_offload": True}  # how an adapter runs is no part of it
    config = read_lora_config(saved(tmp_path, peft_version="9.0.0", **nothing))
    assert (config.r, config.target_modules) == (4, {"q_proj"})
    assert any(f"{tmp_path}" in said and "new_config, new_flag, new_list, new_map" in said for said in notices())


@pytest.mark.parametrize("value", [True, 0.5, "x", {"a": 1}])
def test_fields_that_say_something_are_an_error(tmp_path: Path, value: Any) -> None:
    folder = saved(tmp_path, new_field=value, peft_version="9.0.0")
    with pytest.raises(ArgumentError, match=r"new_field = .*\n.*adapter_config.json\n.*it says 9.0.0"):
        read_adapter_config(folder)


def test_kinds(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'NEWER' is not known"):
        read_adapter_config(saved(tmp_path, peft_type="NEWER"))
    IA3Config(target_modules=["q_proj"], feedforward_modules=[]).save_pretrained(tmp_path)
    assert read_adapter_config(tmp_path).peft_type == "IA3"
    with pytest.raises(ArgumentError, match="only LoRA adapters are continued"):
        read_lora_config(tmp_path)


def test_an_adapter_of_a_changed_base(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="has lost a part of itself"):
        read_lora_config(saved(tmp_path, init_lora_weights="pissa_niter_4"))


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="holds no adapter"):
        read_adapter_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ArgumentError, match="not valid JSON"):
        read_adapter_config(tmp_path)


def test_missing_tensors_are_an_error(tiny_model: Path, tmp_path: Path) -> None:
    """peft warns and goes on with what was drawn at random."""
    _, adapter_args, training_args = arguments(tiny_model)
    add_adapter(load(tiny_model), adapter_args, training_args).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    weights.pop(next(name for name in weights if "lora_B" in name))
    save_file(weights, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match="lacks tensors"):
        load_adapter(load(tiny_model), str(tmp_path), is_trainable=True)


def test_a_quantiser_that_is_too_old_for_peft(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """peft looks at the version of torchao wherever one is installed, and raises ImportError for an old one."""

    def old() -> bool:
        raise ImportError("Found an incompatible version of torchao.\nFound version 0.9.0")

    monkeypatch.setattr(torchao, "is_torchao_available", old)
    _, adapter_args, training_args = arguments(tiny_model)
    for attempt in (
        lambda: add_adapter(load(tiny_model), adapter_args, training_args),
        lambda: load_adapter(load(tiny_model), str(saved(tmp_path)), is_trainable=True),
    ):
        with pytest.raises(ArgumentError, match=r"version of torchao\. Found version 0\.9\.0") as caught:
            attempt()
        assert "upgrade that package, or uninstall it" in str(caught.value)
