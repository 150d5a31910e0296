"""Bases and adapters as transformers and peft load them, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import UserError
from hftune.merging.adapters import ADAPTER_WEIGHTS, Adapter
from hftune.merging.inputs import BaseFolder, Inputs
from hftune.merging.peft_model import load_adapted, load_adapter, load_base, write_with_peft
from hftune.merging.plan import Plan
from tests.unit.merging.models import ATTENTION, IDS, adapted_logits, make_adapter, merged_logits


def plan(base: Path, *levels: list[Adapter]) -> Plan:
    config = json.loads((base / "config.json").read_text())
    return Plan(Inputs(BaseFolder("the base", base), config, list(levels), tokenizer=base), unsupported="a test")


def test_weights_of_adapters_side_by_side(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    folders = [make_adapter(base, tmp_path / str(seed), seed=seed, target_modules=ATTENTION) for seed in (1, 2)]
    plain = load_adapted(plan(base, [Adapter(folder) for folder in folders]))
    halved = load_adapted(plan(base, [Adapter(folders[0], 0.0), Adapter(folders[1], 1.0)]))
    with torch.no_grad():
        torch.testing.assert_close(plain(IDS).logits, adapted_logits(base, *folders), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(halved(IDS).logits, adapted_logits(base, folders[1]), atol=1e-5, rtol=1e-4)


def test_an_adapter_upon_another_is_merged_upon_it(make_base: Callable, tmp_path: Path) -> None:
    """peft's way, which counts the tensors that changed."""
    base = make_base("llama")
    below, above = (
        Adapter(make_adapter(base, tmp_path / name, seed=seed, target_modules=[name]))
        for seed, name in enumerate(("q_proj", "v_proj"), start=1)
    )
    (tmp_path / "merged").mkdir()
    assert write_with_peft(plan(base, [below], [above]), tmp_path / "merged", None) == 4  # of two layers
    with torch.no_grad():
        wanted = load_adapted(plan(base, [below], [above]))(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-5, rtol=1e-4)


def test_what_peft_would_pass_over(make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("llama"), tmp_path / "adapter", target_modules=ATTENTION)
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    name = next(iter(tensors))
    save_file(tensors | {name.replace("layers.0", "layers.9"): tensors[name].clone()}, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"has nothing for its .*layers\.9"):
        load_adapter(load_base(plan(make_base("llama"))), adapter)


def test_what_peft_cannot_load(make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("llama"), tmp_path / "adapter", target_modules=ATTENTION)
    other = load_base(plan(make_base("llama", hidden_size=64)))
    with pytest.raises(UserError, match="peft cannot load the adapter in"):
        load_adapter(other, adapter)


def test_a_base_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(UserError, match="no model could be loaded from the base"):
        load_base(plan(tmp_path))


def test_an_adapter_that_cannot_be_merged(make_base: Callable, tmp_path: Path) -> None:
    from peft import PromptTuningConfig, get_peft_model

    base = make_base("llama")
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(load_base(plan(base)), config).save_pretrained(tmp_path / "prompt")
    with pytest.raises(UserError, match="of type PROMPT_TUNING cannot be merged"):
        write_with_peft(plan(base, [Adapter(tmp_path / "prompt")]), tmp_path / "merged", None)
