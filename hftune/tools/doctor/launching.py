"""Whether processes that DeepSpeed's launcher starts on this machine reach each other, and how fast.

deepspeed --num_gpus N --module hftune.tools.doctor.launching      one of the processes
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from hftune import child_processes
from hftune.tools.doctor.findings import FINE, WRONG, Finding
from hftune.tools.doctor.machine import LAUNCHED
from hftune.visible import say

TOPIC = "launch"
MET = "hftune doctor: "
"""What the line of rank 0 begins with."""
PATIENCE = 180.0
"""Seconds until processes that have not met are given up: starting takes ten."""
SIZE = 64 * 2**20
"""Bytes that are added up."""

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
    yield run_all_reduce([launcher, "--num_gpus", str(processes), "--module", __name__], processes)


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
    if met and not process.returncode:
        return Finding(TOPIC, met[1], FINE)
    last = [line for line in output.splitlines() if line.strip()][-1:] or ["it said nothing"]
    fix = next((fix for sign, fix in HINTS.items() if sign in output), "set NCCL_DEBUG=INFO and try again")
    return Finding(TOPIC, f"{processes} processes did not meet: {last[0][:200]}", WRONG, fix)


def main() -> None:
    """One of the processes: each checks its sum, and rank 0 prints the result.

    The rate counts what a ring sends: 2 (n - 1) / n of the bytes for each process.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.full((SIZE // 4,), float(rank + 1), device="cuda" if on_gpu else "cpu")
    # The first one checks the sum. It also builds the connections, which with NCCL takes seconds: it is not timed.
    dist.all_reduce(numbers)
    wanted = size * (size + 1) / 2
    if float(numbers[0]) != wanted or float(numbers[-1]) != wanted:
        raise SystemExit(f"{size} processes added up to {float(numbers[0])} instead of {wanted}")
    # The fastest counts: slower rounds measure what else the machine does.
    rate = 2 * (size - 1) / size * SIZE / min(_seconds(numbers) for _ in range(3))
    speed = f", {SIZE / 2**20:.0f} MiB all-reduced at {rate / 1e9:.1f} GB/s" if size > 1 else ""
    if rank == 0:
        say(f"\n{MET}{size} process{'es' * (size > 1)} met by {dist.get_backend()}{speed}", flush=True)
    dist.destroy_process_group()


def _seconds(numbers: torch.Tensor) -> float:
    # All begin together: otherwise a process that came early would be timed while it waits.
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(numbers)
    # NCCL only queues the operation: the clock is read when the GPU has done it.
    if numbers.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
