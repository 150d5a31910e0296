"""Rules of tensor parallelism: it is allowed only where losses, gradients and saved weights were found right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig

from hftune.arguments.optimizer import MUON
from hftune.arguments.training import StageArguments
from hftune.distributed.tensor_parallel import FLAG, plan_of, unknown_styles
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts
from hftune.preflight.rules.optimizer import NOT_UNDER_ZERO
from hftune.preflight.rules.sharing import (
    OTHERWISE,
    TENSOR,
    check_features,
    check_full,
    check_kernels,
    check_row_distribution,
    check_stage,
    check_trains,
    zero_features,
)

_REASONS = {
    "quantised": "AutoTP cannot split packed 4-bit and 8-bit weights",
    "adapted": "AutoTP splits some linear layers of an adapted model and not the adapters next to them: its results "
    "would be wrong, and its adapter could not be saved",
}


def check_tensor_parallel(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with split matrices."""
    training_args = facts.training_args
    yield from check_stage(TENSOR, training_args)
    yield from check_trains(TENSOR, training_args)
    yield from check_full(TENSOR, facts.adapter_args, _REASONS)
    yield from check_tensor_engine(training_args)
    yield from check_row_distribution(TENSOR, training_args)
    yield from check_kernels(TENSOR, training_args)
    yield from check_tensor_optimizer(training_args)
    if facts.config is not None:
        yield from check_tensor_model(facts.config.get_text_config(), training_args)


def check_tensor_engine(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of the DeepSpeed config: it must be there, without features that split matrices in another way."""
    config = training_args.ds_resolved
    if config is None:
        yield ArgumentError(
            "matrices are split by DeepSpeed, and no config for it was given",
            place=FLAG,
            fix="add --deepspeed zero1 (or any of ZeRO 0 to 3)",
        )
        return
    yield from check_features(TENSOR, zero_features(config))


def check_tensor_optimizer(training_args: StageArguments) -> Iterator[UserError]:
    """A problem of optimizers that need whole matrices."""
    name = training_args.optim_name
    if name.startswith((MUON, *NOT_UNDER_ZERO)):
        yield ArgumentError(
            f"{name} looks at a matrix as a whole, and each process would give it a part",
            place=f"--optim {name}, {FLAG}",
            fix=f"use --optim adamw_torch, {OTHERWISE}",
        )


def check_tensor_model(config: PreTrainedConfig, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of a model that cannot be split by a known plan, or not evenly."""
    plan, size = plan_of(config), training_args.tensor_parallel_size
    odd = unknown_styles(plan)
    # Cohere's norms have weights of their own for each head, of which no plan speaks.
    if not plan or getattr(config, "use_qk_norm", False):
        yield ArgumentError(
            f"it is not known how a {config.model_type} model is split", place=FLAG, fix=f"leave it out, {OTHERWISE}"
        )
    elif odd:
        # One is enough to name: any of them makes the results wrong.
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
        # Mixtures have no MLP of this name; their experts are refused by the plan's styles.
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
