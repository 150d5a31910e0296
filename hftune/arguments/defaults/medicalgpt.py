"""What MedicalGPT's scripts (2026-04) do where a command is silent, under hftune's names: `--defaults medicalgpt`.

Its argument classes are columns of `medicalgpt.csv`; what else its code does is in flags of hftune: one budget of
lengths for prompt and answer, records shuffled before some are taken, rows counted in place of records, rewards and
their system message.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from hftune.arguments.defaults.table import LORA, RunKind, is_on, run_kind_of
from hftune.arguments.stage_table import base_stage
from hftune.distributed import launch
from hftune.errors import ArgumentError
from hftune.tables import cell_value, read_table

Values = dict[str, Any]
Given = Mapping[str, str]

_ROWS = read_table(__package__, "medicalgpt.csv")
# transformers' TrainingArguments are what its first three scripts extend without values of their own; TRL's GKD, whose
# config is SFT's, is its trainer of distillation; TRL's ModelConfig is what its scripts for RL read.
MEDICALGPT: dict[str, Values] = {
    script: {row["name"]: cell_value(row[script]) for row in _ROWS if row[script]}
    for script in _ROWS[0]
    if script not in ("name", "unless")
}
"""Its scripts by what they train; the two of DPO and ORPO are run_dpo.py here, those of GRPO and PPO run_rl.py."""

_LEFT_OUT_WITH = {row["name"]: row["unless"].split() for row in _ROWS}
"""A value is left to hftune where one of these was given: they say the same, or leave it nothing to say."""


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
