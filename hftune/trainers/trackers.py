"""Trackers of a run (`--report_to`): told what the run is, open until its last figures, and said where they are.

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
from hftune.errors import ArgumentError
from hftune.opening.json_file import parse_json
from hftune.secrets import redact
from hftune.trainers.stage_trainer import StageTrainer

Place = Callable[[Any, Any], str | None]
_LONGEST_TAG = 64
"""Characters; W&B refuses longer ones."""
_TAGS = """set it to JSON, MLFLOW_TAGS='{"team": "a"}', or unset it"""


@contextmanager
def tracked(trainer: StageTrainer, manifest: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Where the trackers of a run keep it, by their names: known when the block ends, which ends their runs.

    Args:
        manifest: As before training: its arguments, without secrets, are what trackers are told.
    """
    names = {kind: name for name, kind in INTEGRATION_TO_CALLBACK.items()}
    found = {names[type(one)]: one for one in trainer.callback_handler.callbacks if type(one) in names}
    _tell(trainer.args, manifest, found)
    ends: list[Callable[[], None]] = []
    for callback in found.values():
        _end_later(callback, ends)
    places: dict[str, str] = {}
    try:
        yield places
        if ranks.is_main():
            asked = {name: _PLACES[name](callback, trainer.args) for name, callback in found.items() if name in _PLACES}
            places |= {name: redact(place) for name, place in asked.items() if place}
    finally:
        for end in ends:
            end()
    # These end with the process otherwise, which may be ended before they have written all.
    for name in {"wandb", "swanlab"} & {*places}:
        sys.modules[name].finish()


def _end_later(callback: TrainerCallback, ends: list[Callable[[], None]]) -> None:
    end = callback.on_train_end
    replace_method(callback, "on_train_end", lambda _, *given, **named: ends.append(partial(end, *given, **named)))


def _tell(args: Any, manifest: dict[str, Any], found: dict[str, TrainerCallback]) -> None:
    """The name of the run, its tags, and the arguments that are none of the Trainer's own."""
    stage, base = manifest["stage"], redact(str(manifest["base"]["name"]))
    groups = manifest["arguments"]
    told = {name: value for group in ("model", "data", "adapter") for name, value in groups[group].items()}
    told |= {"hftune": manifest["hftune"], "hftune_stage": stage, "hftune_base": base}
    # What JSON does not know (a path, a dtype) as a text: TensorBoard writes them as JSON.
    args.told_trackers = parse_json(json.dumps(told, default=str), "arguments", finite=False)
    # Trackio takes up the run that has the name, another's perhaps; left alone it finds a new one.
    if args.run_name is None and "trackio" not in found:
        args.run_name = Path(str(args.output_dir)).resolve().name
    # Of these only Trackio reads --project.
    for variable in ("WANDB_PROJECT", "SWANLAB_PROJECT", "MLFLOW_EXPERIMENT_NAME") if "project" in args.given else ():
        os.environ.setdefault(variable, args.project)
    tags = [*filter(None, os.environ.get("WANDB_TAGS", "").split(",")), "hftune", stage, Path(base).name]
    os.environ["WANDB_TAGS"] = ",".join(dict.fromkeys(tag.replace(",", " ")[:_LONGEST_TAG] for tag in tags))
    if "swanlab" in found and ranks.is_main():
        _begin_swanlab(args, tags)
    if "mlflow" in found:
        own = {"hftune": str(manifest["hftune"]), "hftune.stage": stage, "hftune.base": base}
        given = parse_json(os.environ.get("MLFLOW_TAGS") or "{}", "MLFLOW_TAGS", error=ArgumentError, fix=_TAGS)
        os.environ["MLFLOW_TAGS"] = json.dumps(own | given)


def _begin_swanlab(args: Any, tags: list[str]) -> None:
    """Begin a run, which transformers' callback then takes: to ask for one where there is none is an error by now.

    swanlab 0.10; transformers 5.23 was made for older ones, which answered None.
    """
    swanlab = sys.modules["swanlab"]
    if hasattr(swanlab, "has_run") and not swanlab.has_run():
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"), name=args.run_name, tags=tags)


def _tensorboard(callback: Any, args: Any) -> str | None:
    return f"tensorboard --logdir {Path(callback.logging_dir).parent}" if callback.logging_dir else None


def _wandb(callback: Any, args: Any) -> str | None:
    run = sys.modules["wandb"].run
    if run is None:
        return None
    folder = Path(run.dir).parent
    return str(run.url) if run.url else f"{folder}; wandb sync {folder}"


def _mlflow(callback: Any, args: Any) -> str | None:
    mlflow = sys.modules["mlflow"]
    run, uri = mlflow.active_run(), mlflow.get_tracking_uri()
    if run is None:
        return None
    if uri.startswith("http"):
        return f"{uri}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"run {run.info.run_id} in {uri}; mlflow ui --backend-store-uri {uri}"


def _swanlab(callback: Any, args: Any) -> str | None:
    swanlab = sys.modules["swanlab"]
    if not getattr(swanlab, "has_run", lambda: False)():
        return None
    run = swanlab.get_run()
    return str(run.url) if run.mode == "online" else f"{run.dir}; swanlab sync {run.dir}"


def _trackio(callback: Any, args: Any) -> str | None:
    return f"trackio show --project {args.project}"


_PLACES: dict[str, Place] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "swanlab": _swanlab,
    "trackio": _trackio,
}
"""Tracker -> where it keeps the run: an address, or a folder and the command that shows it."""
