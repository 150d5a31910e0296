"""What MedicalGPT's scripts (2026-04) do where a command is silent, under hftune's names: `--defaults medicalgpt`.

Its argument classes are tables here; what else its code does is in flags of hftune: one budget of lengths for prompt
and answer, records shuffled before some are taken, rows counted in place of records, rewards and their system message.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from hftune.arguments.defaults.table import LORA, RunKind, is_on, run_kind_of
from hftune.arguments.stage_table import base_stage
from hftune.distributed import launch
from hftune.errors import ArgumentError

Values = dict[str, Any]
Given = Mapping[str, str]

ASKS_FOR_TAGS = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>"
)
"""The system message of its GRPO script."""

# transformers' TrainingArguments, which its first three scripts extend without values of their own.
_TRAINER: Values = {
    "learning_rate": 5e-5, "lr_scheduler_type": "linear", "warmup_steps": 0, "weight_decay": 0.0,
    "optim": "adamw_torch_fused", "num_train_epochs": 3.0, "max_steps": -1, "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8, "gradient_accumulation_steps": 1, "gradient_checkpointing": False,
    "logging_steps": 500, "save_steps": 500, "eval_strategy": "no", "eval_steps": None, "bf16": False, "fp16": False,
    "report_to": "none",
}  # fmt: skip
_ADAPTER: Values = {
    "use_peft": True, "lora_r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": ["all"],
    "train_in_float32": True,
}  # fmt: skip
_RECORDS: Values = {"validation_split_percentage": 1.0, "preprocessing_num_workers": 1}
_BUDGET: Values = {
    "max_prompt_length": 2048, "max_completion_length": 512, "length_budget": "sum", "too_long": "drop",
    "preprocessing_num_workers": 4,
}  # fmt: skip
_DPO: Values = {
    "learning_rate": 5e-4, "lr_scheduler_type": "cosine", "warmup_steps": 100, "weight_decay": 0.05,
    "optim": "adamw_torch", "max_steps": 200, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 4, "gradient_checkpointing": True, "logging_steps": 1, "save_steps": 50,
    "eval_strategy": "steps", "eval_steps": 50, "bf16": False, "fp16": True, "remove_unused_columns": False,
    "report_to": "tensorboard", "output_dir": "outputs-dpo", "beta": 0.1,
}  # fmt: skip
# TRL's ModelConfig, which its scripts for RL read.
_TRL_ADAPTER: Values = {
    "use_peft": False, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": ["default"],
}  # fmt: skip

MEDICALGPT: dict[str, Values] = {
    "pt": _TRAINER | _ADAPTER | _RECORDS | {"block_size": 1024, "packing": True, "count_rows": True},
    "sft": _TRAINER | _ADAPTER | _RECORDS | {"max_length": 512, "dtype": "float16", "shuffle_seed": 42},
    "rm": _TRAINER | _ADAPTER | _RECORDS | _BUDGET,
    "dpo": _ADAPTER | _RECORDS | _BUDGET | _DPO
    | {"lora_alpha": 16, "lora_target_modules": ["default"], "length_budget": "sum_of_characters"},
    "orpo": _ADAPTER | _RECORDS | _BUDGET | _DPO | {"lora_alpha": 16, "length_budget": "sum_of_characters"},
    # Its trainer is TRL's GKD, whose config is SFT's.
    "distill": _TRAINER | _ADAPTER | _RECORDS
    | {
        "learning_rate": 2e-5, "logging_steps": 10, "gradient_checkpointing": True, "bf16": True, "lora_alpha": 16,
        "dtype": "float16", "shuffle_seed": 42, "distill_mode": "mixed", "on_policy_share": 0.5, "beta": 0.5,
        "temperature": 0.9, "max_completion_length": 128, "max_length": 1152,
    },
    "grpo": _TRL_ADAPTER
    | {
        "dataset_name": "openai/gsm8k:main@train", "preprocessing_num_workers": 10, "shuffle_seed": 42,
        "reward_funcs": ["accuracy", "format"], "system_prompt": ASKS_FOR_TAGS,
    },
    "rloo": _TRL_ADAPTER | {"max_prompt_length": 1024, "max_eval_samples": 100},
}  # fmt: skip
"""Its scripts by what they train; the two of DPO and ORPO are run_dpo.py here, those of GRPO and PPO run_rl.py."""

# A value is left to hftune where one of these was given: they say the same, or leave it nothing to say.
_LEFT_OUT_WITH: dict[str, tuple[str, ...]] = {
    "use_peft": ("train_new_tokens_only",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "bf16": ("fp8", "fp16"),
    "max_steps": ("num_train_epochs",),
    "validation_split_percentage": ("tokenized_dir", "datasets", "streaming"),
    "max_prompt_length": ("max_length",),
    "max_completion_length": ("max_length",),
    "length_budget": ("max_length", "reward_kind"),
    "too_long": ("reward_kind",),
    "lora_target_modules": ("target_regex", "lora_target_parameters", "peft_path"),
    "lora_r": ("peft_path",),
    "lora_alpha": ("peft_path",),
    "lora_dropout": ("peft_path",),
    "reward_funcs": ("reward_model_path",),
    "system_prompt": ("reward_funcs", "reward_model_path"),
    "dataset_name": ("train_file_dir", "tokenized_dir", "dummy_data"),
    "shuffle_seed": ("tokenized_dir", "streaming", "dummy_data", "train_dataset_prob"),
    "count_rows": ("tokenized_dir", "datasets", "streaming"),
}


def their_script(stage: str, given: Given) -> str:
    """The key of `MEDICALGPT` for a command of hftune."""
    run = run_kind_of(stage, given)
    if stage == "dpo":
        return "orpo" if run.losses <= {"orpo", "odds_ratio"} else "dpo"
    if stage == "rl":
        return "grpo" if run.kind == "grpo" else "rloo"
    return stage if stage in MEDICALGPT else base_stage(stage)


def medicalgpt_defaults(stage: str, given: Given) -> tuple[Values, list[str]]:
    """What is not given, as its script has it, and why some of that is not so here.

    Args:
        given: hftune's names and their values as texts.

    Raises:
        ArgumentError: Nothing is asked for: its scripts train with --do_train and evaluate with --do_eval.
    """
    script = their_script(stage, given)
    _check_asked(script, given)
    values = {
        name: value
        for name, value in MEDICALGPT[script].items()
        if name not in given and not any(other in given for other in _LEFT_OUT_WITH.get(name, ()))
    }
    if script == "distill" and "max_length" in values:  # of a prompt and what is drawn
        values["max_length"] = 1024 + int(given.get("max_completion_length", 128))
    # What is trained depends on the defaults themselves: its scripts train LoRA unless told otherwise.
    whole = {name: str(value) for name, value in values.items()} | dict(given)
    run = run_kind_of(stage, whole)
    reasons = [f"{name} {value} ({because})" for name, value, because in UNEQUAL if name not in given]
    # A list first: values are taken out on the way.
    for name in [name for name in _IMPOSSIBLE if name in values]:
        because = _IMPOSSIBLE[name](values[name], run, given)
        if because:
            reasons.append(f"{name} {values.pop(name)} ({because})")
    return values, reasons


def _check_asked(script: str, given: Given) -> None:
    if script != "grpo" and not (is_on(given, "do_train") or is_on(given, "do_eval")):  # that one trains in any case
        raise ArgumentError(
            "MedicalGPT's script does nothing without --do_train or --do_eval",
            place="--defaults medicalgpt",
            fix="add --do_train",
        )


# --- what is not as there -------------------------------------------------------------------------------------------

UNEQUAL = (
    ("trust_remote_code", "True", "code of a model runs when it is asked for alone"),
    ("use_fast_tokenizer", "False", "what is trained is found by characters, which slow tokenizers do not know"),
    ("device_map", "auto", "the launcher places models"),
)


def _on_cpu(given: Given) -> bool:
    # A CPU has no fp16 arithmetic to train in, whatever the scripts ask for.
    return not launch.has_accelerator() or is_on(given, "use_cpu")


def _no_half(value: Any, run: RunKind, given: Given) -> str | None:
    if _on_cpu(given):
        return "a CPU computes in float32 or bfloat16"
    return None if run.trained == LORA else "what is trained is kept in float32"


def _no_fp16(value: Any, run: RunKind, given: Given) -> str | None:
    if value and is_on(given, "bf16"):
        return "--bf16 was given, and there is one of the two"
    return "a CPU computes in float32 or bfloat16" if value and _on_cpu(given) else None


def _no_tracker(value: Any, run: RunKind, given: Given) -> str | None:
    return "it is not installed" if value == "tensorboard" and not is_installed(value) else None


def is_installed(package: str) -> bool:
    """Whether Python would find a package."""
    return importlib.util.find_spec(package) is not None


_IMPOSSIBLE: dict[str, Callable[[Any, RunKind, Given], str | None]] = {
    "dtype": _no_half,
    "fp16": _no_fp16,
    "report_to": _no_tracker,
}
