"""Rules of tensor, sequence and expert parallelism.

Each way to share was found right in some settings, by tests; the rules let these through and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.optimizer import MUON
from hftune.arguments.recomputation import MLP
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.distributed.ds_config import DsConfig, asks_for_compiling, offload_device
from hftune.distributed.expert_parallel import ACTIVATION, PRESETS
from hftune.distributed.tensor_parallel import plan_of, unknown_styles
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.attention.isolation import why_not_isolated, why_not_shareable
from hftune.models.attention.ulysses import ULYSSES
from hftune.models.classes import causal_class
from hftune.models.structure import expert_count
from hftune.preflight.facts import Facts
from hftune.preflight.rules import Clashes, clashes
from hftune.preflight.rules.optimizer import NOT_UNDER_ZERO

TENSOR, SEQUENCE, EXPERT = "--tensor_parallel_size", "--sequence_parallel_size", "--expert_parallel_size"
OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"

_UNTRIED = "the two together were not found right"
_SPLITS = "it splits or gathers matrices in another way, which was not found right"
_ONE_PROCESS = "it gives rows to single processes, not to groups that see the same ones"
_REPLACES = "it puts code of its own in the place of layers, which was not found right"
_UNREACHED = "it does not reach, or does not know, sharded experts"
_ZERO3 = "leave one of them out; --deepspeed zero3 shares the frozen base of an adapter"


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
    block = (args.ds_resolved or {}).get("expert_parallel")
    if args.expert_parallel_size == 1 and block and (not isinstance(block, dict) or block.get("enabled")):
        yield ArgumentError(
            "the DeepSpeed config shards experts, which hftune does itself",
            place="--deepspeed: expert_parallel",
            fix=f"remove the block and use {EXPERT}",
        )


def _of_weights(facts: Facts, flag: str, splits: str) -> Iterator[UserError]:
    """Problems that tensor and expert parallelism share: only training in full is shared, when training begins."""
    idle = not facts.training_args.do_train
    yield from clashes(flag, {"--do_train False": (idle, "work is shared only when training begins")})
    # The first reason is enough: QLoRA is both.
    quantised = facts.adapter_args.quantised
    adapter: Clashes = {
        "--load_in_4bit / --load_in_8bit": (quantised, f"{splits} shares no packed weights"),
        "--use_peft": (
            facts.adapter_args.use_peft and not quantised,
            f"{splits} does not know the adapters next to the layers that it shares, and results would be wrong",
        ),
    }
    yield from clashes(flag, adapter, fix=_ZERO3)


def _kernels(args: StageArguments) -> Clashes:
    # Both replace a layer's forward pass, and with it the exchange between processes that was put there.
    return {f"--{name}": (getattr(args, name, False), _REPLACES) for name in ("torch_compile", "use_liger_kernel")}


def _single_rows(args: StageArguments) -> Clashes:
    config, name = args.accelerator_config, "--accelerator_config"
    return {
        "--train_sampling_strategy batch_rebalance": (args.train_sampling_strategy == "batch_rebalance", _ONE_PROCESS),
        f"{name} split_batches": (getattr(config, "split_batches", False), _ONE_PROCESS),
        f"{name} dispatch_batches": (getattr(config, "dispatch_batches", False), _ONE_PROCESS),
    }


def _zero_features(config: DsConfig, *, offloading: str | None) -> Clashes:
    """Features of DeepSpeed that were not tried: offloading to `offloading`, or to any device (None), among them."""
    zero: dict[str, Any] = config.get("zero_optimization", {})
    offloaded = {what: offload_device(config, what) for what in ("param", "optimizer")}
    return {
        "--deepspeed: zero_hpz_partition_size": (int(zero.get("zero_hpz_partition_size") or 1) > 1, _SPLITS),
        "--deepspeed: zero_quantized_weights": (zero.get("zero_quantized_weights"), _SPLITS),
        "--deepspeed: zero_quantized_gradients": (zero.get("zero_quantized_gradients"), _SPLITS),
        "--deepspeed: compile.deepcompile": (asks_for_compiling(config), _SPLITS),
        **{
            f"--deepspeed: offload_{what}": (device is not None and offloading in (None, device), _UNTRIED)
            for what, device in offloaded.items()
        },
    }


# --- tensor parallelism ---


def _check_tensor(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with split matrices."""
    args = facts.training_args
    yield from _of_weights(facts, TENSOR, "AutoTP")
    if args.ds_resolved is None:
        fix = "add --deepspeed zero1 (or any of ZeRO 0 to 3)"
        yield ArgumentError("matrices are split by DeepSpeed, and no config for it was given", place=TENSOR, fix=fix)
    else:
        yield from clashes(TENSOR, _zero_features(args.ds_resolved, offloading="nvme"))
    whole = args.optim_name.startswith((MUON, *NOT_UNDER_ZERO))
    optim = {f"--optim {args.optim_name}": (whole, "it looks at a matrix as a whole; --optim adamw_torch does not")}
    yield from clashes(TENSOR, {**_single_rows(args), **_kernels(args), **optim})
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
    args, plan = facts.training_args, facts.training_args.recomputation
    yield from _of_weights(facts, EXPERT, "AutoEP")
    yield from _check_expert_engine(args)
    unreached: Clashes = {
        f"--optim {MUON}": (args.optim_name == MUON, _UNREACHED),
        "--hidden_dropout_prob": (args.hidden_dropout_prob, _UNREACHED),
        "--activation_checkpointing mlp": (plan and MLP in plan.parts, _UNREACHED),
        "--load_best_model_at_end": (args.load_best_model_at_end, _UNREACHED),
    }
    yield from clashes(EXPERT, {**_kernels(args), **unreached})
    if facts.config is not None:
        yield from check_expert_model(facts.config.get_text_config(), args.expert_parallel_size)
    if facts.skeleton is not None:
        yield from check_trained_experts(facts.skeleton, facts.adapter_args, args)


