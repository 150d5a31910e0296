"""Rules about resuming: the checkpoint is whole, fits this run's groups, and was written with its settings.

With another stage, adapter or optimizer a run ends in the middle of loading, or trains on with a state that is not its
own. With another rate, order or length it trains on, and is neither the run that was interrupted nor the one that was
asked for. The manifest in a checkpoint says what wrote it. One of another tool has none, and is asked by its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from hftune.arguments.training import StageArguments
from hftune.checkpoints.integrity import engine_folder, read_record
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.resume import unfinished_problems
from hftune.distributed import ranks
from hftune.errors import ArgumentError, ManifestError, UserError
from hftune.logging import notice
from hftune.preflight.facts import Facts
from hftune.preflight.model_folder import check_adapter_fits
from hftune.weight_files import weight_shapes


def check_resume(facts: Facts) -> Iterator[UserError]:
    """Problems of `--resume_from_checkpoint`, also where it was forgotten after an interruption."""
    yield from check_groups(facts.checkpoint.folder, facts.training_args)
    yield from unfinished_problems(facts.training_args)
    yield from facts.checkpoint.problems


def check_groups(folder: Path | None, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where sharded matrices or experts would resume in other groups, another world or ZeRO stage."""
    if folder is None or not folder.is_dir() or engine_folder(folder) is None:
        return
    record = read_record(folder) or {}
    then: dict[str, int | None] = {
        "--tensor_parallel_size": int(record.get("tensor_parallel_size") or 1),
        "--expert_parallel_size": int(record.get("expert_parallel_size", 1)),
    }
    now: dict[str, int | None] = {name: int(getattr(training_args, name.removeprefix("--"))) for name in then}
    # Without groups a state of any world is resharded when it is read.
    if any((size or 1) > 1 for size in (*then.values(), *now.values())):
        then |= {"ZeRO stage": record.get("zero_stage"), "processes": record.get("world_size")}
        now |= {"ZeRO stage": training_args.zero_stage, "processes": ranks.world_size()}
    other = [name for name, value in then.items() if value not in (None, now[name])]
    if other:
        yield ArgumentError(
            f"{folder} was written with {', '.join(f'{name} {then[name]}' for name in other)}, and this run has "
            f"{', '.join(str(now[name]) for name in other)}: the optimizer's state lies in other pieces",
            place=f"--resume_from_checkpoint, {', '.join(other)}",
            fix="resume as it was written; or begin with its weights alone, in another --output_dir: "
            f"--warm_start {folder}",
        )


_FLAG = "--resume_from_checkpoint"

_ADAPTER = (
    "lora_r", "lora_alpha", "lora_target_modules", "target_regex", "exclude_modules",
    "lora_target_parameters", "rank_pattern", "alpha_pattern", "trainable_token_indices", "lora_modules_to_save",
    "lora_bias", "use_rslora", "use_dora", "train_new_tokens_only",
)  # fmt: skip
_FREEZING = (
    "freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters",
    "trainable_parameters_regex",
)  # fmt: skip
_TRAINING = ("rl_algorithm", "critic", "optim", "optim_target_modules", "loraplus_lr_ratio", "layerwise_lr_decay_bound")
"""With these, arguments that decide which parameters are trained, and what is kept for each."""

_COURSE = {
    "model": ("rope_scaling", "rope_factor", "add_tokens", "add_special_tokens", "pad_vocab_to_multiple_of"),
    "data": ("train_dataset_prob", "mix_strategy", "num_samples_each_epoch", "weights", "logical_shards"),
    "training": (
        "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay",
        "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha",
        "seed", "data_seed", "train_sampling_strategy", "dataloader_drop_last",
        "max_length", "block_size", "packing", "packing_strategy", "cross_document_attention", "train_on_inputs",
        "train_on_last_turn", "turn_weights", "router_aux_loss_coef", "moe_z_loss_coef",
        "loss_type", "beta", "label_smoothing", "simpo_gamma", "offset_alpha", "ref_model", "distill_mode",
        "num_generations", "max_completion_length", "num_iterations", "steps_per_generation", "temperature",
        "epsilon", "epsilon_high", "scale_rewards", "mask_truncated_completions",
        "reward_funcs", "reward_weights", "reward_model_path",
    ),
}  # fmt: skip
"""Arguments that decide what the steps that are left compute: with others they would not be those of the same run."""

_IN_STATE = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Of these a run that resumes has the checkpoint's values, which come with the states of optimizer and schedule."""

_ADAMW = {"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_torch_xla"}
"""They keep the same state."""


