"""A LoRA adapter for vLLM: one rank and one alpha say all of it, or it is refused with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import UserError
from hftune.tools.export.arguments import ServedAdapterArguments, ServingArguments
from hftune.tools.export.run import export
from tests.unit.merging.models import ATTENTION, IDS, adapted_logits, load_plain, make_adapter


def served(adapter: Path, output: Path, **options: Any) -> dict[str, Any]:
    return export(ServedAdapterArguments(model_name_or_path=str(adapter), output_dir=str(output), **options))


def as_vllm_reads(base: Path, folder: Path) -> torch.Tensor:
    """Logits of W + alpha / r B A, with r and alpha of the config alone; any name that vLLM does not parse fails."""
    config = json.loads((folder / "adapter_config.json").read_text())
    assert not config["modules_to_save"] and not config["use_dora"] and config["bias"] == "none"
    tensors = load_file(folder / "adapter_model.safetensors")
    model = load_plain(base)
    for name in tensors:
        match = re.fullmatch(r"base_model\.model\.(.+)\.(lora_A\.weight|lora_embedding_A)", name)
        if match is None:
            assert re.fullmatch(r"base_model\.model\..+\.(lora_B\.weight|lora_embedding_B)", name)
            continue
        down, up = tensors[name], tensors[name.replace("_A", "_B")]
        assert down.shape[0] == up.shape[1] == config["r"]
        delta = config["lora_alpha"] / config["r"] * up @ down
        with torch.no_grad():
            model.get_submodule(match[1]).weight += delta.T if "embedding" in name else delta
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (4, 6)),
        ({"use_rslora": True}, (4, 12)),
        ({"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"layers.1.self_attn.v_proj": 32}}, (8, 8)),
        ({"alpha_pattern": {"q_proj": 2}}, (4, 4)),
        ({"target_modules": [*ATTENTION, "embed_tokens", "lm_head"]}, (4, 6)),
    ],
    ids=["plain", "rsLoRA", "patterns", "scales", "embeddings and head"],
)
def test_what_vllm_reads_says_the_same(
    config: dict[str, Any], expected: tuple[int, float], make_base: Callable, tmp_path: Path
) -> None:
    base = make_base("llama")
    adapter = make_adapter(base, tmp_path / "a", **{"target_modules": ATTENTION} | config)
    manifest = served(adapter, tmp_path / "served")
    torch.testing.assert_close(
        as_vllm_reads(base, tmp_path / "served"), adapted_logits(base, adapter), atol=1e-5, rtol=1e-5
    )
    figures = manifest["figures"]
    assert (figures["rank"], figures["alpha"]) == expected and figures["logits_largest_difference"] < 1e-5
    assert manifest["kind"] == "adapter" and manifest["base"]["name"] == str(base)


@pytest.mark.parametrize(
    ("config", "base", "says"),
    [
        ({"use_dora": True}, {}, "it is DoRA"),
        ({"modules_to_save": ["lm_head"]}, {}, "weights trained whole (lm_head.weight)"),
        ({"trainable_token_indices": [5]}, {}, "sets trainable_token_indices"),
        ({"bias": "all"}, {"name": "qwen2"}, "trained biases"),
        ({"lora_bias": True}, {}, "sets lora_bias"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, {"name": "mixtral"}, "experts"),
        ({"target_modules": ["c_attn"], "fan_in_fan_out": True}, {"name": "gpt2"}, "(in, out)"),
        (
            {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
            {"tie_word_embeddings": True},
            "one matrix",
        ),
        ({"task_type": "SEQ_CLS", "modules_to_save": ["score"]}, {}, "weights trained whole (score.weight)"),
    ],
)
def test_what_it_would_not_read_is_refused(
    config: dict[str, Any], base: dict[str, Any], says: str, make_base: Callable, tmp_path: Path
) -> None:
    adapter = make_adapter(make_base(**base), tmp_path / "a", **{"target_modules": ["q_proj", "v_proj"]} | config)
    with pytest.raises(UserError, match=re.escape(says)) as raised:
        served(adapter, tmp_path / "served")
    assert f"merge_peft_adapter.py --peft_model_path {adapter}" in str(raised.value)
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"base": {"name": "BASE", "adapters": ["first"]}}, "lies upon other adapters"),
        ({"rope": {"rope_parameters": {}}}, "other rotary positions"),
    ],
)
def test_what_its_history_says(manifest: dict[str, Any], says: str, make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("llama"), tmp_path / "a", target_modules=ATTENTION)
    (adapter / "hftune.json").write_text(json.dumps(manifest).replace("BASE", str(make_base("llama"))))
    with pytest.raises(UserError, match=says):
        served(adapter, tmp_path / "served")


def test_embeddings_that_peft_saved_unasked_are_left_out(make_base: Callable, tmp_path: Path) -> None:
    """They are the base's, and vLLM would stop at their names."""
    base = make_base("llama")
    adapter = make_adapter(base, tmp_path / "a", target_modules=ATTENTION)
    tensors = load_file(adapter / "adapter_model.safetensors")
    same = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    save_file(tensors | {"base_model.model.model.embed_tokens.weight": same}, adapter / "adapter_model.safetensors")
    served(adapter, tmp_path / "served", verify=False)
    assert load_file(tmp_path / "served" / "adapter_model.safetensors").keys() == tensors.keys()
    save_file(tensors | {"base_model.model.model.embed_tokens.weight": same + 1}, adapter / "adapter_model.safetensors")
    with pytest.raises(UserError, match="trained whole"):
        served(adapter, tmp_path / "again")


def test_a_rank_too_large_and_the_way_from_the_other_format(make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("llama"), tmp_path / "a", target_modules=["q_proj"], r=513)
    with pytest.raises(UserError, match="its rank is 513, vLLM takes 512"):
        served(adapter, tmp_path / "served")
    with pytest.raises(UserError, match="hftune export vllm-lora"):
        export(ServingArguments(model_name_or_path=str(adapter), output_dir=str(tmp_path / "served")))
