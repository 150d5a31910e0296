"""Rules about the folders that a run begins with and writes into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import is_complete, read_manifest
from hftune.checkpoints.resume import work_folder_in_the_way
from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts
from hftune.preflight.model_folder import check_model_folder
from hftune.publishing.disk import free_bytes, lexists, writing_problem
from hftune.weight_files import weight_files

# What a run writes into its output folder under these names. Checkpoints, logs and the folders of trackers never
# replace anything.
_OF_A_RUN = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*.jinja", "tokenizer*", "special_tokens_map.json"),
    *("vocab*", "merges.txt", "added_tokens.json", "training_args.bin", "trainer_state.json", "samples.json"),
    *("README.md", "completions.jsonl", "progress.jsonl", "critic", "profile"),
)


# Bytes of logs, manifest and tokenizer, whatever is trained.
_LEAST_ROOM = 1 << 24


def check_folders(facts: Facts) -> Iterator[UserError]:
    """Problems of the model's folder, and of the output folder."""
    yield from check_model_folder(facts.model_args)
    yield from check_no_reward_model(facts.model_args, facts.training_args)
    yield from check_output_folder(facts.training_args)
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


def check_output_folder(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of the output folder: not named, not writable, a finished run, or files of others in it."""
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
    # Also with --overwrite_output_dir, which is for results of hftune's.
    foreign = _in_the_way(folder)
    work = work_folder_in_the_way(folder)
    if work is not None:
        # Said now: a checkpoint that cannot be written would end the run hours later.
        foreign.append(work.name)
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


def _in_the_way(folder: Path) -> list[str]:
    """Files of the kinds that a run leaves, in a folder that has no manifest of a run; checkpoints may be continued."""
    if not folder.is_dir() or lexists(folder / MANIFEST_NAME):
        return []
    return sorted(entry.name for entry in folder.iterdir() if any(entry.match(kind) for kind in _OF_A_RUN))
