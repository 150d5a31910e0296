"""All processes are about to do the same, with the same libraries, on the same data: one table before anything loads.

`facts` of every process are gathered on every process; pure functions then find what differs, and draw the table.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.data import DataArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.file_records import is_model
from hftune.distributed import process_facts, ranks
from hftune.distributed.nodes import spans_machines
from hftune.distributed.verdicts import align_columns, ranges
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
from hftune.weight_files import fingerprint

Facts = dict[str, Any]

_THEIR_OWN = {
    *("output_dir", "logging_dir", "cache_dir", "data_cache_dir", "run_name", "local_rank", "nvme_path"),
    *("resume_from_checkpoint", "ds_resolved", "deepspeed", "device", "hub_token", "push_to_hub_token"),
    *("distributed_state", "deepspeed_plugin", "hf_deepspeed_config", "accelerator_config"),
}
"""Arguments that may differ between machines, or are compared as something else."""

_SAMPLE = 1 << 16
_MINOR = 2
"""Parts of a version that must be the same; the others are worth a notice."""


def check_nodes(
    model_args: ModelArguments, data_args: DataArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Several processes are alike; every one of them must ask. Says who they are: in a line, or as a table."""
    if ranks.planned_world() is not None or ranks.world_size() == 1:
        return
    groups = (model_args, data_args, adapter_args, training_args)
    own = process_facts.process_facts() | {"arguments": argument_marks(groups), "files": file_marks(groups)}
    own["deepspeed"] = {"DeepSpeed config": _mark(training_args.ds_resolved)}
    own["world"] = {"processes": ranks.world_size()}
    seconds = process_facts.collective_seconds(training_args.device)
    everyone = ranks.gathered_objects(own)
    problems = list(differences(everyone))
    several = spans_machines()
    if several or problems:
        get_logger().info("\n%s", "\n".join(table(everyone, seconds)))
    else:
        get_logger().info(one_line(everyone, seconds))
    for said in slight_differences(everyone):
        notice(said)
    yield from problems
    yield from check_saving(training_args)


def check_saving(training_args: StageArguments) -> Iterator[UserError]:
    """Under ZeRO-3 only rank 0 has whole weights to save; the Trainer (5.23) would write empty tensors elsewhere."""
    if training_args.save_on_each_node and training_args.zero_stage == 3:
        yield ArgumentError(
            "under ZeRO-3 only the first machine has weights to save",
            place="--save_on_each_node",
            fix="leave it out: machines that share no files get what they need to go on (docs/machines.md)",
        )


# --- what one process says ---


def argument_marks(groups: tuple[Any, ...]) -> dict[str, str]:
    """A short mark of every argument's value; what names a file or folder is compared by its contents."""
    marks = {}
    for name, value in itertools.chain.from_iterable(vars(group).items() for group in groups):
        if not name.startswith("_") and name not in _THEIR_OWN and not (_paths(value)):
            marks[f"--{name}"] = _mark(value)
    return marks


def file_marks(groups: tuple[Any, ...]) -> dict[str, str]:
    """A mark of the contents of every file and folder that arguments name: sizes, and the ends of each file."""
    marks = {}
    for name, value in itertools.chain.from_iterable(vars(group).items() for group in groups):
        if name not in _THEIR_OWN:
            for number, path in enumerate(_paths(value)):
                marks[f"--{name}" + (f" ({number + 1})" if number else "")] = content_mark(path)
    return marks


def content_mark(path: Path) -> str:
    """Sixteen hex digits of a model's folder, or of the names, sizes and ends of files. Reads 128 KiB of each."""
    if is_model(path):
        return fingerprint(path)
    digest = xxhash.xxh3_64()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        size = file.stat().st_size
        digest.update(f"\0{file.relative_to(path)} {size}\0".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_SAMPLE))
            stream.seek(max(0, size - _SAMPLE))
            digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


def _paths(value: object) -> list[Path]:
    """Existing files and folders that a value names, `A,B#500` two of them."""
    if not isinstance(value, str) or len(value) > 4096 or value.lstrip().startswith(("{", "[")):
        return []
    parts = (part.strip().partition("#")[0] for part in value.split(","))
    return [Path(part) for part in parts if part and ("/" in part or Path(part).is_dir()) and Path(part).exists()]


