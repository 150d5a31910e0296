"""Rules about this machine: kernels, caches and number formats that it does not have, and Liger's next to hftune's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts, World, kept_from_liger
from hftune.preflight.rules import refused


def check_kernels(facts: Facts) -> Iterator[UserError]:
    """Problems of this machine's devices and kernels."""
    yield from check_processes(facts.world)
    yield from check_device(facts.model_args, facts.training_args)
    yield from check_liger(facts.adapter_args, facts.training_args)


def check_processes(world: World) -> Iterator[UserError]:
    """A problem of several GPUs in one process: DataParallel, which neither TRL nor DeepSpeed supports."""
    # The Trainer (transformers 5.23) wraps the model into DataParallel as soon as it sees more than one.
    count = torch.cuda.device_count()
    if not world.on_cpu and world.processes == 1 and count > 1:
        yield ArgumentError(
            f"{count} GPUs are visible to a single process",
            place="launch",
            fix=f"start with: deepspeed --num_gpus {count} SCRIPT ...; or set CUDA_VISIBLE_DEVICES=0 to use one",
        )


def check_device(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of options that need a GPU, or a package; libraries would fail at the first step."""
    # A plan is for another machine, of whose processors and packages nothing is known here.
    if ranks.planned_world() is not None:
        return
    args: Any = training_args
    yield from refused("gpu", model_args, args)
    if args.use_cpu and args.fp16 and args.ds_resolved is not None and not _deepspeed_has_fp16():
        cause = "DeepSpeed does not train in fp16 on this CPU"
        yield ArgumentError(cause, place="--fp16, --deepspeed", fix="use --bf16 True")


def _deepspeed_has_fp16() -> bool:
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().is_fp16_supported())


def check_liger(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where Liger would replace what hftune has put into the model."""
    given = dict(training_args.liger_kernel_config or {}) if training_args.use_liger_kernel else {}
    if undoing := [name for name in kept_from_liger(adapter_args, training_args) if given.get(name)]:
        yield ArgumentError(
            f"Liger's {', '.join(undoing)} would undo what hftune computes there",
            place="--liger_kernel_config",
            fix="leave it out of the config",
        )
