"""`hftune sft ...` and `hftune launch deepspeed ... run_sft.py ...`: a stage under its launcher, quietly.

Launchers answer Ctrl-C with tracebacks and end their processes after 30 seconds, or at once, and torchrun writes forty
lines and exits with 1 whatever its processes exit with. Here Ctrl-C reaches this process alone, which asks one rank to
stop, and waits; what the launcher itself says is kept, and shown where no rank could speak.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hftune import child_processes, terminal
from hftune.constants import INTERRUPTED_EXIT_CODE
from hftune.errors import ArgumentError
from hftune.secrets import to_copy
from hftune.tools.pipeline import processes
from hftune.tools.pipeline.launcher import Launcher, refuse_too_many
from hftune.tools.words import Words, number
from hftune.visible import say

_LAUNCHED = ("deepspeed", "torchrun", "python")
_REMOTE = ("hostfile", "num_nodes", "include", "exclude", "force_multi", "launcher")
"""Options of deepspeed with which processes run on other machines, whose output comes through the launcher."""

_HOSTFILE = Path("/job/hostfile")  # DeepSpeed's default
# torch 2.13 prints it in the summary of a failure (`elastic/multiprocessing/errors`).
_EXIT_CODE = re.compile(r"exitcode\s*: (-?\d+)")
_OF_TORCHRUN = re.compile(r"^Traceback \(most recent call last\):\n  File \"[^\"]*(torchrun|torch/distributed)", re.M)
_LINES = 15


def launch(argv: list[str]) -> None:
    """Run a command; ends with the exit code of its processes.

    Args:
        argv: The launcher, its options, the script and its arguments.

    Raises:
        ArgumentError: No launcher that is known.
        SystemExit: At the end.
    """
    if not argv or argv[0] not in _LAUNCHED:
        fix = f"hftune launch deepspeed --num_gpus 2 run_sft.py ...; one of: {', '.join(_LAUNCHED)}"
        raise ArgumentError("`hftune launch` needs a command that starts with a launcher", fix=fix)
    run_quietly(argv)


def run_quietly(argv: list[str]) -> NoReturn:
    """Run a command that starts with a launcher; ends with the exit code of its processes.

    Raises:
        SystemExit: At the end.
    """
    with tempfile.TemporaryDirectory(prefix="hftune-launch-") as folder, processes.counted_signals() as signals:
        log = Path(folder) / "log" if _may_hide(argv) else None
        if log is not None:
            # The launcher's output goes to the log; ranks find this process's terminal by this variable and write
            # there.
            os.environ[terminal.ELSEWHERE] = f"/proc/{os.getpid()}/fd"
        running = processes.start(argv, child_processes.environment(), log)
        code = processes.attend(running, signals, _said, lambda: None)
        code = INTERRUPTED_EXIT_CODE if len(signals) > 1 else code
        if log is not None and code > 0:
            code = _code_of_ranks(log) or code
            _show_what_no_rank_said(log, code)
    raise SystemExit(code if code >= 0 else 128 - code)


def _said(what: str) -> None:
    # That it stops says the rank itself.
    if what == processes.ENDED:
        say(what, file=terminal.err())


def _may_hide(argv: list[str]) -> bool:
    """Whether the launcher's output can be hidden: the ranks can write to this process's terminal themselves."""
    options = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]
    remote = argv[0] == "deepspeed" and (_HOSTFILE.exists() or any(name in _REMOTE for name in options))
    # Plain python says nothing of its own; what a merge prints would be lost.
    if remote or argv[0] in ("python", "srun") or os.environ.get(terminal.SHOW_ALL, "") not in ("", "0"):
        return False
    try:
        for number in (1, 2):
            # Tried here, once: a terminal of another user or a closed descriptor cannot be opened again.
            os.close(terminal.reopen(f"/proc/{os.getpid()}/fd/{number}"))
    except OSError:
        return False
    return True


def _code_of_ranks(log: Path) -> int | None:
    """The exit code of the first process that failed, as torchrun prints it; None without one."""
    found = _EXIT_CODE.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        return None
    code = int(found[-1])
    return 128 - code if code < 0 else code


def _show_what_no_rank_said(log: Path, code: int) -> None:
    """Print errors of the launcher itself, and of processes that ended before they could print."""
    text = log.read_text(encoding="utf-8", errors="replace")
    # torchrun's own traceback says that a process failed, which is known: what matters is before it.
    end = _OF_TORCHRUN.search(text)
    lines = processes.last_words(text[: end.start()] if end else text, _LINES)
    if code > 128 and code != INTERRUPTED_EXIT_CODE:
        lines = [*lines, f"a process was ended by signal {code - 128}"]
    if lines:
        say("\n".join(lines), file=terminal.err())


LAUNCHERS = ("deepspeed", "torchrun", "srun", "none")
HELP = """hftune {stage} runs run_{stage}.py, with its arguments and these:
  --nproc N         processes on each machine; left out: one a GPU, and one where there is no GPU
  --nodes N         machines; left out: those of the SLURM allocation, else this one
  --launcher L      deepspeed, torchrun, srun or none; left out: srun in an allocation of several machines, none for
                    a single process, torchrun where MASTER_ADDR says where the machines meet or
                    CUDA_VISIBLE_DEVICES which GPUs to use, else deepspeed
  --hostfile FILE   the machines, for deepspeed
