"""What upstream is made to do otherwise: TRL's constructors and loops, DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hftune.arguments.training import StageArguments
from hftune.compat.installing import replace_method
from hftune.distributed import phases
from hftune.trainers.features.run import plain_model


@contextmanager
def quantisation_hidden(model: Any) -> Iterator[None]:
    """Keep TRL's constructors (1.16) from casting the adapter of a quantised model to bf16.

    AdamW would then update bf16 weights, where small updates vanish, and gradients differ by 1 % with the size of a
    batch. Adapters are in float32 here, on a quantised base as on any other (DeepSpeed in bf16 keeps a float32 copy of
    its own). TRL asks these two attributes; transformers and accelerate, which must know, ask later or ask others.
    """
    # The marks are on the base; an adapter around it has none of its own.
    plain = plain_model(model)
    said = [name for name in ("is_loaded_in_4bit", "is_loaded_in_8bit") if getattr(plain, name, False)]
    for name in said:
        setattr(plain, name, False)
    try:
        yield
    finally:
        for name in said:
            setattr(plain, name, True)


@contextmanager
def reporting_passes(model: nn.Module) -> Iterator[None]:
    """In the block every forward pass of the model is a sign of life: loops of TRL over many of them have no hook.

    Args:
        model: Not wrapped by DeepSpeed or DDP; of an adapter its base, whose `generate` the adapter's calls. Not
            compiled: a hook breaks the graph.
    """
    # On the base: what peft's `generate` calls is not the adapter's own forward.
    handle = plain_model(model).register_forward_pre_hook(lambda module, args: phases.keep_alive())
    try:
        yield
    finally:
        handle.remove()


def unpartitioned(args: StageArguments) -> bool:
    """Whether DeepSpeed is at work and leaves optimizer states whole.

    At ZeRO stage 0 in float32 it clips and forgets the norm (0.19). And it divides a loss by the number of accumulated
    batches, in spite of its setting, where that is the very tensor that the model returned: its hook on outputs then
    runs before the one that says that all is scaled already (`_backward_prologue_per_tensor`, 0.19.8).
    """
    return args.ds_resolved is not None and args.zero_stage == 0


def prepare_engine(engine: Any, args: StageArguments) -> None:
    """Have DeepSpeed's engine report its steps as a phase, and keep the norm of what it clips; once.

    It makes the optimizer's step at the end of accelerate's `backward` (accelerate 1.15), inside a training step.
    """
    # The engine is made between the trainer and its first step.
    if getattr(engine, "hftune_prepared", False):
        return
    engine.hftune_prepared = True
    step = engine.step

    def reported(_: Any, *given: Any, **named: Any) -> Any:
        phases.enter(phases.OPTIMIZER)
        return step(*given, **named)

    replace_method(engine, "step", reported)
    if unpartitioned(args):
        replace_method(engine, "clip_fp32_gradients", clip_and_remember)


def clip_and_remember(engine: Any) -> None:
    """What the engine's own method does, with the norm kept where `get_global_grad_norm` looks for it."""
    from deepspeed.runtime.utils import clip_grad_norm_

    norm = clip_grad_norm_(engine.module.parameters(), max_norm=engine.gradient_clipping(), mpu=engine.mpu)
    engine._global_grad_norm = float(norm)
