"""examples/cluster: what each script calls, with the callers' own programs replaced by ones that write it down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
WRITES = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
[ ! -f "${DS_ENV_FILE:-}" ] || cat "$DS_ENV_FILE" >> "$CALLS"
env | grep -E '^(MASTER_|OMP_)' | sort >> "$CALLS"
[ "$(basename "$0")" != scontrol ] || { [ "$1" != show ] || printf 'gpu03\\ngpu04\\n'; }
[ "$(basename "$0")" != srun ] || exit "${SRUN_CODE:-0}"
"""


@pytest.fixture
def called(tmp_path: Path):
    """Run a script; its exit code, and what it called."""

    def run(script: str, *arguments: str, **variables: str) -> tuple[int, list[str]]:
        for name in ("deepspeed", "torchrun", "srun", "scontrol", "hftune"):
            (tmp_path / name).write_text(WRITES)
            (tmp_path / name).chmod(0o755)
        calls = tmp_path / "calls"
        calls.write_text("")
        known = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CALLS": str(calls), "HOME": str(tmp_path)}
        finished = subprocess.run(["bash", str(CLUSTER / script), *arguments], env=known | variables, check=False)
        return finished.returncode, calls.read_text().splitlines()

    return run


def test_hostfile(called) -> None:
    code, calls = called("deepspeed.sh", "run_sft.py", "--seed", "1", HFTUNE_CACHE="/fast", HOSTFILE="mine")
    assert code == 0
    assert calls == ["deepspeed --hostfile mine --master_port 29500 run_sft.py --seed 1", "HFTUNE_CACHE=/fast"]
    machines = [line.split() for line in (CLUSTER / "hostfile").read_text().splitlines() if not line.startswith("#")]
    assert all(len(words) == 2 and words[1].startswith("slots=") for words in machines)


def test_torchrun(called) -> None:
    code, (met,) = called("torchrun.sh", "run_pt.py", NNODES="2", RDZV_HOST="node1")
    assert code == 0 and "--nnodes 2 --nproc_per_node gpu --rdzv_backend c10d --rdzv_endpoint node1:29400" in met
    _, (placed,) = called("torchrun.sh", "run_pt.py", NNODES="2", RDZV_HOST="node1", NODE_RANK="1", GPUS="4")
    assert placed == (
        "torchrun --nnodes 2 --nproc_per_node 4 --node_rank 1 --master_addr node1 --master_port 29400 run_pt.py"
    )
    assert called("torchrun.sh", "run_pt.py", RDZV_HOST="node1")[0] != 0, "how many machines was not said"


@pytest.mark.parametrize("srun, restarts, queued", [(0, "0", False), (75, "0", True), (76, "3", True), (2, "0", False)])
def test_slurm(called, srun: int, restarts: str, queued: bool) -> None:
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_CPUS_PER_TASK": "8"}
    code, calls = called(
        "slurm.sbatch", "run_sft.py", "--seed", "1", SRUN_CODE=str(srun), SLURM_RESTART_COUNT=restarts, **job
    )
    assert code == srun
    start = calls.index("srun --kill-on-bad-exit=1 --gpu-bind=none --export=ALL python run_sft.py --seed 1")
    assert calls[start + 1 : start + 4] == ["MASTER_ADDR=gpu03", "MASTER_PORT=19711", "OMP_NUM_THREADS=4"]
    assert ("scontrol requeue 4711" in calls) == queued
    assert (
        "scontrol requeue 4711" not in called("slurm.sbatch", "x", SRUN_CODE="75", SLURM_RESTART_COUNT="10", **job)[1]
    )
