"""Rules about differences between the processes of a run: what each says of itself, and the table that shows it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from hftune.arguments.stage_table import RunArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.distributed.process_facts import process_facts as about_this_process
from hftune.distributed.verdicts import align_columns, ranges
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
from hftune.preflight.facts import Facts, World
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


# Patch levels fix faults and keep what is computed; minor versions have changed it.
_MINOR = 2
"""Parts of a version that must be the same; the others are worth a notice."""


def check_machines(facts: Facts) -> Iterator[UserError]:
    """Problems of processes that would do different things."""
    if facts.world.everyone:
        report_machines(facts.world)
        yield from differences(facts.world.everyone)
        yield from check_saving(facts.training_args)


def report_machines(world: World) -> None:
    """Log who takes part: in a line, or as a table where there are several machines or something differs."""
    everyone = world.everyone
    if not everyone:
        return
    if machines_of(everyone) > 1 or any(differences(everyone)):
        get_logger().info("\n%s", "\n".join(table(everyone, world.seconds)))
    else:
        get_logger().info(one_line(everyone, world.seconds))
    for said in slight_differences(everyone):
        notice(said)


def machines_of(everyone: Sequence[ProcessFacts]) -> int:
    """The number of machines, by the processes with local rank 0: machines of a cluster may share a name."""
    firsts = sum(process["local_rank"] == 0 for process in everyone)
    return max(firsts, len({process["host"] for process in everyone}))


def check_saving(training_args: StageArguments) -> Iterator[UserError]:
    """A problem of `--save_on_each_node` under ZeRO-3: only rank 0 has weights, others would save empty tensors."""
    if training_args.save_on_each_node and training_args.zero_stage == 3:
        yield ArgumentError(
            "under ZeRO-3 only the first machine has weights to save",
            place="--save_on_each_node",
            fix="leave it out: machines that share no files get what they need to continue (docs/machines.md)",
        )


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


def slight_differences(everyone: Sequence[ProcessFacts]) -> Iterator[str]:
    """Notices on differences that do no harm: other patch levels, other devices."""
    for name in sorted({name for facts in everyone for name in facts["versions"]}):
        found = {facts["versions"].get(name) for facts in everyone}
        if len(found) > 1 and len({_coarse(str(value)) for value in found}) == 1:
            yield f"{name} differs in its patch level: {_who_has_what(everyone, 'versions', name)}"
    devices = {facts["device"] for facts in everyone}
    if len(devices) > 1:
        yield f"the devices differ ({', '.join(sorted(devices))}): the slowest sets the pace"


# --- how it is shown ---


def one_line(everyone: Sequence[ProcessFacts], seconds: float) -> str:
    """The processes of one machine in a line."""
    first = everyone[0]
    return (
        f"{len(everyone)} processes on {first['host']}, {first['device']}: {first['backend']} reaches all in "
        f"{_milliseconds(seconds)}"
    )


def table(everyone: Sequence[ProcessFacts], seconds: float) -> list[str]:
    """The processes as a table, a row for ranks that are alike, and the versions below it."""
    rows: list[tuple[str, ...]] = [("rank", "host", "local rank", "device", "memory", "backend", "torch", "code")]
    keys = ("host", "device", "memory", "backend")
    # A rank a row would be 64 lines of one machine's eight: ranks with the same are drawn together.
    groups: dict[tuple[Any, ...], list[ProcessFacts]] = {}
    for facts in everyone:
        key = (*(facts[name] for name in keys), facts["versions"].get("torch"), facts["code"].get("hftune's files"))
        groups.setdefault(key, []).append(facts)
    for (host, device, memory, backend, torch, code), members in groups.items():
        local = ranges(sorted(facts["local_rank"] for facts in members))
        gib = f"{memory / 2**30:.0f} GiB" if memory else "-"
        who = ranges([facts["rank"] for facts in members])
        rows.append((who, host, local, device, gib, backend, str(torch), str(code)))
    head = f"{len(everyone)} processes on {machines_of(everyone)} machine(s), all reached in {_milliseconds(seconds)}"
    versions = ", ".join(f"{name} {value}" for name, value in everyone[0]["versions"].items())
    return [head, *align_columns(rows), f"  rank 0 has {versions}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
