"""Whether processes that DeepSpeed's launcher starts on this machine reach each other, and how fast."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from hftune import child_processes
from hftune.tools.doctor.findings import FINE, WRONG, Finding
from hftune.tools.doctor.machine import LAUNCHED

TOPIC = "launch"
MET = "hftune doctor: "
"""What the line of rank 0 begins with."""
PATIENCE = 180.0
"""Seconds until processes that have not met are given up: starting takes ten."""

# Looked for in all that the processes print: the last line is often the launcher's and names no cause.
HINTS = {
    "Address already in use": "another run listens on that port: --master_port 29501",
    "No such device": "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that is not here",
    "No space left on device": "/dev/shm is full: start the container with --shm-size 8g",
}


def check_launch(processes: int) -> Iterator[Finding]:
    """Start so many processes through `deepspeed`, and have them add up a tensor."""
    launcher = child_processes.program("deepspeed")
    if launcher is None:
        yield Finding(TOPIC, "DeepSpeed is not installed", WRONG, "pip install deepspeed")
        return
    yield run_all_reduce(
        [launcher, "--num_gpus", str(processes), "--module", "hftune.tools.doctor.all_reduce"], processes
    )


def run_all_reduce(command: list[str], processes: int, patience: float = PATIENCE) -> Finding:
    """Run the command and return what its processes found, or why they did not reach each other."""
    # Left over from another launcher, each process would take the same rank from them.
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    with child_processes.start(
        command,
        env=environment,
        stdout=child_processes.PIPE,
        stderr=child_processes.STDOUT,
        text=True,
        # A process group of its own: killing it below ends the launcher and all that it has started.
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=patience)
        except child_processes.TimeoutExpired:
            # SIGKILL, to all of them: the launcher handles SIGTERM itself, and what hangs must not be waited for.
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            output += f"\nnothing within {patience:g} s"
    # The launcher mixes what all processes print with lines of its own.
    met = re.search(f"^{MET}(.*)$", output, re.MULTILINE)
    if met is None or process.returncode:
        last = [line for line in output.splitlines() if line.strip()][-1:] or ["it said nothing"]
        fix = next((fix for sign, fix in HINTS.items() if sign in output), "set NCCL_DEBUG=INFO and try again")
        return Finding(TOPIC, f"{processes} processes did not meet: {last[0][:200]}", WRONG, fix)
    said = json.loads(met[1])
    if said["processes"] == 1:
        return Finding(TOPIC, f"a process of DeepSpeed's launcher started, with {said['backend']}", FINE)
    rate = f"{said['bytes'] / 2**20:.0f} MiB all-reduced at {said['bytes_per_second'] / 1e9:.1f} GB/s"
    return Finding(TOPIC, f"{said['processes']} processes met by {said['backend']}, {rate}", FINE)
