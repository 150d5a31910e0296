"""Rules about the folders that a run begins with and writes into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.folder_checks import check_recorded, check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.resume import work_folder_in_the_way
from hftune.distributed import ranks
from hftune.distributed.ds_config import DsConfig
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts
from hftune.preflight.model_folder import check_model_folder
from hftune.publishing.disk import free_bytes, writing_problem
from hftune.publishing.ownership import is_of_run
from hftune.publishing.places import RUN, check_place
from hftune.weight_files import weight_files

# Bytes of logs, manifest and tokenizer, whatever is trained.
_LEAST_ROOM = 1 << 24


def check_folders(facts: Facts) -> Iterator[UserError]:
    """Problems of the model's folder, and of the output folder."""
    yield from check_model_folder(facts.model_args)
    yield from check_no_reward_model(facts.model_args, facts.training_args)
    yield from check_output_folder(facts)
    yield from check_room(facts.model_args, facts.adapter_args, facts.training_args)


def check_no_reward_model(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where a reward model is given to a stage that trains a language model."""
    name = str(model_args.model_name_or_path)
    manifest = read_manifest(name) or {}
    if manifest.get("head") in ("score", "steps") and training_args.head == "causal_lm":
        base = (manifest.get("base") or {}).get("name") or "the model that it was trained from"
        yield ArgumentError(
            f"{name} is a reward model: it scores, and this stage trains a model that writes",
            place="--model_name_or_path",
            fix=f"give --model_name_or_path {base}; in RL a reward model is --reward_model_path {name}",
        )


def check_output_folder(facts: Facts) -> Iterator[UserError]:
    """Problems of the output folder: not named, not writable, read by the run, a finished run, or files of others."""
    args = facts.training_args
    if not args.output_dir:
        fix = "add --output_dir with a folder for the result, such as outputs/sft"
        yield ArgumentError("no output folder was named", place="--output_dir", fix=fix)
        return
    problem = writing_problem(Path(args.output_dir))
    if problem is not None:
        yield problem
        return
    yield from check_place(args.output_dir, inputs_of(*facts.arguments), kind=RUN, overwrite=args.overwrite_output_dir)
    work = work_folder_in_the_way(Path(args.output_dir))
    if work is not None:
        # Said now: a checkpoint that cannot be written would end the run hours later.
        yield ArgumentError(f"{work} is in the way, and hftune did not make it", place=str(work), fix="move it away")
    yield from _check_deepspeed_files(args)


def _check_deepspeed_files(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of what DeepSpeed itself would write: only below the output folder, beside what a run has."""
    output = Path(str(training_args.output_dir)).resolve()
    for key, path in _written_by_deepspeed(training_args.ds_resolved or {}):
        place = Path(path).resolve()
        if output not in place.parents or is_of_run(place.relative_to(output).parts[0]):
            yield ArgumentError(
                f"DeepSpeed would write to {path}, where other things may be",
                place=f"--deepspeed: {key}",
                fix=f'"{key.rpartition(".")[2]}": "{output / "deepspeed"}", or another name of its own below {output}',
            )


def _written_by_deepspeed(config: DsConfig) -> Iterator[tuple[str, str]]:
    """Keys of a config that ds_keys has found sound, and where what they ask for is written."""
    for monitor in ("tensorboard", "csv_monitor"):
        block = config.get(monitor) or {}
        if block.get("enabled"):
            name = block.get("job_name", "DeepSpeedJobName")
            yield f"{monitor}.output_path", os.path.join(block.get("output_path", ""), name)
    profiler = config.get("flops_profiler") or {}
    if profiler.get("enabled") and profiler.get("output_file"):
        yield "flops_profiler.output_file", str(profiler["output_file"])


def check_room(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """A problem where the disk is too small for the result, counted as the size of the base."""
    folder = Path(str(model_args.model_name_or_path))
    output = Path(str(training_args.output_dir or ""))
    if not training_args.do_train or not folder.is_dir() or writing_problem(output) is not None:
        return  # the last is said by `check_output_folder`
    needed = _LEAST_ROOM
    # The base's own size: weights may be saved in another dtype, and checkpoints need more.
    if not adapter_args.use_peft:
        needed += sum(file.stat().st_size for file in weight_files(folder))
    free = free_bytes(output)
    if free < needed:
        yield ArgumentError(
            f"the result needs {needed / 1e9:.2f} GB, the disk of {training_args.output_dir} has {free / 1e9:.2f} GB "
            "left",
            place="--output_dir",
            fix="make room, or name a folder on another disk; checkpoints with the optimizer's state need more",
        )


_READ = ("ref_model", "reward_model_path", "teacher_targets")
"""Arguments of some stages that name folders."""


def check_contents(facts: Facts) -> Iterator[UserError]:
    """Problems of damaged, exchanged and linked files; looked for by one process of each machine."""
    # The files of a machine are the same for all of its processes.
    if ranks.local_rank() != 0:
        return
    model_args, training_args = facts.model_args, facts.training_args
    # These lie on --model_name_or_path, whatever base their manifests name.
    adapters = {
        "--peft_path": facts.adapter_args.adapter_chain,
        "--ref_adapters": _asked(training_args, "ref_adapters"),
    }
    models = {
        "--model_name_or_path": model_args.model_name_or_path,
        "--tokenizer_name_or_path": model_args.tokenizer_name_or_path,
        "--teacher_model_name_or_path": _asked(training_args, "teachers"),
        **{f"--{name}": _asked(training_args, name) for name in _READ},
    }
    seen = set()
    for flag, named in (*adapters.items(), *models.items()):
        check = check_recorded if flag in adapters else check_recorded_whole
        # Several flags may name one folder, which is looked at once.
        for folder in named if isinstance(named, list) else [named]:
            if folder and folder not in seen:
                seen.add(folder)
                yield from check(folder, flag)


def _asked(training_args: StageArguments, name: str) -> Any:
    """The value of an argument that only some stages have; None elsewhere."""
    return getattr(training_args, name, None)
