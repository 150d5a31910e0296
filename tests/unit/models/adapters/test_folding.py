"""Chains of adapters: folded in order, the last one goes on or a fresh one lies on top."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.folding import fold_adapters
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
    flags = ["--peft_path", first, "--create_new_adapter", "--init_lora_weights", "pissa", "--target_modules", "q_proj"]
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    train(adapted)
    from hftune.models.adapters.initialisation import rewrite_as_plain

    adapted.save_pretrained(second)
    rewrite_as_plain(adapted, second)
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


def test_flags_that_the_adapter_has_settled_are_said(tiny_model: Path, chain: tuple[str, str]) -> None:
    first, _ = chain
    flags = ["--peft_path", first, "--lora_r", "16", "--use_dora", "--target_modules", "q_proj"]
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    assert adapted.peft_config["default"].r == 4
    assert adapted.peft_config["default"].base_model_name_or_path == str(tiny_model)
    for part in ("--lora_r 16 has no effect", "--use_dora True has no", "--lora_target_modules has no effect"):
        assert any(part in said for said in notices()), part


def test_another_base_is_refused(tmp_path: Path, chain: tuple[str, str]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="does not fit"):
        fold_adapters(load(tmp_path), chain[:1])
