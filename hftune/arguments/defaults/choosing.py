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
_THEIRS = "hftune.arguments.defaults.medicalgpt:medicalgpt_defaults"

_WARM_UP, _SCHEDULE = "warmup_steps", "lr_scheduler_type"
# Schedules that a user who names one does not want warmed up.
_WITHOUT_WARM_UP = ("constant", "reduce_lr_on_plateau", "greedy")

# Its own, spelt as nobody else does, and a habit of its command lines: three of these, with its folder of records.
_HABIT, _FOLDER = 3, ("train_file_dir", "validation_file_dir")
MEDICALGPTS = (
    "this reads as a command of MedicalGPT's. Where it is silent hftune has its own defaults, with * in the recipe "
    "(`hftune explain NAME` has both): --defaults medicalgpt takes all of MedicalGPT's, --defaults hftune keeps these "
    "without this notice"
)
"""What is said of a command that does not say whose defaults it wants."""


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
    values, reasons = on_demand(_THEIRS)(stage, given)
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


def of_field(action: Any) -> Any:
    """The default of an argument's field; that of a list is made anew each time."""
    return action.default() if callable(action.default) else action.default


def shown(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
