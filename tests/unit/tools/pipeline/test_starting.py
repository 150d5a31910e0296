"""`hftune sft ...`: which launcher starts which script, and what is said of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hftune import child_processes
from hftune.arguments.stage_table import STAGES
from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.pipeline import starting
from hftune.tools.pipeline.launcher import Launcher
from hftune.tools.pipeline.starting import Start, choose, take_own
from tests.spokes import spokes
from tests.unit.tools.pipeline.files import steps

ROOT = Path(__file__).parents[4]
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
MEET = {"MASTER_ADDR": "node1", "NODE_RANK": "1"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have run."""
    commands: list[list[str]] = []
    monkeypatch.setattr(starting, "run_quietly", commands.append)
    monkeypatch.setattr(starting, "_devices_here", lambda: 1)
    for name in ("RANK", "SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    return commands


@pytest.mark.parametrize(("stage", "written"), spokes(STAGES, ["{}", "run_{}", "run_{}.py"]))
def test_every_stage_is_a_subcommand(stage: str, written: str, started: list[list[str]]) -> None:
    dispatch([written.format(stage), "--max_steps", "1"])
    assert started == [["python", str(ROOT / f"run_{stage}.py"), "--max_steps", "1"]]
    assert Path(started[0][1]).is_file()


def test_merging_is_one_too(started: list[list[str]]) -> None:
    dispatch(["merge", "--nproc", "2"])  # no flag of merging: the script says so
    assert started == [["python", str(ROOT / "merge_peft_adapter.py"), "--nproc", "2"]]


def test_the_long_command_is_said_without_secrets(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--hub_token", "hf_abcdefghijklmnopqrstuv", "--deepspeed", '{"comet": {"api_key": "abcd1234efgh"}}']
    dispatch(["sft", "--nproc=2", *words])
    said = capsys.readouterr().err
    assert "runs: deepspeed --num_gpus 2 --master_port " in said and f"{ROOT}/run_sft.py --hub_token ***" in said
    assert "abcdefghij" not in said and "abcd1234" not in said
    assert started[0][-4:] == words, "the stage itself is given them"
    monkeypatch.setenv("RANK", "1")
    dispatch(["sft", "--x"])
    assert capsys.readouterr().err == "", "one of several processes"


def test_help_names_both_kinds_of_flags(started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["rl", "--nproc", "8", "--help"])
    said = capsys.readouterr()
    assert all(f"--{name}" in said.out for name in starting.OWN) and said.err == ""
    assert started == [["python", str(ROOT / "run_rl.py"), "--help"]]


@pytest.mark.parametrize(
    ("argv", "given", "rest"),
    [
        ([], Start(), []),
        (["--max_steps", "3", "--nproc", "2"], Start(nproc=2), ["--max_steps", "3"]),
        (["--nodes=2", "--launcher=srun", "a"], Start(nodes=2, launcher="srun"), ["a"]),
    ],
)
def test_its_own_flags_are_taken_out(argv: list[str], given: Start, rest: list[str]) -> None:
    assert take_own(argv) == (given, rest)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nproc"], "argument --nproc: expected one argument"),
        (["--nproc", "0"], "argument --nproc: a number from 1 to 999999999, not '0'"),
        (["--launcher", "torchrum"], "argument --launcher: invalid choice: 'torchrum'.*torchrun"),
    ],
)
def test_flags_that_make_no_sense(argv: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        take_own(argv)


def test_no_stage_has_an_argument_of_these_names() -> None:
    from hftune.arguments.stages import stage_parser

    assert [(stage, name) for stage in STAGES for name in starting.OWN if name in stage_parser(stage).known] == []


CHOICES: dict[str, tuple[Start, dict[str, str], int, str, dict[str, Any]]] = {
    "a laptop": (Start(), {}, 1, "python", {}),
    "two GPUs": (Start(), {}, 2, "deepspeed", {"num_gpus": 2}),
    "one of two GPUs": (Start(nproc=1), {}, 2, "python", {}),
    "two processes of a laptop": (Start(nproc=2), {}, 1, "deepspeed", {"num_gpus": 2}),
    "torchrun": (Start(launcher="torchrun"), {}, 4, "torchrun", {"nproc_per_node": 4}),
    "deepspeed, one process": (Start(launcher="deepspeed"), {}, 1, "deepspeed", {"num_gpus": 1}),
    "none": (Start(launcher="none"), SLURM, 8, "python", {}),
    "a rank of torchrun's": (Start(), {"RANK": "0"}, 8, "python", {}),
    "a task of srun's": (Start(), {**SLURM, "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_ID": "0"}, 8, "python", {}),
    "one task of srun's": (
        *(Start(), {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"}, 8),
        *("deepspeed", {"num_gpus": 8}),
    ),
    "an allocation": (
        *(Start(), {**SLURM, "MASTER_PORT": "7"}, 8),
        *("srun", {"nodes": 2, "nproc_per_node": 8, "kill_on_bad_exit": 1, "master_port": 7}),
    ),
    "an allocation of one": (Start(), {**SLURM, "SLURM_NNODES": "1"}, 8, "deepspeed", {"num_gpus": 8}),
    "a part of it": (Start(nodes=1), SLURM, 8, "deepspeed", {"num_gpus": 8}),
    "machines that meet at a port": (
        *(Start(nodes=2, nproc=1), {**MEET, "MASTER_PORT": "7"}, 8, "torchrun"),
        {"nnodes": 2, "nproc_per_node": 1, "node_rank": "1", "master_addr": "node1", "master_port": "7"},
    ),
    "GPUs of its own": (Start(), {"CUDA_VISIBLE_DEVICES": "2,3"}, 2, "torchrun", {"nproc_per_node": 2}),
    "one GPU of its own": (Start(), {"CUDA_VISIBLE_DEVICES": "2"}, 1, "python", {}),
    "GPUs of its own, deepspeed": (Start(launcher="deepspeed"), {"CUDA_VISIBLE_DEVICES": "2,3"}, 2, "deepspeed", {}),
    "no GPU": (Start(nproc=2), {"CUDA_VISIBLE_DEVICES": ""}, 1, "deepspeed", {"num_gpus": 2}),
    "a hostfile": (Start(hostfile="hosts"), {}, 8, "deepspeed", {"hostfile": "hosts"}),
    "a part of a hostfile": (
        *(Start(hostfile="hosts", nodes=2, nproc=4), {}, 8),
        *("deepspeed", {"hostfile": "hosts", "num_nodes": 2, "num_gpus": 4}),
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_suits_a_machine(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, variables, devices, kind, options = CHOICES[case]
    monkeypatch.setattr(starting, "_devices_here", lambda: devices)
    monkeypatch.setattr(child_processes, "program", lambda name: f"/usr/bin/{name}")
    found = choose(given, variables)
    assert (found.kind, found.options) == (kind, options)
    command = found.wrap("run_sft.py", ["--x"])
    assert command[0] == kind and command[-2:] == ["run_sft.py", "--x"]


def test_slurm_without_srun_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "program", lambda name: None)
    with pytest.raises(ArgumentError, match="nothing says which 2 machines"):
        choose(Start(nproc=8), SLURM)


@pytest.mark.parametrize(
    ("given", "variables", "words"),
    [
        (Start(launcher="none", nproc=2), {}, "without a launcher a stage is one process"),
        (Start(launcher="torchrun", hostfile="h"), {}, "torchrun reads no hostfile"),
        (
            *(Start(nproc=2, launcher="deepspeed"), {"CUDA_VISIBLE_DEVICES": "1,2,3"}),
            "CUDA_VISIBLE_DEVICES names 3 devices",
        ),
        (Start(nodes=2, nproc=8), {}, "nothing says which 2 machines these are"),
        (Start(nodes=2, nproc=8), {"MASTER_ADDR": "a"}, "torchrun on 2 machines needs NODE_RANK"),
    ],
)
def test_what_cannot_start(given: Start, variables: dict[str, str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        choose(given, variables)


def test_devices_are_counted_where_nobody_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for count, wanted in ((0, 1), (3, 3)):
        monkeypatch.setattr(torch.accelerator, "device_count", lambda count=count: count)
        assert starting._devices_here() == wanted


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
def test_more_processes_than_fit_are_not_started(launcher: str) -> None:
    with pytest.raises(ArgumentError, match="no memory for 100000 processes"):
        choose(Start(nproc=100000, launcher=launcher), {})
    assert choose(Start(nproc=16, launcher=launcher), {}).processes == (16, 16)


# --- commands of the launchers ---


@pytest.mark.parametrize(
    "launcher, first, processes",
    [
        (Launcher(), "python run.py", (1, 1)),
        (Launcher("deepspeed", {"num_gpus": 2}), "deepspeed --num_gpus 2 run.py", (2, 2)),
        (Launcher("deepspeed", {"hostfile": "h"}), "deepspeed --hostfile h run.py", None),
        (Launcher("deepspeed", {"hostfile": "h", "num_gpus": 8, "num_nodes": 2}), "deepspeed --hostfile h", (16, 8)),
        (Launcher("deepspeed", {"no_ssh": True, "force_multi": False}), "deepspeed --no_ssh run.py", None),
        (Launcher("torchrun", {"nproc_per_node": 4, "nnodes": 2}), "torchrun --nproc_per_node 4 --nnodes 2", (8, 4)),
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
