"""Common rules of tensor, expert and sequence parallelism.

Each way to share was found right in some settings, by tests; the rules let these through and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.distributed.ds_config import DsConfig, asks_for_compiling, offload_device
from hftune.errors import ArgumentError, UserError
from hftune.on_demand import on_demand
from hftune.preflight.facts import Facts

OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"


@dataclass(frozen=True)
class Way:
    """One way in which processes share a model's work.

    Args:
        size: The argument that says over how many.
        name: As a reader calls it.
        parts: What each process has: "with ..." is said of what does not go together with it.
        begins: What happens when training begins.
        reason: Why the other stages are not trained so.
        rules: What checks it, imported where it is asked for.
    """

    size: str
    name: str
    parts: str
    begins: str
    reason: str
    rules: str

    @property
    def flag(self) -> str:
        """The flag as it is typed."""
        return f"--{self.size}"

    def asked(self, training_args: StageArguments) -> int:
        """The number of processes that share; 1 for none."""
        return int(getattr(training_args, self.size))


_OF_MODELS = "reward models, DPO and RL hold further models, or generate, which was not found right with "

TENSOR = Way(
    "tensor_parallel_size",
    "tensor parallelism",
    "split matrices",
    "matrices are split",
    f"{_OF_MODELS}split matrices",
    "hftune.preflight.rules.tensor_parallel:check_tensor_parallel",
)
EXPERT = Way(
    "expert_parallel_size",
    "expert parallelism",
    "experts that hftune shards",
    "experts are sharded",
    f"{_OF_MODELS}experts in several processes",
    "hftune.preflight.rules.expert_parallel:check_expert_parallel",
)
SEQUENCE = Way(
    "sequence_parallel_size",
    "sequence parallelism",
    "slices of rows",
    "rows are shared",
    "the losses of preferences, rewards and reinforcement learning are of whole answers",
    "hftune.preflight.rules.sequence_parallel:check_sequence_parallel",
)
WAYS = (TENSOR, SEQUENCE, EXPERT)


def check_sharing(facts: Facts) -> Iterator[UserError]:
    """Problems of sharing work between processes: several ways at once, or by the rules of the one asked for."""
    yield from check_one_way(facts.training_args)
    for way in WAYS:
        if way.asked(facts.training_args) > 1:
            yield from on_demand(way.rules)(facts)
    # With the flag, the rules of expert parallelism refuse the block.
    if EXPERT.asked(facts.training_args) == 1:
        yield from check_expert_config(facts.training_args)


def check_expert_config(training_args: StageArguments) -> Iterator[UserError]:
    """A problem where the config asks for AutoEP: DeepSpeed would shard experts after the optimizer was made."""
    block = (training_args.ds_resolved or {}).get("expert_parallel")
    if block and (not isinstance(block, dict) or block.get("enabled")):
        yield ArgumentError(
            "the DeepSpeed config shards experts, which hftune does itself",
            place="--deepspeed: expert_parallel",
            fix=f"remove the block and use {EXPERT.flag}",
        )


def check_one_way(training_args: StageArguments) -> Iterator[UserError]:
    """A problem where several ways to share are asked for."""
    # Pairs of them were not tried; each has tests of its own.
    several = [way for way in WAYS if way.asked(training_args) > 1]
    if len(several) > 1:
        yield ArgumentError(
            f"{' and '.join(way.name for way in several)} at once were not found right",
            place=", ".join(way.flag for way in several),
            fix="give one of them: --deepspeed zero3 partitions the weights over all processes as well",
        )


def check_stage(way: Way, training_args: StageArguments) -> Iterator[UserError]:
    """A problem in stages other than pre-training and fine-tuning."""
    if not isinstance(training_args, PTArguments | SFTArguments):
        yield ArgumentError(
            f"{way.name} is for pre-training and fine-tuning: {way.reason}",
            place=f"{way.flag} {way.asked(training_args)}",
            fix=f"leave it out, {OTHERWISE}; --activation_checkpointing full makes room for long answers",
        )


def check_trains(way: Way, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where nothing is trained: work is shared only when training begins."""
    if not training_args.do_train:
        yield ArgumentError(
            f"{way.begins} when training begins, and nothing is trained",
            place=f"{way.flag}, --do_eval",
            fix="leave it out to evaluate",
        )


