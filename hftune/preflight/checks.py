"""One function a rule; each yields the problems that it finds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from hftune.arguments import AdapterArguments, DataArguments, ModelArguments, PTArguments, SFTArguments, StageArguments
from hftune.checkpoints.manifest import is_complete, read_manifest
from hftune.constants import MANIFEST_NAME
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.preflight.bases import check_adapter_fits


def check_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Raise every problem of a run in one message; nothing has been written or loaded by then."""
    raise_together(
        [
            *check_model_folder(model_args),
            *check_output_folder(training_args),
            *check_data_flags(data_args, training_args),
            *check_tokenized(data_args, training_args),
            *check_streaming(data_args, training_args),
            *check_quantisation(adapter_args, training_args),
            *check_processes(training_args),
            *check_adapter(model_args, adapter_args),
        ]
    )


def check_model_folder(model_args: ModelArguments) -> Iterator[UserError]:
    """A model is named; a folder holds a model, not an adapter without its base."""
    name = model_args.model_name_or_path
    if not name:
        yield ArgumentError("no model was named", place="--model_name_or_path", fix="give a folder or a Hub name")
        return
    folder = Path(name)
    looks_local = folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or folder.exists()
    if looks_local and not folder.is_dir():
        yield ArgumentError(f"there is no folder {name}", place="--model_name_or_path", fix="check the path")
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = adapter_base(folder)
        yield ArgumentError(
            f"{name} holds a LoRA adapter, not a model",
            place="--model_name_or_path",
            fix=f"merge it first: python merge_peft_adapter.py --base_model_name_or_path {base} "
            f"--peft_model_path {name} --output_dir MERGED; or continue it with --peft_path",
        )
    elif folder.is_dir() and not (folder / "config.json").is_file() and not model_args.gguf_file:
        yield ArgumentError(f"{name} has no config.json", place="--model_name_or_path", fix="give a model folder")


def check_output_folder(training_args: StageArguments) -> Iterator[UserError]:
    """An output folder is named, and holds no finished run."""
    if not training_args.output_dir:
        yield ArgumentError("no output folder was named", place="--output_dir", fix="give the folder for the result")
    elif is_complete(training_args.output_dir) and not training_args.overwrite_output_dir:
        yield ArgumentError(
            f"{training_args.output_dir} already holds a finished run (see its {MANIFEST_NAME})",
            place="--output_dir",
            fix="choose another folder, or add --overwrite_output_dir to replace it",
        )


