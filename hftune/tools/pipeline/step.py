"""One command of a pipeline: the script of a stage, a merge, or a subcommand of hftune, under its launcher."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from hftune import child_processes
from hftune.arguments.stage_table import STAGES
from hftune.distributed.launchers import OPTIONS
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.opening.files import MIB, read_bytes
from hftune.tools.pipeline.gates import Gate
from hftune.tools.pipeline.spec import EVALUATE, SAMPLE, Positioned

_SRUN_OWN = ("nproc_per_node", "master_port")  # told to the torchrun on each machine, not to srun
PRINTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Beginnings of the variables that DeepSpeed's launcher prints and passes on (its `EXPORT_ENVS`, and CUDA's)."""
_HOSTFILE = "/job/hostfile"
"""The hostfile that DeepSpeed's launcher reads if none is given."""
# What Python takes with torch, before any model; and processes that another machine may have room for.
_BYTES_OF_A_PROCESS, _SOME_PROCESSES = 1 << 27, 64
_MANY_MACHINES = ("hostfile", "num_nodes", "nnodes", "include", "node_rank", "master_addr", "rdzv_endpoint")


@dataclass(frozen=True)
class Launcher:
    """The launcher of a step and its options.

    Args:
        kind: A key of `OPTIONS`.
        options: Its options, in the order of the file.
    """

    kind: str = "python"
    options: dict[str, Any] = field(default_factory=dict)

    def wrap(self, script: str, argv: list[str]) -> list[str]:
        """The whole command that runs a script."""
        if self.kind == "srun":
            return self._srun(script, argv)
        first = ["python"] if self.kind == "python" else [self.kind, *_flags(self.options)]
        return [*first, script, *argv]

    def wrap_module(self, name: str, argv: list[str]) -> list[str]:
        """Likewise for a module that is no script; it learns its rank from the environment alone."""
        # DeepSpeed's launcher puts --local_rank before the module's own first word.
        own = {"no_local_rank": True} if self.kind == "deepspeed" else {}
        return replace(self, options={**self.options, **own}).wrap("--module", [name, *argv])

    def _srun(self, script: str, argv: list[str]) -> list[str]:
        """The command of srun: one task on each machine, in which torchrun starts the processes."""
        told = {name: value for name, value in self.options.items() if name not in _SRUN_OWN}
        flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in told.items()]
        processes = self.options.get("nproc_per_node") or self.options.get("gpus_per_node") or 1
        port = self.options.get("master_port") or 29500
        # Expanded by bash on each machine, where Slurm sets them. The address is that of the machine srun runs on: in a
        # batch job the first of the allocation; who types srun on a login node sets MASTER_ADDR.
        inner = (
            'exec torchrun --nnodes "$SLURM_NNODES" --node_rank "$SLURM_NODEID"'
            f" --nproc_per_node {processes}"
            f' --master_addr "${{MASTER_ADDR:-$SLURM_LAUNCH_NODE_IPADDR}}" --master_port {port} "$@"'
        )
        # "hftune" is $0 of `bash -c`; script and arguments are "$@", so no shell parses them again.
        return ["srun", "--ntasks-per-node=1", *flags, "bash", "-c", inner, "hftune", script, *argv]

    def with_free_port(self) -> Launcher:
        """The launcher with a port that is free on this machine; unchanged if the options settle the port."""
        # All runs of a machine share the launchers' default, 29500. With other machines every one must know the port,
        # so it stays.
        alone = self.kind in ("deepspeed", "torchrun") and not any(name in self.options for name in _MANY_MACHINES)
        if not alone or {"master_port", "standalone"} & {*self.options}:
            return self
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return replace(self, options={**self.options, "master_port": probe.getsockname()[1]})

    @property
    def other_machines(self) -> bool:
        """Whether DeepSpeed's launcher starts processes on other machines, by pdsh or the like."""
        if self.kind != "deepspeed" or self.options.get("no_ssh"):
            return False
        options = self.options
        hosts = _hosts(options.get("hostfile", _HOSTFILE))
        # `runner.py` of DeepSpeed 0.19: one host in all starts its processes here, without pdsh, unless it is forced.
        if options.get("force_multi"):
            return hosts > 0
        if "include" in options:
            hosts = min(hosts, str(options["include"]).count("@") + 1)
        return hosts > 1 and options.get("num_nodes") != 1

    def loses(self, name: str) -> bool:
        """Whether an environment variable does not reach all processes that the launcher starts."""
        if self.kind == "srun":
            # Slurm's default is --export=ALL; a list without ALL passes on what it names.
            handed = [word.partition("=")[0] for word in str(self.options.get("export", "ALL")).split(",")]
            return "ALL" not in handed and name not in handed
        return self.other_machines and not name.startswith(PRINTED)

    @property
    def processes(self) -> tuple[int, int] | None:
        """The number of processes in all and on each machine; None if only the launcher knows."""
        options = self.options
        if self.kind == "python":
            return 1, 1
        if self.kind == "deepspeed":
            each, machines = options.get("num_gpus"), options.get("num_nodes", 1)
            # The hostfile then decides how many machines take part, unless their number is given.
            if "hostfile" in options or "include" in options:
                machines = options.get("num_nodes")
        elif self.kind == "torchrun":
            each, machines = options.get("nproc_per_node", 1), options.get("nnodes", 1)
        else:
            each = options.get("nproc_per_node") or options.get("gpus_per_node") or 1
            machines = options.get("nodes", 1)
        if not isinstance(each, int) or not isinstance(machines, int):
            return None
        return each * machines, each


