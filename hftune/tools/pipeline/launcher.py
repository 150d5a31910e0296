"""The launcher of a step: its options in a file, and the command line that it makes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from hftune.errors import ArgumentError, shown
from hftune.tools.pipeline.spec import Block

KINDS = ("python", "deepspeed", "torchrun", "srun")
_SRUN_OWN = ("nproc_per_node", "master_port")  # told to the torchrun on each machine, not to srun
# What Python takes with torch, before any model; and processes that another machine may have room for.
_BYTES_OF_A_PROCESS, _SOME_PROCESSES = 1 << 27, 64
_MANY_MACHINES = ("hostfile", "num_nodes", "nnodes", "include", "node_rank", "master_addr", "rdzv_endpoint")


@dataclass(frozen=True)
class Launcher:
    """The launcher of a step and its options.

    Args:
        kind: One of `KINDS`.
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


def read_launcher(given: Any, place: str) -> Launcher:
    """The launcher that `python` or `deepspeed: {num_gpus: 2}` means; None: python.

    Raises:
        ArgumentError: No such launcher, or more processes than a machine has room for.
    """
    kind = next(iter(given)) if isinstance(given, dict) and len(given) == 1 else given
    if kind is None:
        return Launcher()
    if kind not in KINDS:
        fix = f"one of: {', '.join(KINDS)}; or deepspeed: {{num_gpus: 2}}"
        raise ArgumentError(f"there is no launcher {shown(kind)}", place=place, fix=fix)
    # Of its options the launcher itself knows which there are.
    options = given.block(kind) if isinstance(given, Block) else {}
    launcher = Launcher(kind, {name: _number(value) for name, value in options.items() if value is not None})
    refuse_too_many(launcher, place)
    return launcher


def refuse_too_many(launcher: Launcher, place: str) -> None:
    """Refuse more processes on a machine than any has memory for: the launcher would end in a traceback."""
    _, each = launcher.processes or (0, 0)
    most = max(_SOME_PROCESSES, psutil.virtual_memory().total // _BYTES_OF_A_PROCESS)
    if each > most:
        cause = f"there is no memory for {each} processes on a machine"
        raise ArgumentError(cause, place=place, fix=f"one a GPU; at most {most} here")


def _number(value: Any) -> Any:
    """The value as a number if it is one in text: what the environment gives (`num_gpus: ${env.GPUS:-2}`) is text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _flags(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        # Switches of argparse: there is no way to write that one is off.
        if value is False:
            continue
        yield f"--{name}"
        if value is not True:
            yield str(value)
