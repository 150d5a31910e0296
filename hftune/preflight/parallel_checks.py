"""Rules of tensor parallelism: where its losses, gradients and saved weights were found right, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.arguments import AdapterArguments, ModelArguments, PTArguments, SFTArguments, StageArguments
from hftune.arguments.optimizer import MUON
from hftune.checkpoints.engine_files import engine_folder
from hftune.checkpoints.resume import asked_for
from hftune.distributed.ds_config import asks_for_compiling, offload_device
from hftune.distributed.tensor_parallel import FLAG, plan_of, unknown_styles
from hftune.errors import ArgumentError, UserError
from hftune.models.configs import model_config

OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"


def check_parallel(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """What does not go together with groups of processes that share a model."""
    for name in ("sequence_parallel_size",):
        if getattr(training_args, name) > 1:
            yield ArgumentError(f"--{name} does nothing yet", place=f"--{name}", fix="use --deepspeed zero3")
    yield from check_resumed_parallel(training_args)
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
    if training_args.optim_name == MUON:
        yield ArgumentError(
            "Muon makes the update of a matrix orthogonal, and each process would do so with a part of it",
            place=f"--optim {MUON}, {FLAG}",
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


def check_resumed_parallel(training_args: StageArguments) -> Iterator[UserError]:
    """The optimizer's state of split matrices belongs to groups of as many processes as wrote it."""
    folder = asked_for(training_args).folder
    engine = engine_folder(folder) if folder is not None and folder.is_dir() else None
    if engine is None:
        return
    then, now = tensor_ranks(engine), training_args.tensor_parallel_size
    if then != now:
        again = f"add {FLAG} {then}" if then > 1 else f"leave {FLAG} out"
        yield ArgumentError(
            f"{folder} was written with {FLAG} {then}, and this run has {now}: the optimizer's state lies in other "
            "pieces",
            place=f"--resume_from_checkpoint, {FLAG}",
            fix=f"{again}; or begin with its weights alone, in another --output_dir: --warm_start {folder}",
        )


def tensor_ranks(engine: Path) -> int:
    """Tensor-parallel processes that wrote a folder of DeepSpeed's, by the names of its files."""
    found = {match[1] for file in engine.glob("*mp_rank_*.pt") if (match := re.search(r"mp_rank_(\d+)", file.name))}
    return max(1, len(found))
