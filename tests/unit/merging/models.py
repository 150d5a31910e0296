"""Tiny bases and adapters with weights that matter, made on the spot, and what they say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from hftune.arguments.merging import MergeArguments
from hftune.merging.merge import merge_adapter
from hftune.weight_files import StoredTensor, stored_tensors

IDS = (torch.arange(24) * 7 % 250 + 3)[None]
AUTO: dict[str, Any] = {
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
}
ATTENTION = ["q_proj", "v_proj", "o_proj"]


def store(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> dict[str, StoredTensor]:
    """Tensors as they lie in a file of a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / name, {"format": "pt"})
    return stored_tensors(folder)


def auto(config: LoraConfig) -> Any:
    """The class that a task is loaded with."""
    return AUTO[config.task_type]


def load(base: Path, config: LoraConfig, **options: Any) -> Any:
    """The base in float32, as its task needs it."""
    labels = {"SEQ_CLS": 1, "TOKEN_CLS": 2}.get(config.task_type)
    extra = {} if labels is None else {"num_labels": labels}
    return auto(config).from_pretrained(base, dtype=torch.float32, **extra, **options).eval()


def load_plain(base: Path) -> Any:
    """The base as a causal LM in float32."""
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


def make_adapter(base: Path, folder: Path, *, rows: int | None = None, seed: int = 0, **config: Any) -> Path:
    """A random adapter whose every tensor counts, saved as peft saves it.

    Args:
        base: The model it is for.
        folder: Where it is saved.
        rows: Size of the vocabulary; None: the base's.
        seed: Another seed is another adapter.
        config: Of peft's LoraConfig.
    """
    lora = LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | config)
    model = load(base, lora)
    generator = torch.Generator().manual_seed(seed)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    adapted = get_peft_model(model, lora)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    adapted.save_pretrained(folder)
    return folder


def adapted_logits(base: Path, *adapters: Path, rows: int | None = None) -> torch.Tensor:
    """What peft computes of base + adapters, none of them merged (side by side)."""
    lora = LoraConfig.from_pretrained(str(adapters[0]))
    model = load(base, lora)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    adapted = PeftModel.from_pretrained(model, str(adapters[0]))
    for number, adapter in enumerate(adapters[1:]):
        adapted.load_adapter(str(adapter), adapter_name=f"a{number}")
    if len(adapters) > 1:
        adapted.base_model.set_adapter(["default", *(f"a{number}" for number in range(len(adapters) - 1))])
    with torch.no_grad():
        return adapted.eval()(IDS).logits


def merged_logits(folder: Path, task: str = "CAUSAL_LM") -> torch.Tensor:
    """What the merged folder says; missing and left-over weights fail."""
    model, info = AUTO[task].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        return model.eval()(IDS).logits


def merge(adapter: Path | str, output: Path, **arguments: Any) -> dict[str, Any]:
    """`merge_peft_adapter.py` without a process of its own; logits are compared by the tests."""
    args = MergeArguments(peft_model_path=str(adapter), output_dir=str(output), **{"verify": "false"} | arguments)
    return merge_adapter(args)


def settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """A JSON file of a folder."""
    return json.loads((folder / name).read_text(encoding="utf-8"))
