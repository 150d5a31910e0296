"""What a run leaves in its output folder: held by one run at a time, and replaced only by a result that is whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub import try_to_load_from_cache
from peft import PeftModel

from hftune import interrupts
from hftune.arguments.model import ModelArguments
from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.manifest import CHECKPOINT, Manifest, read_manifest, write_manifest
from hftune.distributed import nodes, ranks
from hftune.errors import ArgumentError, exit_hooks
from hftune.logging import notice
from hftune.models.structure import head_of
from hftune.on_demand import on_demand
from hftune.publishing.disk import disk_errors
from hftune.publishing.locks import lock_folder, release_lock
from hftune.publishing.result_files import begin_result, finish_result, recover_result, result_folder
from hftune.weight_files import fingerprint, weight_files

_held: dict[Path, FileLock] = {}


def lock_output(output: Path, *, create: bool) -> None:
    """Keep other runs out of an output folder until this process ends; all ranks must call it, the first one locks.

    Args:
        output: The folder.
        create: Make it where it is missing; else a folder that is not there is not held yet.

    Raises:
        ArgumentError: Another run is at work in it; on all ranks.
    """
    problems: list[ArgumentError] = []
    if ranks.is_main() and output.resolve() not in _held and (create or output.is_dir()):
        try:
            with disk_errors(output):
                output.mkdir(parents=True, exist_ok=True)
                _held[output.resolve()] = lock_folder(output)
                recover_result(output)
        except ArgumentError as problem:
            # Collected: every rank must raise the same, or the others wait for it in the next collective.
            problems.append(problem)
    nodes.raise_on_all_ranks(problems)


def unlock_output() -> None:
    """Let other runs into the folders that this process holds."""
    while _held:
        release_lock(_held.popitem()[1])


def remove_new_folder_on_failure(output: Path) -> None:
    """Have the end of this process by an error or a signal take away an output folder that is new and empty."""
    if output.is_dir() or not ranks.is_main():
        return

    def tidy(error: BaseException | None = None) -> None:
        unlock_output()
        with suppress(OSError):  # it is not there, or holds something
            output.rmdir()

    exit_hooks.append(tidy)
    listener = interrupts.listener()
    if listener is not None:
        listener.last_acts.insert(0, tidy)


def save_result(trainer: Any, manifest: Manifest, model_args: ModelArguments) -> None:
    """Write weights, tokenizer and state of a trained model; what an earlier run left is replaced once they are whole.

    All ranks must call it. The folder's manifest says `running` from the moment when the first file is replaced.

    Args:
        trainer: A Trainer whose training has ended.
        manifest: Of the run, not complete yet; gets what was kept of the base, and the records of the files.
        model_args: What was loaded.
    """
    output = Path(str(trainer.args.output_dir))
    separate = nodes.spans_machines() and not nodes.is_shared(output)
    writes = ranks.is_main() or (separate and ranks.local_rank() == 0)
    if writes:
        begin_result(output)
    ranks.barrier()
    # An internal call: pushing to the Hub comes after the result is complete.
    trainer.save_model(str(result_folder(output)), _internal_call=True)
    ranks.barrier()
    if writes:
        if ranks.is_main():
            if not isinstance(trainer.model, PeftModel):  # an adapter is saved without any part of its base
                manifest |= keep_other_parts(trainer, result_folder(output), model_args)
            # By it a start after a kill knows these files as hftune's.
            manifest["files"] = record_result(result_folder(output))
            write_manifest(result_folder(output), manifest)
        finish_result(output)
    ranks.barrier()
    trainer.save_state()


def keep_other_parts(trainer: Any, folder: Path, model_args: ModelArguments) -> dict[str, Any]:
    """Have a saved model hold the other parts of the base of the run as they are; on the process that writes.

    Args:
        trainer: Of a run in full that has ended, whose weights are in `folder`.
        folder: Not published yet.
        model_args: What was loaded.

    Returns:
        For the manifest: what was kept, or nothing.
    """
    model = trainer.model
    if head_of(model) != "causal_lm":
        return {}
    base = whole_base(
        str(model_args.model_name_or_path), cache_dir=model_args.cache_dir, revision=model_args.model_revision
    )
    if model_args.from_config or base is None or not weight_files(base):
        return {}
    keep_of_base = on_demand("hftune.models.loading.base_parts:keep_of_base")
    kept = keep_of_base(folder, base, trusted=bool(trainer.args.trust_remote_code))
    if not kept:
        return {}
    notice(f"{len(kept)} tensors of {base} ({', '.join(kept[:2])}, ...) are kept as they are stored there")
    return {"kept_parts": {"base": str(base), "tensors": len(kept)}}


def whole_base(name: str, *, cache_dir: str | None = None, revision: str | None = None) -> Path | None:
    """The folder of the model that a run began with, its other parts included; None where it is not on this machine.

    A checkpoint holds the trained part alone: the rest is where its run began.
    """
    if not Path(name).is_dir():
        cached = try_to_load_from_cache(name, "config.json", cache_dir=cache_dir, revision=revision)
        return Path(cached).parent if isinstance(cached, str) else None
    manifest = read_manifest(name) or {}
    before = (manifest.get("base") or {}).get("name")
    if manifest.get("status") != CHECKPOINT or not before:
        return Path(name)
    found = whole_base(before, cache_dir=cache_dir, revision=revision)
    if found is None or fingerprint(before) != manifest["base"]["fingerprint"]:
        notice(f"{name} is a checkpoint of {before}, which has changed or gone: parts that it does not hold are lost")
        return Path(name)
    return found
