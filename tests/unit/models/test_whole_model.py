"""Models of several parts: loaded whole, trained on text alone, and saved with every other part as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)

from hftune.arguments.adapter import AdapterArguments
from hftune.errors import ArgumentError
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import all_linear, inject, lora_config
from hftune.models.classes import make_reward_models
from hftune.models.loading.base_parts import keep_of_base
from hftune.models.loading.config import _refuse_shapeless
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.stored_weights import find_mismatch
from hftune.models.structure import body_of, freeze_other_parts, is_within, other_parts
from hftune.preflight.model_folder import check_adapter_fits
from hftune.weight_files import INDEX_NAME, weight_shapes
from tests.architectures import few_quick, make_model
from tests.table.tiny import model_class, tiny_checkpoint, tiny_config
from tests.towers import WHOLE, make_whole, make_with_further_head
from tests.unit.merging.models import IDS, merge, merged_logits

RENAMED = ("kimi_k25", "mistral_large4", "minimax_m3_vl", "qianfan_ocr", "inkling_mm_model", "inkling2")
OF_OTHERS = ("deepseek_ocr2", "ernie4_5_vl_moe")
"""Their rules rename what has the language model's own names already."""
QUICK = ("gemma3", "qwen3_5", "further head", "kimi_k25", "deepseek_ocr2")


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def load(folder: Path, **given: Any) -> Any:
    return pretrained(AutoModelForCausalLM, folder, trust_remote_code=False, dtype=torch.float32, **given)


def train(base: Path, folder: Path) -> Any:
    """A model of a base with every parameter moved that text trains, saved in float32."""
    model = load(base)
    freeze_other_parts(model)
    with torch.no_grad():
        for parameter in (one for one in model.parameters() if one.requires_grad):
            parameter.add_(0.25)
    model.save_pretrained(folder)
    return model


def logits_of(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=ids).logits
    return logits


@pytest.mark.parametrize("name", few_quick([*WHOLE, *RENAMED, *OF_OTHERS], QUICK))
def test_all_parts_are_loaded_and_text_trains_what_it_passes_through(name: str, tmp_path: Path) -> None:
    """The other parts alone are without a gradient, and they are the ones that are frozen."""
    folder = make_whole(name, tmp_path) if name in WHOLE else tiny_checkpoint(name, tmp_path / "base")
    model, info = load(folder, output_loading_info=True)
    assert not any(info.values()) and not find_mismatch(model, weight_shapes(folder))
    whole = model_class(name).from_pretrained(folder, dtype=torch.float32)
    assert type(model) is type(whole) and torch.equal(logits_of(model), logits_of(whole))
    ids = torch.arange(5, 25)[None]
    model.train()(input_ids=ids, labels=ids).loss.backward()
    freeze_other_parts(model)
    parts = other_parts(model)
    frozen = {key for key, one in model.named_parameters() if not one.requires_grad}
    assert frozen and frozen == {key for key, _ in model.named_parameters() if is_within(key, parts)}
    touched = {key for key, one in model.named_parameters() if one.grad is not None}
    assert not any(is_within(key, parts) for key in touched)
    left = {key for key, _ in model.named_parameters() if not is_within(key, parts)} - touched
    # Experts that no token was sent to, and what chooses among experts or tokens.
    assert not {key for key in left if not any(word in key for word in ("expert", "gate", "indexer"))}, left


@pytest.mark.parametrize("name", few_quick([*WHOLE, "further head"], QUICK))
def test_all_of_the_base_is_there(name: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "out"
    make_with_further_head(base) if name == "further head" else make_whole(name, base)
    (base / "spk_dict.pt").write_bytes(b"voices, which nobody reads")
    train(base, folder)
    kept = keep_of_base(folder, base)
    before, after = tensors_of(base), tensors_of(folder)
    shapes = [{key: (tensor.dtype, tensor.shape) for key, tensor in all_.items()} for all_ in (before, after)]
    assert shapes[0] == shapes[1]
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert kept and {*kept} <= same
    others = [key for key in same - {*kept} if not key.endswith(("layer_scalar", "e_score_correction_bias"))]
    assert not others  # but for buffers
    moved = next(key for key in before if key.endswith("embed_tokens.weight") and "layers" not in key)
    assert torch.equal(after[moved], (before[moved].float() + 0.25).to(before[moved].dtype))
    assert json.loads((folder / "config.json").read_text()) == json.loads((base / "config.json").read_text())
    processors = {file.name for file in base.glob("*processor_config.json")}
    assert processors == {file.name for file in folder.glob("*processor_config.json")}
    assert (folder / "spk_dict.pt").read_bytes() == (base / "spk_dict.pt").read_bytes()


@pytest.mark.parametrize("name", few_quick([*RENAMED, *OF_OTHERS], QUICK))
def test_names_that_follow_from_rules_are_written_as_they_were(name: str, tmp_path: Path) -> None:
    base, folder = tiny_checkpoint(name, tmp_path / "base"), tmp_path / "out"
    model = train(base, folder)
    kept, before, after = keep_of_base(folder, base), tensors_of(base), tensors_of(folder)
    assert {key: (one.dtype, one.shape) for key, one in before.items()} == {
        key: (one.dtype, one.shape) for key, one in after.items()
    }
    buffers = {key for key, _ in model.named_buffers()}
    for key in before:
        if key in kept:
            assert torch.equal(before[key], after[key]), key
        elif not any(key.endswith(one.rpartition(".")[2]) for one in buffers) and "gate.bias" not in key:
            assert torch.allclose(after[key], before[key] + 0.25, atol=1e-6), key
    assert kept and len(kept) < len(before)


def test_what_is_not_loaded_is_in_the_index(tmp_path: Path) -> None:
    base, folder = make_with_further_head(tmp_path / "base"), tmp_path / "out"
    load(base).save_pretrained(folder, max_shard_size="100KB")
    keep_of_base(folder, base)
    index = json.loads((folder / INDEX_NAME).read_text())
    assert {*index["weight_map"]} == {*tensors_of(folder)} == {*tensors_of(base)}
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in tensors_of(folder).values())


