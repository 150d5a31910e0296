"""Checkpoints on machines that do not see each other's files.

Every process writes its own shards where it runs: DeepSpeed's states, random states. What rank 0 writes for all (state
of the Trainer, schedule, tag, manifest, and the whole weights where the engine needs them) is sent to the others, so
that every machine can resume from its own folder. Exported weights stay on rank 0's machine, where the result is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from hftune.checkpoints.integrity import engine_folder, read_record
from hftune.distributed import nodes, ranks
from hftune.errors import ArgumentError
from hftune.weight_files import INDEX_NAME, weight_files

_OWN = re.compile(
    r"((rng_state_\d+\.pth|run_state_\d+\.pt)|(_optim_states|zero_pp_rank_\d+_mp_rank_\d+_model_states)\.pt)$"
)
"""What each process writes for itself."""

_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
# 64 MiB go over the network at a time, so that a file of any size fits in memory.
_CHUNK = 1 << 26


def send_common_files(folder: Path, *, exports: bool) -> list[str]:
    """Send the files of a checkpoint that rank 0 wrote for all to every machine; every rank must call it.

    Args:
        folder: As named on every machine.
        exports: Send exported weights, too, though DeepSpeed's own are there.

    Returns:
        Names of the files that were sent.
    """
    group = _first_of_each_machine()
    sent: list[str] = []
    if ranks.local_rank() == 0:
        for name, size in _agreed(folder, group, exports=exports):
            _send(folder / name, size, group)
            sent.append(name)
    # The others of a machine must not read a file that its first process still writes.
    ranks.barrier()
    return sent


def common_files(folder: Path, *, exports: bool) -> dict[str, int]:
    """Sizes of the files in a checkpoint that belong to no single process, by name."""
    left_out: set[Path] = set()
    adapter = (folder / "adapter_config.json").is_file()
    if engine_folder(folder) is not None and not adapter and not exports:
        left_out = {*weight_files(folder), folder / INDEX_NAME}
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file not in left_out)
    return {str(file.relative_to(folder)): file.stat().st_size for file in files if not _OWN.search(file.name)}


def missing_shards(folder: Path) -> Iterator[ArgumentError]:
    """The error for shards of a checkpoint that this process needs and that lie on another machine."""
    record, engine = read_record(folder) or {}, engine_folder(folder)
    wrote = int(record.get("world_size") or 0)
    names = (_SHARD.search(file.name) for file in engine.iterdir()) if engine else ()
    # Processes that share matrices are neighbours by rank: `distributed/ranks.Mesh`.
    tensor = int(record.get("tensor_parallel_size") or 1)
    shards = {int(match[1]) * tensor + int(match[2]) for match in names if match}
    if not shards or wrote <= 1 or len(list(engine.glob("*_optim_states.pt")) if engine else ()) >= wrote:
        return
    models = len(list(engine.glob("mp_rank_*_model_states.pt"))) if engine else 0
    if 0 < models < tensor:
        needs = f"the files of all {tensor} that share matrices, which DeepSpeed counts"
    elif wrote != ranks.world_size():
        needs = "all of them, since other processes continue"
    elif ranks.rank() not in shards:
        needs = f"that of rank {ranks.rank()}, which ran on another machine then"
    else:
        return
    yield ArgumentError(
        f"{folder} has the optimizer's state of {len(shards)} of the {wrote} processes that wrote it, and this run "
        f"needs {needs}",
        place="--resume_from_checkpoint",
        fix=f"copy the same folder of every machine into one (rsync -a --ignore-existing OTHER:{folder}/ {folder}/), "
        "or start the machines in the order of then",
    )


@functools.cache
def _first_of_each_machine() -> dist.ProcessGroup:
    """A gloo group of the first process of each machine; every rank must ask, since `new_group` is collective."""
    firsts = [rank for rank, local in enumerate(ranks.gathered_objects(ranks.local_rank())) if local == 0]
    return dist.new_group(firsts, backend="gloo")


def _agreed(folder: Path, group: dist.ProcessGroup, *, exports: bool) -> list[tuple[str, int]]:
    """Files of rank 0 that some machine lacks, with their sizes; the same answer on all."""
    told = [common_files(folder, exports=exports) if ranks.is_main() else {}]
    dist.broadcast_object_list(told, src=0, group=group)
    lacking = [name for name, size in told[0].items() if _size(folder / name) != size]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, lacking, group=group)
    wanted = {name for names in everyone for name in names}
    return [(name, size) for name, size in told[0].items() if name in wanted]


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1


def _send(file: Path, size: int, group: dist.ProcessGroup) -> None:
    """Broadcast a file chunk by chunk."""
    # A machine that has the file takes part, as every rank of the group must, and drops what it receives.
    has = _size(file) == size
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb" if has else "wb") as stream:
        for start in range(0, size, _CHUNK):
            count = min(_CHUNK, size - start)
            if ranks.is_main():
                piece = torch.frombuffer(bytearray(stream.read(count)), dtype=torch.uint8)
            else:
                piece = torch.empty(count, dtype=torch.uint8)
            dist.broadcast(piece, src=0, group=group)
            if not has:
                stream.write(piece.numpy().tobytes())


def newest_common_step(own: int | None, upto: list[int]) -> tuple[int | None, list[str]]:
    """The newest step whose checkpoint every machine has whole; every rank must ask.

    Args:
        own: The newest whole one here; None: none, or another process of this machine looks.
        upto: Steps of all whole ones here.

    Returns:
        The step, None without one; and, where machines have different newest ones, who has which.
    """
    told = ranks.gathered_objects((nodes.host(), own, upto, ranks.local_rank() == 0))
    # One process looks for its machine; the others hand in nothing, which must not count as "no checkpoint".
    everyone = [(host, newest, steps) for host, newest, steps, first in told if first]
    common = set(everyone[0][2]).intersection(*(steps for _, _, steps in everyone[1:]))
    differ = len({newest for _, newest, _ in everyone}) > 1
    said = [f"{host}: {'none' if newest is None else f'checkpoint-{newest}'}" for host, newest, _ in everyone]
    return (max(common) if common else None), said if differ else []