def _check_expert_engine(args: StageArguments) -> Iterator[UserError]:
    """Problems of the DeepSpeed config: expert parallelism needs ZeRO 1 to 3, without other ways to share weights."""
    config = args.ds_resolved
    if config is None or args.zero_stage == 0:
        why = "DeepSpeed shards experts, and no config for it was given"
        if config is not None:
            why = "without ZeRO, DeepSpeed (0.19.8) measures and clips the gradients of each process's experts alone"
        yield ArgumentError(why, place=f"{EXPERT}, --deepspeed", fix="use --deepspeed zero1, zero2 or zero3")
        return
    own: Clashes = {
        "--deepspeed: expert_parallel": ("expert_parallel" in config, "hftune shards experts itself"),
        "--deepspeed: use_data_before_expert_parallelism": (config.get("use_data_before_expert_parallelism"), _UNTRIED),
    }
    yield from clashes(EXPERT, {**_zero_features(config, offloading=None), **own})


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
    noise = getattr(config, "router_jitter_noise", 0.0)
    odd: Clashes = {
        f"config.json: router_jitter_noise {noise}": (noise, "AutoEP's routers add no noise; set it to 0"),
        # swish is another name of silu in transformers.
        f"config.json: hidden_act {config.hidden_act}": (
            config.hidden_act not in (ACTIVATION, "swish"),
            f"AutoEP's experts compute {ACTIVATION}",
        ),
    }
    yield from clashes(EXPERT, odd, fix=f"leave it out, {OTHERWISE}")


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
    args, model_args = facts.training_args, facts.model_args
    attention = model_args.attn_implementation or ("flash_attention" if model_args.flash_attn else ULYSSES)
    others: Clashes = {
        "--padding_free False": (
            facts.rows.padding_free is False and not args.packing,
            "rows with padding are not shared; documents of a batch lie side by side in one row",
        ),
        "--streaming": (
            facts.data_args.streaming,
            "a stream gives every process records of its own, and here several need the same; tokenise ahead of the "
            "run (hftune tokenize, --tokenized_dir)",
        ),
        "--label_smoothing_factor": (args.label_smoothing_factor, "label smoothing takes the logits of whole rows"),
        "--average_tokens_across_devices False": (
            not args.average_tokens_across_devices,
            "the loss of a row is a mean over the labels of all its slices, and each process would divide by its own",
        ),
        f"--attn_implementation {attention}": (
            attention != ULYSSES,
            f"it would let the tokens of a slice see that slice only; {ULYSSES} exchanges heads for tokens, and uses "
            "torch's FlashAttention on a GPU",
        ),
    }
    yield from clashes(SEQUENCE, {**others, **_single_rows(args), **_kernels(args)})
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
