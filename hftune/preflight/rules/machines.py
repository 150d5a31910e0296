"""Rules about differences between the processes of a run: what each says of itself, and how it is shown."""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

import hftune
from hftune.arguments.entry import RunArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.distributed.nodes import host
from hftune.distributed.verdicts import ranges
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused
from hftune.weight_files import fingerprint, is_model

ProcessFacts = dict[str, Any]

_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "datasets", "bitsandbytes", "hftune")

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
    device, memory = _device()
    return {
        "rank": ranks.rank(),
        "host": host(),
        "local_rank": ranks.local_rank(),
        "device": device,
        "memory": memory,
        "backend": dist.get_backend() if ranks.is_distributed() else "none",
        # What follows must be the same everywhere, but for patch levels.
        "versions": versions(),
        "code": {"hftune's files": _code_digest()},
        "arguments": argument_marks(arguments),
        "files": file_marks(arguments),
        "deepspeed": {"DeepSpeed config": _mark(arguments.training.ds_resolved)},
        "world": {"processes": ranks.world_size()},
    }


def versions() -> dict[str, str]:
    """Versions of Python, the libraries, CUDA and NCCL; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = torch.__version__ if name == "torch" else metadata.version(name)  # with its build
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl: Any = torch.cuda.nccl  # torch has no types for it
        found["NCCL"] = ".".join(map(str, nccl.version()))
    return found


def _device() -> tuple[str, int]:
    """The name of what this process computes on, and its memory in bytes."""
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return about.name, int(about.total_memory)
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator()), 0
    # Windows has no sysconf; memory is only shown.
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return f"CPU, {torch.get_num_threads()} thread(s)", pages


@functools.cache
def _code_digest() -> str:
    """Sixteen hex digits over hftune's own files: an edited checkout has the same version as the original."""
    digest, root = xxhash.xxh3_64(), Path(hftune.__file__).parent
    for file in sorted(root.rglob("*.py")):
        # Names as well, apart from contents by zero bytes: two files that trade places differ.
        digest.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


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


_MINOR = 2
"""Parts of a version that must be the same: patch levels fix faults, and keep what is computed."""


def check_machines(facts: Facts) -> Iterator[UserError]:
    """Problems of processes that would do different things."""
    if facts.world.everyone:
        get_logger().info("%s", "\n".join(shown(facts.world.everyone)))
        yield from differences(facts.world.everyone)
        yield from refused("machines", facts)


def machines_of(everyone: Sequence[ProcessFacts]) -> int:
    """The number of machines, by the processes with local rank 0: machines of a cluster may share a name."""
    firsts = sum(process["local_rank"] == 0 for process in everyone)
    return max(firsts, len({process["host"] for process in everyone}))


# --- what differs ---


def differences(everyone: Sequence[ProcessFacts]) -> Iterator[UserError]:
    """Problems of processes that differ, one for each kind, with who has what."""
    fix = "install the same versions everywhere: constraints.txt, or one image"
    yield from _differing(everyone, "versions", "different versions", fix, lambda value: _coarse(str(value)))
    yield from _differing(everyone, "code", "different hftune", "update all machines to one commit")
    yield from _differing(everyone, "arguments", "different arguments", "start all machines with one command line")
    fix = "copy one to all machines; hftune compares contents, so the paths may differ"
    yield from _differing(everyone, "files", "different files", fix)
    yield from _differing(everyone, "deepspeed", "different DeepSpeed configs", "copy one to all machines")
    yield from _differing(everyone, "world", "different numbers of processes", "give all launchers the same")


def _differing(
    everyone: Sequence[ProcessFacts],
    kind: str,
    cause: str,
    fix: str,
    same: Callable[[object], object] = lambda value: value,
) -> Iterator[UserError]:
    names = sorted({name for facts in everyone for name in facts[kind]})
    odd = [name for name in names if len({same(facts[kind].get(name)) for facts in everyone}) > 1]
    if odd:
        lines = [f"    {name}: {_who_has_what(everyone, kind, name)}" for name in odd]
        yield ArgumentError("\n".join([f"the processes have {cause}:", *lines]), place="machines", fix=fix)


def _who_has_what(everyone: Sequence[ProcessFacts], kind: str, name: str) -> str:
    holders: dict[object, list[ProcessFacts]] = {}
    for facts in everyone:
        holders.setdefault(facts[kind].get(name), []).append(facts)
    told = []
    for value, having in holders.items():
        on = ", ".join(dict.fromkeys(facts["host"] for facts in having))
        told.append(
            f"{'none' if value is None else value} on {on} (rank {ranges([facts['rank'] for facts in having])})"
        )
    return "; ".join(told)


def _coarse(version: str) -> str:
    # Without the build (`+cu130`): the same version for another CUDA computes the same.
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:_MINOR])


def shown(everyone: Sequence[ProcessFacts]) -> list[str]:
    """Who takes part: a line for all ranks of a machine that are alike, and one alone where all are."""
    # A rank a line would be 64 of them for one machine's eight.
    groups: dict[str, list[int]] = {}
    for facts in everyone:
        torch, code = facts["versions"].get("torch"), facts["code"].get("hftune's files")
        memory = f"{facts['memory'] / 2**30:.0f} GiB, " if facts["memory"] else ""
        about = f"{facts['device']}, {memory}{facts['backend']}, torch {torch}, code {code}"
        groups.setdefault(f"on {facts['host']}: {about}", []).append(facts["rank"])
    if len(groups) == 1:
        return [f"{len(everyone)} processes {next(iter(groups))}"]
    head = f"{len(everyone)} processes on {machines_of(everyone)} machine(s)"
    versions = ", ".join(f"{name} {value}" for name, value in everyone[0]["versions"].items())
    return [head, *(f"  rank {ranges(who)} {about}" for about, who in groups.items()), f"  rank 0 has {versions}"]
