"""SLURM's variables in torch's words."""

from __future__ import annotations

import pytest

from hftune.distributed import launchers
from hftune.errors import ArgumentError

TASK = {
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_JOB_ID": "4711",
}


def test_a_task_of_srun() -> None:
    assert launchers.torch_variables(TASK) == {
        "RANK": "9",
        "WORLD_SIZE": "11",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",  # the third machine has three
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": "19711",  # 15000 + 4711
    }


@pytest.mark.parametrize(
    "nodes, first",
    [("gpu[03-05,7],login", "gpu03"), ("login", "login"), ("a,b", "a"), ("n[1-2]-ib,m", "n1-ib"), ("r1n[9]", "r1n9")],
)
def test_the_first_machine(nodes: str, first: str) -> None:
    assert launchers.first_host(nodes) == first


def test_no_task_of_srun() -> None:
    assert launchers.torch_variables({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) == {}, "a batch script runs once"
    assert launchers.torch_variables({**TASK, "SLURM_STEP_NUM_TASKS": "1"}) == {}


def test_what_is_missing_is_said() -> None:
    poor = {name: value for name, value in TASK.items() if name not in ("SLURM_LOCALID", "SLURM_STEP_NODELIST")}
    with pytest.raises(ArgumentError, match="does not say SLURM_LOCALID, SLURM_STEP_NODELIST"):
        launchers.torch_variables(poor)


def test_a_launcher_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TASK, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    launchers.adopt_slurm()
    assert "WORLD_SIZE" not in launchers.os.environ
