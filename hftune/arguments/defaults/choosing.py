"""The defaults of one command line: what was not given, by hftune's table or by MedicalGPT's."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hftune.arguments.defaults.table import own_defaults, run_kind_of
from hftune.arguments.names.table import table, tools_of
from hftune.arguments.names.translate import Entry
from hftune.logging import notice
from hftune.on_demand import on_demand

HFTUNE = "hftune"
# Few runs ask for its tables, or read as a command of its scripts.
_MEDICALGPTS = "hftune.arguments.defaults.medicalgpt:medicalgpt_defaults"

_WARM_UP, _SCHEDULE = "warmup_steps", "lr_scheduler_type"
# Schedules that a user who names one does not want warmed up.
_WITHOUT_WARM_UP = ("constant", "reduce_lr_on_plateau", "greedy")

# Its own, spelt as nobody else does, and a habit of its command lines: three of these, with its folder of records.
_HABIT, _FOLDER = 3, ("train_file_dir", "validation_file_dir")
# What decides what is learnt comes first in the notice, which shows so many.
_MATTERS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps", "num_train_epochs", "use_peft", "too_long"),
    *("length_budget", "max_prompt_length", "max_completion_length", "shuffle_seed", "count_rows", "reward_funcs"),
    *("system_prompt", "lora_alpha", "lora_dropout", "weight_decay", "validation_split_percentage", "eval_strategy"),
    *("eval_steps", "logging_steps", "train_in_float32", "gradient_accumulation_steps", "per_device_train_batch_size"),
)
_SHOWN = 8


def choose_defaults(stage: str, entries: Iterable[Entry], known: Collection[str]) -> dict[str, Any]:
    """Values for arguments that were not given, under hftune's names; says what is not as `--defaults` asks.

    Args:
        stage: A key of `STAGES`.
        entries: What was given, translated.
        known: Names of the script's own arguments.

    Raises:
        ArgumentError: MedicalGPT's script would do nothing.
    """
    given = as_texts(entries)
    asked = given.get("defaults", HFTUNE)
    if asked == HFTUNE:
        return hftune_defaults(stage, given, known)
    values, reasons = on_demand(_MEDICALGPTS)(stage, given)
    if reasons:
        notice("--defaults medicalgpt, but for " + "; ".join(reasons))
    return {name: value for name, value in values.items() if name in known}


def as_texts(entries: Iterable[Entry]) -> dict[str, str]:
    """Names and values as `run_kind_of` wants them."""
    return {entry.name: " ".join(map(str, entry.values)) for entry in entries}


def hftune_defaults(stage: str, given: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """hftune's own defaults for what was not given."""
    rows = own_defaults(run_kind_of(stage, given))
    values = {name: row.value for name, row in rows.items() if name not in given and name in known}
    if "learning_rate" in given:
        # The table's rate belongs to the table's rate of the policy.
        values.pop("critic_learning_rate", None)  # whoever has chosen one rate means both
    if {"eval_strategy", "load_best_model_at_end"} & given.keys():
        for name in ("eval_strategy", "eval_steps"):  # it must fit what was given, or --save_steps
            values.pop(name, None)
    if given.get("optim", "").startswith("schedule_free"):  # it has neither, and says so
        values.pop(_SCHEDULE, None)
        values.pop(_WARM_UP, None)
    if given.get(_SCHEDULE) in _WITHOUT_WARM_UP or values.get(_WARM_UP, 0) * _steps(given) < 1:
        values.pop(_WARM_UP, None)  # of a few steps the first would be trained at a rate of 0
    return values


def _steps(given: Mapping[str, str]) -> float:
    """The steps of a run where they were given; of others enough for any share."""
    steps = given.get("max_steps", "-1")
    return float(steps) if steps.isdecimal() else math.inf


# --- a command line of MedicalGPT's ---------------------------------------------------------------------------------


def looks_like_medicalgpt(written: Iterable[str], known: Collection[str]) -> bool:
    """Whether names, as they were written, are those of a command line of MedicalGPT's.

    One that no other tool has is enough (`max_source_length`, `sft_model_path`); or three that hftune spells otherwise
    (`lora_rank`, `target_modules`, `torch_dtype`), with MedicalGPT's name for the folder of records.
    """
    names = {*written}
    # A name that hftune has, too, says nothing about where a command comes from.
    foreign = {name for name in names - {*known} if name in table() and "MedicalGPT" in tools_of(name)}
    alone = {name for name in foreign if tools_of(name) == ["MedicalGPT"]}
    return bool(alone) or (len(foreign) >= _HABIT and bool(names & {*_FOLDER}))


def say_differences(stage: str, entries: Iterable[Entry], chosen: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Say where this run, left silent, is not what MedicalGPT's script makes of the same command.

    Args:
        chosen: From `choose_defaults`.
        known: The parser's actions by name, with the defaults of their fields.
    """
    given = as_texts(entries) | {"do_train": "true"}  # how it is trained is compared, not whether
    # What its classes leave to TRL is the default of the field, here as there.
    theirs = {name: of_field(known[name]) for name in chosen} | on_demand(_MEDICALGPTS)(stage, given)[0]
    here = {name: chosen.get(name, of_field(known[name])) for name in theirs if name in known}
    if not (given.get("use_peft") or here.get("use_peft") or theirs.get("use_peft")):
        # Without an adapter on either side its settings are no difference.
        theirs = {name: value for name, value in theirs.items() if not name.startswith("lora_")}
    differ = [name for name in _MATTERS if name in here and name in theirs and shown(here[name]) != shown(theirs[name])]
    if not differ:
        return
    more = f", and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    words = "; ".join(f"{name} {shown(here[name])} (there {shown(theirs[name])})" for name in differ[:_SHOWN])
    notice(
        f"this reads as a command of MedicalGPT's. Where it is silent hftune has its own defaults: {words}{more}. "
        "--defaults medicalgpt takes all of MedicalGPT's, --defaults hftune keeps these without this notice"
    )


def of_field(action: Any) -> Any:
    """The default of an argument's field; that of a list is made anew each time."""
    return action.default() if callable(action.default) else action.default


def shown(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