def test_a_language_model_that_is_all_there_is_stays_as_it_was_saved(tmp_path: Path) -> None:
    base, folder = make_model("qwen3", tmp_path / "base"), tmp_path / "out"
    train(base, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert keep_of_base(folder, base) == []
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("name", few_quick(WHOLE, QUICK))
def test_other_parts_get_no_adapter(name: str, tmp_path: Path) -> None:
    make_whole(name, tmp_path)
    for asked in (["all"], ["q_proj", "v_proj"]):
        model = load(tmp_path)
        parts, args = other_parts(model), AdapterArguments(use_peft=True, lora_target_modules=asked)
        assert not any(is_within(key, parts) for key in all_linear(model))
        adapted = inject(model, lora_config(model, args))
        names = [key for key, one in adapted.named_parameters() if one.requires_grad]
        assert names and not any(f".{part}." in f".{key}" for part in parts for key in names)


def test_freezing_counts_what_text_trains(tmp_path: Path) -> None:
    model = load(make_whole("gemma3", tmp_path))
    text = {id(one) for key, one in model.named_parameters() if "vision_tower" not in key and "projector" not in key}
    assert plan_freezing(model, AdapterArguments(freeze_parameters_ratio=0.0)) == text
    first = plan_freezing(model, AdapterArguments(freeze_parameters_ratio=0.5))
    assert first < text and id(model.get_input_embeddings().weight) not in first
    with pytest.raises(ArgumentError, match="no text passes through"):
        plan_freezing(model, AdapterArguments(freeze_parameters=["model.language", "lm"]))


def test_an_adapter_that_peft_trained_on_the_class_of_all_parts_is_merged(tmp_path: Path) -> None:
    base = make_whole("gemma3", tmp_path / "base")
    whole = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=r".*language_model.*q_proj", task_type="CAUSAL_LM", init_lora_weights=False)
    adapted: Any = get_peft_model(whole, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    assert not [*check_adapter_fits(str(base), str(tmp_path / "adapter"), "--peft_path")]
    with torch.no_grad():
        wanted = adapted(IDS).logits
    merge(tmp_path / "adapter", tmp_path / "merged", base_model_name_or_path=str(base), dtype="float32")
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)
    before, after = tensors_of(base), tensors_of(tmp_path / "merged")
    changed = {key for key in before if not torch.equal(before[key].float(), after[key].float())}
    assert {key.rpartition(".layers.")[2] for key in changed} == {f"{n}.self_attn.q_proj.weight" for n in (0, 1)}


def test_it_generates_and_scores(tmp_path: Path) -> None:
    folder = make_whole("qwen3_vl", tmp_path)
    model = load(folder)
    ids = torch.full((1, 4), 5)
    assert model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 6)
    model.config.num_labels = 1
    scores = from_config(AutoModelForSequenceClassification, model.config, trust_remote_code=False)
    scores.config.get_text_config().pad_token_id = 0
    assert scores(input_ids=ids).logits.shape == (1, 1) and other_parts(scores) == ["model.visual"]


@pytest.mark.parametrize("model_type", ["glm4_moe", "falcon_h1", "recurrent_gemma"])
def test_a_reward_model_is_made_of_a_decoder_without_one(model_type: str, tmp_path: Path) -> None:
    """Its states are the language model's, and it is read back as it was; Mamba's decoder does not fit."""
    folder = tiny_checkpoint(model_type, tmp_path / "base")
    given: dict[str, Any] = {"trust_remote_code": False, "dtype": torch.float32}
    model = pretrained(AutoModelForSequenceClassification, folder, num_labels=1, **given).eval()
    language = pretrained(AutoModelForCausalLM, folder, **given).eval()
    ids = torch.randint(5, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = body_of(language)(input_ids=ids).last_hidden_state
        scores = model(input_ids=ids).logits
        torch.testing.assert_close(scores, model.score(states[:, -1]))
        model.save_pretrained(tmp_path / "rm")
        again = pretrained(AutoModelForSequenceClassification, tmp_path / "rm", **given).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, scores)


def test_no_reward_model_is_made_of_what_takes_no_positions() -> None:
    config = tiny_config("mamba2")
    make_reward_models(config)
    assert type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING


@pytest.mark.parametrize("name", ["diffusion_gemma", "idefics", "evolla", "molmo2", "qwen2_5_omni"])
def test_what_does_not_read_text_alone_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"no class that reads a row of text alone .* {name}"):
        _refuse_shapeless(tiny_config(name))


def test_a_tied_head_that_is_stored_twice_stays_one(tmp_path: Path) -> None:
    base, folder = make_whole("gemma3", tmp_path / "base"), tmp_path / "out"
    every = load_file(base / "model.safetensors")
    embeddings = every["language_model.model.embed_tokens.weight"]
    save_file(every | {"language_model.lm_head.weight": embeddings.clone()}, base / "model.safetensors")
    model = train(base, folder)
    keep_of_base(folder, base)
    again = load(folder)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight.to(torch.bfloat16).float())
