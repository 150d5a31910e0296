"""One function a rule; each yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.data import DataArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.reward import RMArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import is_complete, read_manifest
from hftune.constants import MANIFEST_NAME
from hftune.distributed import nodes, ranks
from hftune.errors import ArgumentError, UserError
from hftune.models.attention.choice import attention_for
from hftune.models.loading.config import model_config
from hftune.opening.model_files import read_checked
from hftune.path_hints import looks_local, missing_folder
from hftune.preflight.rules.adapters import check_adapters
from hftune.preflight.rules.contents import check_contents
from hftune.preflight.rules.data import check_data_flags, check_streaming, check_tokenized, check_turn_weights
from hftune.preflight.rules.expert_parallel import check_experts
from hftune.preflight.rules.hub import check_hub
from hftune.preflight.rules.kernels import check_device, check_liger
from hftune.preflight.rules.machines import check_nodes
from hftune.preflight.rules.model import check_model
from hftune.preflight.rules.optimizer import check_optimizer
from hftune.preflight.rules.preference import check_preferences
from hftune.preflight.rules.quantisation import check_float8, check_quantisation, check_stored_quantised
from hftune.preflight.rules.resume import check_resume, check_resumed_groups
from hftune.preflight.rules.reward import check_reward
from hftune.preflight.rules.rl import check_rl
from hftune.preflight.rules.schedule import check_schedule
from hftune.preflight.rules.sequence_parallel import check_sequence
from hftune.preflight.rules.tensor_parallel import check_parallel
from hftune.preflight.rules.trackers import check_trackers
from hftune.preflight.rules.vocabulary import check_vocabulary
from hftune.publishing.disk import free_bytes, lexists, writing_problem
from hftune.weight_files import weight_files

# What a run writes into its output folder under these names. Checkpoints, logs and the folders of trackers never
# replace anything.
_OF_A_RUN = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*.jinja", "tokenizer*", "special_tokens_map.json"),
    *("vocab*", "merges.txt", "added_tokens.json", "training_args.bin", "trainer_state.json", "samples.json"),
    *("README.md", "completions.jsonl", "progress.jsonl", "critic", "profile"),
)


_LEAST_ROOM = 1 << 24


def check_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Raise every problem of a run, on whichever machine, in one message; nothing has been loaded by then."""
    nodes.raise_on_all_ranks(
        [
            *check_nodes(model_args, data_args, adapter_args, training_args),
            *check_model_folder(model_args),
            *check_no_reward_model(model_args, training_args),
            *check_contents(model_args, adapter_args, training_args),
            *check_output_folder(training_args),
            *check_room(model_args, adapter_args, training_args),
            *check_hub(training_args),
            *check_trackers(training_args),
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
        yield ArgumentError(
            "no model was named",
            place="--model_name_or_path",
            fix="add --model_name_or_path with a model folder or a Hub name, such as Qwen/Qwen3-0.6B",
        )
        return
    folder = Path(name)
    if (looks_local(name) or folder.exists()) and not folder.is_dir():
        yield missing_folder(name, "--model_name_or_path", "a model folder or a name on the Hub")
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = adapter_base(folder)
        yield ArgumentError(
            f"{name} holds a LoRA adapter, not a model",
            place="--model_name_or_path",
            fix=f"merge it first: python merge_peft_adapter.py --base_model_name_or_path {base} "
            f"--peft_model_path {name} --output_dir MERGED; or continue it: --model_name_or_path {base} "
            f"--peft_path {name}",
        )
    elif folder.is_dir() and not (folder / "config.json").is_file() and not model_args.gguf_file:
        yield ArgumentError(
            f"{name} has no config.json, so it is no model folder",
            place="--model_name_or_path",
            fix=_models_below(folder) or "give a folder with config.json, weights and tokenizer, or a Hub name",
        )


def check_no_reward_model(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """What run_rm.py made goes on in run_rm.py alone: the language model in it is no longer trained to write."""
    name = str(model_args.model_name_or_path)
    manifest = read_manifest(name) or {}
    if manifest.get("head") in ("score", "steps") and not isinstance(training_args, RMArguments):
        base = (manifest.get("base") or {}).get("name") or "the model that it was trained from"
        yield ArgumentError(
            f"{name} is a reward model: it scores, and this stage trains a model that writes",
            place="--model_name_or_path",
            fix=f"give --model_name_or_path {base}; in RL a reward model is --reward_model_path {name}",
        )


def _models_below(folder: Path) -> str:
    """Models and checkpoints within a folder, to be named in its place: the newest first."""
    found = sorted(folder.glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return f"give {' or '.join(str(file.parent) for file in found[:3])}" if found else ""


def check_output_folder(training_args: StageArguments) -> Iterator[UserError]:
    """An output folder is named, can be written to, and holds no finished run and no files of somebody else's."""
    if not training_args.output_dir:
        fix = "add --output_dir with a folder for the result, such as outputs/sft"
        yield ArgumentError("no output folder was named", place="--output_dir", fix=fix)
        return
    folder = Path(training_args.output_dir)
    problem = writing_problem(folder)
    if problem is not None:
        yield problem
        return
    if is_complete(folder) and not training_args.overwrite_output_dir:
        yield ArgumentError(
            f"{training_args.output_dir} already holds a finished run (see its {MANIFEST_NAME})",
            place="--output_dir",
            fix="choose another folder, or add --overwrite_output_dir to replace it",
        )
    foreign = _in_the_way(folder)
    if foreign:
        yield ArgumentError(
            f"{training_args.output_dir} holds {', '.join(foreign[:3])}, which a run would replace and hftune did not "
            "write",
            place="--output_dir",
            fix="choose another folder, such as " + str(folder / "run"),
        )


def check_room(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """The disk of the output folder holds the result, as far as it is known: a full model is as large as its base."""
    folder = Path(str(model_args.model_name_or_path))
    output = Path(str(training_args.output_dir or ""))
    if not training_args.do_train or not folder.is_dir() or writing_problem(output) is not None:
        return  # the last is said by `check_output_folder`
    needed = _LEAST_ROOM
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


def _in_the_way(folder: Path) -> list[str]:
    """Files of the kinds that a run leaves, in a folder that has no manifest of a run; checkpoints may be continued."""
    if not folder.is_dir() or lexists(folder / MANIFEST_NAME):
        return []
    return sorted(entry.name for entry in folder.iterdir() if any(entry.match(kind) for kind in _OF_A_RUN))


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
    config = read_checked(Path(folder) / "adapter_config.json")
    return str(config.get("base_model_name_or_path") or "BASE")
