"""Rules of tensor, sequence and expert parallelism.

Each way to share was found right in some settings, by tests; the rules let these through and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import PTArguments, SFTArguments
from hftune.distributed.expert_parallel import PRESETS
from hftune.distributed.tensor_parallel import plan_of, unknown_styles
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.attention.isolation import why_not_isolated, why_not_shareable
from hftune.models.classes import causal_class
from hftune.models.structure import expert_count
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused

TENSOR, SEQUENCE, EXPERT = "--tensor_parallel_size", "--sequence_parallel_size", "--expert_parallel_size"
OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"


def check_parallel(facts: Facts) -> Iterator[UserError]:
    """Problems of sharing work between processes: several ways at once, or by the rules of the one asked for."""
    args = facts.training_args
    ways = {flag: way for flag, way in WAYS.items() if getattr(args, flag.removeprefix("--")) > 1}
    # Pairs of them were not tried; each has tests of its own.
    if len(ways) > 1:
        yield ArgumentError(
            f"{' and '.join(name for name, _, _ in ways.values())} at once were not found right",
            place=", ".join(ways),
            fix="give one of them: --deepspeed zero3 partitions the weights over all processes as well",
        )
    for flag, (name, reason, check) in ways.items():
        # What other stages lack (packing, smoothing) is not even among their arguments.
        if isinstance(args, PTArguments | SFTArguments):
            yield from check(facts)
        else:
            yield ArgumentError(
                f"{name} is for pre-training and fine-tuning: {reason}",
                place=f"{flag} {getattr(args, flag.removeprefix('--'))}",
                fix=f"leave it out, {OTHERWISE}; --activation_checkpointing full makes room for long answers",
            )
    # DeepSpeed would shard experts after the optimizer was made. With the flag, its own rules refuse the block.
    yield from refused("parallel", facts)


# --- tensor parallelism ---


def _check_tensor(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with split matrices."""
    args, named = facts.training_args, SimpleNamespace(flag=TENSOR, splits="AutoTP")
    yield from refused("shared weights", facts, named)
    if args.ds_resolved is None:
        fix = "add --deepspeed zero1 (or any of ZeRO 0 to 3)"
        yield ArgumentError("matrices are split by DeepSpeed, and no config for it was given", place=TENSOR, fix=fix)
    for topic in ("tensor", "shared zero", "shared rows", "shared layers"):
        yield from refused(topic, facts, named)
    if facts.config is not None:
        yield from _check_tensor_model(facts.config.get_text_config(), args.tensor_parallel_size)


def _check_tensor_model(config: PreTrainedConfig, size: int) -> Iterator[UserError]:
    """Problems of a model that cannot be split by a known plan, or not evenly."""
    plan = plan_of(config)
    odd = unknown_styles(plan)
    # Cohere's norms have weights of their own for each head, of which no plan speaks.
    if not plan or getattr(config, "use_qk_norm", False):
        fix = f"leave it out, {OTHERWISE}"
        yield ArgumentError(f"it is not known how a {config.model_type} model is split", place=TENSOR, fix=fix)
    elif odd:
        # One is enough to name: any of them makes the results wrong.
        name, style = next(iter(odd.items()))
        yield ArgumentError(
            f"a {config.model_type} model has layers that AutoTP cannot split rightly ({name}: {style})",
            place=TENSOR,
            fix=f"leave it out, {OTHERWISE}" + (f"; {EXPERT} shares experts" if "expert" in name else ""),
        )
    else:
        heads = int(config.num_attention_heads)
        counts = {
            "attention heads": heads,
            "key-value heads": int(getattr(config, "num_key_value_heads", None) or heads),
            # Mixtures have no MLP of this name; their experts are refused by the plan's styles.
            "neurons": int(getattr(config, "intermediate_size", None) or size),
        }
        fitting = [n for n in range(2, heads + 1) if not any(count % n for count in counts.values())]
        yield from _uneven(TENSOR, size, counts, fitting)


def _uneven(flag: str, size: int, counts: dict[str, int], fitting: list[int]) -> Iterator[UserError]:
    if wrong := [f"{count} {name}" for name, count in counts.items() if count % size]:
        # The user cannot change the model's numbers, only that of processes.
        yield ArgumentError(
            f"{' and '.join(wrong)} cannot be shared evenly by {size} processes",
            place=f"{flag} {size}",
            fix=f"use {' or '.join(map(str, fitting))}" if fitting else f"leave it out, {OTHERWISE}",
        )


