"""A LoRA adapter on a loaded model, fresh or trained further, on top of the earlier adapters of its chain."""

from __future__ import annotations

from peft import LoraConfig, PeftModel, prepare_model_for_kbit_training
from peft.tuners.lora import LoraLayer, ParamWrapper
from peft.tuners.trainable_tokens import TrainableTokensLayer
from transformers import PreTrainedModel, set_seed

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import StageArguments
from hftune.compat import patches
from hftune.compat.patches import keep_differentiable
from hftune.distributed import zero
from hftune.logging import notice
from hftune.models.adapters.folding import fold_adapters, load_adapter, read_lora_config
from hftune.models.adapters.lora_config import inject, lora_config
from hftune.models.adapters.new_token_rows import new_rows_config
from hftune.models.adapters.parameter_report import report_targets

# Flags that a fresh adapter reads, and the field of a saved one that holds instead where one is trained further.
_FIXED_BY_ADAPTER = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_bias": "bias",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "lora_target_parameters": "target_parameters",
    "trainable_token_indices": "trainable_token_indices",
}
_NOT_READ = ("lora_target_modules", "target_regex", "exclude_modules", "init_lora_weights")


@patches.rows_on_any_device(zero.gathered)
def add_lora(model: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments) -> PeftModel:
    """The model with the earlier adapters of a chain folded in, and with the one that is trained on top.

    The random half of a fresh adapter depends on the seed alone, not on what was drawn while loading, so that every
    ZeRO stage starts from the same weights.

    Raises:
        ArgumentError: A name that this model does not have, or an adapter that does not fit it.
    """
    model = fold_adapters(model, adapter_args.folded_adapters)
    for folder in adapter_args.folded_adapters:
        notice(f"{folder} is folded into the base in memory")
    # Under ZeRO-3 a bf16 base and a float32 adapter cannot share one all-gather buffer.
    autocast = training_args.zero_stage != 3 or adapter_args.quantised
    if adapter_args.quantised:
        # Casts norms and the head to float32; checkpointing is the Trainer's to switch on.
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        keep_differentiable(model)
    # What was drawn while loading differs by ZeRO stage; the random half of a fresh adapter must not.
    set_seed(training_args.seed)
    if adapter_args.continued_adapter:
        _report_ignored_flags(adapter_args, training_args.given, read_lora_config(adapter_args.continued_adapter))
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
    head = adapted.get_output_embeddings()
    if head is not None and not hasattr(head, "bias"):
        # peft's wrapper of a head whose rows are trained has none, and TRL reads it.
        head.register_parameter("bias", None)
    patches.write_no_card(adapted)
    return adapted


def _gather_for_adapters(adapted: PeftModel) -> None:
    """Have ZeRO-3 gather the weights that adapters of parameters, rows and DoRA read without calling their owner."""
    # ZeRO-3 would find most of them itself, in the first pass in which they are not whole by chance. A weight that it
    # finds only after it has learnt the order of modules (a pass of the reference before training is enough) ends the
    # run with a tracing error.
    for module in adapted.modules():
        if isinstance(module, ParamWrapper):
            factors = [*module.lora_A.values(), *module.lora_B.values()]  # read, not called
            for parameter in [module.get_param(), *(factor.weight for factor in factors)]:
                zero.register_external_parameter(module, parameter)
        elif isinstance(module, TrainableTokensLayer):
            zero.register_external_parameter(module, module.get_base_layer().weight)
        elif isinstance(module, LoraLayer):
            for magnitude in module.lora_magnitude_vector.values():
                zero.register_external_parameter(magnitude, module.get_base_layer().weight)


def _report_ignored_flags(adapter_args: AdapterArguments, given: frozenset[str], config: LoraConfig) -> None:
    """Say which flags mean nothing because the adapter that is trained further has fixed them."""
    for flag, name in _FIXED_BY_ADAPTER.items():
        asked, fixed = getattr(adapter_args, flag), getattr(config, name)
        if flag in given and asked != fixed:
            notice(f"--{flag} {asked} has no effect: the adapter that is continued has {fixed}")
    for flag in _NOT_READ:
        if flag in given:
            notice(f"--{flag} has no effect: the adapter that is continued knows its modules")
