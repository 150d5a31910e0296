"""examples/cluster: what each script calls, with the callers' own programs replaced by ones that write it down."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import child_processes

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


def test_an_array_of_parts(called, tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "16", "SLURM_CPUS_PER_TASK": "4"}
    folder = tmp_path / "parts"
    code, calls = called("tokenize.sbatch", str(folder), "run_sft", "--seed", "1", **array)
    made = f"--preprocessing_num_workers 4 --shard 7/16 --output_dir {folder}/00007"
    assert (code, calls) == (0, [f"hftune tokenize run_sft --seed 1 {made}"])
    # One task of it again: of how many parts is said, and one that is there stays.
    alone = array | {"SLURM_ARRAY_TASK_COUNT": "1", "PARTS": "16"}
    assert "--shard 7/16" in called("tokenize.sbatch", str(folder), "run_sft", **alone)[1][0]
    (folder / "00007").mkdir()
    (folder / "00007" / "part.json").write_text("{}")
    assert called("tokenize.sbatch", str(folder), "run_sft", **array) == (0, [])
    assert called("tokenize.sbatch", **array)[0] != 0


def test_ray_makes_the_parts_and_joins_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in of Ray Data, which hands on the numbers."""
    done: list[list[str]] = []

    class Numbers:
        def __init__(self, count: int) -> None:
            self.rows = [{"id": number} for number in range(count)]

        def map(self, function: Any, *, fn_args: tuple[Any, ...], num_cpus: int) -> Numbers:
            self.rows = [function(row, *fn_args) for row in self.rows]
            return self

        def materialize(self) -> None: ...

    ray = SimpleNamespace(data=SimpleNamespace(range=lambda count, override_num_blocks: Numbers(count)))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(sys, "argv", ["x", "2", str(tmp_path / "parts"), "out", "run_sft", "--seed", "1"])
    monkeypatch.setattr(
        child_processes, "run", lambda command, check: done.append(command[command.index("tokenize") + 1 :])
    )
    (tmp_path / "parts" / "00001").mkdir(parents=True)
    (tmp_path / "parts" / "00001" / "part.json").write_text("{}")
    runpy.run_path(str(CLUSTER / "tokenize_ray.py"), run_name="__main__")
    first, second = (str(tmp_path / "parts" / name) for name in ("00001", "00002"))
    words = ["run_sft", "--seed", "1"]
    assert done == [
        [*words, "--preprocessing_num_workers", "8", "--shard", "2/2", "--output_dir", second],
        [*words, "--join", first, second, "--output_dir", "out"],
    ]
