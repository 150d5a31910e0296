"""Torch's variables from SLURM's, where srun itself has started the processes of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hftune.errors import ArgumentError
from hftune.logging import notice

# Below Linux's ephemeral ports (32768 on), which any program may hold.
_FIRST_PORT, _PORTS = 15_000, 15_000


def adopt_slurm() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT where srun started several tasks.

    Nothing happens under a launcher, which sets them, and in a batch script outside srun.

    Raises:
        ArgumentError: SLURM's variables do not say enough.
    """
    if "RANK" in os.environ:
        return
    found = torch_variables(os.environ)
    if found:
        # What the user has set in the job counts, such as MASTER_ADDR on a chosen network.
        os.environ.update({name: value for name, value in found.items() if name not in os.environ})
        met = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        notice(f"{found['WORLD_SIZE']} processes started by srun, without a launcher; they meet at {met}")


def torch_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Torch's variables from those of a task of srun; empty for a single task, or outside srun.

    SLURM_STEP_NUM_TASKS is set by srun alone: a batch script has SLURM_NTASKS as well, and runs once.

    Raises:
        ArgumentError: SLURM's variables do not say enough.
    """
    tasks = int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks <= 1:
        return {}
    needed = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
    missing = [name for name in needed if name not in variables]
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if not nodes and "MASTER_ADDR" not in variables:
        missing.append("SLURM_STEP_NODELIST")
    if missing:
        raise ArgumentError(
            f"srun has started {tasks} tasks and does not say {', '.join(missing)}",
            place="SLURM's environment",
            fix="hand its variables on (srun --export=ALL), or start torchrun with it: examples/cluster/slurm.sbatch",
        )
    # Whatever stands there, a port must come of it.
    job = int(re.sub(r"\D", "", variables.get("SLURM_JOB_ID", "0")) or 0)
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks_per_node(variables["SLURM_STEP_TASKS_PER_NODE"])[int(variables["SLURM_NODEID"])]),
        "MASTER_ADDR": variables.get("MASTER_ADDR") or first_host(nodes),
        # Every task must come to the same, and two jobs on a machine to different ones.
        "MASTER_PORT": variables.get("MASTER_PORT") or str(_FIRST_PORT + job % _PORTS),
    }


_OTHERWISE = "start torchrun within the job instead, as examples/cluster/slurm.sbatch does"


def tasks_per_node(text: str) -> list[int]:
    """The tasks of each machine from SLURM's `4(x2),3`: [4, 4, 3]."""
    counts = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", piece.strip())
        if match is None:
            raise ArgumentError(f"{text!r} are no tasks per node", place="SLURM_STEP_TASKS_PER_NODE", fix=_OTHERWISE)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodes: str) -> str:
    """The first machine of a list such as `gpu[03-05,7],login`: `gpu03`. The suffix after a bracket stays."""
    match = re.match(r"([^,\[\]]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    if match is None:
        raise ArgumentError(f"{nodes!r} names no machine", place="SLURM_STEP_NODELIST", fix="set MASTER_ADDR yourself")
    return f"{match[1]}{match[2] or ''}{match[3] or ''}"
