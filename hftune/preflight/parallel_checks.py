"""Rules of tensor parallelism: where its losses, gradients and saved weights were found right, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments import AdapterArguments, ModelArguments, PTArguments, SFTArguments, StageArguments
from hftune.arguments.optimizer import MUON
from hftune.distributed.ds_config import asks_for_compiling, offload_device
from hftune.distributed.tensor_parallel import FLAG, plan_of, unknown_styles
from hftune.errors import ArgumentError, UserError
from hftune.models.configs import model_config
from hftune.preflight.optimizer_checks import NOT_UNDER_ZERO

OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"


def check_parallel(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """What does not go together with groups of processes that share a model."""
    if training_args.tensor_parallel_size == 1:
        return
    yield from check_tensor_stage(training_args)
    yield from check_tensor_method(adapter_args)
    yield from check_tensor_engine(training_args)
    yield from check_tensor_others(training_args)
    yield from check_tensor_model(model_args, training_args)


def check_tensor_stage(training_args: StageArguments) -> Iterator[UserError]:
    """Pre-training and full fine-tuning alone: the others generate, hold references, or read scores."""
    if not isinstance(training_args, PTArguments | SFTArguments):
        yield ArgumentError(
            "tensor parallelism is for pre-training and full fine-tuning: reward models, DPO and RL hold further "
            "models, or generate, which was not found right with split matrices",
            place=FLAG,
            fix=f"leave it out, {OTHERWISE}",
        )
    elif not training_args.do_train:
        yield ArgumentError(
            "matrices are split when training begins, and nothing is trained",
            place=f"{FLAG}, --do_eval",
            fix="leave it out to evaluate",
        )


def check_tensor_method(adapter_args: AdapterArguments) -> Iterator[UserError]:
    """AutoTP splits linear layers, not what peft or bitsandbytes have put in their places."""
    if adapter_args.quantised:
        yield ArgumentError(
            "AutoTP cannot split packed 4-bit and 8-bit weights",
            place=f"{FLAG}, --load_in_4bit / --load_in_8bit",
            fix="leave one of them out; ZeRO-3 shares packed 4-bit weights: --qlora --deepspeed zero3",
        )
    elif adapter_args.use_peft:
        yield ArgumentError(
            "AutoTP splits some linear layers of an adapted model and not the adapters beside them: its results would "
            "be wrong, and its adapter could not be saved",
            place=f"{FLAG}, --use_peft",
            fix="leave one of them out; ZeRO-3 shares the base of an adapter: --use_peft --deepspeed zero3",
        )


def check_tensor_engine(training_args: StageArguments) -> Iterator[UserError]:
    """DeepSpeed does it, at any ZeRO stage, without what looks at matrices or gathers them in another way."""
    config = training_args.ds_resolved
    if config is None:
        yield ArgumentError(
            "matrices are split by DeepSpeed, and no config for it was given",
            place=FLAG,
            fix="add --deepspeed zero1 (or any of ZeRO 0 to 3)",
        )
        return
    zero: dict[str, Any] = config.get("zero_optimization", {})
    asked = {
        "zero_hpz_partition_size": int(zero.get("zero_hpz_partition_size") or 1) > 1,
        "zero_quantized_weights": bool(zero.get("zero_quantized_weights")),
        "zero_quantized_gradients": bool(zero.get("zero_quantized_gradients")),
        "offload_param.device nvme": offload_device(config, "param") == "nvme",
        "offload_optimizer.device nvme": offload_device(config, "optimizer") == "nvme",
        "compile.deepcompile": asks_for_compiling(config),
    }
    for name in (name for name, is_asked in asked.items() if is_asked):
        yield ArgumentError(
            f"{name} was not found right with split matrices", place=f"{FLAG}, --deepspeed: {name}", fix="drop one"
        )


def check_tensor_others(training_args: StageArguments) -> Iterator[UserError]:
    """Other ways to share or to compile a model, and optimizers that look at whole matrices."""
    for name in ("sequence_parallel_size", "expert_parallel_size"):
        if getattr(training_args, name) > 1:
            yield ArgumentError(
                f"{FLAG} and --{name} at once were not found right", place=f"{FLAG}, --{name}", fix="give one of them"
            )
    name = training_args.optim_name
    if name.startswith((MUON, *NOT_UNDER_ZERO)):
        yield ArgumentError(
            f"{name} looks at a matrix as a whole, and each process would give it a part",
            place=f"--optim {name}, {FLAG}",
            fix=f"use --optim adamw_torch, {OTHERWISE}",
        )
    for name in ("torch_compile", "use_liger_kernel"):
        if getattr(training_args, name, False):
            yield ArgumentError(
                f"--{name} puts kernels of its own in the place of the layers that are split",
                place=f"--{name}, {FLAG}",
                fix="leave one of them out",
            )


def check_tensor_model(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """transformers says how the model's layers are split, in ways that are known here, and they come out even."""
    try:
        config = model_config(model_args, training_args).get_text_config()
    except UserError:
        return  # said by check_model
    plan, size = plan_of(config), training_args.tensor_parallel_size
    odd = unknown_styles(plan)
    # Cohere's norms have weights of their own for each head, of which no plan speaks.
    if not plan or getattr(config, "use_qk_norm", False):
        yield ArgumentError(
            f"it is not known how a {config.model_type} model is split", place=FLAG, fix=f"leave it out, {OTHERWISE}"
        )
    elif odd:
        name, style = next(iter(odd.items()))
        experts = "; --expert_parallel_size shares experts" if "expert" in name else ""
        yield ArgumentError(
            f"a {config.model_type} model has layers that AutoTP cannot split rightly ({name}: {style})",
            place=FLAG,
            fix=f"leave it out, {OTHERWISE}{experts}",
        )
    else:
        yield from _uneven(config, size)


def _uneven(config: Any, size: int) -> Iterator[UserError]:
    heads = int(config.num_attention_heads)
    counts = {
        "attention heads": heads,
        "key-value heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "neurons": int(getattr(config, "intermediate_size", None) or size),
    }
    wrong = [f"{count} {name}" for name, count in counts.items() if count % size]
    if wrong:
        fitting = [str(n) for n in range(2, heads + 1) if not any(count % n for count in counts.values())]
        yield ArgumentError(
            f"{' and '.join(wrong)} cannot be shared evenly by {size} processes",
            place=f"{FLAG} {size}",
            fix=f"use {' or '.join(fitting)}" if fitting else f"leave it out, {OTHERWISE}",
        )
