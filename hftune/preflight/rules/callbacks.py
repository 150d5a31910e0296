"""Rules about what runs beside training: trackers and callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from hftune.arguments.named_code import named_code
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.opening.json_file import parse_json
from hftune.preflight.facts import Facts
from hftune.preflight.rules import raised, refused

_FLAG = "--callbacks"
_FIX = "write --callbacks FILE.py:CLASS or MODULE:CLASS; with arguments 'FILE.py:CLASS{\"after\": 3}'"


def check_callbacks(facts: Facts) -> Iterator[UserError]:
    """Problems of `--callbacks` and `--early_stopping_patience`."""
    args = facts.training_args
    for text in args.callbacks or []:
        yield from raised(callback_class, text)
    yield from refused("callbacks", facts)


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
    from transformers.integrations import get_available_reporting_integrations

    # transformers takes one name as well as a list.
    asked = facts.training_args.report_to
    here = [*get_available_reporting_integrations(), "none"]
    for name in [asked] if isinstance(asked, str) else asked or []:
        # `all` means those that are installed; of Flyte transformers does not say whether it is.
        if name not in (*here, "all", "flyte"):
            near = did_you_mean(name, here, written="--report_to {}")
            fix = f"{near} pip install it, or use one of {', '.join(here)}; trainer_state.json has all figures anyway"
            yield ArgumentError(f"no tracker {name!r} is installed", place="--report_to", fix=fix.strip())
