"""Base and adapters as transformers and peft load them: what a merge is compared with, and what merges in its stead.

The whole model is in memory. Imported only where one of these is needed: transformers and peft take seconds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoTokenizer, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from hftune.compat.patches import keep_differentiable
from hftune.constants import AUTO_CLASSES, REWARD_SCALE_FIELD
from hftune.errors import ArgumentError, ManifestError
from hftune.logging import notice
from hftune.merging.adapters import Adapter
from hftune.merging.inputs import BASE_FLAG, FLAG, Inputs, has_tokenizer
from hftune.merging.plan import Plan
from hftune.models.loading.base_parts import keep_of_base
from hftune.models.loading.from_pretrained import pretrained, reporting_damage
from hftune.models.loading.quantisation import drop_quantisation
from hftune.models.vocabulary import forbid_rows_without_token, grow
from hftune.weight_files import weight_files, weight_shapes

# --- base + adapters, for comparison ---------------------------------------------------------------------------------


def load_adapted(plan: Plan, *, quantised: bool = False) -> PeftModel:
    """Base and adapters, the last level's not merged."""
    return _adapted(load_base(plan, quantised=quantised), plan.inputs.levels)


def _adapted(model: PreTrainedModel, levels: list[list[Adapter]]) -> PeftModel:
    # Folded one by one, as training did: peft knows no adapter upon an adapter.
    *below, last = levels
    for level in below:
        model = _folded(load_adapter(model, level[0].folder), level[0])
    adapted = load_adapter(model, last[0].folder)
    names = ["default", *(f"adapter{number}" for number in range(1, len(last)))]
    for name, adapter in zip(names[1:], last[1:], strict=True):
        adapted.load_adapter(str(adapter.folder), adapter_name=name)
    for name, adapter in zip(names, last, strict=True):
        _weigh(adapted, name, adapter.weight)
    if len(names) > 1:
        adapted.base_model.set_adapter(names)
    return adapted.eval()


def _weigh(adapted: PeftModel, name: str, weight: float) -> None:
    # Not by `add_weighted_adapter`: the adapter that it makes of rsLoRA counts sqrt(r) times (peft 0.21).
    for module in adapted.modules():
        if isinstance(module, LoraLayer) and name in module.scaling:
            module.scaling[name] *= weight


def _folded(adapted: PeftModel, adapter: Adapter) -> PreTrainedModel:
    merge: Any = getattr(adapted, "merge_and_unload", None)
    if merge is None:
        raise ArgumentError(
            f"an adapter of type {adapter.config.get('peft_type')} cannot be merged",
            place=FLAG,
            fix="serve it on top of its base, or train a LoRA adapter in its place",
        )
    merged: PreTrainedModel = merge(safe_merge=True)
    return merged


def load_base(plan: Plan, *, quantised: bool = False) -> PreTrainedModel:
    """The base in float32 on the CPU, or quantised as training saw it, with as many rows as the adapters have.

    Raises:
        ArgumentError: transformers cannot load it.
    """
    inputs = plan.inputs
    auto: Any = getattr(transformers, AUTO_CLASSES[inputs.head])
    dtype, extra = torch.float32, _loading_options(inputs)
    if quantised and inputs.quantised is not None:
        dtype = getattr(torch, inputs.quantised["compute"])
        extra |= {"quantization_config": _bitsandbytes(inputs.quantised), "device_map": {"": "cpu"}}
    trusted = inputs.trust_remote_code
    try:
        model = pretrained(auto, inputs.base.folder, dtype=dtype, trust_remote_code=trusted, **extra)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"no model could be loaded from {inputs.base.name}: {str(error).splitlines()[0]}",
            place=BASE_FLAG,
            fix="give a folder with config.json and weights, or a Hub name that can be reached",
        ) from error
    rows = _rows_of_adapters(model, inputs.adapters)
    if inputs.growth is not None:
        grow(model, inputs.growth)
    elif rows:
        # The adapter brings the new rows; what they are before does not count.
        model.resize_token_embeddings(rows, mean_resizing=False)
    keep_differentiable(model)  # before the first forward pass, which would pack 4-bit weights anew
    return model.eval()


def _rows_of_adapters(model: PreTrainedModel, adapters: list[Adapter]) -> int | None:
    """Rows of embeddings that an adapter of another tool brings whole, where they are more than the base's.

    Raises:
        ManifestError: It does not bring a head of as many rows, which is another tensor.
    """
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {name: module for name, module in model.named_modules() if module is inputs or module is head}
    brought = {
        id(names[module]): stored.shape[0]
        for adapter in adapters
        for module, stored in ((name.removesuffix(".weight"), stored) for name, stored in adapter.replaced.items())
        if module in names
    }
    rows = brought.get(id(inputs), 0)
    if rows <= inputs.weight.shape[0]:
        return None
    if head is not None and head.weight is not inputs.weight and brought.get(id(head)) != rows:
        raise ManifestError(
            f"the adapter has {rows} embeddings, and the head would have {head.weight.shape[0]} rows",
            place=FLAG,
            fix="train and save both: --lora_modules_to_save embed_tokens lm_head",
        )
    return rows


def _loading_options(inputs: Inputs) -> dict[str, Any]:
    if inputs.rope:
        return {"config": _stretched(inputs)}
    return {} if inputs.scores is None else {"num_labels": inputs.scores}


def _stretched(inputs: Inputs) -> PretrainedConfig:
    """The base's config with the positions of training: they shape buffers that are made while the model loads."""
    config = pretrained(AutoConfig, inputs.base.folder, trust_remote_code=inputs.trust_remote_code)
    for name, value in inputs.rope.items():
        setattr(config.get_text_config(), name, value)
    if inputs.scores is not None:
        config.num_labels = inputs.scores
    return config