def check_full(way: Way, adapter_args: AdapterArguments, reasons: Mapping[str, str]) -> Iterator[UserError]:
    """A problem where a base is quantised or adapted: only training in full is shared.

    Args:
        reasons: Why not, of "quantised" bases and of "adapted" models.
    """
    kinds = {
        "quantised": (adapter_args.quantised, "--load_in_4bit / --load_in_8bit", "packed 4-bit weights: --qlora"),
        "adapted": (adapter_args.use_peft, "--use_peft", "the base of an adapter: --use_peft"),
    }
    # The first reason is enough: QLoRA is both.
    for kind, (is_asked, place, shares) in kinds.items():
        if is_asked:
            yield ArgumentError(
                reasons[kind],
                place=f"{way.flag}, {place}",
                fix=f"leave one of them out; ZeRO-3 shares {shares} --deepspeed zero3",
            )
            return


def zero_features(config: DsConfig) -> dict[str, bool]:
    """DeepSpeed features that also split or gather matrices: by name, whether asked for."""
    zero: dict[str, Any] = config.get("zero_optimization", {})
    return {
        "zero_hpz_partition_size": int(zero.get("zero_hpz_partition_size") or 1) > 1,
        "zero_quantized_weights": bool(zero.get("zero_quantized_weights")),
        "zero_quantized_gradients": bool(zero.get("zero_quantized_gradients")),
        "offload_param.device nvme": offload_device(config, "param") == "nvme",
        "offload_optimizer.device nvme": offload_device(config, "optimizer") == "nvme",
        "compile.deepcompile": asks_for_compiling(config),
    }


def check_features(way: Way, asked: Mapping[str, bool]) -> Iterator[UserError]:
    """Problems of features of DeepSpeed that were not tried with a way to share."""
    for name in (name for name, is_asked in asked.items() if is_asked):
        yield ArgumentError(
            f"{name} was not found right with {way.parts}",
            place=f"{way.flag}, --deepspeed: {name}",
            fix=f"leave {name} out, or {way.flag}",
        )


def check_row_distribution(way: Way, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of options that distribute rows to single processes: members of a group must see the same rows."""
    config = training_args.accelerator_config
    asked = {
        "--train_sampling_strategy batch_rebalance": training_args.train_sampling_strategy == "batch_rebalance",
        "--accelerator_config split_batches": bool(getattr(config, "split_batches", False)),
        "--accelerator_config dispatch_batches": bool(getattr(config, "dispatch_batches", False)),
    }
    yield from check_flags(way, asked, "gives rows to single processes, not to groups that see the same ones")


def check_kernels(way: Way, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of compiling, and of replaced layers, with a way to share."""
    # Both replace a layer's forward pass, and with it the exchange between processes that was put there.
    for name in ("torch_compile", "use_liger_kernel"):
        if getattr(training_args, name, False):
            yield ArgumentError(
                f"--{name} puts code of its own in the place of layers, which was not found right with {way.parts}",
                place=f"--{name}, {way.flag}",
                fix="leave one of them out",
            )


def check_flags(way: Way, asked: Mapping[str, bool], why: str) -> Iterator[UserError]:
    """Problems of arguments that do not work with a way to share.

    Args:
        asked: By name, whether it is given.
        why: Said after the name.
    """
    for name in (name for name, is_asked in asked.items() if is_asked):
        yield ArgumentError(f"{name} {why}", place=f"{name}, {way.flag}", fix="leave one of them out")
