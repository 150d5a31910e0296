"""Runs all stages on 8 records and 2 steps in a scratch folder: what would fail in hours fails in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hftune.publishing.folder import clear_work, make_work, work_folder_locked
from hftune.tools.pipeline.spec import EVALUATE, SAMPLE
from hftune.tools.pipeline.step import COMMANDS, Step

RECORDS, STEPS = 8, 2
_SMALL = {
    "max_train_samples": str(RECORDS),
    "max_eval_samples": str(RECORDS),
    "max_steps": str(STEPS),
    "save_strategy": "no",
    "eval_strategy": "no",
    "load_best_model_at_end": "False",
    "logging_steps": "1",
    "report_to": "none",
    "push_to_hub": "False",
    "per_device_train_batch_size": "1",
    "gradient_accumulation_steps": "1",
}
_OTHER_NAMES = ("global_batch_size", "train_iters", "num_steps", "save_steps", "eval_steps", "save_total_limit")
"""Arguments that would say something else, or nothing any more."""
_FEWER = {EVALUATE: ("max_eval_samples",), SAMPLE: ("max_train_samples",)}


def in_small(steps: list[Step], folder: Path, scratch: Path) -> list[Step]:
    """The same steps on few records, with results below `scratch` instead of `folder`."""
    made = {str(step.folder): str(scratch / step.folder.relative_to(folder)) for step in steps}
    return [_small(step, made) for step in steps]


def _small(step: Step, made: dict[str, str]) -> Step:
    arguments = {name: [_moved(value, made) for value in values] for name, values in step.arguments.items()}
    if step.script in COMMANDS:
        arguments |= {"max_new_tokens": ["2"]}
        arguments |= {name: [str(RECORDS)] for name in _FEWER.get(step.script, ())}
        if step.script == SAMPLE:
            # Answers of two tokens are all cut, and score alike: what trains on them would have no record.
            arguments["keep_all"] = ["True"]
    elif step.trains:
        small = dict(_SMALL)
        if step.script == "rl":
            # A whole group of answers must fill a batch (TRL refuses others); 16 tokens are enough to see one scored.
            small["per_device_train_batch_size"] = arguments.get("num_generations", ["8"])[0]
            small["max_completion_length"] = "16"
        # Taken out before ours are put in, which some of them would contradict.
        arguments = {name: values for name, values in arguments.items() if name not in _OTHER_NAMES}
        arguments |= {name: [value] for name, value in small.items()}
        held_out = {"validation_file_dir", "validation_split_percentage"} & arguments.keys()
        if "streaming" in arguments or "tokenized_dir" in arguments or not held_out:
            arguments.pop("max_eval_samples")  # refused where no records are held out
    # What two steps have made of a model would open no gate.
    return replace(step, arguments=arguments, folder=Path(made[str(step.folder)]), gates=())


def _moved(value: str, made: dict[str, str]) -> str:
    """An argument's value with folders of earlier steps replaced by those below the scratch folder."""
    # Arguments that take several folders have them in one text.
    return ",".join(_moved_path(part, made) for part in value.split(","))


def _moved_path(path: str, made: dict[str, str]) -> str:
    """A step's folder, or what lies in one: the data of a stage that samples."""
    folder = next((name for name in made if path == name or path.startswith(f"{name}/")), None)
    return path if folder is None else made[folder] + path.removeprefix(folder)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder alongside the pipeline's; removed if all goes well, left to look at if not.

    Raises:
        ArgumentError: Something that no dry run made has its name, or another one is at work in it.
    """
    work = folder.with_name(f"{folder.name}.dry_run")
    with work_folder_locked(work, work, "output_dir"):
        clear_work(work)
        # No `finally` around it: after a failure the logs and half results are what the user wants to see.
        yield make_work(work)
        clear_work(work)
