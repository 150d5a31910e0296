"""Rules about differences between the processes of a run: what each says of itself, and how it is shown."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

import hftune
from hftune.arguments.entry import RunArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import library_versions
from hftune.distributed import ranks
from hftune.distributed.nodes import host
from hftune.distributed.verdicts import ranges
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused
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
    """What this process is, and as `same` what must be the same everywhere: versions, code, arguments and files."""
    code = _code_digest()
    nccl: Any = torch.cuda.nccl  # torch has no types for it
    backend = dist.get_backend() if ranks.is_distributed() else "no process group"
    return {
        "rank": ranks.rank(),
        "host": host(),
        "local_rank": ranks.local_rank(),
        "about": f"{_device()}, {backend}, torch {torch.__version__}, code {code}",
        "same": {
            # But for patch levels, which fix faults and keep what is computed.
            **{f"version of {name}": ".".join(one.split(".")[:2]) for name, one in library_versions().items()},
            "CUDA": torch.version.cuda,
            "NCCL": str(nccl.version()) if torch.cuda.is_available() and dist.is_nccl_available() else None,
            "hftune's files": code,
            "DeepSpeed config": _mark(arguments.training.ds_resolved),
            "processes": ranks.world_size(),
            **argument_marks(arguments),
        },
    }


def _device() -> str:
    """The name of what this process computes on."""
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    kind = torch.accelerator.current_accelerator()
    return f"CPU, {torch.get_num_threads()} thread(s)" if kind is None else str(kind)


@functools.cache
def _code_digest() -> str:
    """Sixteen hex digits over hftune's own files: an edited checkout has the same version as the original."""
    digest, root = xxhash.xxh3_64(), Path(hftune.__file__).parent
    for file in sorted(root.rglob("*.py")):
        # Names as well, apart from contents by zero bytes: two files that trade places differ.
        digest.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def argument_marks(groups: tuple[Any, ...]) -> dict[str, str]:
    """A short digest of every argument's value, or of the contents of the files and folders that it names."""
    marks = {}
    for name, value in itertools.chain.from_iterable(vars(group).items() for group in groups):
        if not name.startswith("_") and name not in _THEIR_OWN:
            # Files are compared by what is in them: machines may keep them under other paths.
            marks[f"--{name}"] = ", ".join(map(content_mark, _paths(value))) or _mark(value)
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


def check_machines(facts: Facts) -> Iterator[UserError]:
    """Problems of processes that would do different things."""
    if facts.world.everyone:
        get_logger().info("%s", "\n".join(shown(facts.world.everyone)))
        yield from differences(facts.world.everyone)
        yield from refused("machines", facts)


def differences(everyone: Sequence[ProcessFacts]) -> Iterator[UserError]:
    """A problem of processes that differ, with who has what."""
    names = dict.fromkeys(name for facts in everyone for name in facts["same"])
    odd = [name for name in names if len({facts["same"].get(name) for facts in everyone}) > 1]
    if odd:
        yield ArgumentError(
            "\n".join(["the processes differ in", *(f"    {name}: {_who_has_what(everyone, name)}" for name in odd)]),
            place="machines",
            fix="give all machines one image (or the versions of constraints.txt), one commit of hftune, one command "
            "line and copies of the same files, which may lie under other paths",
        )


def _who_has_what(everyone: Sequence[ProcessFacts], name: str) -> str:
    holders: dict[object, list[ProcessFacts]] = {}
    for facts in everyone:
        holders.setdefault(facts["same"].get(name, "none"), []).append(facts)
    return "; ".join(
        f"{value} on {', '.join(dict.fromkeys(facts['host'] for facts in having))} "
        f"(rank {ranges([facts['rank'] for facts in having])})"
        for value, having in holders.items()
    )


def shown(everyone: Sequence[ProcessFacts]) -> list[str]:
    """Who takes part: a line for all ranks of a machine that are alike."""
    # A rank a line would be 64 of them for one machine's eight.
    groups: dict[str, list[int]] = {}
    for facts in everyone:
        groups.setdefault(f"on {facts['host']}: {facts['about']}", []).append(facts["rank"])
    # By the processes with local rank 0: machines of a cluster may share a name.
    machines = sum(process["local_rank"] == 0 for process in everyone)
    head = f"{len(everyone)} processes on {machines} machine(s)"
    return [head, *(f"  rank {ranges(who)} {about}" for about, who in groups.items())]
