"""Bases and adapters as transformers and peft load them, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModelForCausalLM
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from hftune.errors import UserError
from hftune.merging import peft_model
from hftune.merging.adapters import ADAPTER_WEIGHTS, Adapter
from hftune.merging.inputs import BaseFolder, Inputs
from hftune.merging.peft_model import _bitsandbytes, load_adapted, load_adapter, load_base, write_with_peft
from hftune.merging.plan import Plan
from tests.packed import pack
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


def test_a_base_is_loaded_as_it_is_unless_the_quantised_one_is_asked_for(make_base: Callable) -> None:
    """In float32, whatever it is stored in; as training saw it, its linear layers are packed, the head is not."""
    base = make_base("llama", dtype=torch.bfloat16)
    trained = plan(base)
    how = {"bits": 4, "type": "nf4", "nested": True, "compute": "bfloat16"}
    quantised = Plan(replace(trained.inputs, quantised=how), unsupported="a test")
    assert {parameter.dtype for parameter in load_base(quantised).parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in load_base(trained, quantised=True).parameters()} == {torch.float32}
    found = load_base(quantised, quantised=True)
    assert found.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    assert found.lm_head.weight.dtype == torch.bfloat16
    assert not load_base(quantised).training


def test_how_bitsandbytes_is_asked() -> None:
    for bits, kind, nested in ((4, "nf4", True), (4, "fp4", False), (8, "None", False)):
        made = _bitsandbytes({"bits": bits, "type": kind, "nested": nested, "compute": "float16"})
        assert (made.load_in_8bit, made.load_in_4bit) == (bits == 8, bits == 4)
        if bits == 4:
            assert (made.bnb_4bit_quant_type, made.bnb_4bit_use_double_quant) == (kind, nested)
            assert made.bnb_4bit_compute_dtype == torch.float16
        else:
            assert made.llm_int8_skip_modules == ["lm_head", "score"]


@pytest.mark.parametrize(
    ("asked", "named", "stored"),
    [
        (None, {}, torch.bfloat16),
        ("float16", {}, torch.float16),
        (None, {"dtype": None, "torch_dtype": "torch.float64"}, torch.float64),  # as older configs have it
    ],
)
def test_what_peft_s_way_writes(
    asked: str | None, named: dict[str, Any], stored: torch.dtype, make_base: Callable, tmp_path: Path
) -> None:
    """The base's dtype unless another is asked for, its cache on, and no scale of a reward model that it was."""
    base = make_base("llama", dtype=torch.bfloat16)
    adapter = Adapter(make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"]))
    here = tmp_path / "base"
    shutil.copytree(base, here)
    config = json.loads((base / "config.json").read_text())
    (here / "config.json").write_text(json.dumps(config | {"use_cache": False, "reward_scale": {"mean": 1.0}}))
    inputs = plan(here, [adapter]).inputs
    asked_for = replace(inputs, dtype=asked, config=inputs.config | named)
    assert write_with_peft(Plan(asked_for, unsupported="a test"), tmp_path / "merged", "60KB") == 2
    found = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert found["use_cache"] is True and "reward_scale" not in found
    files = sorted((tmp_path / "merged").glob("*.safetensors"))
    assert {tensor.dtype for file in files for tensor in load_file(file).values()} == {stored}
    assert len(files) > 1, "shards as small as was asked for"
    assert not (tmp_path / "merged" / "tokenizer.json").exists(), "copied later, as it is"


@pytest.mark.parametrize("scores", [None, 1])
def test_what_transformers_has_not_loaded_goes_along(
    scores: int | None, make_base: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that predict further on, say; a reward model is what was loaded."""
    called: list[Any] = []
    monkeypatch.setattr(peft_model, "keep_of_base", lambda *given, **options: called.append((given, options)))
    base = make_base("llama")
    task = {"task_type": "SEQ_CLS"} if scores else {}
    adapter = Adapter(make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"], **task))
    inputs = replace(plan(base, [adapter]).inputs, scores=scores)
    write_with_peft(Plan(inputs, unsupported="a test"), tmp_path / "merged", None)
    if scores:
        assert called == []
        return
    assert called == [((tmp_path / "merged", base), {"cast": True, "trusted": False})]


def test_the_adapter_s_own_scale_is_written(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    folder = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    (folder / "hftune.json").write_text(json.dumps({"reward_scale": {"mean": 2.0}}))
    write_with_peft(plan(base, [Adapter(folder)]), tmp_path / "merged", None)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["reward_scale"] == {"mean": 2.0}
    assert len(list((tmp_path / "merged").glob("*.safetensors"))) == 1


def test_a_packed_base_whose_positions_were_stretched(make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", hidden_size=64, intermediate_size=160), tmp_path / "packed", "fp8")
    adapter = make_adapter(Path(f"{folder}-whole"), tmp_path / "adapter", target_modules=["q_proj"])
    rope = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    (adapter / "hftune.json").write_text(json.dumps({"rope": rope}))
    model = load_base(plan(folder, [Adapter(adapter)]))
    assert model.config.rope_parameters == rope["rope_parameters"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    whole = load_file(f"{folder}-whole/model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight.detach(), whole)


def test_tensors_that_are_not_needed() -> None:
    """Experts are renamed while peft loads; a base layer and a copy of what was there before are the base's."""
    for part in ("base_layer", "original_module", "modules_to_save"):
        assert peft_model._is_renamed(f"base_model.model.q.{part}.weight")
    assert peft_model._is_renamed("base_model.model.mlp.experts.0.lora_A.weight")
    assert not peft_model._is_renamed("base_model.model.mlp.shared_experts_gate.lora_A.weight")


def test_an_adapter_of_a_causal_lm_below_a_reward_model(make_base: Callable, tmp_path: Path) -> None:
    """Its task has no generation there, and what it did to the head is not needed; anything else is."""
    base = make_base("llama")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    reward = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    adapted = load_adapter(reward, adapter)
    assert not adapted.training and hasattr(adapted.get_base_model(), "score")
    assert isinstance(load_adapter(load_base(plan(base)), adapter), PeftModelForCausalLM)
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    name = next(name for name in tensors if "q_proj" in name)
    extra = {name.replace("layers.0", f"layers.{number}"): tensors[name].clone() for number in (8, 9)}
    save_file(tensors | extra, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"layers\.8.*\(and 1 more\)"):
        load_adapter(AutoModelForSequenceClassification.from_pretrained(base, num_labels=1), adapter)


@pytest.mark.parametrize(("tied", "said"), [(True, False), (True, True), (False, False)])
def test_a_tied_head_gets_a_copy_before_anything_is_folded(tied: bool, said: bool, make_base: Callable) -> None:
    """By memory, whatever the config says: what is folded into one must not be in the other."""
    model = load_base(plan(make_base("llama", tie_word_embeddings=tied)))
    model.config.tie_word_embeddings = said
    assert peft_model._untie(model) is tied
    head, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert head.data_ptr() != embeddings.data_ptr() and torch.equal(head, embeddings) is tied


def test_what_peft_would_pass_over(make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("llama"), tmp_path / "adapter", target_modules=ATTENTION)
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    name = next(iter(tensors))
    save_file(tensors | {name.replace("layers.0", "layers.9"): tensors[name].clone()}, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"has nothing for its .*layers\.9"):
        load_adapter(load_base(plan(make_base("llama"))), adapter)
