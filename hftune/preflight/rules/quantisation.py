"""Rules about quantised bases and FP8: what trains rightly, under which ZeRO stages, as tests have shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.models.kernels.float8 import CAPABILITY, has_float8, has_torchao
from hftune.models.loading.quantisation import (
    check_readable,
    convert,
    describe,
    is_read_whole,
    method_of,
    quantisation_in,
)
from hftune.preflight.facts import Facts
from hftune.preflight.rules import raised, refused


def check_quantisation(facts: Facts) -> Iterator[UserError]:
    """Problems of weights in 8 bits and fewer."""
    yield from check_quantised_base(facts.adapter_args, facts.training_args)
    yield from check_stored_quantised(facts.model_args, facts.adapter_args, facts.training_args)
    yield from check_float8(facts.adapter_args, facts.training_args)


def check_quantised_base(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of a quantised base: it is frozen, so it needs an adapter; 8 bit does not work under ZeRO-3."""
    yield from refused("quantised", adapter_args, training_args)


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
    yield from refused("fp8", adapter_args, training_args)


def check_stored_quantised(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of a checkpoint in 4 or 8 bit on disk; what its whole weights take is said."""
    # Read from the folder alone: of a model on the Hub it is said when it loads.
    folder = str(model_args.model_name_or_path)
    how = quantisation_in(folder)
    if how is None or model_args.from_config:
        return
    if problems := raised(check_readable, folder, "--model_name_or_path"):
        yield from problems
    elif is_read_whole(how):
        yield from _check_read_whole(folder, how, adapter_args, training_args)
    else:
        yield from _check_kept_packed(folder, how, adapter_args, training_args)


def _check_read_whole(
    folder: str, how: dict[str, Any], adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Say that the weights are dequantised while they load; a problem where bitsandbytes is to quantise them anew."""
    if adapter_args.quantised:
        yield ArgumentError(
            f"{folder} is stored in {describe(how)}, and transformers does not quantise on the way what it dequantises",
            place="--load_in_4bit / --load_in_8bit",
            fix=f"leave it out; or convert the checkpoint first: {convert(folder)}",
        )
        return
    notice(say_read_whole(folder, how))
    if training_args.zero_stage == 3:
        notice("every process reads all of its whole weights before ZeRO-3 partitions them")


def _check_kept_packed(
    folder: str, how: dict[str, Any], adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of weights that stay packed: they are the frozen base of an adapter."""
    bitsandbytes = method_of(how) == "bitsandbytes"
    needed = ("--load_in_4bit" if how.get("load_in_4bit") else "--load_in_8bit") if bitsandbytes else None
    wrong = adapter_args.quantised != bitsandbytes
    if wrong or not adapter_args.use_peft:
        yield ArgumentError(
            f"the checkpoint is quantised with {method_of(how)}, so it can only be the frozen base of an adapter",
            place=f"--model_name_or_path {folder}",
            fix=" ".join(filter(None, ("add --use_peft", needed)))
            + ("" if bitsandbytes else " without --load_in_4bit / --load_in_8bit")
            + ", or give the original weights",
        )
    elif not bitsandbytes and training_args.zero_stage == 3:
        yield ArgumentError(
            f"ZeRO-3 does not partition weights that {method_of(how)} has packed",
            place="--deepspeed",
            fix="use --deepspeed zero2, or give the original weights",
        )


def say_read_whole(folder: str, how: dict[str, Any]) -> str:
    """How the weights of a packed checkpoint are read."""
    return (
        f"{folder} is stored in {describe(how)} and read as whole weights, which take as much memory as a checkpoint "
        "in 16 or 32 bit"
    )
