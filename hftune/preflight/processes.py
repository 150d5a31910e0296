"""Facts of each process before anything loads: who it is, and digests of what it was given."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import xxhash

from hftune.arguments.stage_table import RunArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.distributed.process_facts import process_facts as about_this_process
from hftune.weight_files import fingerprint, is_model

ProcessFacts = dict[str, Any]

_THEIR_OWN = {
    *("output_dir", "logging_dir", "cache_dir", "data_cache_dir", "run_name", "local_rank", "nvme_path"),
    *("resume_from_checkpoint", "ds_resolved", "deepspeed", "device", "hub_token", "push_to_hub_token"),
    *("distributed_state", "deepspeed_plugin", "hf_deepspeed_config", "accelerator_config"),
}
"""Arguments that may differ between machines, or are compared as something else."""

_SAMPLE = 1 << 16
"""Bytes that are read of each end of a file: copies that went wrong differ there, or in their size."""


def process_facts(arguments: RunArguments[StageArguments]) -> ProcessFacts:
    """Facts of this process: machine, libraries and code, and digests of arguments, files and DeepSpeed config."""
    own = about_this_process() | {"arguments": argument_marks(arguments), "files": file_marks(arguments)}
    own["deepspeed"] = {"DeepSpeed config": _mark(arguments.training.ds_resolved)}
    own["world"] = {"processes": ranks.world_size()}
    return own


def argument_marks(groups: tuple[Any, ...]) -> dict[str, str]:
    """A short digest of every argument's value; arguments that name files are compared by contents instead."""
    marks = {}
    for name, value in itertools.chain.from_iterable(vars(group).items() for group in groups):
        # Files are compared by what is in them: machines may keep them under other paths.
        if not name.startswith("_") and name not in _THEIR_OWN and not (_paths(value)):
            marks[f"--{name}"] = _mark(value)
    return marks


def file_marks(groups: tuple[Any, ...]) -> dict[str, str]:
    """A digest of every file and folder that arguments name: of sizes, and of the ends of each file."""
    marks = {}
    for name, value in itertools.chain.from_iterable(vars(group).items() for group in groups):
        if name not in _THEIR_OWN:
            for number, path in enumerate(_paths(value)):
                marks[f"--{name}" + (f" ({number + 1})" if number else "")] = content_mark(path)
    return marks


def content_mark(path: Path) -> str:
    """Sixteen hex digits of a model's folder, or of the names, sizes and ends of files. Reads 128 KiB of each."""
    # Reading models whole would take minutes; their fingerprint is of names, sizes and headers.
    if is_model(path):
        return fingerprint(path)
    digest = xxhash.xxh3_64()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        # The name is hashed as well: two files that have changed places are another data set.
        size = file.stat().st_size
        digest.update(f"\0{file.relative_to(path)} {size}\0".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_SAMPLE))
            stream.seek(max(0, size - _SAMPLE))
            digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


def _paths(value: object) -> list[Path]:
    """Existing files and folders that a value names; `A,B#500` names two."""
    # Inline JSON and long texts are no paths, and looking them up may raise on some file systems.
    if not isinstance(value, str) or len(value) > 4096 or value.lstrip().startswith(("{", "[")):
        return []
    parts = (part.strip().partition("#")[0] for part in value.split(","))
    return [Path(part) for part in parts if part and ("/" in part or Path(part).is_dir()) and Path(part).exists()]


def _mark(value: object) -> str:
    # `default`: paths, dtypes and the like have no JSON, and the same text on every machine.
    return xxhash.xxh3_64_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())[:12]
