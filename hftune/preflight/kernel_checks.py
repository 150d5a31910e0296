"""Liger's kernels beside hftune's own: those that do not take the place of something else."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from hftune.arguments import AdapterArguments, StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice

LOSSES = ("fused_linear_cross_entropy", "cross_entropy")
"""Liger's keys that replace the model's forward pass, in which hftune's trainers ask for the loss of labels alone."""

MLPS = ("swiglu", "geglu")
"""Those that replace the MLP's."""


def check_liger(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """It can run, and what hftune has put into the model stays: the Trainer applies Liger after everything else."""
    args: Any = training_args
    if not args.use_liger_kernel:
        return
    if ranks.imagined() is None and args.use_cpu:
        yield ArgumentError(
            "Liger's kernels are written in Triton, which runs on GPUs",
            place="--use_liger_kernel",
            fix="leave it out: on a CPU the loss is computed without logits of anything but labels already",
        )
    elif ranks.imagined() is None and find_spec("liger_kernel") is None:
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