def _mark(value: object) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())[:12]


# --- what differs ---


def differences(everyone: list[Facts]) -> Iterator[UserError]:
    """What would make processes hang, or train different things: a message for each kind, with who has what."""
    fix = "install the same versions everywhere: constraints.txt, or one image"
    yield from _differing(everyone, "versions", "different versions", fix, lambda value: _coarse(str(value)))
    yield from _differing(everyone, "code", "different hftune", "update all machines to one commit")
    yield from _differing(everyone, "arguments", "different arguments", "start all machines with one command line")
    fix = "copy one to all machines; hftune compares contents, so the paths may differ"
    yield from _differing(everyone, "files", "different files", fix)
    yield from _differing(everyone, "deepspeed", "different DeepSpeed configs", "copy one to all machines")
    yield from _differing(everyone, "world", "different numbers of processes", "give all launchers the same")


def _differing(
    everyone: list[Facts], kind: str, cause: str, fix: str, same: Callable[[object], object] = lambda value: value
) -> Iterator[UserError]:
    names = sorted({name for facts in everyone for name in facts[kind]})
    odd = [name for name in names if len({same(facts[kind].get(name)) for facts in everyone}) > 1]
    if odd:
        lines = [f"    {name}: {_who_has_what(everyone, kind, name)}" for name in odd]
        yield ArgumentError("\n".join([f"the processes have {cause}:", *lines]), place="machines", fix=fix)


def _who_has_what(everyone: list[Facts], kind: str, name: str) -> str:
    holders: dict[object, list[Facts]] = {}
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
    return ".".join(version.split("+")[0].split(".")[:_MINOR])


def slight_differences(everyone: list[Facts]) -> Iterator[str]:
    """What works, and may be unwanted: other patch levels, other devices."""
    for name in sorted({name for facts in everyone for name in facts["versions"]}):
        found = {facts["versions"].get(name) for facts in everyone}
        if len(found) > 1 and len({_coarse(str(value)) for value in found}) == 1:
            yield f"{name} differs in its patch level: {_who_has_what(everyone, 'versions', name)}"
    devices = {facts["device"] for facts in everyone}
    if len(devices) > 1:
        yield f"the devices differ ({', '.join(sorted(devices))}): the slowest sets the pace"


# --- how it is shown ---


def one_line(everyone: list[Facts], seconds: float) -> str:
    """All on one machine, and all alike."""
    first = everyone[0]
    return (
        f"{len(everyone)} processes on {first['host']}, {first['device']}: {first['backend']} reaches all in "
        f"{_milliseconds(seconds)}"
    )


def table(everyone: list[Facts], seconds: float) -> list[str]:
    """A row for ranks of a machine on devices of a kind; versions that are the same everywhere below."""
    rows: list[tuple[str, ...]] = [("rank", "host", "local rank", "device", "memory", "backend", "torch", "commit")]
    keys = ("host", "device", "memory", "backend")
    groups: dict[tuple[Any, ...], list[Facts]] = {}
    for facts in everyone:
        key = (*(facts[name] for name in keys), facts["versions"].get("torch"), facts["code"].get("commit"))
        groups.setdefault(key, []).append(facts)
    for (host, device, memory, backend, torch, commit), members in groups.items():
        local = ranges(sorted(facts["local_rank"] for facts in members))
        gib = f"{memory / 2**30:.0f} GiB" if memory else "-"
        who = ranges([facts["rank"] for facts in members])
        rows.append((who, host, local, device, gib, backend, str(torch), commit or "installed"))
    machines = sum(facts["local_rank"] == 0 for facts in everyone)
    head = f"{len(everyone)} processes on {machines} machine(s), all reached in {_milliseconds(seconds)}"
    versions = ", ".join(f"{name} {value}" for name, value in everyone[0]["versions"].items())
    return [head, *align_columns(rows), f"  rank 0 has {versions}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
