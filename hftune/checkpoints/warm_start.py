"""Warm start: a run that begins with the weights of a checkpoint, and with nothing else of it."""

from __future__ import annotations

from pathlib import Path

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.integrity import checkpoint_fault
from hftune.checkpoints.resume import newest_whole
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.model_files import read_checked
from hftune.weight_files import weight_files

_FLAG = "--warm_start"
_ADAPTER = "adapter_config.json"


def apply_warm_start(model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments) -> None:
    """Translate `--warm_start` into what the loaders take: a model's folder, or an adapter that is trained further.

    Optimizer, schedule, random states, step and position in the data start afresh. A full checkpoint takes the place of
    --model_name_or_path, which still gives the tokenizer where the checkpoint has none. An adapter is put on
    --model_name_or_path, or on the base that it names.

    Raises:
        ArgumentError: The folder holds no whole weights, or another argument says where to begin.
    """
    asked = training_args.warm_start
    if not asked:
        return
    _check_alone(model_args, adapter_args, training_args)
    folder = weights_in(Path(asked))
    # From here on the run is one with --peft_path or with another --model_name_or_path: loaders know no warm start.
    if (folder / _ADAPTER).is_file():
        adapter_args.peft_path, adapter_args.use_peft = str(folder), True
        if not model_args.model_name_or_path:
            config = read_checked(folder / _ADAPTER)
            model_args.model_name_or_path = config.get("base_model_name_or_path")
    else:
        if not (folder / "tokenizer_config.json").is_file() and not model_args.tokenizer_name_or_path:
            model_args.tokenizer_name_or_path = model_args.model_name_or_path
        model_args.model_name_or_path = str(folder)
    notice(f"warm start: weights of {folder}; optimizer, schedule, random states and steps begin anew")


def weights_in(folder: Path) -> Path:
    """The folder of the weights that `folder` stands for: itself, or its newest whole checkpoint.

    Raises:
        ArgumentError: There are none, or they are not whole.
    """
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {folder}", place=_FLAG, fix="give a checkpoint or an output folder")
    if not weight_files(folder):
        inside = newest_whole(folder).folder
        if inside is None or not weight_files(inside):
            raise ArgumentError(
                f"{folder} holds no weights as safetensors",
                place=_FLAG,
                fix="give a checkpoint or an output folder; of DeepSpeed's own files: hftune consolidate",
            )
        return inside
    # An output folder has no record of a checkpoint; its manifest is looked at by preflight.
    fault = checkpoint_fault(folder) if folder.name.startswith("checkpoint-") else None
    if fault is not None:
        raise ArgumentError(f"{folder} is not whole: {fault}", place=_FLAG, fix="give another checkpoint")
    return folder


def _check_alone(model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments) -> None:
    resume = str(training_args.resume_from_checkpoint or "none").lower() not in ("none", "no", "false")
    others = {
        "--resume_from_checkpoint": resume,
        "--peft_path": bool(adapter_args.peft_path),
        "--from_config": model_args.from_config,
    }
    for name, given in others.items():
        if given:
            why = "resumes with everything" if resume else "names other weights"
            raise ArgumentError(
                f"{_FLAG} begins with the weights of a checkpoint alone, and {name} {why}",
                place=f"{_FLAG}, {name}",
                fix="leave one of them out",
            )
