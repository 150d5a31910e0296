"""The model as it will be trained: in whole, in part, or with a LoRA adapter, fresh or going on."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel, prepare_model_for_kbit_training
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from transformers import PreTrainedModel, set_seed

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import StageArguments
from hftune.compat import peft_patches
from hftune.compat.bitsandbytes_patches import keep_differentiable
from hftune.distributed import zero
from hftune.logging import notice
from hftune.models.adapters.folding import fold_adapters, load_adapter
from hftune.models.adapters.freezing import freeze, report_trained_parameters
from hftune.models.adapters.initialisation import keep_initial_factors
from hftune.models.adapters.lora_config import inject, lora_config, report_targets
from hftune.models.adapters.new_token_rows import new_rows_config, register_missing_bias
from hftune.models.adapters.saved_config import read_lora_config
from hftune.models.experts import is_mixture
from hftune.models.kernels.activation_checkpointing import recompute
from hftune.models.kernels.fused_lora import fuse_lora

# Flags that a fresh adapter reads, and the field of a saved one that then holds instead.
_SETTLED = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_bias": "bias",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "lora_target_parameters": "target_parameters",
    "trainable_token_indices": "trainable_token_indices",
}
_NOT_READ = ("lora_target_modules", "target_regex", "exclude_modules", "layers_to_transform", "init_lora_weights")


@peft_patches.rows_on_any_device(zero.gathered)
def add_adapter(
    model: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> PreTrainedModel | PeftModel:
    """The model with `requires_grad` set, and with a LoRA adapter, fresh or going on, where one was asked for.

    Earlier adapters of a chain are folded into the base first. The random half of a fresh one depends on the seed
    alone, not on what was drawn while loading, so that every ZeRO stage starts from the same weights.

    Raises:
        ArgumentError: A name that this model does not have, or an adapter that does not fit it.
    """
    if adapter_args.use_peft:
        peft_patches.gather_parameters_only(zero.is_partitioned)
        model = fold_adapters(model, adapter_args.folded_adapters)
        for folder in adapter_args.folded_adapters:
            notice(f"{folder} is folded into the base in memory")
        adapted: Any = _adapted(model, adapter_args, training_args)
        peft_patches.write_no_card(adapted)
    else:
        adapted = model
        if adapter_args.freezes:
            freeze(model, adapter_args)
    if training_args.train_in_float32:
        train_in_float32(adapted)
    if fuses_lora(adapter_args, training_args):
        fuse_lora(adapted)
    report_trained_parameters(adapted)
    _say_low_precision(adapted, training_args)
    _give_blocks_a_gradient(adapted, training_args)
    if training_args.recomputation is not None:
        _prepare_checkpointing(adapted, adapter_args, training_args)
    return adapted


def fuses_lora(adapter_args: AdapterArguments, training_args: StageArguments) -> bool:
    """Whether LoRA layers compute as in `models/kernels/fused_lora.py`; preflight refuses where it cannot be had."""
    if not adapter_args.use_peft or adapter_args.fused_lora is False:
        return False
    return training_args.zero_stage != 3 and not training_args.torch_compile


def _adapted(model: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments) -> PeftModel:
    # Under ZeRO-3 a bf16 base and a float32 adapter cannot share one all-gather buffer.
    autocast = training_args.zero_stage != 3 or adapter_args.quantised
    if adapter_args.quantised:
        # Casts norms and the head to float32; checkpointing is the Trainer's to switch on.
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        keep_differentiable(model)
    set_seed(training_args.seed)
    if adapter_args.continued_adapter:
        _say_settled(adapter_args, read_lora_config(adapter_args.continued_adapter))
        adapted = load_adapter(
            model, adapter_args.continued_adapter, is_trainable=True, autocast_adapter_dtype=autocast
        )
    else:
        config = new_rows_config(model) if adapter_args.train_new_tokens_only else lora_config(model, adapter_args)
        adapted = inject(model, config, autocast_adapter_dtype=autocast)
        if not adapter_args.train_new_tokens_only:
            report_targets(adapted, adapter_args)
    if training_args.zero_stage == 3:
        _gather_for_adapters(adapted)
    register_missing_bias(adapted)
    if adapter_args.changes_base:
        keep_initial_factors(adapted)
    return adapted


def _gather_for_adapters(adapted: PeftModel) -> None:
    """Have ZeRO-3 gather the weights that adapters of parameters, rows and DoRA read beside the module that owns them.

    ZeRO-3 would find most of them itself, on the first pass in which they are not whole by chance. Found only after it
    has learnt its order, which a pass of the reference before training brings about, they end the run: a tracing error.
    """
    for module in adapted.modules():
        if isinstance(module, ParamWrapper):
            factors = [*module.lora_A.values(), *module.lora_B.values()]  # read, not called
            for parameter in [module.get_param(), *(factor.weight for factor in factors)]:
                zero.read_also(module, parameter)
        elif isinstance(module, TrainableTokensLayer):
            zero.read_also(module, module.get_base_layer().weight)
        elif isinstance(module, LoraLayer):
            for magnitude in module.lora_magnitude_vector.values():
                zero.read_also(magnitude, module.get_base_layer().weight)


def _say_settled(adapter_args: AdapterArguments, config: LoraConfig) -> None:
    """Say which flags mean nothing because the adapter that goes on has settled them."""
    defaults = AdapterArguments()
    for flag, name in _SETTLED.items():
        given, settled = getattr(adapter_args, flag), getattr(config, name)
        if given not in (getattr(defaults, flag), settled):
            notice(f"--{flag} {given} has no effect: the adapter that goes on has {settled}")
    for flag in _NOT_READ:
        if getattr(adapter_args, flag) != getattr(defaults, flag):
            notice(f"--{flag} has no effect: the adapter that goes on knows its modules")


def _say_low_precision(adapted: PreTrainedModel | PeftModel, training_args: StageArguments) -> None:
    """Without DeepSpeed, which keeps float32 copies, small updates of 16-bit weights are rounded away."""
    low = [name for name, p in adapted.named_parameters() if p.requires_grad and p.element_size() < 4]
    if low and training_args.ds_resolved is None:
        notice(
            f"{len(low)} trained parameters are kept in 16 bit, {low[0]} the first: small updates are lost; "
            "--train_in_float32, --dtype float32 or --deepspeed keeps them"
        )


def train_in_float32(adapted: PreTrainedModel | PeftModel) -> None:
    """Keep trained parameters in float32. Beside frozen ones of 16 bits each module computes in float32 by itself.

    ZeRO-3's parts stay as they are: its optimizer has float32 copies.
    """
    # All modules before any is changed: embeddings and head may be one matrix.
    found = [(name, module, _low(module)) for name, module in adapted.named_modules()]
    for name, module, low in [entry for entry in found if entry[2]]:
        before = low[0].dtype
        module.register_forward_pre_hook(lambda _, inputs: tuple(_in_dtype(value, torch.float32) for value in inputs))
        if "score" not in name.split("."):  # nothing comes after it
            module.register_forward_hook(lambda _, inputs, found, dtype=before: _in_dtype(found, dtype))
    for parameter in [parameter for *_, low in found for parameter in low]:
        parameter.data = parameter.data.float()


def _low(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The module's own parameters that are trained, in less than 32 bits, and whole on this process."""
    own = [p for p in module.parameters(recurse=False) if p.requires_grad and p.is_floating_point()]
    return [p for p in own if p.element_size() < 4 and not zero.is_partitioned(p)]


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _give_blocks_a_gradient(adapted: PreTrainedModel | PeftModel, training_args: StageArguments) -> None:
    """Where blocks need an input with a gradient, let frozen embeddings give one.

    Recomputed blocks do. So does, under ZeRO-3, a block of experts, which DeepSpeed 0.19 takes as one: it reduces the
    gradients in it once they have come through to its input, and if nothing there wants one, before they are there.
    """
    wanted = training_args.recomputation is not None or (training_args.zero_stage == 3 and is_mixture(adapted.config))
    if wanted and not any(p.requires_grad for p in adapted.get_input_embeddings().parameters()):
        adapted.enable_input_require_grads()


def _prepare_checkpointing(
    adapted: PreTrainedModel | PeftModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> None:
    assert training_args.recomputation is not None
    reentrant = adapter_args.use_peft and training_args.zero_stage == 3
    if reentrant:
        _checkpoint_reentrantly(training_args)
    recompute(adapted, training_args.recomputation, reentrant=reentrant, on_cpu=training_args.use_cpu)


def _checkpoint_reentrantly(training_args: StageArguments) -> None:
    """Adapters under ZeRO-3 need reentrant checkpointing (TRL issue 2514).

    TRL sets it under the older of two names once the Trainer has read the newer one (transformers 5.23), so both are
    set here.
    """
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        if hasattr(training_args, name):
            setattr(training_args, name, {**(getattr(training_args, name) or {}), "use_reentrant": True})