"""
OWN = ("nproc", "nodes", "launcher", "hostfile")
_HELP = {"-h", "--help"}


@dataclass(frozen=True)
class Start:
    """How a stage is to be started; None: as suits this machine."""

    nproc: int | None = None
    nodes: int | None = None
    launcher: str | None = None
    hostfile: str | None = None


def start(stage: str, argv: list[str]) -> None:
    """Start a stage's script; ends with its exit code.

    Raises:
        ArgumentError: A launcher that cannot start what is asked for.
        SystemExit: At the end.
    """
    given, rest = take_own(argv)
    if _HELP & {*rest}:
        say(HELP.format(stage=stage), flush=True)
        launcher = Launcher()
    else:
        launcher = choose(given, os.environ).with_free_port()
    _run(launcher, f"run_{stage}.py", rest)


def merge(argv: list[str]) -> None:
    """Start the script that merges; ends with its exit code."""
    _run(Launcher(), "merge_peft_adapter.py", argv)


def _run(launcher: Launcher, script: str, argv: list[str]) -> None:
    command = launcher.wrap(child_processes.script(script), argv)
    # Ranks that something else has started would all say the same.
    if os.environ.get("RANK", "0") == "0" and not _HELP & {*argv}:
        say(f"runs: {to_copy({}, command)}", file=terminal.err(), flush=True)
    run_quietly(command)


def take_own(argv: list[str]) -> tuple[Start, list[str]]:
    """Split a command line into how the stage is started and the script's arguments.

    Raises:
        ArgumentError: A flag without a value, a number that is none, or a launcher that is not known.
    """
    # Taken out before the script's parser sees the line: it would refuse names that it does not have.
    own = Words("hftune STAGE")
    for name in ("nproc", "nodes"):
        own.add_argument(f"--{name}", type=number(int, 1, 999_999_999))
    own.add_argument("--launcher", choices=LAUNCHERS)
    own.add_argument("--hostfile")
    given, rest = own.parse_known_args(argv)
    return Start(**vars(given)), rest


def choose(given: Start, variables: Mapping[str, str]) -> Launcher:
    """The launcher with its options for what was asked for, on this machine.

    Args:
        variables: The environment.

    Raises:
        ArgumentError: A launcher that cannot start so many processes, or machines that nothing names.
    """
    if given.launcher is None and given == Start() and _is_a_rank(variables):
        return Launcher()
    nodes = given.nodes or (1 if given.launcher == "none" else _allocated(variables))
    kind = given.launcher or _kind(given, nodes, variables)
    if kind == "none":
        if nodes > 1 or (given.nproc or 1) > 1 or given.hostfile:
            raise ArgumentError(
                "without a launcher a stage is one process",
                place="--launcher none",
                fix="leave out --launcher, or --nproc, --nodes and --hostfile",
            )
        return Launcher()
    if given.hostfile and kind != "deepspeed":
        raise ArgumentError(
            f"{kind} reads no hostfile", place="--hostfile", fix="leave it out, or use --launcher deepspeed"
        )
    processes = given.nproc or _devices_here()
    if kind is None:
        several = "torchrun" if _chosen_devices(variables) else "deepspeed"
        kind = several if processes > 1 else "none"
    options = {"deepspeed": _deepspeed, "torchrun": _torchrun, "srun": _srun}
    launcher = Launcher() if kind == "none" else Launcher(kind, options[kind](given, nodes, processes, variables))
    refuse_too_many(launcher, "--nproc")
    return launcher


def _kind(given: Start, nodes: int, variables: Mapping[str, str]) -> str | None:
    """The launcher that was not named; None: by the number of processes."""
    if given.hostfile:
        return "deepspeed"
    if nodes == 1:
        return None
    if "SLURM_JOB_ID" in variables and child_processes.program("srun"):
        return "srun"
    return "torchrun" if variables.get("MASTER_ADDR") else "deepspeed"


def _is_a_rank(variables: Mapping[str, str]) -> bool:
    """Whether a launcher, or srun, has started this process as one of several."""
    return "RANK" in variables or int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def _allocated(variables: Mapping[str, str]) -> int:
    """The machines of the SLURM allocation; 1 outside one, and within a step, which is a part of it."""
    outside = "SLURM_STEP_ID" in variables or "SLURM_JOB_ID" not in variables
    return 1 if outside else int(variables.get("SLURM_NNODES", "1"))


def _devices_here() -> int:
    """One process for each GPU, or one."""
    import torch  # takes seconds, which nobody waits for who says --nproc

    return torch.accelerator.device_count() or 1


def _chosen_devices(variables: Mapping[str, str]) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES names."""
    return [device for device in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]


