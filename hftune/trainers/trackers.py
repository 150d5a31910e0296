"""Trackers of a run (`--report_to`): told what the run is, and open until its last figures.

transformers' callbacks end their runs when training ends; hftune evaluates once more after that, and what comes late
would begin a second run (MLflow, Trackio).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from hftune.compat.installing import replace_method
from hftune.distributed import ranks
from hftune.opening.json_file import parse_json
from hftune.secrets import redact
from hftune.trainers.stage_trainer import StageTrainer


@contextmanager
def tracked(trainer: StageTrainer, manifest: dict[str, Any]) -> Iterator[None]:
    """Keep the runs of trackers open until the block ends.

    Args:
        manifest: As before training: its arguments, without secrets, are what trackers are told.
    """
    names = {kind: name for name, kind in INTEGRATION_TO_CALLBACK.items()}
    found = {names[type(one)]: one for one in trainer.callback_handler.callbacks if type(one) in names}
    _tell(trainer.args, manifest, found)
    ends: list[Callable[[], None]] = []
    for callback in found.values():
        _end_later(callback, ends)
    try:
        yield
    finally:
        for end in ends:
            end()
    # These end with the process otherwise, which may be ended before they have written all.
    for name in {"wandb", "swanlab"} & {*found} if ranks.is_main() else ():
        sys.modules[name].finish()


def _end_later(callback: TrainerCallback, ends: list[Callable[[], None]]) -> None:
    end = callback.on_train_end
    replace_method(callback, "on_train_end", lambda _, *given, **named: ends.append(partial(end, *given, **named)))


def _tell(args: Any, manifest: dict[str, Any], found: dict[str, TrainerCallback]) -> None:
    """The name of the run, and the arguments that are none of the Trainer's own."""
    groups = manifest["arguments"]
    told = {name: value for group in ("model", "data", "adapter") for name, value in groups[group].items()}
    told |= {"hftune": manifest["hftune"], "hftune_stage": manifest["stage"]}
    told["hftune_base"] = redact(str(manifest["base"]["name"]))
    # What JSON does not know (a path, a dtype) as a text: TensorBoard writes them as JSON.
    args.told_trackers = parse_json(json.dumps(told, default=str), "arguments")
    # Trackio takes up the run that has the name, another's perhaps; left alone it finds a new one.
    if args.run_name is None and "trackio" not in found:
        args.run_name = Path(str(args.output_dir)).resolve().name
    # Of these only Trackio reads --project.
    for variable in ("WANDB_PROJECT", "SWANLAB_PROJECT", "MLFLOW_EXPERIMENT_NAME") if "project" in args.given else ():
        os.environ.setdefault(variable, args.project)
    if "swanlab" in found and ranks.is_main():
        _begin_swanlab(args)


def _begin_swanlab(args: Any) -> None:
    """Begin a run, which transformers' callback then takes: to ask for one where there is none is an error by now.

    swanlab 0.10; transformers 5.23 was made for older ones, which answered None.
    """
    swanlab = sys.modules["swanlab"]
    if hasattr(swanlab, "has_run") and not swanlab.has_run():
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"), name=args.run_name)
