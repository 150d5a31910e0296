"""Commands of the launchers, and how many processes they mean."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hftune.tools.pipeline.step import Launcher
from tests.unit.tools.pipeline.files import steps


@pytest.mark.parametrize(
    "launcher, first, processes",
    [
        (Launcher(), "python run.py", (1, 1)),
        (Launcher("deepspeed", {"num_gpus": 2}), "deepspeed --num_gpus 2 run.py", (2, 2)),
        (Launcher("deepspeed", {"hostfile": "h"}), "deepspeed --hostfile h run.py", None),
        (Launcher("deepspeed", {"hostfile": "h", "num_gpus": 8, "num_nodes": 2}), "deepspeed --hostfile h", (16, 8)),
        (Launcher("deepspeed", {"no_ssh": True, "force_multi": False}), "deepspeed --no_ssh run.py", None),
        (Launcher("torchrun", {"nproc_per_node": 4, "nnodes": 2}), "torchrun --nproc_per_node 4 --nnodes 2", (8, 4)),
        (Launcher("torchrun", {"nproc_per_node": "gpu"}), "torchrun --nproc_per_node gpu run.py", None),
        (
            Launcher("srun", {"nodes": 2, "gpus_per_node": 8}),
            "srun --ntasks-per-node=1 --nodes=2 --gpus-per-node=8",
            (16, 8),
        ),
    ],
)
def test_commands(launcher: Launcher, first: str, processes: tuple[int, int] | None) -> None:
    assert " ".join(launcher.wrap("run.py", ["--a", "1"])).startswith(first)
    assert launcher.wrap("run.py", ["--a", "1"])[-2:] == ["--a", "1"]
    assert launcher.processes == processes


def test_a_number_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_TEST_PROCESSES", "3")
    launcher = "launcher: {deepspeed: {num_gpus: '${env.HFTUNE_TEST_PROCESSES}'}}"
    (step,) = steps(tmp_path, f"model: m\noutput_dir: o\n{launcher}\nstages:\n  sft: {{}}\n")
    assert step.launcher.processes == (3, 3) and step.command()[:3] == ["deepspeed", "--num_gpus", "3"]


def test_runs_on_one_machine_meet_at_a_free_port() -> None:
    alone = Launcher("deepspeed", {"num_gpus": 2}).with_free_port()
    assert 1024 < alone.options["master_port"] < 65536
    for kept in (Launcher(), Launcher("deepspeed", {"hostfile": "h"}), Launcher("torchrun", {"master_port": 7})):
        assert kept.with_free_port() == kept


def test_srun_starts_torchrun_on_each_machine(tmp_path: Path) -> None:
    """With an `srun` that runs its command as SLURM would on the second machine of two."""
    (tmp_path / "srun").write_text(
        "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n"
        'SLURM_NNODES=2 SLURM_NODEID=1 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 exec "$@"\n'
    )
    (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    for name in ("srun", "torchrun"):
        (tmp_path / name).chmod(0o755)
    command = Launcher("srun", {"nodes": 2, "gpus_per_node": 8, "partition": "p"}).wrap("run.py", ["--name", "a b"])
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("MASTER_ADDR", None)
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert output == [
        *("--nnodes", "2", "--node_rank", "1", "--nproc_per_node", "8", "--master_addr", "10.0.0.1"),
        *("--master_port", "29500", "run.py", "--name", "a b"),
    ]
