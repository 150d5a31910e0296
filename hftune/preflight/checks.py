"""One function a rule; each yields the problems that it finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from hftune.arguments import AdapterArguments, DataArguments, ModelArguments, StageArguments
from hftune.checkpoints.manifest import is_complete
from hftune.constants import MANIFEST_NAME
from hftune.distributed import nodes, ranks
from hftune.errors import ArgumentError, UserError
from hftune.models.attention import attention_for
from hftune.models.configs import model_config
from hftune.preflight.adapter_checks import check_adapters
from hftune.preflight.data_checks import check_data_flags, check_streaming, check_tokenized, check_turn_weights
from hftune.preflight.expert_checks import check_experts
from hftune.preflight.kernel_checks import check_device, check_liger
from hftune.preflight.model_checks import check_model
from hftune.preflight.node_checks import check_nodes
from hftune.preflight.optimizer_checks import check_optimizer
from hftune.preflight.parallel_checks import check_parallel
from hftune.preflight.preference_checks import check_preferences
from hftune.preflight.quantisation_checks import check_float8, check_quantisation, check_stored_quantised
from hftune.preflight.resume_checks import check_resume, check_resumed_groups
from hftune.preflight.reward_checks import check_reward
from hftune.preflight.rl_checks import check_rl
from hftune.preflight.schedule_checks import check_schedule
from hftune.preflight.sequence_checks import check_sequence
from hftune.preflight.vocabulary_checks import check_vocabulary


def check_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Raise every problem of a run, on whichever machine, in one message; nothing has been loaded by then."""
    nodes.raise_everywhere(
        [
            *check_nodes(model_args, data_args, adapter_args, training_args),
            *check_model_folder(model_args),
            *check_output_folder(training_args),
            *check_data_flags(data_args, training_args),
            *check_tokenized(data_args, training_args),
            *check_streaming(data_args, training_args),
            *check_turn_weights(training_args),
            *check_quantisation(adapter_args, training_args),
            *check_stored_quantised(model_args, adapter_args),
            *check_float8(adapter_args, training_args),
            *check_device(model_args, training_args),
            *check_liger(adapter_args, training_args),
            *check_processes(training_args),
            *check_adapters(model_args, adapter_args, training_args),
            *check_attention(model_args, training_args),
            *check_vocabulary(model_args, adapter_args, training_args),
            *check_optimizer(adapter_args, training_args),
            *check_schedule(training_args),
            *check_parallel(model_args, adapter_args, training_args),
            *check_experts(model_args, adapter_args, training_args),
            *check_resumed_groups(training_args),
            *check_sequence(model_args, data_args, training_args),
            *check_preferences(model_args, training_args),
            *check_resume(data_args, training_args),
            *check_reward(training_args),
            *check_rl(model_args, data_args, training_args),
            *(check_model(model_args, adapter_args, training_args) if not any(check_model_folder(model_args)) else ()),
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


def check_processes(training_args: StageArguments) -> Iterator[UserError]:
    """Several GPUs in one process would mean DataParallel, which neither TRL nor DeepSpeed supports."""
    if not training_args.use_cpu and ranks.world_size() == 1 and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        yield ArgumentError(
            f"{count} GPUs are visible to a single process",
            place="launch",
            fix=f"start with: deepspeed --num_gpus {count} SCRIPT ...; or set CUDA_VISIBLE_DEVICES=0 to use one",
        )


def check_attention(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Documents side by side in a row can be kept apart by this model and the attention asked for."""
    if not training_args.flat_batches or any(check_model_folder(model_args)):
        return
    try:
        model_config(model_args, training_args)
    except UserError:
        return  # said by check_model
    try:
        attention_for(model_args, training_args)
    except UserError as problem:
        yield problem


def adapter_base(folder: str | Path) -> str:
    """The base that an adapter names."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    return str(config.get("base_model_name_or_path") or "BASE")
