"""Rules about what runs beside training: trackers, callbacks, tasks of checkpoints."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from hftune.arguments.asking import OF_ANSWERS, OWN_TASKS
from hftune.arguments.named_code import named_code
from hftune.arguments.stage_table import base_stage
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.opening.json_file import parse_json
from hftune.preflight.facts import Facts
from hftune.preflight.rules import raised

_FLAG, _TASKS = "--callbacks", "--eval_tasks"
# Where a package is not called as its tracker.
_PACKAGES = {"azure_ml": "azureml-core", "comet_ml": "comet-ml", "dagshub": "dagshub mlflow"}
_FIX = "write --callbacks FILE.py:CLASS or MODULE:CLASS; with arguments 'FILE.py:CLASS{\"after\": 3}'"


def check_callbacks(facts: Facts) -> Iterator[UserError]:
    """Problems of `--callbacks` and `--early_stopping_patience`."""
    args = facts.training_args
    for text in args.callbacks or []:
        yield from raised(callback_class, text)
    if args.eval_tasks:
        yield from _check_tasks(facts)
    if args.early_stopping_patience is not None:
        yield from _check_stopping(args)


def _check_stopping(args: Any) -> Iterator[UserError]:
    lacks = [
        *([] if args.do_train else ["training (--do_train True)"]),
        *([] if args.eval_strategy != "no" else ["evaluations (--eval_strategy steps, and --validation_file_dir)"]),
        # transformers counts from the best figure so far, which it keeps for this alone.
        *([] if args.load_best_model_at_end else ["--load_best_model_at_end"]),
    ]
    if lacks:
        yield ArgumentError(
            f"early stopping needs {', '.join(lacks)}",
            place="--early_stopping_patience",
            fix="add --load_best_model_at_end --eval_strategy steps --eval_steps 50 --save_strategy steps "
            "--save_steps 50 --validation_file_dir DIR; or leave it out",
        )


def _check_tasks(facts: Facts) -> Iterator[UserError]:
    args, tasks = facts.training_args, facts.training_args.eval_tasks or []
    if base_stage(facts.stage) == "rm":
        fix = "leave it out; --eval_strategy steps measures the accuracy of a reward model"
        yield ArgumentError("tasks are for models that answer", place=_TASKS, fix=fix)
    if args.save_strategy == "no" or args.async_save:
        why = "is whole when training continues" if args.async_save else "is saved"
        fix = "add --save_strategy steps --save_steps 50, without --async_save; or leave it out"
        yield ArgumentError(f"checkpoints are evaluated, and none {why}", place=_TASKS, fix=fix)
    if {*tasks} & {*OF_ANSWERS}:
        fix = "leave them out, and run `hftune evaluate OUTPUT/checkpoint-*` afterwards, which takes their models"
        yield ArgumentError(f"{' and '.join(OF_ANSWERS)} need another model", place=_TASKS, fix=fix)
    if {*tasks} & {*OWN_TASKS} and not facts.data_args.validation_file_dir:
        fix = "--validation_file_dir FILE_OR_FOLDER"
        yield ArgumentError("there are no held-out records for the tasks", place=_TASKS, fix=fix)
    others = [task for task in tasks if task not in OWN_TASKS]
    if others and importlib.util.find_spec("lm_eval") is None:
        near = did_you_mean(others[0], OWN_TASKS)
        fix = f"{near} Tasks of hftune: {', '.join(OWN_TASKS)}; for lm-eval's: pip install 'hftune[eval]'".strip()
        yield ArgumentError(f"hftune has no task {others[0]}", place=_TASKS, fix=fix)


def callback_class(text: str) -> tuple[type[TrainerCallback], dict[str, Any]]:
    """The class that `FILE.py:CLASS{JSON}` names, and its arguments.

    Raises:
        ArgumentError: There is none, it is no TrainerCallback, or does not take these arguments.
    """
    name, brace, rest = text.partition("{")
    given = parse_json(brace + rest, _FLAG, error=ArgumentError, fix=_FIX) if brace else {}
    found = named_code(name, _FLAG, "class")
    if not inspect.isclass(found) or not issubclass(found, TrainerCallback):
        raise ArgumentError(f"{name} is no subclass of transformers' TrainerCallback", place=_FLAG, fix=_FIX)
    try:
        # Not made here: what it does when it is made belongs to the run.
        inspect.signature(found).bind(**given)
    except TypeError as error:
        raise ArgumentError(
            f"{name} cannot be made of {given or 'no arguments'}: {error}", place=_FLAG, fix=_FIX
        ) from error
    return found, given


def check_trackers(facts: Facts) -> Iterator[UserError]:
    """Problems of trackers; the Trainer would end with a traceback once the model is loaded."""
    from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

    # transformers takes one name as well as a list.
    asked = facts.training_args.report_to
    for name in [asked] if isinstance(asked, str) else asked or []:
        # `all` means those that are installed; of Flyte transformers does not say whether it is.
        if name in ("none", "all", "flyte"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            known = sorted([*INTEGRATION_TO_CALLBACK, "none"])
            near = did_you_mean(name, known, written="--report_to {}")
            fix = f"{near} one of: {', '.join(known)}".strip()
            yield ArgumentError(f"there is no tracker {name!r}", place="--report_to", fix=fix)
        elif name not in get_available_reporting_integrations():
            yield _not_installed(name, "--report_to", "--report_to none")


def check_monitors(facts: Facts) -> Iterator[UserError]:
    """Problems of monitors in a DeepSpeed config, which would end in a traceback once the model is loaded."""
    from transformers.integrations import get_available_reporting_integrations

    config, available = facts.training_args.ds_resolved or {}, get_available_reporting_integrations()
    for key, name in {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}.items():
        if config.get(key, {}).get("enabled") and name not in available:
            yield _not_installed(name, f"--deepspeed: {key}.enabled", "take it out")


def _not_installed(name: str, place: str, without: str) -> ArgumentError:
    more = "hftune keeps all figures in trainer_state.json, and `hftune report` draws them"
    fix = f"pip install {_PACKAGES.get(name, name)}; or {without}: {more}"
    return ArgumentError(f"{name} is not installed", place=place, fix=fix)
