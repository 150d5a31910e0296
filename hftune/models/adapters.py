"""LoRA adapters: a fresh one, or one that goes on."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import PreTrainedModel, set_seed

from hftune.arguments import AdapterArguments, StageArguments
from hftune.errors import ArgumentError
from hftune.models.new_rows import gather_parameters_only, rows_alone, rows_beside_lora, rows_on_any_device


def add_adapter(
    model: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> PreTrainedModel | PeftModel:
    """The model as it will be trained: as it is, with a fresh LoRA adapter, or with the one at `--peft_path`.

    The adapter's random half depends on the seed alone, not on what was drawn while loading, so that every ZeRO stage
    starts from the same weights.
    """
    if not adapter_args.use_peft:
        return model
    if adapter_args.quantised:
        # Casts norms and the head to float32; checkpointing is the Trainer's to switch on.
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    set_seed(training_args.seed)
    if training_args.zero_stage == 3:
        gather_parameters_only()
    with rows_on_any_device():
        if adapter_args.peft_path:
            adapted: Any = PeftModel.from_pretrained(model, adapter_args.peft_path, is_trainable=True)
        else:
            # Under ZeRO-3 a bf16 base and a float32 adapter cannot share one all-gather buffer.
            same_dtype = training_args.zero_stage == 3 and not adapter_args.quantised
            config = rows_alone(model) if adapter_args.train_new_tokens_only else lora_config(model, adapter_args)
            adapted = get_peft_model(model, config, autocast_adapter_dtype=not same_dtype)
    if training_args.gradient_checkpointing:
        adapted.enable_input_require_grads()
        if training_args.zero_stage == 3:
            _checkpoint_reentrantly(training_args)
    return adapted


def _checkpoint_reentrantly(training_args: StageArguments) -> None:
    """Adapters under ZeRO-3 need reentrant checkpointing (TRL issue 2514).

    TRL sets it under the older of two names once the Trainer has read the newer one (transformers 5.23), so both are
    set here.
    """
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        if hasattr(training_args, name):
            setattr(training_args, name, {**(getattr(training_args, name) or {}), "use_reentrant": True})


def lora_config(model: PreTrainedModel, adapter_args: AdapterArguments) -> LoraConfig:
    """The peft config for what was asked; `all` is every linear but the head; a reward model's head is trained whole.

    Raises:
        ArgumentError: A target that is no module of this model.
    """
    scores = hasattr(model, "score")
    to_save = list(adapter_args.lora_modules_to_save or [])
    if scores and "score" not in to_save:
        to_save.append("score")
    return LoraConfig(
        r=adapter_args.lora_r,
        lora_alpha=adapter_args.lora_alpha,
        lora_dropout=adapter_args.lora_dropout,
        target_modules=_targets(model, adapter_args.lora_target_modules),
        modules_to_save=to_save or None,
        bias=adapter_args.lora_bias,
        use_rslora=adapter_args.use_rslora,
        use_dora=adapter_args.use_dora,
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
        **rows_beside_lora(model, to_save),
    )


def _targets(model: PreTrainedModel, asked: list[str]) -> str | list[str]:
    if asked in (["all"], ["all-linear"]):
        return "all-linear"
    leaves = {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    missing = [name for name in asked if not any(full.endswith(name) for full, _ in model.named_modules())]
    if missing:
        raise ArgumentError(
            f"the model has no module {', '.join(missing)}",
            place="--lora_target_modules",
            fix="use all, or some of: " + ", ".join(sorted(leaves)),
        )
    return asked
