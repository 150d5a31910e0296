"""Rules about differences between the processes of a run, and the table that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hftune.arguments.training import StageArguments
from hftune.distributed.verdicts import align_columns, ranges
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
from hftune.preflight.facts import Facts, World
from hftune.preflight.processes import ProcessFacts

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
    rows: list[tuple[str, ...]] = [("rank", "host", "local rank", "device", "memory", "backend", "torch", "commit")]
    keys = ("host", "device", "memory", "backend")
    # A rank a row would be 64 lines of one machine's eight: ranks with the same are drawn together.
    groups: dict[tuple[Any, ...], list[ProcessFacts]] = {}
    for facts in everyone:
        key = (*(facts[name] for name in keys), facts["versions"].get("torch"), facts["code"].get("commit"))
        groups.setdefault(key, []).append(facts)
    for (host, device, memory, backend, torch, commit), members in groups.items():
        local = ranges(sorted(facts["local_rank"] for facts in members))
        gib = f"{memory / 2**30:.0f} GiB" if memory else "-"
        who = ranges([facts["rank"] for facts in members])
        rows.append((who, host, local, device, gib, backend, str(torch), commit or "installed"))
    head = f"{len(everyone)} processes on {machines_of(everyone)} machine(s), all reached in {_milliseconds(seconds)}"
    versions = ", ".join(f"{name} {value}" for name, value in everyone[0]["versions"].items())
    return [head, *align_columns(rows), f"  rank 0 has {versions}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
