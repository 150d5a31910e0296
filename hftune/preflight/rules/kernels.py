"""Kernels and number formats: those that this machine does not have, and Liger's beside hftune's own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice

LOSSES = ("fused_linear_cross_entropy", "cross_entropy")
"""Liger's keys that replace the model's forward pass, in which hftune's trainers ask for the loss of labels alone."""

MLPS = ("swiglu", "geglu")
"""Those that replace the MLP's."""


def check_device(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A CPU has what is asked for; libraries say otherwise at the first step."""
    if ranks.planned_world() is not None or not training_args.use_cpu:
        return
    if model_args.attn_implementation == "flex_attention":
        yield ArgumentError(
            "flex_attention has no backward pass on a CPU",
            place="--attn_implementation",
            fix="leave it out: documents are kept apart by hftune_segments here",
        )
    if training_args.fp16 and training_args.ds_resolved is not None and not _deepspeed_has_fp16():
        yield ArgumentError(
            "DeepSpeed does not train in fp16 on this CPU",
            place="--fp16, --deepspeed",
            fix="leave --fp16 out, or use --bf16 True",
        )


def _deepspeed_has_fp16() -> bool:
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().is_fp16_supported())


def check_liger(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """It can run, and what hftune has put into the model stays: the Trainer applies Liger after everything else."""
    args: Any = training_args
    if not args.use_liger_kernel:
        return
    if ranks.planned_world() is None and args.use_cpu:
        yield ArgumentError(
            "Liger's kernels are written in Triton, which runs on GPUs",
            place="--use_liger_kernel",
            fix="leave it out: on a CPU the loss is computed without logits of anything but labels already",
        )
    elif ranks.planned_world() is None and find_spec("liger_kernel") is None:
        yield ArgumentError(
            "Liger is not installed",
            place="--use_liger_kernel",
            fix="pip install 'hftune[gpu]' or liger-kernel, or leave it out",
        )
    given = dict(args.liger_kernel_config or {})
    replaced = [*LOSSES, *(MLPS if _mlp_is_ours(adapter_args, args) else ())]
    if refused := [name for name in replaced if given.get(name)]:
        yield ArgumentError(
            f"Liger's {', '.join(refused)} would undo what hftune computes there",
            place="--liger_kernel_config",
            fix="leave it out of the config",
        )
    args.liger_kernel_config = given | dict.fromkeys(replaced, False)
    notice(f"--use_liger_kernel: norms and rotary embeddings; as hftune has them stay {', '.join(replaced)}")


def _mlp_is_ours(adapter_args: AdapterArguments, args: Any) -> bool:
    """Whether LoRA is computed with the MLP, or the MLP in tiles or twice."""
    parts = args.recomputation.parts if args.recomputation is not None else ()
    return adapter_args.use_peft or args.tiled_mlp or "mlp" in parts or bool(args.fp8)