def _deepspeed(given: Start, nodes: int, processes: int, variables: Mapping[str, str]) -> dict[str, Any]:
    if nodes > 1 and not given.hostfile and not _HOSTFILE.exists():
        raise ArgumentError(
            f"nothing says which {nodes} machines these are",
            place="--nodes",
            fix="--hostfile FILE with a line such as `node1 slots=8` a machine; or on each machine the same command "
            "with --launcher torchrun, MASTER_ADDR (the first machine) and NODE_RANK (0, 1, ...) set",
        )
    chosen = _chosen_devices(variables)
    if chosen and nodes == 1 and not given.hostfile:
        # With --num_gpus DeepSpeed's launcher ignores the variable, and takes the first GPUs, those of another run.
        if processes != len(chosen):
            raise ArgumentError(
                f"CUDA_VISIBLE_DEVICES names {len(chosen)} devices, and DeepSpeed's launcher starts a process on each, "
                f"not {processes}",
                place="--nproc",
                fix="--launcher torchrun, or as many devices as processes in CUDA_VISIBLE_DEVICES",
            )
        return {}
    hosts = {"hostfile": given.hostfile} if given.hostfile else {}
    # The hostfile says how many processes and machines, unless the command line does.
    each = {"num_gpus": processes} if given.nproc or not (hosts or _HOSTFILE.exists()) else {}
    return {**hosts, **({"num_nodes": given.nodes} if given.nodes and given.nodes > 1 else {}), **each}


def _torchrun(given: Start, nodes: int, processes: int, variables: Mapping[str, str]) -> dict[str, Any]:
    if nodes == 1:
        return {"nproc_per_node": processes}
    missing = [name for name in ("MASTER_ADDR", "NODE_RANK") if not variables.get(name)]
    if missing:
        raise ArgumentError(
            f"torchrun on {nodes} machines needs {' and '.join(missing)}",
            place="--nodes",
            fix="start the same command on each machine, with MASTER_ADDR (the first machine) and NODE_RANK (0, 1, "
            "...) set, and MASTER_PORT unless 29500 is free",
        )
    port = {"master_port": variables["MASTER_PORT"]} if variables.get("MASTER_PORT") else {}
    meet = {"node_rank": variables["NODE_RANK"], "master_addr": variables["MASTER_ADDR"], **port}
    return {"nnodes": nodes, "nproc_per_node": processes, **meet}


def _srun(given: Start, nodes: int, processes: int, variables: Mapping[str, str]) -> dict[str, Any]:
    port = {"master_port": int(variables["MASTER_PORT"])} if variables.get("MASTER_PORT", "").isdecimal() else {}
    return {"nodes": nodes, "nproc_per_node": processes, "kill_on_bad_exit": 1, **port}