def check_resumed_settings(facts: Facts) -> Iterator[UserError]:
    """Problems of resuming from a whole checkpoint with another stage, adapter, optimizer or model."""
    folder = facts.checkpoint.folder
    # What is not whole, or not there, has a rule of its own.
    if folder is None or facts.checkpoint.problems:
        return
    manifest = read_manifest(folder) or {}
    warm = f"to begin with its weights, in another --output_dir: --warm_start {folder}"
    stage = manifest.get("stage") or facts.stage
    if stage != facts.stage:
        yield ArgumentError(
            f"{folder} is a checkpoint of {stage}, and this is {facts.stage}: its steps, optimizer and position in the "
            "data are those of other training",
            place=_FLAG,
            fix=f"resume it with run_{stage}.py; or {warm}",
        )
        return
    is_adapter, adapts = (folder / "adapter_config.json").is_file(), facts.adapter_args.use_peft
    if is_adapter != adapts and (is_adapter or manifest):
        kinds = {True: "an adapter", False: "all weights"}
        yield ArgumentError(
            f"{folder} was written by a run that trains {kinds[is_adapter]}, and this one trains {kinds[adapts]}",
            place=f"{_FLAG}, --use_peft",
            fix=f"add --use_peft; or {warm}" if is_adapter else f"leave out --use_peft; or {warm}",
        )
        return
    # An adapter that is trained further brings its own settings.
    adapter = () if facts.adapter_args.peft_path else _ADAPTER
    state = {"adapter": adapter if facts.adapter_args.use_peft else _FREEZING, "training": _TRAINING}
    if other := _changed(facts, manifest, state):
        yield ArgumentError(
            f"{folder} was written with {_said(other)}: its state is of other parameters",
            place=", ".join([_FLAG, *other]),
            fix=f"resume with what it was written with; or {warm}",
        )
        return
    yield from _another_course(facts, folder, _changed(facts, manifest, _COURSE), warm)
    yield from _another_model(facts, folder, is_adapter=is_adapter)


def _another_course(facts: Facts, folder: Path, other: dict[str, tuple[Any, Any]], warm: str) -> Iterator[UserError]:
    """A problem where the steps that are left would be computed otherwise; said where that is asked for."""
    if other and facts.training_args.resume_anyway:
        kept = [flag for flag in other if flag.removeprefix("--") in _IN_STATE]
        notice(
            f"{folder} was written with {_said(other)}, and is resumed all the same"
            + (f"; {', '.join(kept)} of the checkpoint stays, which the optimizer's state brings" if kept else "")
        )
    elif other:
        yield ArgumentError(
            f"{folder} was written with {_said(other)}: the steps that are left would not be those of that run",
            place=", ".join([_FLAG, *other]),
            fix=f"resume with what it was written with; or {warm}; or add --resume_anyway, which records both",
        )


def _changed(
    facts: Facts, manifest: dict[str, Any], names: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[Any, Any]]:
    """Of these arguments, by group, those with other values than the manifest's: flag to value then, value now."""
    found = {}
    for group, own in names.items():
        given, then = getattr(facts.arguments, group), (manifest.get("arguments") or {}).get(group) or {}
        for name in own:
            value = getattr(given, name, None)
            value = value.value if isinstance(value, Enum) else value
            # The default of one follows from --max_steps, which may be raised.
            follows = name == "warmup_steps" and name not in facts.training_args.given
            if name in then and not follows and _kind(name, then[name]) != _kind(name, value):
                found[f"--{name}"] = (then[name], value)
    return found


def _said(other: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{flag} {_shown(then)} (now {_shown(now)})" for flag, (then, now) in other.items())


def _kind(name: str, value: Any) -> Any:
    """A value, by what it means for the state that is kept."""
    if name == "optim":
        plain = str(value).removeprefix("paged_")
        return "adamw" if plain in _ADAMW else plain
    if isinstance(value, list | tuple):
        return sorted("all" if one == "all-linear" else str(one) for one in value)
    return value


def _shown(value: Any) -> str:
    return "none" if value is None else " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _another_model(facts: Facts, folder: Path, *, is_adapter: bool) -> Iterator[UserError]:
    """A problem where the checkpoint's weights are of another model than --model_name_or_path."""
    base = facts.model_args.model_name_or_path
    if not base or facts.adapter_args.peft_path or not Path(base).is_dir():
        return  # on the Hub, or several adapters on each other: compared where they are loaded
    if is_adapter:
        yield from check_adapter_fits(base, str(folder), _FLAG)
        return
    shapes, stored = weight_shapes(base), weight_shapes(folder)
    # Rows of a vocabulary may have been added: what a row is made of stays.
    wrong = [name for name in shapes.keys() & stored.keys() if shapes[name][1:] != stored[name][1:]]
    if wrong:
        name = min(wrong)
        yield ManifestError(
            f"{folder} is of another model than {base}: {name} is {stored[name]} there and {shapes[name]} here",
            place=f"{_FLAG}, --model_name_or_path",
            fix="give the model that the checkpoint was trained from",
        )