# --- expert parallelism ---


def _check_expert(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with sharded experts."""
    args, named = facts.training_args, SimpleNamespace(flag=EXPERT, splits="AutoEP")
    if args.zero_stage == 0:
        why = "DeepSpeed shards experts, and no config for it was given"
        if args.ds_resolved is not None:
            why = "without ZeRO, DeepSpeed (0.19.8) measures and clips the gradients of each process's experts alone"
        yield ArgumentError(why, place=f"{EXPERT}, --deepspeed", fix="use --deepspeed zero1, zero2 or zero3")
    for topic in ("shared weights", "expert", "shared zero", "shared layers"):
        yield from refused(topic, facts, named)
    if facts.config is not None:
        yield from check_expert_model(facts.config.get_text_config(), args.expert_parallel_size)
    if facts.skeleton is not None:
        yield from check_trained_experts(facts.skeleton, facts.adapter_args, args)


def check_expert_model(config: PreTrainedConfig, size: int) -> Iterator[UserError]:
    """Problems of a model whose layers AutoEP computes otherwise, or whose experts do not divide evenly."""
    if config.model_type not in PRESETS:
        yield ArgumentError(
            f"AutoEP does not train the layers of a {config.model_type} model as transformers does, or finds none",
            place=EXPERT,
            fix=f"leave it out, {OTHERWISE}; known are {', '.join(PRESETS)}",
        )
        return
    experts = expert_count(config)
    fitting = [number for number in range(2, experts + 1) if experts % number == 0]
    yield from _uneven(EXPERT, size, {"experts": experts}, fitting)
    yield from refused("expert model", config, SimpleNamespace(flag=EXPERT))


def check_trained_experts(bare: PreTrainedModel, adapter_args: AdapterArguments, args: Any) -> Iterator[UserError]:
    """Problems of frozen experts, which DeepSpeed's ZeRO (0.19.8) does not handle."""
    if not adapter_args.freezes or args.zero_stage not in (1, 2, 3):
        return
    try:
        trained = plan_freezing(bare, adapter_args)
    except UserError:
        return  # said by check_names
    # By name: nothing has replaced the layers of the skeleton.
    experts = [id(one) in trained for name, one in bare.named_parameters() if ".experts." in name]
    if args.zero_stage == 3:
        lost, fix = not all(experts), "use --deepspeed zero2 and train some of them, or leave one of the flags out"
        why = "experts are frozen, which DeepSpeed's ZeRO-3 leaves out of checkpoints"
    else:
        lost, fix = bool(experts) and not any(experts), "train some of them, or leave one of the flags out"
        why = "all experts are frozen, and DeepSpeed's ZeRO-1 and 2 shard only those that are trained"
    if lost:
        yield ArgumentError(why, place=f"{EXPERT}, --freeze_parameters*", fix=fix)


# --- sequence parallelism ---


def _check_sequence(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with rows shared by processes."""
    args, named = facts.training_args, SimpleNamespace(flag=SEQUENCE)
    for topic in ("sequence", "shared rows", "shared layers"):
        yield from refused(topic, facts, named)
    if facts.config is not None:
        yield from check_architecture(facts.config, args.sequence_parallel_size)


def check_architecture(config: PreTrainedConfig, size: int) -> Iterator[UserError]:
    """A problem where tokens of different slices meet outside attention, or heads are too few."""
    reason = why_not_isolated(config, causal_class(config)) or why_not_shareable(config, size)
    if reason:
        yield ArgumentError(
            f"the tokens of a row of {config.model_type} cannot be shared by {size} processes: {reason}",
            place=SEQUENCE,
            fix="use a smaller number, or leave it out: --deepspeed zero3, --activation_checkpointing full and "
            "--tiled_mlp save memory in one process",
        )


_OF_MODELS = "reward models, DPO and RL hold further models, or generate, which was not found right"

WAYS: dict[str, tuple[str, str, Callable[[Facts], Iterator[UserError]]]] = {
    TENSOR: ("tensor parallelism", _OF_MODELS, _check_tensor),
    SEQUENCE: (
        "sequence parallelism",
        "the losses of preferences, rewards and reinforcement learning are of whole answers",
        _check_sequence,
    ),
    EXPERT: ("expert parallelism", _OF_MODELS, _check_expert),
}
"""The flag of each way to share, its name, why other stages are not trained so, and its own rules."""