def check_data_flags(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Files are named and there, and evaluation has something to evaluate on."""
    if data_args.train_file_dir is None and not data_args.tokenized:
        yield ArgumentError("no training data was named", place="--train_file_dir", fix="give a file or a folder")
    for flag in ("train_file_dir", "validation_file_dir"):
        path = getattr(data_args, flag)
        if path and not Path(path).exists():
            yield ArgumentError(f"there is no file or folder {path}", place=f"--{flag}", fix="check the path")
    folders = data_args.validation_file_dir or data_args.validation_tokenized_dir
    held_out = folders or data_args.validation_split_percentage > 0
    if training_args.eval_strategy != "no" and not held_out:
        yield ArgumentError(
            "evaluation was asked for, but no records are held out",
            place="--eval_strategy",
            fix="give --validation_file_dir, or --validation_split_percentage 5",
        )
    if not 0 <= data_args.validation_split_percentage < 100:
        yield ArgumentError(
            f"{data_args.validation_split_percentage} is no percentage to hold out",
            place="--validation_split_percentage",
            fix="give a number from 0 to below 100",
        )


def check_tokenized(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Tokenised folders are for pre-training, stand alone, and need batches of a known size."""
    if not data_args.tokenized:
        idle = [name for name in ("weights", "validation_tokenized_dir") if getattr(data_args, name)]
        for name in idle:
            yield ArgumentError("it goes with --tokenized_dir", place=f"--{name}", fix="give --tokenized_dir, too")
        return
    if not isinstance(training_args, PTArguments):
        yield ArgumentError("tokenised folders hold text without labels", place="--tokenized_dir", fix="use run_pt.py")
    elif not training_args.packing:
        yield ArgumentError(
            "tokenised documents are joined into blocks",
            place="--packing False, --tokenized_dir",
            fix="leave --packing out; documents in a block do not see each other",
        )
    for name in ("train_file_dir", "validation_file_dir", "validation_split_percentage"):
        if getattr(data_args, name):
            yield ArgumentError(
                "files and tokenised folders at once",
                place=f"--{name}, --tokenized_dir",
                fix="tokenise the files, too (`hftune tokenize`); held-out ones go to --validation_tokenized_dir",
            )
    for name in ("max_train_samples", "max_eval_samples"):
        if getattr(data_args, name) > 0:
            yield ArgumentError(
                "tokenised folders are used whole",
                place=f"--{name}",
                fix="limit the records when they are tokenised, or give --max_steps or --num_samples_each_epoch",
            )
    yield from _check_loader_settings(data_args, training_args)


def _check_loader_settings(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    for name, least in (("logical_shards", 1), ("shuffle_buffer", 0), ("num_samples_each_epoch", 1)):
        value = getattr(data_args, name)
        if value is not None and value < least:
            yield ArgumentError(f"{value} is too small", place=f"--{name}", fix=f"give {least} or more")
    accelerate = training_args.accelerator_config
    for name in ("split_batches", "dispatch_batches"):
        if getattr(accelerate, name, False):
            yield ArgumentError(
                f"{name} deals batches out in another way, and documents would come twice",
                place="--accelerator_config",
                fix=f"leave {name} out",
            )
    if training_args.auto_find_batch_size:
        yield ArgumentError(
            "the position in tokenised data is counted in batches of one size",
            place="--auto_find_batch_size",
            fix="leave it out, and lower --per_device_train_batch_size",
        )
    if training_args.train_sampling_strategy != "random":
        yield ArgumentError(
            "blocks are all of one length, in an order of their own",
            place="--train_sampling_strategy",
            fix="leave it out; --shuffle_buffer 0 keeps the order of the files",
        )


def check_streaming(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A stream has no length, so what counts records or epochs has no meaning for it."""
    if not data_args.streaming:
        return
    if not isinstance(training_args, PTArguments | SFTArguments):
        yield ArgumentError("only text and conversations are streamed", place="--streaming", fix="leave it out")
    if training_args.max_steps <= 0:
        yield ArgumentError("a stream has no length", place="--streaming", fix="say how long to train: --max_steps")
    if data_args.tokenized:
        yield ArgumentError(
            "tokenised folders are never read as a whole",
            place="--streaming, --tokenized_dir",
            fix="leave --streaming out",
        )
    for name, idle in (("validation_split_percentage", 0), ("max_train_samples", -1), ("num_samples_each_epoch", None)):
        if getattr(data_args, name) != idle:
            yield ArgumentError(
                "it needs the number of records, which a stream does not know",
                place=f"--{name}, --streaming",
                fix="leave one of them out; held-out records can be given as --validation_file_dir",
            )


def check_quantisation(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A quantised base is frozen, so something must be trained beside it; 8 bit and ZeRO-3 do not agree."""
    if adapter_args.load_in_4bit and adapter_args.load_in_8bit:
        yield ArgumentError("4 bit and 8 bit at once", place="--load_in_4bit, --load_in_8bit", fix="choose one")
    if adapter_args.quantised and not adapter_args.use_peft:
        yield ArgumentError(
            "a quantised model cannot be trained in full",
            place="--load_in_4bit / --load_in_8bit",
            fix="add --use_peft (or --qlora) to train an adapter on it",
        )
    if adapter_args.load_in_8bit and training_args.zero_stage == 3:
        yield ArgumentError(
            "8-bit weights under ZeRO-3 train with a wrong loss (bitsandbytes issue 1451)",
            place="--load_in_8bit",
            fix="use --load_in_4bit, or ZeRO-2: --deepspeed ds_configs/zero2.json",
        )


def check_processes(training_args: StageArguments) -> Iterator[UserError]:
    """Several GPUs in one process would mean DataParallel, which neither TRL nor DeepSpeed supports."""
    if not training_args.use_cpu and ranks.world_size() == 1 and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        yield ArgumentError(
            f"{count} GPUs are visible to a single process",
            place="launch",
            fix=f"start with: deepspeed --num_gpus {count} SCRIPT ...; or set CUDA_VISIBLE_DEVICES=0 to use one",
        )


def check_adapter(model_args: ModelArguments, adapter_args: AdapterArguments) -> Iterator[UserError]:
    """An adapter to continue is there, and was made for this base."""
    path = adapter_args.peft_path
    if path is None or not model_args.model_name_or_path:
        return
    yield from check_adapter_fits(model_args.model_name_or_path, path, flag="--peft_path")


def check_rewards(sources: Iterable[str | None], model_paths: Iterable[str]) -> Iterator[UserError]:
    """RL has a reward, and each reward model folder was trained by run_rm.py or holds a score head."""
    model_paths = list(model_paths)
    if not model_paths and not list(sources):
        yield ArgumentError(
            "RL needs a reward",
            place="--reward_model_path / --reward_funcs",
            fix="give the output folder of run_rm.py, or a Python function as module:function",
        )
    for path in model_paths:
        manifest = read_manifest(path)
        if Path(path).is_absolute() and not Path(path).is_dir():
            yield ArgumentError(f"there is no folder {path}", place="--reward_model_path", fix="check the path")
        elif manifest and manifest.get("head") != "score":
            yield ArgumentError(
                f"{path} was made by the {manifest.get('stage')} stage and has no score head",
                place="--reward_model_path",
                fix="give the output folder of run_rm.py, or its merged model",
            )


def adapter_base(folder: str | Path) -> str:
    """The base that an adapter names."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    return str(config.get("base_model_name_or_path") or "BASE")
