"""The model as it will be trained: in whole, in part, or with a LoRA adapter; each way is imported when asked for."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.models.adapters.parameter_report import report_low_precision, report_trained_parameters
from hftune.models.structure import is_mixture
from hftune.on_demand import on_demand


def add_adapter(
    model: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> PreTrainedModel | PeftModel:
    """The model with `requires_grad` set, and with a LoRA adapter, fresh or trained further, where one was asked for.

    Raises:
        ArgumentError: A name that this model does not have, or an adapter that does not fit it.
    """
    _train_padding_rows(model)
    adapted: PreTrainedModel | PeftModel = model
    if adapter_args.use_peft:
        adapted = on_demand("hftune.models.adapters.lora:add_lora")(model, adapter_args, training_args)
    elif adapter_args.freezes:
        on_demand("hftune.models.adapters.freezing:freeze")(model, adapter_args)
    # From here on it is known what is trained. DeepSpeed makes all weights one dtype, and trains float32 copies.
    if training_args.train_in_float32 and not training_args.deepspeed:
        train_in_float32(adapted)
    if fuses_lora(adapter_args, training_args):
        on_demand("hftune.models.kernels.fused_lora:fuse_lora")(adapted)
    report_trained_parameters(adapted)
    report_low_precision(adapted, training_args)
    _give_blocks_a_gradient(adapted, training_args)
    # Last: what is recomputed is the forward pass of modules as they are by now, fused layers among them.
    if training_args.recomputation is not None:
        recompute_as_asked = on_demand("hftune.models.kernels.activation_checkpointing:recompute_as_asked")
        recompute_as_asked(adapted, adapter_args, training_args)
    return adapted


def fuses_lora(adapter_args: AdapterArguments, training_args: StageArguments) -> bool:
    """Whether LoRA layers compute as in `models/kernels/fused_lora.py`; preflight refuses where it cannot be had."""
    if not adapter_args.use_peft or adapter_args.fused_lora is False:
        return False
    return training_args.zero_stage != 3 and not training_args.torch_compile


def _train_padding_rows(model: PreTrainedModel) -> None:
    """Give the row of the padding token a gradient as all others: the token may end turns as well.

    torch leaves it out (`padding_idx`). Where the token only pads, nothing depends on it, and its gradient is 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None


def _give_blocks_a_gradient(adapted: PreTrainedModel | PeftModel, training_args: StageArguments) -> None:
    """Where blocks need an input with a gradient, let frozen embeddings give one.

    Recomputed blocks do. So does, under ZeRO-3, a block of experts, which DeepSpeed 0.19 takes as one: it reduces the
    gradients in it once they have come through to its input, and if nothing there wants one, before they are there.
    """
    by_blocks = training_args.zero_stage == 3 and is_mixture(adapted.config)
    wanted = training_args.recomputation is not None or by_blocks
    if wanted and not any(p.requires_grad for p in adapted.get_input_embeddings().parameters()):
        adapted.enable_input_require_grads()


def train_in_float32(adapted: PreTrainedModel | PeftModel) -> None:
    """Keep trained parameters in float32; next to frozen ones of 16 bits each module computes in float32 by itself."""
    # All modules before any is changed: embeddings and head may be one matrix.
    found = [(name, module, _low(module)) for name, module in adapted.named_modules()]
    for name, module, low in [entry for entry in found if entry[2]]:
        before = low[0].dtype
        module.register_forward_pre_hook(lambda _, inputs: tuple(_in_dtype(value, torch.float32) for value in inputs))
        # What follows in the base wants its own dtype back. Nothing follows a score head, whose scores stay exact.
        if "score" not in name.split("."):
            module.register_forward_hook(lambda _, inputs, found, dtype=before: _in_dtype(found, dtype))
    for parameter in [parameter for *_, low in found for parameter in low]:
        parameter.data = parameter.data.float()


def _low(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The module's own parameters that are trained, in less than 32 bits, and whole on this process."""
    own = [p for p in module.parameters(recurse=False) if p.requires_grad and p.is_floating_point()]
    # Under ZeRO-3 the optimizer has float32 copies of what is partitioned.
    return [p for p in own if p.element_size() < 4 and not zero.is_partitioned(p)]


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value
