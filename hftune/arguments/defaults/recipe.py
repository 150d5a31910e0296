"""The resolved recipe of a run in a few lines, shown before anything loads; what was not given is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hftune.arguments.entry import RunArguments

if TYPE_CHECKING:
    from hftune.arguments.training import StageArguments

MARK = "*"
_STEPS = "num_train_epochs max_steps logging_steps save_strategy save_steps"
_TRAINED = (
    "learning_rate lr_scheduler_type warmup_steps optim weight_decay",
    "rl_algorithm loss_type distill_mode on_policy_share beta temperature reward_model_path reward_funcs "
    "teacher_model_name_or_path teacher_server_url teacher_targets",
)
_ALWAYS = (
    "block_size max_length max_prompt_length max_completion_length length_budget too_long packing "
    "validation_file_dir validation_split_percentage eval_strategy eval_steps",
    "use_peft load_in_4bit load_in_8bit lora_r lora_alpha lora_dropout lora_target_modules dtype bf16 fp16",
)
# Given in other words.
_IMPLIED_BY = {"use_peft": {"qlora", "peft_path", "train_new_tokens_only"}, "max_length": {"max_prompt_length"}}


def recipe(*groups: Any) -> list[str]:
    """Rate, loss, batch, time, lengths, evaluation, adapter and precision of a run, in at most seven lines.

    Args:
        groups: Those of `RunArguments`.
    """
    arguments: RunArguments[StageArguments] = RunArguments(*groups)
    args = arguments.training
    whose = "MedicalGPT's default" if args.defaults == "medicalgpt" else "default; `hftune explain NAME` says why"
    # --do_eval alone has neither a rate nor a batch to train with.
    names = [*(_TRAINED if args.do_train else ()), *_ALWAYS]
    rows = [_row(arguments, row) for row in names]
    if args.do_train:
        rows.insert(2, _batch(arguments))
    return [f"recipe ({MARK} not given: {whose})", *(f"  {row}" for row in rows if row)]


def _batch(arguments: RunArguments[StageArguments]) -> str:
    args = arguments.training
    each, steps, share = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.data_parallel_size
    sizes = [_said(arguments, name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
    return f"batch {each * steps * share} = {' x '.join(sizes)} x {share} process(es); {_row(arguments, _STEPS)}"


def _row(arguments: RunArguments[StageArguments], names: str) -> str:
    return ", ".join(_said(arguments, name) for name in names.split() if _counts(arguments, name))


def _counts(arguments: RunArguments[StageArguments], name: str) -> bool:
    """Whether an argument has a say: a value that is none, and settings of what is off, have not."""
    value, whole = _value(arguments, name), not arguments.adapter.use_peft
    by_steps = arguments.training.max_steps > 0
    idle = (name.startswith("lora_") and whole) or name == ("num_train_epochs" if by_steps else "max_steps")
    return not idle and (name in ("use_peft", "bf16") or not (value is None or value is False or value == []))


def _said(arguments: RunArguments[StageArguments], name: str) -> str:
    value, given = _value(arguments, name), arguments.training.given
    value = "+".join(map(str, value)) if isinstance(value, list) else value
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name} {text}" + ("" if given & {name, *_IMPLIED_BY.get(name, ())} else MARK)


def _value(arguments: RunArguments[StageArguments], name: str) -> Any:
    value = next((getattr(group, name) for group in arguments if hasattr(group, name)), None)
    return getattr(value, "value", value)