def read_launcher(item: Positioned, problems: list[UserError]) -> Launcher:
    """The launcher that `python` or `deepspeed: {num_gpus: 2}` means; adds what is wrong to `problems`."""
    if isinstance(item.value, str):
        kind, options = item, Positioned({}, item.place)
    elif isinstance(item.value, dict) and len(item.value) == 1:
        ((name, options),) = item.value.items()
        kind = Positioned(name, options.name_place)
    else:
        problems.append(
            ArgumentError("launcher needs one name", place=item.place, fix="python, or deepspeed: {num_gpus: 2}")
        )
        return Launcher()
    if kind.value not in OPTIONS:
        problems.append(
            ArgumentError(f"there is no launcher {kind.value}", place=kind.place, fix=f"one of: {', '.join(OPTIONS)}")
        )
        return Launcher()
    found = options.mapping(f"launcher {kind.value}", problems)
    problems += _unknown(kind.value, found)
    launcher = Launcher(
        kind.value, {name: _number(child.plain) for name, child in found.items() if child.value is not None}
    )
    problems += too_many(launcher, kind.place)
    return launcher


def too_many(launcher: Launcher, place: str) -> Iterator[UserError]:
    """A problem of more processes on a machine than any has memory for: the launcher would end in a traceback."""
    _, each = launcher.processes or (0, 0)
    most = max(_SOME_PROCESSES, psutil.virtual_memory().total // _BYTES_OF_A_PROCESS)
    if each > most:
        yield ArgumentError(
            f"there is no memory for {each} processes on a machine", place=place, fix=f"one a GPU; at most {most} here"
        )


def _number(value: Any) -> Any:
    """The value as a number if it is one in text: what the environment gives (`num_gpus: ${env.GPUS:-2}`) is text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _unknown(kind: str, options: dict[str, Positioned]) -> Iterator[UserError]:
    for name, child in options.items():
        if name not in OPTIONS[kind]:
            fix = did_you_mean(name, OPTIONS[kind]) or f"one of: {', '.join(OPTIONS[kind]) or 'none'}"
            yield ArgumentError(f"{kind} has no option {name}", place=child.name_place, fix=fix)


def _hosts(hostfile: object) -> int:
    """The number of machines in a hostfile; 0 without one: DeepSpeed then starts all processes here."""
    try:
        lines = read_bytes(str(hostfile), limit=MIB).decode(errors="replace").splitlines()
    except UserError:
        return 0
    return len({line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")})


def _flags(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        # Switches of argparse: there is no way to write that one is off.
        if value is False:
            continue
        yield f"--{name}"
        if value is not True:
            yield str(value)


MERGE, ASK = "merge", "ask"
"""Scripts of steps that train nothing, with `EVALUATE` and `SAMPLE`."""
COMMANDS = {
    ASK: "hftune.arguments.asking:AskArguments",
    EVALUATE: "hftune.arguments.asking:EvaluateArguments",
    SAMPLE: "hftune.arguments.asking:SampleArguments",
}
"""Subcommands of hftune that are steps, and the classes of their arguments."""


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: `sft`, `merge sft`, `lr=1e-4/sft`.
        stage: Name of the stage in the file.
        script: "pt", "sft", "rm", "dpo", "rl", `MERGE`, or one of `COMMANDS`.
        folder: Its output folder.
        arguments: Name to values, as the script is given them; `output_dir` is one of them.
        places: Name to `file:line`.
        place: `file:line` of the stage.
        env: Environment variables in addition to the runner's own.
        needs: Names of the steps whose results it reads.
        gates: Of an evaluation: what it must come to, or the pipeline stops.
    """

    name: str
    stage: str
    script: str
    folder: Path
    arguments: dict[str, list[str]]
    places: dict[str, str]
    place: str
    launcher: Launcher = field(default_factory=Launcher)
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it is a stage of training."""
        return self.script in STAGES

    @property
    def argv(self) -> list[str]:
        """The arguments as words of a command line."""
        return [token for name, values in self.arguments.items() for token in (f"--{name}", *values)]

    def command(self, *more: str) -> list[str]:
        """The whole command; `more` follows the arguments."""
        if self.script in COMMANDS:
            words = [self.script, *self.argv, *more]
            alone = self.launcher.kind == "python"
            return ["hftune", *words] if alone else self.launcher.wrap_module("hftune.cli", words)
        name = "merge_peft_adapter.py" if self.script == MERGE else f"run_{self.script}.py"
        return self.launcher.wrap(_own(name), [*self.argv, *more])


def _own(name: str) -> str:
    """The path of one of hftune's scripts: never a file of that name in the working folder."""
    path = child_processes.script(name)
    if not Path(path).is_file():
        raise ArgumentError(
            f"{name} is not there, so that no stage can be started",
            place=path,
            fix="install hftune again (pip install --force-reinstall --no-deps hftune), or from its sources: "
            "pip install -e FOLDER",
        )
    return path
