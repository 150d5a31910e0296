"""Rules about quantised bases and FP8: what trains rightly, under which ZeRO stages, as tests have shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.models.kernels.float8_support import CAPABILITY, has_float8, has_torchao
from hftune.models.loading.dtype import weight_dtype
from hftune.models.loading.packed_formats import METHODS, method_of, stored_quantisation
from hftune.models.loading.packed_weights import PackedCheckpoint, check_has_weights, packed_checkpoint
from hftune.opening.model_files import read_checked
from hftune.preflight.facts import Facts

STORAGES = ("uint8", "bfloat16", "float16", "float32")


def check_quantisation(facts: Facts) -> Iterator[UserError]:
    """Problems of weights in 8 bits and fewer."""
    yield from check_quantised_base(facts.adapter_args, facts.training_args)
    yield from check_stored_quantised(facts.model_args, facts.adapter_args, facts.training_args)
    yield from check_float8(facts.adapter_args, facts.training_args)


def check_quantised_base(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of a quantised base: it is frozen, so it needs an adapter; 8 bit does not work under ZeRO-3."""
    if adapter_args.load_in_4bit and adapter_args.load_in_8bit:
        yield ArgumentError("4 bit and 8 bit at once", place="--load_in_4bit, --load_in_8bit", fix="choose one")
    if adapter_args.quantised and not adapter_args.use_peft:
        yield ArgumentError(
            "a quantised model cannot be trained in full",
            place="--load_in_4bit / --load_in_8bit",
            fix="add --use_peft (or --qlora) to train an adapter on it",
        )
    if adapter_args.load_in_8bit and training_args.zero_stage == 3:
        yield ArgumentError(
            "8-bit weights under ZeRO-3 train with a wrong loss (bitsandbytes issue 1451)",
            place="--load_in_8bit",
            fix="use --load_in_4bit, or ZeRO-2: --deepspeed ds_configs/zero2.json",
        )
    if adapter_args.load_in_4bit:
        yield from check_storage(adapter_args, training_args)


def check_float8(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of FP8: no GPU for it, no torchao, or options that change the same layers."""
    recipe = training_args.fp8
    if recipe is None:
        return
    # A plan is for another machine: of its GPUs and packages nothing is known here.
    here = ranks.planned_world() is None
    if here and (training_args.use_cpu or not has_float8(recipe)):
        needed = ".".join(map(str, CAPABILITY[recipe]))
        yield ArgumentError(
            f"FP8 ({recipe}) needs a GPU of compute capability {needed} or later, which is not here",
            place=f"--fp8 {recipe}",
            fix="leave it out: --bf16 is the next best",
        )
    if here and not has_torchao():
        yield ArgumentError(
            "FP8 is torchao's, which is not installed", place="--fp8", fix="pip install torchao, or leave it out"
        )
    others = {
        "--use_peft": (adapter_args.use_peft, "a frozen base gains more from --load_in_4bit, which also shrinks it"),
        "--bf16 False": (not training_args.bf16, "what is not multiplied in 8 bits is computed in bf16: --bf16 True"),
        "--rl_algorithm": (hasattr(training_args, "rl_algorithm"), "answers would be written by a rounded policy"),
        "--deepspeed: ZeRO-3": (
            training_args.zero_stage == 3,
            "torchao keeps gathered weights from the forward to the backward pass; use ZeRO-2: --deepspeed zero2",
        ),
        "--tensor_parallel_size": (training_args.tensor_parallel_size > 1, "AutoTP replaces the same layers"),
        "--expert_parallel_size": (training_args.expert_parallel_size > 1, "not found right with sharded experts"),
    }
    for flag, (is_asked, why) in others.items():
        if is_asked:
            yield ArgumentError(f"FP8 does not go with {flag}", place=f"--fp8, {flag}", fix=f"drop one: {why}")


def check_storage(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of `--bnb_4bit_quant_storage`: DeepSpeed would cast packed weights of a float dtype, and lose them."""
    storage = adapter_args.bnb_4bit_quant_storage
    if storage is None:
        return
    # The dtype that DeepSpeed computes in; it leaves integers alone, and floats of this one as they are.
    half = "bfloat16" if training_args.bf16 else "float16" if training_args.fp16 else None
    if storage not in STORAGES:
        yield ArgumentError(
            f"packed weights cannot be kept as {storage!r}",
            place="--bnb_4bit_quant_storage",
            fix=f"use one of {', '.join(STORAGES)}, or leave it out",
        )
    elif training_args.ds_resolved is not None and half and storage not in ("uint8", half):
        yield ArgumentError(
            f"DeepSpeed would cast packed weights kept as {storage} to {half}, and what is packed would be lost",
            place="--bnb_4bit_quant_storage",
            fix=f"give {half} or uint8, or leave it out",
        )


def check_stored_quantised(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of a checkpoint in 4 or 8 bit on disk; what its whole weights take is said."""
    if model_args.gguf_file:
        if adapter_args.quantised:
            yield ArgumentError(
                "transformers reads GGUF files into full weights, and cannot quantise them on the way",
                place="--gguf_file, --load_in_4bit / --load_in_8bit",
                fix="leave the flag out, or give the original weights instead of the GGUF file",
            )
        return
    # Read from the folder alone: of a model on the Hub it is said when it loads.
    method = stored_method(str(model_args.model_name_or_path))
    if method is None or model_args.from_config:
        return
    place = f"--model_name_or_path {model_args.model_name_or_path}"
    if method in METHODS:
        yield from _check_read_whole(model_args, adapter_args, training_args)
    elif not method.startswith("bitsandbytes"):
        yield ArgumentError(
            f"the checkpoint is quantised with {method}, which hftune does not train on",
            place=place,
            fix="give the original weights, and --qlora to quantise them while loading",
        )
    elif not adapter_args.quantised:
        flag = "--load_in_4bit" if method.endswith("4bit") else "--load_in_8bit"
        yield ArgumentError(
            "the checkpoint is quantised with bitsandbytes, so it can only be the frozen base of an adapter",
            place=place,
            fix=f"add --use_peft {flag}, or give the original weights",
        )


def _check_read_whole(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Say what reading packed weights whole takes; a problem where their layout is not known."""
    try:
        found = packed_checkpoint(model_args.model_name_or_path)
        if found is not None:
            check_has_weights(found)
    except UserError as problem:
        yield problem
        return
    if found is not None:
        dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
        notice(say_read_whole(found, dtype, quantised=adapter_args.quantised))


def say_read_whole(found: PackedCheckpoint, dtype: torch.dtype | str, *, quantised: bool) -> str:
    """What is stored, and what its weights take as they are trained on."""
    size = dtype.itemsize if isinstance(dtype, torch.dtype) else 2
    said = f"the checkpoint is stored in {found.method} ({found.stored_bytes / 1e9:.2f} GB) and read as whole weights: "
    if quantised:
        return said + "bitsandbytes quantises them while they load"
    kind = str(dtype).removeprefix("torch.")
    return said + f"{found.whole_bytes(size) / 1e9:.2f} GB in {kind}; --qlora quantises them to 4 bit while they load"


def stored_method(folder: str) -> str | None:
    """The method by which a checkpoint on disk is quantised, such as `gptq` or `bitsandbytes_4bit`; None for none."""
    file = Path(folder) / "config.json"
    how = stored_quantisation(read_checked(file)) if file.is_file() else None
    if how is None:
        return None
    method = method_of(how)
    return f"{method}_{'4bit' if how.get('load_in_4bit') else '8bit'}" if method == "bitsandbytes" else method
