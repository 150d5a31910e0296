"""Rules about callbacks by name: early stopping has what it needs, and the user's classes are there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from hftune.arguments.named_code import named_code
from hftune.errors import ArgumentError, UserError
from hftune.opening.json_file import parse_json
from hftune.preflight.facts import Facts

_FLAG = "--callbacks"
_FIX = "write --callbacks FILE.py:CLASS or MODULE:CLASS; with arguments 'FILE.py:CLASS{\"after\": 3}'"


def check_callbacks(facts: Facts) -> Iterator[UserError]:
    """Problems of `--callbacks` and `--early_stopping_patience`."""
    args = facts.training_args
    for text in args.callbacks or []:
        try:
            callback_class(text)
        except UserError as problem:
            yield problem
    if args.early_stopping_patience is not None:
        yield from _check_stopping(args)
    elif args.early_stopping_threshold:
        yield ArgumentError(
            "nothing stops early, so that its threshold would have no effect",
            place="--early_stopping_threshold",
            fix="add --early_stopping_patience 3, for instance",
        )


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