def _bitsandbytes(how: dict[str, Any]) -> BitsAndBytesConfig:
    if int(how["bits"]) == 8:
        # As training names them: transformers would choose by the model.
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "score"])
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=how.get("type"),
        bnb_4bit_use_double_quant=bool(how.get("nested")),
        bnb_4bit_compute_dtype=how["compute"],
    )


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """peft's own loading; an adapter that it cannot load is the user's to fix.

    Raises:
        ManifestError: With what peft says.
    """
    with reporting_damage(folder):
        try:
            config = PeftConfig.from_pretrained(str(folder))
            if config.task_type == "CAUSAL_LM" and hasattr(model, "score"):
                config.task_type = None  # peft's class for causal LMs wants a model that generates
            adapted = PeftModel.from_pretrained(model, str(folder), config=config).eval()
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            text = " ".join(str(error).split())
            raise ManifestError(
                f"peft cannot load the adapter in {folder}: {text[:300]}",
                place=FLAG,
                fix="give the base that it was trained on, or an adapter that fits",
            ) from error
    _check_all_used(adapted, folder)
    return adapted


def _check_all_used(adapted: PeftModel, folder: Path) -> None:
    """peft passes over tensors that belong to no module of the model."""
    # As peft would save them: the names in the file.
    used = get_peft_model_state_dict(adapted).keys()
    left = [name for name in weight_shapes(folder) if name not in used and not _is_renamed(name)]
    if hasattr(adapted.get_base_model(), "score"):
        left = [name for name in left if ".lm_head." not in name]  # an adapter of a causal LM below a reward model's
    if left:
        raise ManifestError(
            f"the adapter in {folder} does not fit the base, which has nothing for its {left[0]}"
            + (f" (and {len(left) - 1} more)" if len(left) > 1 else ""),
            place=FLAG,
            fix="give the model that the adapter was trained on",
        )


def _is_renamed(name: str) -> bool:
    """Experts are renamed while peft loads; what was there before training, and copies of it, are not needed."""
    return ".experts." in name or any(part in name for part in ("base_layer", "original_module", "modules_to_save"))


# --- what hftune does not fold tensor by tensor ----------------------------------------------------------------------


def write_with_peft(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    """Load, merge in float32, save; returns how many tensors the adapters changed.

    Raises:
        ArgumentError: An adapter of a kind that cannot be merged, or a base that is stored quantised.
    """
    notice(f"merged by peft, with the whole model in memory: {plan.unsupported}")
    inputs = plan.inputs
    model = load_base(plan, quantised=inputs.dequantise)
    packed = getattr(model, "quantization_method", None) is not None  # by bitsandbytes alone: others are refused
    if packed:
        model = model.dequantize(dtype=torch.float32).float()
        drop_quantisation(model.config)
    before = _digests(model)
    tied = _untie(model)
    model = _folded(_adapted(model, inputs.levels), inputs.last)
    if tied:
        _tie_what_is_equal(model)
    after = _digests(model)
    if inputs.growth is not None and has_tokenizer(inputs.tokenizer):
        tokenizer = pretrained(AutoTokenizer, inputs.tokenizer, trust_remote_code=inputs.trust_remote_code)
        forbid_rows_without_token(model, tokenizer)
    model.config.use_cache = True  # off where the base was saved by a run with gradient checkpointing
    if hasattr(model.config, REWARD_SCALE_FIELD):
        delattr(model.config, REWARD_SCALE_FIELD)  # another model's
    if inputs.reward_scale is not None:
        setattr(model.config, REWARD_SCALE_FIELD, inputs.reward_scale)
    stored = inputs.dtype or inputs.config.get("dtype") or inputs.config.get("torch_dtype") or "float32"
    dtype = getattr(torch, str(stored).removeprefix("torch."))  # older configs say torch.bfloat16
    # The names that transformers has in memory where it has unpacked weights: it knows no way back (5.23).
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size or "5GB", save_original_format=not packed)
    changed = {name for name, digest in after.items() if before.get(name) != digest}
    if inputs.scores is None and weight_files(inputs.base.folder):
        # What transformers has not loaded, peft has not saved.
        keep_of_base(folder, inputs.base.folder, cast=inputs.dtype is None, trusted=inputs.trust_remote_code)
    return len(changed)


def _untie(model: PreTrainedModel) -> bool:
    """Give a head that is one tensor with the embeddings a copy: what is folded into one is not in the other.

    Returns:
        Whether the base ties them; some checkpoints hold two tensors all the same, which are loaded as they are.
    """
    head, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None:
        return False
    tied = head.weight is inputs.weight
    if tied:
        head.weight = torch.nn.Parameter(inputs.weight.detach().clone(), requires_grad=False)
    return tied or bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))


def _tie_what_is_equal(model: PreTrainedModel) -> None:
    head, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    equal = torch.equal(head.weight, inputs.weight)
    if equal:
        head.weight = inputs.weight
    else:
        notice("the adapter trained one of two tables that the base ties: they are apart (tie_word_embeddings: false)")
    # peft has set it, for a head that is another tensor (0.21).
    for config in {id(one): one for one in (model.config, model.config.get_text_config())}.values():
        config.tie_word_embeddings = equal


def _digests(model: PreTrainedModel) -> dict[str, bytes]:
    """A digest of each tensor: two models at once would not fit in memory."""
    return {name: _digest(value) for name, value in model.state_dict().items()}


def _digest(value: torch.Tensor) -> bytes:
    array: Any = value.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(array).digest()
