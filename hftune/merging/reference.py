"""Base and adapters as transformers and peft load them: what a merge is compared with, and what merges in its stead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from transformers import (
    AutoConfig,
    BitsAndBytesConfig,
    PreTrainedModel,
)

from hftune.compat.bitsandbytes_patches import keep_differentiable
from hftune.constants import AUTO_CLASSES
from hftune.errors import ArgumentError, ManifestError
from hftune.merging.adapters import Adapter
from hftune.merging.plan import Plan
from hftune.merging.tensors import DTYPES
from hftune.models.loading.from_pretrained import pretrained, reporting_damage
from hftune.models.loading.gguf import forget_gguf
from hftune.models.vocabulary.growing import grow
from hftune.weight_files import weight_shapes


def load_base(plan: Plan, *, quantised: bool = False) -> PreTrainedModel:
    """The base in float32 on the CPU, or quantised as training saw it, with as many rows as the adapters have."""
    auto: Any = getattr(transformers, AUTO_CLASSES[plan.head])
    extra: dict[str, Any] = {} if plan.scores is None or plan.rope else {"num_labels": plan.scores}
    if plan.base.gguf_file:
        extra["gguf_file"] = plan.base.gguf_file
    if plan.rope:
        extra["config"] = _stretched(plan)
    dtype = torch.float32
    if quantised and plan.quantised is not None:
        dtype = DTYPES[plan.quantised.compute]
        extra |= {"quantization_config": _quantization(plan), "device_map": {"": "cpu"}}
    try:
        model = pretrained(auto, plan.base.folder, dtype=dtype, trust_remote_code=plan.trust_remote_code, **extra)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"no model could be loaded from {plan.base.name}: {str(error).splitlines()[0]}",
            place="--base_model_name_or_path",
            fix="give a folder with config.json and weights, or a Hub name that can be reached",
        ) from error
    if plan.base.gguf_file:
        forget_gguf(model)
    rows = plan.outputs.vocab_size if plan.outputs else None
    if plan.growth is not None:
        grow(model, plan.growth)
    elif rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    keep_differentiable(model)
    return model.eval()


def _stretched(plan: Plan) -> Any:
    gguf = {"gguf_file": plan.base.gguf_file} if plan.base.gguf_file else {}
    config = pretrained(AutoConfig, plan.base.folder, trust_remote_code=plan.trust_remote_code, **gguf)
    for name, value in plan.rope.items():
        setattr(config.get_text_config(), name, value)
    if plan.scores is not None:
        config.num_labels = plan.scores
    return config


def _quantization(plan: Plan) -> BitsAndBytesConfig:
    how = plan.quantised
    assert how is not None
    if how.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "score"])
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=how.kind,
        bnb_4bit_use_double_quant=how.nested,
        bnb_4bit_compute_dtype=DTYPES[how.compute],
    )


def load_adapted(plan: Plan, *, quantised: bool = False) -> Any:
    """Base and adapters, the last level's not merged."""
    model: Any = load_base(plan, quantised=quantised)
    for level in plan.levels[:-1]:
        model = load_adapter(model, level[0].folder).merge_and_unload(safe_merge=True)
    return _add_level(model, plan.levels[-1])


def _add_level(model: Any, level: list[Adapter]) -> PeftModel:
    adapted = load_adapter(model, level[0].folder)
    names = ["default"]
    for number, adapter in enumerate(level[1:], start=1):
        names.append(f"adapter{number}")
        adapted.load_adapter(str(adapter.folder), adapter_name=names[-1])
    for name, adapter in zip(names, level, strict=True):
        _weigh(adapted, name, adapter.weight)
    if len(names) > 1:
        adapted.base_model.set_adapter(names)
    return adapted.eval()


def _weigh(adapted: Any, name: str, weight: float) -> None:
    for module in adapted.modules():
        if isinstance(module, LoraLayer) and name in module.scaling:
            module.scaling[name] *= weight


def load_adapter(model: Any, folder: Path) -> PeftModel:
    """peft's own loading; an adapter that it cannot load is the user's to mend.

    Raises:
        ManifestError: With what peft says.
    """
    try:
        config = PeftConfig.from_pretrained(str(folder))
        if config.task_type == "CAUSAL_LM" and hasattr(model, "score"):
            config.task_type = None  # peft's class for causal LMs wants a model that generates
        with reporting_damage(folder):
            adapted = PeftModel.from_pretrained(model, str(folder), config=config).eval()
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())
        raise ManifestError(
            f"peft cannot load the adapter in {folder}: {text[:300]}",
            place="--peft_model_path",
            fix="give the base that it was trained on, or an adapter that fits",
        ) from error
    _check_all_used(adapted, folder)
    return adapted


def _check_all_used(adapted: PeftModel, folder: Path) -> None:
    """peft passes over tensors that belong to no module of the model."""
    used = get_peft_model_state_dict(adapted).keys()
    left = [name for name in weight_shapes(folder) if name not in used and not _means_another(name)]
    if hasattr(adapted.get_base_model(), "score"):
        left = [name for name in left if ".lm_head." not in name]  # an adapter of a causal LM below a reward model's
    if left:
        raise ManifestError(
            f"the adapter in {folder} does not fit the base, which has nothing for its {left[0]}"
            + (f" (and {len(left) - 1} more)" if len(left) > 1 else ""),
            place="--peft_model_path",
            fix="give the model that the adapter was trained on",
        )


def _means_another(name: str) -> bool:
    """Experts are renamed while peft loads; what was there before training, and copies of it, are not needed."""
    return ".experts." in name or any(part in name for part in ("base_layer", "original_module", "modules_to_save"))


def comparable(plan: Plan) -> bool:
    """Whether peft can compute base + adapters: it weighs low-rank matrices, not weights that were trained in full."""
    level = plan.levels[-1]
    if len(level) == 1 and level[0].weight == 1.0:
        return True
    return not any(adapter.replaced or adapter.config.get("use_dora") for adapter in level)
